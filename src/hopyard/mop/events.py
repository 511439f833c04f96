"""The events that a model hopper coordinator receives, and the instructions that it returns.

After Nakandala et al., "Cerebro: A Data System for Optimized Deep Learning Model Selection" (VLDB 2020). The
data is divided into partitions, with one copy of each. A trial trains on one partition, then its state hops
to the next. An epoch ends when the trial was on each partition once; each of these is a visit. A hop is one
trial on one partition, or on several at once if workers would be idle. A unit is a hop, or the evaluation of
a state on one partition; both are numbered from one sequence."""

from __future__ import annotations

from dataclasses import dataclass

from hopyard.domain.ids import PartitionId, TrialId, WorkerId


@dataclass(frozen=True, slots=True)
class TrialAdmitted:
    """Train the trial until it has done `epochs` epochs in total. It resumes from the state named
    `checkpoint`, which has done `epoch` epochs and, of the next one, the partitions `visited`. cost: the cost
    of a hop compared with other trials, if it is known in advance (None: it is learned). order: partitions
    that its next hops visit, one after another, before the coordinator chooses freely (lost hops are repeated
    in the same order). For a trial that is training already, only a larger `epochs` counts: it is extended.
    first_partition: if all else is equal, the trial visits the partitions in turn from this one on,
    independently of the order of admission; None: by the order of admission. extra_visits: the partitions of
    one more epoch on which it trains after the `epochs` full ones."""

    trial: TrialId
    epochs: int
    checkpoint: str
    cost: float | None = None
    epoch: int = 0
    visited: frozenset[PartitionId] = frozenset()
    order: tuple[PartitionId, ...] = ()
    first_partition: int | None = None
    extra_visits: int = 0


@dataclass(frozen=True, slots=True)
class TrialWithdrawn:
    """A searcher stopped or paused the trial, or it failed permanently. Its unit is cancelled, and it gets no
    more units."""

    trial: TrialId


@dataclass(frozen=True, slots=True)
class WorkerJoined:
    """Also sent when the partitions of a worker change. speed: cost per second, if known."""

    worker: WorkerId
    partitions: frozenset[PartitionId]
    speed: float | None = None
    validation: frozenset[PartitionId] = frozenset()


@dataclass(frozen=True, slots=True)
class WorkerLost:
    worker: WorkerId


@dataclass(frozen=True, slots=True)
class HopFinished:
    """checkpoint: the name of the new state. seconds: the training time."""

    hop: int
    checkpoint: str
    seconds: float


@dataclass(frozen=True, slots=True)
class EvaluationRequested:
    """Requests the evaluation of this state on these validation partitions. A report that is due requests it
    implicitly. epoch: that of the last visit."""

    trial: TrialId
    epoch: int
    checkpoint: str
    partitions: frozenset[PartitionId]


@dataclass(frozen=True, slots=True)
class EvaluationFinished:
    unit: int


@dataclass(frozen=True, slots=True)
class UnitFailed:
    """The unit is repeated from the state before it."""

    unit: int


@dataclass(frozen=True, slots=True)
class SpareWorkersChanged:
    """has_spare: no further trial is proposed now, so a hop may use several idle workers."""

    has_spare: bool


Event = (
    TrialAdmitted
    | TrialWithdrawn
    | WorkerJoined
    | WorkerLost
    | HopFinished
    | EvaluationRequested
    | EvaluationFinished
    | UnitFailed
    | SpareWorkersChanged
)


@dataclass(frozen=True, slots=True)
class TrainHop:
    """hop: an increasing number; events of a cancelled hop are ignored. The i-th worker reads the i-th
    partition. Several workers are a group, which trains on all its partitions together, in their order."""

    hop: int
    trial: TrialId
    workers: tuple[WorkerId, ...]
    partitions: tuple[PartitionId, ...]
    epoch: int
    start_from: str


@dataclass(frozen=True, slots=True)
class EvaluateState:
    unit: int
    trial: TrialId
    worker: WorkerId
    partition: PartitionId
    epoch: int
    checkpoint: str


@dataclass(frozen=True, slots=True)
class CancelUnit:
    unit: int


@dataclass(frozen=True, slots=True)
class EpochFinished:
    trial: TrialId
    epoch: int
    checkpoint: str


@dataclass(frozen=True, slots=True)
class EpochEvaluated:
    """This state, after the epoch or within it, was evaluated on each validation partition.
    It may come after later epochs have begun."""

    trial: TrialId
    epoch: int
    checkpoint: str


@dataclass(frozen=True, slots=True)
class TrialFinished:
    """The trial has finished all its visits. The evaluation of the last state may still be active."""

    trial: TrialId


Instruction = TrainHop | EvaluateState | CancelUnit | EpochFinished | EpochEvaluated | TrialFinished


@dataclass(frozen=True, slots=True)
class PrefetchHint:
    """The busy worker will probably need this state next."""

    worker: WorkerId
    checkpoint: str
