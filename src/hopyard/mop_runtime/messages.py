"""The messages between the driver of a study and its workers, as JSON heads of frames.

A unit is one piece of work of a worker: to train a trial on a partition (a hop), or to evaluate a state on a
partition. Its id is unique in the study, so late and repeated messages are recognized. A message about a unit
repeats all identifying fields, so that a restarted driver understands the requests of an earlier one.

A state is named by the unit that produced it (letters, digits, `.`, `_`, `-`, at most 128). To hash 50 MB
takes longer than a hop may, so `DigestComputed` reports the digest later, while the next unit runs. `sources`
are the addresses (`host:port`) that serve a state, best first; () if it is in the store that the worker
shares. The driver serves states too.

A worker sends `Hello` first, then again all messages that were not acknowledged yet, in order. It sends
`Heartbeat` every second. It keeps its messages until an `Acknowledge` names the unit. If the connection
breaks, it continues its work and connects again.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
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
    """One worker's part of a unit: the partition that it reads, and the address at which the other members of
    the group reach it."""

    worker: WorkerId
    partition: PartitionId
    address: str


@dataclass(frozen=True, slots=True)
class UnitInProgress:
    """A unit that a worker has begun. state: its start state; "" for a new one. is_training: False for an
    evaluation. partitions: none for metrics of the whole validation set."""

    unit: UnitId
    trial: TrialId
    epoch: int
    partitions: tuple[PartitionId, ...]
    state: str
    is_training: bool


# -- worker -> driver ----------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Hello:
    """Introduces a worker.

    store_id: identifies the store of states; workers with the same id share it. address: where others fetch
    states from it and join a group. train, validation: its open partitions. states: the known states in its
    store. units_in_progress: units that it has begun and not ended, oldest first. supports_data_parallel: as
    in `Ready`; True before the code is loaded. opening: the id of the last `OpenPartitions` that it has not
    finished, of this or an earlier driver; then train and validation are those that it will have open.
    """

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
    opening: str = ""


@dataclass(frozen=True, slots=True)
class Ready:
    """All requested partitions are open. rows: of each partition, in order. supports_data_parallel: whether
    the user's code can train one state in several processes at once (a group). open_id: of the request; a
    driver ignores the answer to a request of an earlier driver."""

    train: tuple[PartitionId, ...]
    validation: tuple[PartitionId, ...]
    train_rows: tuple[int, ...]
    validation_rows: tuple[int, ...]
    seconds: float = 0.0
    supports_data_parallel: bool = True
    open_id: str = ""


@dataclass(frozen=True, slots=True)
class HopResult:
    """A hop succeeded: `state` is in the worker's store.

    began_at, ended_at: unix seconds of the training alone. fetch_s: time to fetch and decode the previous
    state. save_s: time to encode and store the new one. fetched_bytes: bytes received over the network. read:
    the parameters that the user's code has read; `*` for all. logged: by name, the mean of the values that it
    has logged. In a group every member sends this message, with the same state.
    """

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
    read: tuple[str, ...] = ()
    logged: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class DigestComputed:
    """The digest (BLAKE2b, 64 hex digits) of the state that a unit produced: sent once for each finished
    unit, soon after it."""

    unit: UnitId
    state: str
    digest: str


@dataclass(frozen=True, slots=True)
class EvaluationResult:
    """metrics: means over the partition's rows; NaN and infinities are allowed. gathered: what metrics of the
    whole set need of this partition is in the worker's store, under the name of the unit. read: as in
    `HopResult`."""

    unit: UnitId
    trial: TrialId
    epoch: int
    partition: PartitionId
    state: str
    metrics: Mapping[str, float]
    rows: int
    began_at: float
    ended_at: float
    gathered: bool = False
    read: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class MeasurementResult:
    """metrics: of a state on the whole validation set; NaN and infinities are allowed."""

    unit: UnitId
    trial: TrialId
    epoch: int
    state: str
    metrics: Mapping[str, float]
    began_at: float
    ended_at: float


@dataclass(frozen=True, slots=True)
class UnitFailure:
    """A unit failed, or (unit "") a partition or the user's code could not be opened.

    kind: `code`: the user's code raised an exception; `memory`: it ran out of memory; `state`: no source had
    the state; `group`: another member of the group disconnected; `cancelled`: it was cancelled; `partition`:
    its partition is not open; `open`: a partition or the code could not be opened. open_id: as in `Ready`,
    for `open`.
    """

    unit: UnitId
    kind: str
    error: str
    traceback: str = ""
    open_id: str = ""


@dataclass(frozen=True, slots=True)
class UnitProgress:
    """The progress of a unit, at most once a second. completed_share: between 0 and 1, None if unknown."""

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
    """The first message, repeated when the partitions change: open these, close others, load the user's code;
    then send `Ready`.

    dataset: the name under which the run mounts it. trainable, deterministic, threads: as in
    `domain.study.MopSpec`. open_id: unique among all drivers of the study; the answer repeats it.
    """

    train: tuple[PartitionId, ...]
    validation: tuple[PartitionId, ...]
    dataset: str
    plan: PartitionPlan
    trainable: str
    deterministic: bool = True
    threads: int = 0
    open_id: str = ""


@dataclass(frozen=True, slots=True)
class TrainUnit:
    """Train `trial` on this worker's partition.

    state "": start with `init(config)` under `seed`. budget: the trial's total epochs, for schedules.
    members: more than one is a group, in the order in which gradients are summed; every member gets the same
    message.
    """

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
    """training: evaluate on a training partition, if the study has none for validation."""

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
class GatheredOutputs:
    """What an evaluation gathered from a partition. name: in stores, like a state."""

    name: str
    sources: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class MeasureState:
    """Compute the metrics of the whole validation set. outputs: of its partitions, in their order."""

    unit: UnitId
    trial: TrialId
    epoch: int
    params: Mapping[str, ParamValue]
    budget: int
    seed: int
    state: str
    outputs: tuple[GatheredOutputs, ...]


@dataclass(frozen=True, slots=True)
class PrefetchState:
    """This state will probably be needed next: fetch and decode it while the current unit runs."""

    state: str
    sources: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Cancel:
    """Stop the unit as soon as possible, or do not begin it. Its messages are ignored and need no
    acknowledgement."""

    unit: UnitId


@dataclass(frozen=True, slots=True)
class DropStates:
    """These states are not needed any more."""

    states: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class SendStateToDriver:
    """Send this state to the driver over a new connection: another worker needs it and cannot
    reach this one."""

    state: str


@dataclass(frozen=True, slots=True)
class Acknowledge:
    """The results of these units are in the journal and need not be sent again. digest_units: units whose
    `DigestComputed` is, too."""

    units: tuple[UnitId, ...]
    digest_units: tuple[UnitId, ...] = ()


@dataclass(frozen=True, slots=True)
class Shutdown:
    """The study is over: exit. immediate: end the process at once, even during a unit."""

    reason: str = ""
    immediate: bool = False


FromWorker = (
    Hello
    | Ready
    | HopResult
    | DigestComputed
    | EvaluationResult
    | MeasurementResult
    | UnitFailure
    | UnitProgress
    | Heartbeat
)
FromDriver = (
    OpenPartitions
    | TrainUnit
    | EvaluateUnit
    | MeasureState
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
    """Returns a JSON object with the message's fields and its type. NaN and Infinity are written as in
    Python's `json`."""
    return {"message": type(message).__name__.lower(), **_json_fields(message)}


def _json_value(value: Any) -> Any:
    if isinstance(value, (str, int, float, bool)) or value is None:
        return value
    if isinstance(value, (tuple, list, frozenset)):
        return [_json_value(element) for element in value]
    if isinstance(value, Mapping):
        return {key: _json_value(element) for key, element in value.items()}
    return _json_fields(value)


def _json_fields(value: Any) -> dict[str, Any]:
    return {part.name: _json_value(getattr(value, part.name)) for part in fields(value)}


def from_head(head: Mapping[str, Any]) -> Message:
    """Parses a message. Raises SpecError, which names the field, for an invalid one."""
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
        return tuple(
            _read(get_args(expected_type)[0], element, f"{path}[{index}]")
            for index, element in enumerate(value)
        )
    if origin is UnionType:
        return _read_union(expected_type, value, path)
    if origin is not None:  # a mapping
        if not isinstance(value, dict):
            raise SpecError(f"{path}: an object is expected")
        value_type = get_args(expected_type)[1]
        return {str(key): _read(value_type, element, f"{path}.{key}") for key, element in value.items()}
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
            **{name: _read(hints[name], element, f"{path}.{name}") for name, element in value.items()}
        )
    except TypeError as error:
        raise SpecError(f"{path}: {error}") from error


def _read_union(expected_type: Any, value: Any, path: str) -> Any:
    for member in get_args(expected_type):
        if type(value) is member:
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
