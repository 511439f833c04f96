"""Replays a study of model hopper parallelism in one process, in the order of its journal.

A trial's state depends only on the order in which it visited the partitions. On the CPU in deterministic mode
the replay produces the same bytes after every hop, and the same metrics. For one trial only the hops that
produced its last state count. Hops that were lost, or replaced by a copy of another trial's state, are not
replayed.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from hopyard.datasets.partitions.partition import Kind, Partition
from hopyard.domain.ids import PartitionId, TrialId
from hopyard.errors import NotFound, SpecError
from hopyard.mop_runtime.driver.journal_index import JournalIndex
from hopyard.mop_runtime.worker import unit
from hopyard.mop_runtime.worker.trial_output import trial_output
from hopyard.trainables.config import Config
from hopyard.trainables.protocol import Trainable
from hopyard.trial_state.decode import decode
from hopyard.trial_state.digest import digest
from hopyard.trial_state.encode import encode

JournalRecord = Mapping[str, Any]
States = Mapping[str, bytes]
_NO_STATES: States = {}
OpenPartition = Callable[[PartitionId, Kind], Partition]


@dataclass(frozen=True, slots=True)
class ReplayResult:
    """The replay of one hop or one evaluation.

    expected, actual: digests of the state, "" if the journal has none (the driver ended before it was
    reported); or metrics of an evaluation.
    """

    trial: TrialId
    epoch: int
    partitions: tuple[PartitionId, ...]
    expected: str | Mapping[str, float]
    actual: str | Mapping[str, float]

    @property
    def matches(self) -> bool:
        if isinstance(self.expected, str) or isinstance(self.actual, str):
            return self.expected in ("", self.actual)
        same = self.expected.keys() == self.actual.keys()
        return same and all(_equal(value, self.actual[name]) for name, value in self.expected.items())

    def __str__(self) -> str:
        numbers = " and ".join(map(str, self.partitions))
        location = f"trial {self.trial}, epoch {self.epoch}, " + (
            f"partition{'s' * (len(self.partitions) > 1)} {numbers}" if numbers else "all partitions"
        )
        if self.matches:
            return f"{location}: the same"
        quantity = "digest" if isinstance(self.expected, str) else "metrics"
        return f"{location}: the {quantity} was {self.expected}, and is {self.actual} now"


def _equal(first: float, second: float) -> bool:
    return first == second or (math.isnan(first) and math.isnan(second))


def replay_study(
    records: Sequence[JournalRecord],
    trainable: Trainable,
    open_partition: OpenPartition,
    *,
    partition_count: int,
    seed: int,
    initial_states: States = _NO_STATES,
) -> Iterator[ReplayResult]:
    """Yields every hop and evaluation of all trials, one after another. initial_states: encoded states by
    name that the journal cannot reproduce: the initial state of a fork. Raises NotFound if the journal has no
    hops."""
    index = JournalIndex.from_records(records, partition_count)
    return _replay(records, index, set(index.states), trainable, open_partition, seed, initial_states)


def replay_trial(
    records: Sequence[JournalRecord],
    trial: TrialId,
    trainable: Trainable,
    open_partition: OpenPartition,
    *,
    partition_count: int,
    seed: int,
    initial_states: States = _NO_STATES,
) -> Iterator[ReplayResult]:
    """Yields those of one trial, and of the trials whose states it started from. records: the study's
    journal. open_partition: opens partitions of the same plan. partition_count, seed: of the study.
    initial_states: as in `replay_study`. Raises NotFound if the journal has no hop of the trial."""
    index = JournalIndex.from_records(records, partition_count)
    return _replay(
        records,
        index,
        {name for name, _ in index.ancestry(index.latest_states.get(trial, ""))},
        trainable,
        open_partition,
        seed,
        initial_states,
    )


def _replay(
    records: Sequence[JournalRecord],
    index: JournalIndex,
    trials: set[str],
    trainable: Trainable,
    open_partition: OpenPartition,
    seed: int,
    initial_states: States,
) -> Iterator[ReplayResult]:
    if not trials:
        raise NotFound(
            "the journal has no hop to replay",
            hints=("replay a study with `parallel: mop`: only these studies hop",),
        )
    evaluations: dict[str, list[JournalRecord]] = {}
    for record in records:
        if record.get("kind") in ("evaluated", "measured") and str(record["state"]) in trials:
            evaluations.setdefault(str(record["state"]), []).append(record)
    states = _StateCache(Counter(index.states[name].parent for name in trials))
    for name, data in initial_states.items():
        states.put(name, bytearray(data))
    for hop, trial_start in _hops(records, trials):
        yield from _replay_hop(hop, trial_start, index, evaluations, states, trainable, open_partition, seed)


def _hops(
    records: Sequence[JournalRecord], trials: set[str]
) -> Iterator[tuple[JournalRecord, JournalRecord]]:
    """Yields the hops that count, in order, each with the record of its trial's start."""
    trial_starts: dict[str, JournalRecord] = {}
    yielded: set[str] = set()
    for record in records:
        if record.get("kind") == "begun":
            trial_starts[str(record["trial"])] = record
        elif record.get("kind") == "hop" and str(record["state"]) in trials - yielded:
            yielded.add(str(record["state"]))
            yield record, trial_starts[str(record["trial"])]


class _StateCache:
    """Encoded states, kept while a later hop starts from them."""

    def __init__(self, children: Counter[str]) -> None:
        self._children = children
        self._data: dict[str, bytearray] = {}

    def put(self, name: str, data: bytearray) -> None:
        if self._children[name]:
            self._data[name] = data

    def get_copy(self, name: str) -> bytearray:
        """Returns a copy that the caller may change. Raises SpecError if the journal has no hop that produced
        it."""
        if name not in self._data:
            raise SpecError(f"the journal has no record of the unit that produced state {name}")
        self._children[name] -= 1
        return bytearray(self._data[name]) if self._children[name] else self._data.pop(name)


def _replay_hop(
    hop: JournalRecord,
    trial_start: JournalRecord,
    index: JournalIndex,
    evaluations: Mapping[str, Sequence[JournalRecord]],
    states: _StateCache,
    trainable: Trainable,
    open_partition: OpenPartition,
    seed: int,
) -> Iterator[ReplayResult]:
    trial, epoch, name = TrialId(str(hop["trial"])), int(hop["epoch"]), str(hop["state"])
    partitions = tuple(PartitionId(int(index_value)) for index_value in hop["partitions"])
    epochs = int(trial_start.get("epochs") or trial_start["budget"])
    config = Config(dict(trial_start["params"]), trial, seed, epoch, epochs)
    with trial_output(trial):  # what user code logs belongs to no run
        if hop["start_from"]:
            state = unit.load_state(trainable, states.get_copy(str(hop["start_from"])), config)
        else:
            state = unit.init_state(trainable, config, seed)
        if len(partitions) == 1:
            state = unit.train(trainable, state, open_partition(partitions[0], "train"), config)
        else:
            opened = [open_partition(partition, "train") for partition in partitions]
            state = unit.train_together(
                trainable, state, opened, config, list, seed=seed, group_partitions=list(map(int, partitions))
            )
        data = bytearray(unit.encode_state(trainable, state).to_bytes())
    states.put(name, data)
    yield ReplayResult(trial, epoch, partitions, index.digests.get(name, ""), digest(data))
    gathered: dict[PartitionId, Any] = {}
    for record in evaluations.get(name, ()):
        evaluated: tuple[PartitionId, ...] = ()
        if record["kind"] == "measured":
            parts = [gathered[partition] for partition in sorted(gathered)]
            with trial_output(trial):
                metrics = unit.measure(trainable, parts, config, seed=seed)
        else:
            partition = PartitionId(int(record["partition"]))
            with trial_output(trial):
                loaded = unit.load_state(trainable, bytearray(data), config)
                opened_partition = open_partition(partition, record["of"])
                metrics, part = unit.evaluate(trainable, loaded, opened_partition, config)
            evaluated = (partition,)
            if part is not None:
                # as it arrives in another process
                gathered[partition] = decode(bytearray(encode(part).to_bytes()))
        expected = {key: float(value) for key, value in record["metrics"].items()}
        yield ReplayResult(trial, epoch, evaluated, expected, metrics)
