"""Encodes values as columns: JSON text, and times as microseconds."""

from __future__ import annotations

import hashlib
import json
import sys
from array import array
from collections.abc import Mapping, Sequence
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from functools import lru_cache
from typing import Any, get_type_hints

import msgspec

from hopyard.domain.attempt import Exit, ReplicaStatus
from hopyard.domain.cluster import Node
from hopyard.domain.gang import Assignment, Role, Topology
from hopyard.domain.ids import GangId, NodeId
from hopyard.domain.notification import Alert
from hopyard.domain.queue import QueueTree
from hopyard.domain.replica import StopOrder
from hopyard.domain.reservation import Reservation
from hopyard.domain.resources import WHOLE_GPU
from hopyard.domain.run import RoleSpec, RunSpec
from hopyard.domain.spec_summary import summarise_spec

UNREADABLE_ROLE = RoleSpec(())
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_US_PER_S = 1_000_000


class GangRequest(msgspec.Struct, frozen=True):
    """The part of a request that many runs share."""

    roles: tuple[Role, ...]
    topology: Topology | None = None
    time_limit_s: float | None = None
    preemptible: bool = True
    follows: GangId | None = None


class _StoredAssignment(msgspec.Struct, array_like=True, omit_defaults=True):
    node: NodeId
    gpus: tuple[int, ...]
    gpu_milli: int = WHOLE_GPU


# made at the import, see CONTRIBUTING.md
_encode = msgspec.json.Encoder().encode
_encode_sorted = msgspec.json.Encoder(order="deterministic").encode
_decode_spec = msgspec.json.Decoder(RunSpec).decode
_decode_exit = msgspec.json.Decoder(Exit).decode
_decode_stop_order = msgspec.json.Decoder(StopOrder).decode
_decode_node = msgspec.json.Decoder(Node).decode
_decode_gang_request = msgspec.json.Decoder(GangRequest).decode
_decode_map = msgspec.json.Decoder(dict[str, Any]).decode
_decode_words = msgspec.json.Decoder(tuple[str, ...]).decode
_decode_counts = msgspec.json.Decoder(tuple[int, ...]).decode
_decode_tree = msgspec.json.Decoder(QueueTree).decode
_decode_reservation = msgspec.json.Decoder(Reservation).decode
_decode_replicas = msgspec.json.Decoder(tuple[ReplicaStatus, ...]).decode
decode_alert = msgspec.json.Decoder(Alert).decode
_decode_placement = msgspec.json.Decoder(tuple[_StoredAssignment, ...]).decode


def to_us(when: datetime) -> int:
    """Returns microseconds since 1970. `when` must be aware."""
    span = when - _EPOCH
    return (span.days * 86_400 + span.seconds) * _US_PER_S + span.microseconds


def from_us(microseconds: int) -> datetime:
    return _EPOCH + timedelta(microseconds=microseconds)


def from_us_or_none(microseconds: int | None) -> datetime | None:
    return None if microseconds is None else from_us(microseconds)


def encode_spec(spec: RunSpec) -> str:
    text = _encode(spec).decode()
    # JSON has neither NaN nor infinity, and msgspec writes them as null. Python's JSON dialect keeps them.
    return text if "null" not in text else _keep_non_finite(spec, text)


def spec_columns(spec: RunSpec) -> dict[str, Any]:
    """Returns the columns of a spec in `run_contents`: the full spec, and a brief one for listings if it
    differs."""
    brief = summarise_spec(spec)
    return {"spec": encode_spec(spec), "brief": None if brief == spec else encode_spec(brief)}


def _keep_non_finite(spec: RunSpec, text: str) -> str:
    if all(not isinstance(value, float) or value - value == 0.0 for value in spec.params.values()):
        return text
    return json.dumps(msgspec.to_builtins(spec), separators=(",", ":"))


def decode_spec(text: str) -> RunSpec:
    """Decodes the spec of a run. A damaged spec is decoded as far as possible.

    Such a spec may come from a fault or another version. It must not prevent listings, and its run can be
    stopped and removed. A role without a command replaces unreadable roles.
    """
    try:
        return _decode_spec(text)
    except msgspec.DecodeError:
        pass
    fields: Any = None
    try:
        fields = json.loads(text)  # Python's JSON dialect, see `encode_spec`
        return msgspec.convert(fields, RunSpec)
    except (ValueError, RecursionError):
        return _recover_spec(fields if isinstance(fields, dict) else {})


def _recover_spec(fields: Mapping[str, Any]) -> RunSpec:
    values: dict[str, Any] = {"project": "unreadable", "roles": (UNREADABLE_ROLE,)}
    for name, field_type in get_type_hints(RunSpec).items():
        if name in fields:
            with suppress(ValueError, RecursionError):
                values[name] = msgspec.convert(fields[name], field_type)
    return RunSpec(**values)


def fingerprint(spec: RunSpec) -> str:
    """Returns a hash that is equal for equal specs, for any order of their mappings."""
    return hashlib.blake2b(_encode_sorted(spec), digest_size=16).hexdigest()


def encode_map(values: Mapping[str, Any]) -> str:
    """Encodes a flat mapping of names to JSON values, NaN and infinities included."""
    return json.dumps(dict(values), separators=(",", ":")) if values else "{}"


def decode_map(text: str) -> dict[str, Any]:
    if text == "{}":
        return {}
    try:
        return _decode_map(text)
    except msgspec.DecodeError:
        values: dict[str, Any] = json.loads(text)  # Python's JSON dialect, slower
        return values


def encode_exit(exit: Exit | None) -> str | None:
    return None if exit is None else _encode(exit).decode()


def decode_exit(text: str | None) -> Exit | None:
    return None if text is None else _decode_exit(text)


def encode_stop_order(order: StopOrder) -> str:
    return _encode(order).decode()


def decode_stop_order(text: str | None) -> StopOrder | None:
    return None if text is None else _decode_stop_order(text)


def encode_node(node: Node) -> str:
    return _encode_sorted(node).decode()


def decode_node(text: str) -> Node:
    return _decode_node(text)


# Most gangs of a long queue have the same request: it is decoded once and shared.
@lru_cache(maxsize=4096)
def decode_gang_request(text: str) -> GangRequest:
    """Decodes a request. An unreadable one becomes an empty request, see `decode_spec`."""
    try:
        return _decode_gang_request(text)
    except msgspec.DecodeError:
        return GangRequest((Role(UNREADABLE_ROLE.name, UNREADABLE_ROLE.replicas, UNREADABLE_ROLE.resources),))


def encode_gang_request(spec: RunSpec) -> str:
    return _encode(
        GangRequest(spec.gang_roles(), spec.topology, spec.time_limit_s, spec.preemptible, spec.follows)
    ).decode()


@lru_cache(maxsize=4096)
def decode_words(text: str) -> tuple[str, ...]:
    return () if text == "[]" else _decode_words(text)


def encode_words(words: Sequence[str]) -> str:
    return _encode(words).decode() if words else "[]"


def encode_tree(tree: QueueTree) -> str:
    return _encode(tree).decode()


def decode_tree(text: str) -> QueueTree:
    return _decode_tree(text)


def encode_reservation(reservation: Reservation) -> str:
    return _encode(reservation).decode()


def decode_reservation(text: str) -> Reservation:
    return _decode_reservation(text)


def encode_seconds(seconds: Sequence[float]) -> bytes:
    packed = array("d", seconds)
    if sys.byteorder == "big":
        packed.byteswap()
    return packed.tobytes()


def decode_seconds(packed: bytes) -> tuple[float, ...]:
    seconds = array("d", packed)
    if sys.byteorder == "big":
        seconds.byteswap()
    return tuple(seconds)


def encode_replicas(replicas: tuple[ReplicaStatus, ...]) -> str:
    return _encode(replicas).decode()


def decode_replicas(text: str) -> tuple[ReplicaStatus, ...]:
    return _decode_replicas(text)


def encode_placement(assignments: Sequence[Assignment]) -> str:
    return _encode(
        [
            _StoredAssignment(assignment.node, assignment.gpus, assignment.gpu_milli)
            for assignment in assignments
        ]
    ).decode()


@lru_cache(maxsize=4096)
def decode_placement(text: str) -> tuple[Assignment, ...]:
    """Decodes a placement; `result[i]` has rank i."""
    return tuple(
        Assignment(rank, stored.node, stored.gpus, stored.gpu_milli)
        for rank, stored in enumerate(_decode_placement(text))
    )


def encode_counts(counts: Sequence[int]) -> str:
    return _encode(counts).decode()


@lru_cache(maxsize=1024)
def decode_counts(text: str) -> tuple[int, ...]:
    return _decode_counts(text)
