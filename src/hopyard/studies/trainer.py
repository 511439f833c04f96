"""The interface between a driver and a trainer: the requests of the driver and the events of the trainer.

There are two trainers: `studies.trial_runs` (every trial is a separate run) and `mop_runtime.driver` (model
hopper parallelism). All calls come from the driver's thread.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

from hopyard.domain.ids import TrialId
from hopyard.domain.run import ParamValue
from hopyard.domain.study import StudySpec


@dataclass(frozen=True, slots=True)
class TrialWork:
    """Train `trial` with `params` from epoch `done_epochs` up to `budget`.

    done_epochs: epochs of this trial that were reported to the searcher; repeated reports of them (after a
    lost state) are ignored. start_from: the trial whose state to start from. None is the trial's own state (a
    new one if done_epochs is 0). Another trial means a copy of its final state (for `studies.trial_runs`: of
    its state after `done_epochs` epochs, if it is ahead). is_resumed: the driver was restarted and requested
    this work before, so the rest of it must be resumed.
    """

    trial: TrialId
    params: Mapping[str, ParamValue]
    budget: int
    done_epochs: int = 0
    start_from: TrialId | None = None
    is_resumed: bool = False


@dataclass(frozen=True, slots=True)
class EpochReported:
    """The metrics of the trial after `step` epochs (1 … budget)."""

    trial: TrialId
    step: int
    metrics: Mapping[str, float]


@dataclass(frozen=True, slots=True)
class TrialFailed:
    """The trial failed with its own error; other trials are not affected."""

    trial: TrialId
    error: str
    traceback: str = ""


@dataclass(frozen=True, slots=True)
class BudgetReached:
    """The trial has trained `budget` epochs, and all its reports were delivered before."""

    trial: TrialId
    budget: int


@dataclass(frozen=True, slots=True)
class TrialStopped:
    """A user stopped this trial below its budget. metrics: its last report, if it was not delivered; its
    reported values stay valid."""

    trial: TrialId
    reason: str
    metrics: Mapping[str, float] = field(default_factory=dict)


TrainerEvent = EpochReported | TrialFailed | TrialStopped | BudgetReached


class Trainer(Protocol):
    """Constructed with a `TrainerContext`. Raises SpecError if the study cannot be trained at all, which
    fails the study."""

    def free_capacity(self) -> int:
        """The number of further trials that the trainer accepts now."""
        ...

    def start(self, work: TrialWork) -> None:
        """Starts or resumes the work, and returns at once. A restarted driver may request the same work
        again."""
        ...

    def end(self, trial: TrialId, *, keep_state: bool) -> None:
        """The trial gets no more epochs for now. keep_state: keeps its state, because it may resume or others
        start from it; otherwise its data is dropped. Later events of it are ignored. May also be called for a
        trial that has reached its budget, and repeatedly."""
        ...

    def wait(self, timeout_s: float) -> list[TrainerEvent]:
        """Returns the events since the last call, in order; [] if none came within `timeout_s`."""
        ...

    def close(self, *, completed: bool) -> None:
        """The driver exits. completed: the study has ended; otherwise another attempt continues it, so the
        necessary states are saved."""
        ...


@dataclass(frozen=True, slots=True)
class RestoredCheckpoint:
    """The newest checkpoint of the study, as restored. step: counts saves. files: the saved file of each
    name."""

    step: int
    files: Mapping[str, Path] = field(default_factory=dict)


class JournalWriter(Protocol):
    """Appends records to the journal."""

    def write(self, kind: str, /, **fields: Any) -> None:
        """Appends one record, before its effect."""
        ...


@dataclass(frozen=True, slots=True)
class TrainerContext:
    """The environment of a trainer.

    journal: for its own records (`hop`, `evaluated`, `run`, `worker` …). past_records: all earlier records of
    all attempts, in order. log_message: prints a message for users to stderr. save_checkpoint(files, states):
    saves these files (name -> path) durably, and only then writes `saved {step, states}` to the journal; the
    files may be removed when it returns. Names consist of letters, digits, `.`, `_` and `-`.
    restored_checkpoint: the checkpoint that this attempt started from, or None. dataset_dir: the mounted
    folder of the study's dataset, or None. secret: known only to the replicas of this attempt.
    listen_address: host and port at which workers connect to the driver. is_stopping: whether the driver was
    requested to exit; then `wait` should return soon. best_trial: the trial with the best report so far, None
    before the first; its state should be kept when the study is over.
    """

    spec: StudySpec
    journal: JournalWriter
    past_records: Sequence[Mapping[str, Any]]
    log_message: Callable[[str], None]
    save_checkpoint: Callable[[Mapping[str, Path], Any], None]
    restored_checkpoint: RestoredCheckpoint | None
    dataset_dir: Path | None
    secret: bytes
    listen_address: tuple[str, int]
    is_stopping: Callable[[], bool]
    best_trial: Callable[[], TrialId | None] = lambda: None
