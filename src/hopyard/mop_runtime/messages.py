"""What the driver of a study and its workers say to each other, as they stand in the JSON head of a frame.

A unit is what a worker does at a time: training a trial on a partition (a hop), or evaluating a state on a
partition. It has an id that no other unit of the study ever has, so late and repeated news is told from new;
news of a unit repeats all that identifies it, so that a driver that was killed and started again understands
what an earlier one asked for.

A state is named by the unit that made it (letters, digits, `.`, `_`, `-`, at most 128): hashing 50 MB takes
longer than a hop may, so `DigestComputed` tells its digest later, while the next unit is under way. `sources`
are addresses (`host:port`) of those who serve it, best first; () where it lies on the shelf that the worker
shares. The driver serves states too.

From a worker: first `Hello`, then, again, all news that was not acknowledged yet, in order; `Heartbeat` every
second whatever it does. Its news is kept until an `Acknowledge` names the unit. Where the connection breaks,
it goes on with what it does and connects again.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from functools import cache
from types import UnionType
from typing import Any, get_args, get_origin, get_type_hints

from hopyard.domain.ids import PartitionId, TrialId, WorkerId
from hopyard.domain.run import ParamValue
from hopyard.domain.study import PartitionPlan
from hopyard.errors import SpecError

UnitId = str


@dataclass(frozen=True, slots=True)
class UnitAssignment:
    """One worker's part of a unit: the partition that it reads, and where the others of its group reach
    it."""

    worker: WorkerId
    partition: PartitionId
    address: str


@dataclass(frozen=True, slots=True)
class UnitInProgress:
    """A unit that a worker has begun. state: what it began from; "" a fresh one.
    is_training: else it evaluates."""

    unit: UnitId
    trial: TrialId
    epoch: int
    partitions: tuple[PartitionId, ...]
    state: str
    is_training: bool


# -- worker -> driver ----------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Hello:
    """store_id: identifies the folder of states (workers that say the same share it). address: where others
    fetch states from it and meet it for a group. train, validation: the partitions that are open. states:
    those on its shelf that it knows of. units_in_progress: the units that it has begun and not ended, oldest
    first. supports_data_parallel: as of `Ready`; true where it has loaded no code yet."""

    worker: WorkerId
    pid: int
    host: str
    store_id: str
    address: str
    train: tuple[PartitionId, ...] = ()
    validation: tuple[PartitionId, ...] = ()
    states: tuple[str, ...] = ()
    units_in_progress: tuple[UnitInProgress, ...] = ()
    supports_data_parallel: bool = True


@dataclass(frozen=True, slots=True)
class Ready:
    """All partitions that it was told to open are open. rows: of each, by its number. supports_data_parallel:
    whether the user's code can train one state in several processes at once (a group)."""

    train: tuple[PartitionId, ...]
    validation: tuple[PartitionId, ...]
    train_rows: tuple[int, ...]
    validation_rows: tuple[int, ...]
    seconds: float = 0.0
    supports_data_parallel: bool = True


@dataclass(frozen=True, slots=True)
class HopResult:
    """A hop ended well: `state` is on its shelf. began_at, ended_at: seconds since 1970, of the training
    alone. fetch_s: until the state before was there and decoded; save_s: until the new one was encoded and on
    the shelf. fetched_bytes: what came over the network. In a group every member says this, all with the same
    state."""

    unit: UnitId
    trial: TrialId
    epoch: int
    partitions: tuple[PartitionId, ...]
    start_from: str
    state: str
    bytes: int
    began_at: float
    ended_at: float
    fetch_s: float = 0.0
    save_s: float = 0.0
    fetched_bytes: int = 0


@dataclass(frozen=True, slots=True)
class DigestComputed:
    """The digest (BLAKE2b, 64 hex digits) of the state that a unit made: once for each unit that finished,
    soon after."""

    unit: UnitId
    state: str
    digest: str


@dataclass(frozen=True, slots=True)
class EvaluationResult:
    """metrics: means over the partition's rows; NaN and infinities as they are."""

    unit: UnitId
    trial: TrialId
    epoch: int
    partition: PartitionId
    state: str
    metrics: Mapping[str, float]
    rows: int
    began_at: float
    ended_at: float


@dataclass(frozen=True, slots=True)
class UnitFailure:
    """A unit ended badly, or (unit "") a partition or the user's code could not be opened.

    kind: `code` the user's code raised; `memory` it ran out of memory; `state` no source had the state;
    `group` another member of the group went away; `cancelled` it was told to stop; `open` a partition or the
    code could not be opened.
    """

    unit: UnitId
    kind: str
    error: str
    traceback: str = ""


@dataclass(frozen=True, slots=True)
class UnitProgress:
    """How far a unit is, at most once a second. completed_share: share between 0 and 1, None where it cannot
    be known."""

    unit: UnitId
    seconds: float
    completed_share: float | None = None


@dataclass(frozen=True, slots=True)
class Heartbeat:
    """rss_bytes: memory of the process."""

    rss_bytes: int = 0


# -- driver -> worker ----------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class OpenPartitions:
    """First of all, and again when its partitions change: open these (and close others), load the user's
    code; then `Ready`.

    dataset: the name that the run mounts. trainable, deterministic, threads: as of `domain.study.MopSpec`.
    """

    train: tuple[PartitionId, ...]
    validation: tuple[PartitionId, ...]
    dataset: str
    plan: PartitionPlan
    trainable: str
    deterministic: bool = True
    threads: int = 0


@dataclass(frozen=True, slots=True)
class TrainUnit:
    """Train `trial` on the partition of this worker's member. state "": begin with `init(config)` under
    `seed`. budget: epochs that the trial may do in all, for schedules. members: more than one is a group, in
    the order in which gradients are summed; every member gets the same message."""

    unit: UnitId
    trial: TrialId
    epoch: int
    params: Mapping[str, ParamValue]
    budget: int
    seed: int
    state: str
    members: tuple[UnitAssignment, ...]
    sources: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class EvaluateUnit:
    """training: on a partition of the training data, where the study has none for validation."""

    unit: UnitId
    trial: TrialId
    epoch: int
    params: Mapping[str, ParamValue]
    budget: int
    seed: int
    state: str
    partition: PartitionId
    training: bool = False
    sources: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class PrefetchState:
    """This state will probably be asked for next: fetch and decode it while the present unit runs."""

    state: str
    sources: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Cancel:
    """Stop it as soon as may be, or never begin it; its news is of no interest any more and needs no
    acknowledgement."""

    unit: UnitId


@dataclass(frozen=True, slots=True)
class DropStates:
    """Nobody needs these states any more."""

    states: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class SendStateToDriver:
    """Give this state to the driver, over a connection of your own: somebody wants it who cannot reach
    you."""

    state: str


@dataclass(frozen=True, slots=True)
class Acknowledge:
    """The news of these units is in the journal: it need not be told again.
    digest_units: those whose `DigestComputed` is, too."""

    units: tuple[UnitId, ...]
    digest_units: tuple[UnitId, ...] = ()


@dataclass(frozen=True, slots=True)
class Shutdown:
    """The study is over: leave. immediate: whatever it is at; its process ends at once."""

    reason: str = ""
    immediate: bool = False


FromWorker = (
    Hello | Ready | HopResult | DigestComputed | EvaluationResult | UnitFailure | UnitProgress | Heartbeat
)
FromDriver = (
    OpenPartitions
    | TrainUnit
    | EvaluateUnit
    | PrefetchState
    | Cancel
    | DropStates
    | SendStateToDriver
    | Acknowledge
    | Shutdown
)
Message = FromWorker | FromDriver

_MESSAGE_TYPES: dict[str, type[Any]] = {kind.__name__.lower(): kind for kind in get_args(Message)}


def to_head(message: Message) -> dict[str, Any]:
    """As a JSON object: its fields, and which `message` it is.
    JSON's NaN and Infinity are as Python's `json` writes them."""
    return {"message": type(message).__name__.lower(), **_json_fields(message)}


def _json_value(value: Any) -> Any:
    if isinstance(value, (str, int, float, bool)) or value is None:
        return value
    if isinstance(value, (tuple, list, frozenset)):
        return [_json_value(one) for one in value]
    if isinstance(value, Mapping):
        return {key: _json_value(one) for key, one in value.items()}
    return _json_fields(value)


def _json_fields(value: Any) -> dict[str, Any]:
    return {one.name: _json_value(getattr(value, one.name)) for one in fields(value)}


def from_head(head: Mapping[str, Any]) -> Message:
    """Raises SpecError where it is no message, naming the field."""
    kind = _MESSAGE_TYPES.get(str(head.get("message")))
    if kind is None:
        raise SpecError(
            f"`{str(head.get('message'))[:40]}` is not a message type",
            hints=(f"one of {', '.join(sorted(_MESSAGE_TYPES))}",),
        )
    message: Message = _read(
        kind, {key: value for key, value in head.items() if key != "message"}, str(head["message"])
    )
    return message


@cache
def _hints(kind: type[Any]) -> dict[str, Any]:
    return get_type_hints(kind)


def _read(expected_type: Any, value: Any, path: str) -> Any:
    expected_type = getattr(expected_type, "__supertype__", expected_type)
    origin = get_origin(expected_type)
    if expected_type is Any:
        return value
    if origin is tuple:
        if not isinstance(value, list):
            raise SpecError(f"{path}: a list is expected")
        return tuple(_read(get_args(expected_type)[0], one, f"{path}[{at}]") for at, one in enumerate(value))
    if origin is UnionType:
        return _read_union(expected_type, value, path)
    if origin is not None:  # a mapping
        if not isinstance(value, dict):
            raise SpecError(f"{path}: an object is expected")
        of = get_args(expected_type)[1]
        return {str(key): _read(of, one, f"{path}.{key}") for key, one in value.items()}
    if expected_type in (str, int, float, bool, type(None)):
        return _read_scalar(expected_type, value, path)
    if not isinstance(value, dict):
        raise SpecError(f"{path}: an object is expected")
    hints = _hints(expected_type)
    unknown = value.keys() - hints.keys()
    if unknown:
        raise SpecError(f"{path}: unknown field `{min(unknown)[:40]}`")
    try:
        return expected_type(
            **{name: _read(hints[name], one, f"{path}.{name}") for name, one in value.items()}
        )
    except TypeError as missing:
        raise SpecError(f"{path}: {missing}") from missing


def _read_union(expected_type: Any, value: Any, path: str) -> Any:
    for one in get_args(expected_type):
        if type(value) is one:
            return value
    if float in get_args(expected_type):
        return _read_scalar(float, value, path)
    raise SpecError(f"{path}: a value of this kind is not expected")


def _read_scalar(expected_type: type[Any], value: Any, path: str) -> Any:
    if expected_type is float and type(value) is int:
        return float(value)
    if type(value) is not expected_type:
        raise SpecError(f"{path}: expected {expected_type.__name__}, not {type(value).__name__}")
    return value
