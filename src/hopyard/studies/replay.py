"""Doing a study of model hopper parallelism again, in one process, in the order that its journal has.

A trial's state depends on the order in which it visited the partitions, and on nothing else: on the CPU in
deterministic mode the replay comes to the same bytes after every hop, and to the same metrics. Of one trial
only those hops count that its last state was made by: what was lost on the way, and what it left for a copy
of another's state, belongs to the study alone.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from hopyard.datasets.partitions.partition import Kind, Partition
from hopyard.domain.ids import PartitionId, TrialId
from hopyard.errors import IntegrityError, NotFound, SpecError
from hopyard.studies.hopper.book import Book
from hopyard.studies.states.digest import digest
from hopyard.studies.trainable.config import Config
from hopyard.studies.trainable.protocol import Trainable
from hopyard.studies.worker import unit

Record = Mapping[str, Any]
States = Mapping[str, bytes]
_NONE: States = {}
OpenPartition = Callable[[PartitionId, Kind], Partition]


@dataclass(frozen=True, slots=True)
class Replayed:
    """One hop, or (metrics not None) one evaluation, done again. recorded, found: digests of the state, ""
    where the journal has none (the driver ended before it was told); or metrics."""

    trial: TrialId
    epoch: int
    partitions: tuple[PartitionId, ...]
    recorded: str | Mapping[str, float]
    found: str | Mapping[str, float]

    @property
    def agrees(self) -> bool:
        if isinstance(self.recorded, str) or isinstance(self.found, str):
            return self.recorded in ("", self.found)
        same = self.recorded.keys() == self.found.keys()
        return same and all(_equal(value, self.found[name]) for name, value in self.recorded.items())

    def __str__(self) -> str:
        where = " and ".join(map(str, self.partitions))
        place = f"trial {self.trial}, epoch {self.epoch}, partition{'s' * (len(self.partitions) > 1)} {where}"
        if self.agrees:
            return f"{place}: the same"
        what = "digest" if isinstance(self.recorded, str) else "metrics"
        return f"{place}: the {what} was {self.recorded}, and is {self.found} now"


def _equal(one: float, other: float) -> bool:
    return one == other or (math.isnan(one) and math.isnan(other))


def replay_study(
    records: Sequence[Record],
    trainable: Trainable,
    opened: OpenPartition,
    *,
    parts: int,
    seed: int,
    given: States = _NONE,
) -> Iterator[Replayed]:
    """Every hop and evaluation of all trials, one after another, as they are done. given: encoded states by
    name that the journal does not say how to make: what a fork began with. Raises NotFound where the journal
    has no hops."""
    book = Book.of(records, parts)
    return _replay(records, book, set(book.made), trainable, opened, seed, given)


def replay_trial(
    records: Sequence[Record],
    trial: TrialId,
    trainable: Trainable,
    opened: OpenPartition,
    *,
    parts: int,
    seed: int,
    given: States = _NONE,
) -> Iterator[Replayed]:
    """Those of one trial, and of those whose states it began with. records: the study's journal. opened:
    opens partitions of the same plan. parts, seed: of the study. given: as of `replay_study`. Raises NotFound
    where the journal has no hop of it."""
    book = Book.of(records, parts)
    return _replay(
        records,
        book,
        {name for name, _ in book.line(book.heads.get(trial, ""))},
        trainable,
        opened,
        seed,
        given,
    )


def check_replay(replayed: Iterable[Replayed]) -> tuple[int, int]:
    """Go through a replay; return how many hops and evaluations agreed.
    Raises IntegrityError at the first that does not."""
    hops = evaluations = 0
    for one in replayed:
        if not one.agrees:
            raise IntegrityError(
                f"the replay differs: {one}",
                hints=(
                    (
                        "it can only be the same with the same code, data, libraries and number of "
                        "threads, on the CPU"
                    ),
                    "`mop.deterministic: true` sets what PyTorch and TensorFlow need for that",
                ),
            )
        hops, evaluations = hops + isinstance(one.found, str), evaluations + (not isinstance(one.found, str))
    return hops, evaluations


def _replay(
    records: Sequence[Record],
    book: Book,
    wanted: set[str],
    trainable: Trainable,
    opened: OpenPartition,
    seed: int,
    given: States,
) -> Iterator[Replayed]:
    if not wanted:
        raise NotFound("the journal has no hop to replay", hints=("only studies with `parallel: mop` hop",))
    measured: dict[str, list[Record]] = {}
    for record in records:
        if record.get("kind") == "evaluated" and str(record["state"]) in wanted:
            measured.setdefault(str(record["state"]), []).append(record)
    states = _States(Counter(book.made[name].parent for name in wanted))
    for name, data in given.items():
        states.put(name, bytearray(data))
    for hop, begun in _hops(records, wanted):
        yield from _hop(hop, begun, book, measured, states, trainable, opened, seed)


def _hops(records: Sequence[Record], wanted: set[str]) -> Iterator[tuple[Record, Record]]:
    """The hops that count, in order, each with what its trial was trained with then."""
    begun: dict[str, Record] = {}
    seen: set[str] = set()
    for record in records:
        if record.get("kind") == "begun":
            begun[str(record["trial"])] = record
        elif record.get("kind") == "hop" and str(record["state"]) in wanted - seen:
            seen.add(str(record["state"]))
            yield record, begun[str(record["trial"])]


class _States:
    """Encoded states, as long as a hop still begins from them."""

    def __init__(self, children: Counter[str]) -> None:
        self._children = children
        self._data: dict[str, bytearray] = {}

    def put(self, name: str, data: bytearray) -> None:
        if self._children[name]:
            self._data[name] = data

    def take(self, name: str) -> bytearray:
        """A copy that the caller may change. Raises SpecError where the journal has no hop that made it."""
        if name not in self._data:
            raise SpecError(f"the journal does not say how state {name} was made")
        self._children[name] -= 1
        return bytearray(self._data[name]) if self._children[name] else self._data.pop(name)


def _hop(
    hop: Record,
    begun: Record,
    book: Book,
    measured: Mapping[str, Sequence[Record]],
    states: _States,
    trainable: Trainable,
    opened: OpenPartition,
    seed: int,
) -> Iterator[Replayed]:
    trial, epoch, name = TrialId(str(hop["trial"])), int(hop["epoch"]), str(hop["state"])
    partitions = tuple(PartitionId(int(one)) for one in hop["partitions"])
    config = Config(dict(begun["params"]), trial, seed, epoch, int(begun["budget"]))
    if hop["start_from"]:
        state = unit.load(trainable, states.take(str(hop["start_from"])), config)
    else:
        state = unit.begin(trainable, config, seed)
    if len(partitions) == 1:
        state = unit.train(trainable, state, opened(partitions[0], "train"), config)
    else:
        read = [opened(partition, "train") for partition in partitions]
        state = unit.train_together(
            trainable, state, read, config, list, seed=seed, of=list(map(int, partitions))
        )
    data = bytearray(unit.keep(trainable, state).to_bytes())
    states.put(name, data)
    yield Replayed(trial, epoch, partitions, book.digests.get(name, ""), digest(data))
    for record in measured.get(name, ()):
        partition = PartitionId(int(record["partition"]))
        again = unit.load(trainable, bytearray(data), config)
        found = unit.evaluate(trainable, again, opened(partition, record["of"]), config)
        yield Replayed(
            trial, epoch, (partition,), {key: float(value) for key, value in record["metrics"].items()}, found
        )
