"""How a driver has trials trained: what it asks of a trainer, and what it is told.

There are two: `studies.trials` (every trial a run of its own) and `studies.hopper` (model hopper
parallelism). All calls come from one thread, the driver's.
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
class Work:
    """Train `trial` with `params` from epoch `done` up to `budget`.

    done: epochs of this trial that were reported and told to the searcher; what is reported again of them is
    of no interest (it is repeated where a state was lost). start_from: whose state to begin with: None its
    own (a fresh one where done is 0), another's a copy of that one as it was left (of `studies.trials`: as it
    was after `done` epochs, where it is ahead). resumed: the driver began again, and this work was given
    before: what is left of it is to be taken up.
    """

    trial: TrialId
    params: Mapping[str, ParamValue]
    budget: int
    done: int = 0
    start_from: TrialId | None = None
    resumed: bool = False


@dataclass(frozen=True, slots=True)
class Reported:
    """What the trial's metrics were after `step` epochs (1 … budget)."""

    trial: TrialId
    step: int
    metrics: Mapping[str, float]


@dataclass(frozen=True, slots=True)
class TrialFailed:
    """The trial, and nothing else, ended with an error of its own."""

    trial: TrialId
    error: str
    traceback: str = ""


@dataclass(frozen=True, slots=True)
class Reached:
    """The trial has done `budget` epochs, and all that it reported up to there was told before."""

    trial: TrialId
    budget: int


News = Reported | TrialFailed | Reached


class Trainer(Protocol):
    """Constructed with a `Ground`. May raise SpecError where the study cannot be trained at all: that ends
    the study with the error."""

    def room(self) -> int:
        """How many more trials it would take now."""
        ...

    def start(self, work: Work) -> None:
        """Begin, or go on. Returns at once. The same work may be given again after the driver was started
        again."""
        ...

    def end(self, trial: TrialId, *, keep: bool) -> None:
        """The trial gets no more epochs for now. keep: its state, because it may go on, or others begin from
        it; else what it holds is given up. Its late news is dropped. A trial that has come to its budget may
        be ended too, and twice."""
        ...

    def wait(self, timeout_s: float) -> list[News]:
        """What has happened since, in order; [] when nothing did within `timeout_s`."""
        ...

    def close(self, *, over: bool) -> None:
        """The driver leaves. over: the study has ended; else it goes on later, in another attempt, and what
        is worth keeping is kept."""
        ...


@dataclass(frozen=True, slots=True)
class Saved:
    """The newest checkpoint of the study, as it was restored. step: counts saves.
    files: name -> the file that was saved."""

    step: int
    files: Mapping[str, Path] = field(default_factory=dict)


class Records(Protocol):
    """The journal, for whoever writes to it."""

    def write(self, kind: str, /, **fields: Any) -> None:
        """Append one record, before its effect."""
        ...


@dataclass(frozen=True, slots=True)
class Ground:
    """What a trainer stands on.

    journal: to write its own records to (`hop`, `evaluated`, `run`, `worker` …). past: all records before
    this start, of all attempts, in order. say: tells people something, on stderr. save(files, states): makes
    a durable checkpoint of these files (name -> path) and only then writes `saved {step, states}` to the
    journal; the files may go when it returns. Names are made of letters, digits, `.`, `_` and `-`. saved: the
    checkpoint that this attempt began with, None where there is none. dataset: the mounted folder of the
    study's dataset, None where it has none. secret: known to the replicas of this attempt alone. listen: host
    and port where workers look for the driver.
    stopping: whether the driver was asked to leave; `wait` should return soon then. best: the trial whose
    report was the best so far, None before the first; when the study is over, its state is worth keeping.
    """

    spec: StudySpec
    journal: Records
    past: Sequence[Mapping[str, Any]]
    say: Callable[[str], None]
    save: Callable[[Mapping[str, Path], Any], None]
    saved: Saved | None
    dataset: Path | None
    secret: bytes
    listen: tuple[str, int]
    stopping: Callable[[], bool]
    best: Callable[[], TrialId | None] = lambda: None
