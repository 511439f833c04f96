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

    done_epochs: epochs of this trial that were reported and told to the searcher; what is reported again of
    them is of no interest (it is repeated where a state was lost). start_from: whose state to begin with:
    None its own (a fresh one where done is 0), another's a copy of that one as it was left (of
    `studies.trial_runs`: as it was after `done_epochs` epochs, where it is ahead). is_resumed: the driver
    began again, and this work was given before: what is left of it is to be taken up.
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


TrainerEvent = EpochReported | TrialFailed | BudgetReached


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
        """The trial gets no more epochs for now. keep_state: its state, because it may go on, or others begin
        from it; else what it holds is given up. Its late news is dropped. A trial that has come to its budget
        may be ended too, and twice."""
        ...

    def wait(self, timeout_s: float) -> list[TrainerEvent]:
        """Returns the events since the last call, in order; [] if none came within `timeout_s`."""
        ...

    def close(self, *, completed: bool) -> None:
        """The driver leaves. completed: the study has ended; else it goes on later, in another attempt, and
        what is worth keeping is kept."""
        ...


@dataclass(frozen=True, slots=True)
class RestoredCheckpoint:
    """The newest checkpoint of the study, as restored. step: counts saves. files: name -> saved file."""

    step: int
    files: Mapping[str, Path] = field(default_factory=dict)


class JournalWriter(Protocol):
    """Appends records to the journal."""

    def write(self, kind: str, /, **fields: Any) -> None:
        """Appends one record, before its effect."""
        ...


@dataclass(frozen=True, slots=True)
class TrainerContext:
    """What a trainer stands on.

    journal: to write its own records to (`hop`, `evaluated`, `run`, `worker` …). past_records: all records
    before this start, of all attempts, in order. log_message: tells people something, on stderr. save(files,
    states): makes a durable checkpoint of these files (name -> path) and only then writes `saved {step,
    states}` to the journal; the files may go when it returns. Names are made of letters, digits, `.`, `_` and
    `-`. restored_checkpoint: the checkpoint that this attempt began with, None where there is none.
    dataset_dir: the mounted folder of the study's dataset, None where it has none. secret: known to the
    replicas of this attempt alone. listen_address: host and port where workers look for the driver.
    is_stopping: whether the driver was asked to leave; `wait` should return soon then. best_trial: the trial
    whose report was the best so far, None before the first; when the study is over, its state is worth
    keeping.
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
