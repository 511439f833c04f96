"""How values are written into columns: JSON text, and times as microseconds."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from functools import lru_cache
from typing import Any

import msgspec

from hopyard.domain.attempt import Exit, ReplicaStatus
from hopyard.domain.cluster import Node
from hopyard.domain.gang import Assignment, Role
from hopyard.domain.run import RunSpec

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_SECOND = 1_000_000

_encode = msgspec.json.Encoder().encode
_encode_sorted = msgspec.json.Encoder(order="deterministic").encode
_decode_spec = msgspec.json.Decoder(RunSpec).decode
_decode_exit = msgspec.json.Decoder(Exit).decode
_decode_node = msgspec.json.Decoder(Node).decode
_decode_roles = msgspec.json.Decoder(tuple[Role, ...]).decode
_decode_replicas = msgspec.json.Decoder(tuple[ReplicaStatus, ...]).decode
_decode_placement = msgspec.json.Decoder(tuple[tuple[str, tuple[int, ...]], ...]).decode


def to_us(when: datetime) -> int:
    """Microseconds since 1970. `when` is aware."""
    span = when - _EPOCH
    return (span.days * 86_400 + span.seconds) * _SECOND + span.microseconds


def from_us(microseconds: int) -> datetime:
    return _EPOCH + timedelta(microseconds=microseconds)


def from_us_or_none(microseconds: int | None) -> datetime | None:
    return None if microseconds is None else from_us(microseconds)


def encode_spec(spec: RunSpec) -> str:
    text = _encode(spec).decode()
    # JSON has no NaN and no infinity, and msgspec writes them as null; Python's own dialect keeps them.
    return text if "null" not in text else _keep_non_finite(spec, text)


def _keep_non_finite(spec: RunSpec, text: str) -> str:
    if all(not isinstance(value, float) or value - value == 0.0 for value in spec.params.values()):
        return text
    return json.dumps(msgspec.to_builtins(spec), separators=(",", ":"))


def decode_spec(text: str) -> RunSpec:
    try:
        return _decode_spec(text)
    except msgspec.DecodeError:
        return msgspec.convert(json.loads(text), RunSpec)


def fingerprint(spec: RunSpec) -> str:
    """Equal for equal specs, whatever the order of their mappings."""
    return hashlib.blake2b(_encode_sorted(spec), digest_size=16).hexdigest()


def encode_map(values: Mapping[str, Any]) -> str:
    """A flat mapping of names to JSON values, numbers that are not finite included."""
    return json.dumps(dict(values), separators=(",", ":")) if values else "{}"


def decode_map(text: str) -> dict[str, Any]:
    return {} if text == "{}" else json.loads(text)


def encode_exit(exit: Exit | None) -> str | None:
    return None if exit is None else _encode(exit).decode()


def decode_exit(text: str | None) -> Exit | None:
    return None if text is None else _decode_exit(text)


def encode_node(node: Node) -> str:
    return _encode_sorted(node).decode()


def decode_node(text: str) -> Node:
    return _decode_node(text)


# Most gangs of a long queue ask for the same: their roles are decoded once and shared.
@lru_cache(maxsize=4096)
def decode_roles(text: str) -> tuple[Role, ...]:
    return _decode_roles(text)


def encode_roles(spec: RunSpec) -> str:
    return _encode(spec.gang_roles()).decode()


def encode_replicas(replicas: tuple[ReplicaStatus, ...]) -> str:
    return _encode(replicas).decode()


def decode_replicas(text: str) -> tuple[ReplicaStatus, ...]:
    return _decode_replicas(text)


def encode_placement(assignments: tuple[Assignment, ...]) -> str:
    return _encode([(a.node, a.gpus) for a in assignments]).decode()


@lru_cache(maxsize=4096)
def decode_placement(text: str) -> tuple[tuple[str, tuple[int, ...]], ...]:
    """Node and GPUs of each rank."""
    return _decode_placement(text)
