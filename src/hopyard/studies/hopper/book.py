"""What the journal says of hops and evaluations: how each state came about, and what was measured of it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from hopyard.domain.ids import PartitionId, TrialId

Record = Mapping[str, Any]
FRESH = ""  # stands for the state of a trial that has not begun


@dataclass(frozen=True, slots=True)
class Position:
    """How far a trial is: `epoch` full epochs, and these partitions of the next."""

    epoch: int = 0
    visited: frozenset[PartitionId] = frozenset()


@dataclass(frozen=True, slots=True)
class Made:
    """A state: of which trial, from which state before, by training on which partitions (together), where it
    stands."""

    trial: TrialId
    parent: str
    partitions: tuple[PartitionId, ...]
    at: Position

    @property
    def ends_epoch(self) -> bool:
        return not self.at.visited


@dataclass(frozen=True, slots=True)
class Begun:
    """That a trial was to be trained up to `budget` epochs, from this state on."""

    trial: TrialId
    state: str
    epoch: int
    budget: int
    params: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Left:
    state: str
    epoch: int


@dataclass(frozen=True, slots=True)
class Best:
    """The best value of the study's metric so far, and the state that had it."""

    trial: TrialId
    step: int
    state: str
    value: float
    params: Mapping[str, Any] = field(default_factory=dict)


Result = tuple[Mapping[str, float], int]  # metrics, rows


class Book:
    """Folded from the records of kinds `hop`, `named`, `evaluated`, `begun`, `again`, `left`, `best`,
    `worker`, `hopper`, `study` and `continued`; made to be fed as they are written.

    first: the state that every trial begins with, and its epochs: none, unless this study is a fork. left: by
    trial, the state that an ended trial was left with, to go on from or to be copied; trials without one are
    not there.
    """

    def __init__(self, partitions: int, first: Left | None = None) -> None:
        self._all = partitions
        self.first = first or Left(FRESH, 0)
        self.made: dict[str, Made] = {}
        self.begun: dict[TrialId, Begun] = {}
        self.heads: dict[TrialId, str] = {}  # the state that each trial came to last
        self.results: dict[str, dict[PartitionId, Result]] = {}  # by state
        # what each has lost and does again, in this order
        self.again: dict[TrialId, tuple[PartitionId, ...]] = {}
        self.left: dict[TrialId, Left] = {}
        self.best: Best | None = None
        self.present: set[str] = set()  # workers of this attempt that joined and were not lost
        self.digests: dict[str, str] = {}
        self.hops = 0
        self.starts = 0  # of drivers
        self._attempt: object = None

    @classmethod
    def of(cls, records: Iterable[Record], partitions: int, first: Left | None = None) -> Book:
        book = cls(partitions, first)
        for record in records:
            book.take(record)
        return book

    def take(self, record: Record) -> None:
        match record.get("kind"):
            case "hop":
                self._hop(record)
            case "evaluated":
                result = dict(record["metrics"]), int(record["rows"])
                self.results.setdefault(str(record["state"]), {})[PartitionId(int(record["partition"]))] = (
                    result
                )
            case "begun":
                trial = TrialId(str(record["trial"]))
                self.begun[trial] = Begun(
                    trial,
                    str(record["state"]),
                    int(record["epoch"]),
                    int(record["budget"]),
                    dict(record["params"]),
                )
                self.heads[trial] = str(record["state"])
                self.again.pop(trial, None)
                self.left.pop(trial, None)
            case "again":
                trial = TrialId(str(record["trial"]))
                self.heads[trial] = str(record["state"])
                self.again[trial] = tuple(PartitionId(int(one)) for one in record["order"])
            case "left":
                trial = TrialId(str(record["trial"]))
                self.left.pop(trial, None)
                if record["state"]:
                    self.left[trial] = Left(str(record["state"]), int(record["epoch"]))
            case "best":
                self.best = Best(
                    TrialId(str(record["trial"])),
                    int(record["step"]),
                    str(record["state"]),
                    float(record["value"]),
                    dict(record.get("params") or {}),
                )
            case "worker" if record["event"] == "joined":
                self.present.add(str(record["worker"]))
            case "worker" if record["event"] == "lost":
                self.present.discard(str(record["worker"]))
            case "named":
                self.digests[str(record["state"])] = str(record["digest"])
            case "hopper":
                self.starts += 1
            case "study" if record.get("attempt") != self._attempt:
                self._attempt = record.get("attempt")
                # each attempt, and each run that continues another, begins with workers of its own
                self.present.clear()

    def _hop(self, record: Record) -> None:
        trial, state, parent = TrialId(str(record["trial"])), str(record["state"]), str(record["start_from"])
        if state in self.made:
            return
        partitions = frozenset(PartitionId(int(one)) for one in record["partitions"])
        at = self.after(trial, parent, int(record["epoch"]), partitions)
        self.made[state] = Made(trial, parent, tuple(sorted(partitions)), at)
        self.heads[trial] = state
        self.again[trial] = self.again.get(trial, ())[1:]
        self.hops += 1

    def after(self, trial: TrialId, parent: str, epoch: int, partitions: frozenset[PartitionId]) -> Position:
        """Where a trial stands that went on from this state, in this epoch, on these partitions."""
        before = self.made.get(parent)
        visited = partitions
        if before is not None and before.at.epoch == epoch and before.trial == trial:
            visited |= before.at.visited
        return Position(epoch + 1) if len(visited) == self._all else Position(epoch, visited)

    @property
    def unnamed(self) -> int:
        """How many states have no digest yet."""
        return len(self.made.keys() - self.digests.keys())

    def line(self, state: str) -> Iterator[tuple[str, Made]]:
        """The state and those before it, newest first, also those of another trial that it was copied
        from."""
        while (made := self.made.get(state)) is not None:
            yield state, made
            state = made.parent

    def epoch_ends(self, trial: TrialId, state: str) -> dict[int, str]:
        """Of the trial itself, up to this state: epochs done -> the state then."""
        ends: dict[int, str] = {}
        for name, made in self.line(state):
            if made.trial != trial:
                break
            if made.ends_epoch:
                ends.setdefault(made.at.epoch, name)
        return ends
