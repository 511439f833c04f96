"""What a model-hopper coordinator is told, and what it says.

After Nakandala et al., "Cerebro: A Data System for Optimized Deep Learning Model Selection" (VLDB 2020): the data lies in
partitions, one copy of each; a trial trains on one partition, its state hops to the next, and has done an epoch when it was on
each partition once. A hop is one trial on one partition.
"""

from __future__ import annotations

from dataclasses import dataclass

from hopyard.domain.ids import PartitionId, TrialId, WorkerId


@dataclass(frozen=True, slots=True)
class TrialAdmitted:
    """Train `epochs` epochs, beginning from the state named `checkpoint`. cost: what a hop of it costs compared with other
    trials, where that is known before (None: it is learnt)."""

    trial: TrialId
    epochs: int
    checkpoint: str
    cost: float | None = None


@dataclass(frozen=True, slots=True)
class TrialWithdrawn:
    """A searcher stopped it, or it failed for good: what it does is cancelled, it gets no more hops."""

    trial: TrialId


@dataclass(frozen=True, slots=True)
class WorkerJoined:
    """Also told again when a worker holds other partitions than before. speed: cost done a second, where that is known."""

    worker: WorkerId
    partitions: frozenset[PartitionId]
    speed: float | None = None


@dataclass(frozen=True, slots=True)
class WorkerLost:
    worker: WorkerId


@dataclass(frozen=True, slots=True)
class HopFinished:
    """checkpoint: names the trial's state after it. seconds: how long the training took."""

    hop: int
    checkpoint: str
    seconds: float


@dataclass(frozen=True, slots=True)
class HopFailed:
    """The unit is repeated, from the state before it."""

    hop: int


Event = TrialAdmitted | TrialWithdrawn | WorkerJoined | WorkerLost | HopFinished | HopFailed


@dataclass(frozen=True, slots=True)
class TrainHop:
    """hop: counts up; news of one that was cancelled is ignored."""

    hop: int
    trial: TrialId
    worker: WorkerId
    partition: PartitionId
    epoch: int
    start_from: str


@dataclass(frozen=True, slots=True)
class CancelHop:
    hop: int


@dataclass(frozen=True, slots=True)
class EpochFinished:
    trial: TrialId
    epoch: int
    checkpoint: str


@dataclass(frozen=True, slots=True)
class TrialFinished:
    trial: TrialId


Instruction = TrainHop | CancelHop | EpochFinished | TrialFinished
