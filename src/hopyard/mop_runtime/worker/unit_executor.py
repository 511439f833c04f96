"""Where units are done: a state comes from the shelf, is trained or evaluated, and goes back to it.
Times are taken here."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple, Protocol

from hopyard.datasets.partitions.partition import Partition
from hopyard.domain.ids import WorkerId
from hopyard.errors import SpecError
from hopyard.mop_runtime.messages import EvaluateUnit, EvaluationResult, HopResult, TrainUnit
from hopyard.mop_runtime.worker import unit
from hopyard.mop_runtime.worker.allreduce_group import GroupLeader, GroupMember, GroupRendezvous
from hopyard.mop_runtime.worker.open_partitions import OpenPartitionSet
from hopyard.mop_runtime.worker.prefetch import BackgroundThread, Prefetcher
from hopyard.mop_runtime.worker.tracked_partition import TrackedPartition
from hopyard.sdk import rng_state
from hopyard.trainables.config import Config
from hopyard.trainables.protocol import Trainable
from hopyard.trial_state.shared_memory_store import StateStore

CheckCancelled = Callable[[str], None]
"""Given the unit. Raises Cancelled where it was."""
ReportProgress = Callable[[str, float, float], None]
"""Given the unit, seconds since it began, the share that is done."""


class AllreduceGroup(Protocol):
    def reduce(self, arrays: Any) -> list[Any]: ...

    def close(self) -> None: ...


class LastResult(NamedTuple):
    """What the last unit made. name: of the state; params: of its trial. generators: as training left them:
    the user's `capture`, or a thread of the user's, may draw from them after that, and whoever reads the
    state finds them so."""

    name: str
    params: Mapping[str, Any]
    state: Any
    generators: Mapping[str, Any]


class UnitExecutor:
    """Used by the thread that trains; `leave_group` by any. is_executing: while the user's code runs."""

    def __init__(
        self,
        store: StateStore,
        prefetcher: Prefetcher,
        background: BackgroundThread,
        rendezvous: GroupRendezvous,
        secret: bytes,
        check_cancelled: CheckCancelled,
        report_progress: ReportProgress,
        *,
        untrusted: bool = False,
    ) -> None:
        """untrusted: as of `decode`, for the states that it is given."""
        self._store, self._prefetcher, self._background = store, prefetcher, background
        self._rendezvous, self._secret, self._check_cancelled, self._report_progress = (
            rendezvous,
            secret,
            check_cancelled,
            report_progress,
        )
        self._untrusted = untrusted
        self._group: AllreduceGroup | None = None
        self._last_result: LastResult | None = None
        self.is_executing = threading.Event()

    def train(
        self, trainable: Trainable, command: TrainUnit, worker_id: WorkerId, open_partitions: OpenPartitionSet
    ) -> HopResult:
        """Raises Cancelled, GroupBroken, StateLacking, StorageFull, and whatever the user's code raises."""
        arrived = time.perf_counter()
        index = next((at for at, member in enumerate(command.members) if member.worker == worker_id), None)
        if index is None:
            raise SpecError(f"worker {worker_id} is no member of unit {command.unit}")
        config = Config(dict(command.params), command.trial, command.seed, command.epoch, command.budget)
        partition = self._track_partition(
            open_partitions, "train", command.members[index].partition, command.unit
        )
        state, fetched = self._load_state(trainable, command, config)
        fetch_s = time.perf_counter() - arrived
        self.is_executing.set()
        began_at, clock = time.time(), time.perf_counter()
        if len(command.members) == 1:
            state = unit.train(trainable, state, partition, config)
        else:
            state = self._train_together(trainable, state, partition, config, command, index)
        trained = time.perf_counter()
        generators = rng_state.capture()
        self.is_executing.clear()
        ended_at = began_at + trained - clock
        self._check_cancelled(command.unit)
        size = self._store.put(command.unit, unit.encode_state(trainable, state, generators))
        self._last_result = LastResult(command.unit, command.params, state, generators)
        return HopResult(
            unit=command.unit,
            trial=command.trial,
            epoch=command.epoch,
            partitions=tuple(member.partition for member in command.members),
            start_from=command.state,
            state=command.unit,
            bytes=size,
            began_at=began_at,
            ended_at=ended_at,
            fetch_s=fetch_s,
            save_s=time.perf_counter() - trained,
            fetched_bytes=fetched,
        )

    def evaluate(
        self, trainable: Trainable, command: EvaluateUnit, open_partitions: OpenPartitionSet
    ) -> EvaluationResult:
        """Raises as `train`."""
        config = Config(dict(command.params), command.trial, command.seed, command.epoch, command.budget)
        partition = self._track_partition(
            open_partitions, "train" if command.training else "validation", command.partition, command.unit
        )
        state, _ = self._load_state(trainable, command, config)
        self.is_executing.set()
        began_at, clock = time.time(), time.perf_counter()
        metrics = unit.evaluate(trainable, state, partition, config)
        self.is_executing.clear()
        return EvaluationResult(
            unit=command.unit,
            trial=command.trial,
            epoch=command.epoch,
            partition=command.partition,
            state=command.state,
            metrics=metrics,
            rows=len(partition),
            began_at=began_at,
            ended_at=began_at + time.perf_counter() - clock,
        )

    def leave_group(self) -> None:
        """The unit was cancelled: whoever waits for the other members waits no longer."""
        group = self._group
        if group is not None:
            group.close()

    def free_memory(self) -> None:
        self._last_result = None
        unit.free_memory()

    def _load_state(
        self, trainable: Trainable, command: TrainUnit | EvaluateUnit, config: Config
    ) -> tuple[Any, int]:
        """Decoded, and how many of its bytes came over the network.
        One that is evaluated right after it was made here is taken as it is."""
        made, self._last_result = self._last_result, None
        if (
            made is not None
            and isinstance(command, EvaluateUnit)
            and (made.name, made.params) == (command.state, command.params)
        ):
            rng_state.restore(made.generators)
            return made.state, 0
        made = None  # before the next one takes memory
        if not command.state:
            fresh = unit.init_state(trainable, config, command.seed)
            generators = rng_state.capture()
            # which also tells before any training what cannot be kept
            self._reserve_memory(unit.encode_state(trainable, fresh, generators).size)
            rng_state.restore(generators)
            return fresh, 0
        data, fetched = self._prefetcher.get(command.state, command.sources)
        if isinstance(command, TrainUnit):
            self._reserve_memory(len(data))
        return unit.load_state(trainable, data, config, untrusted=self._untrusted), fetched

    def _reserve_memory(self, size: int) -> None:
        """While the unit runs, for what will come of it."""
        self._background.submit(lambda: self._store.reserve(size))

    def _train_together(
        self,
        trainable: Trainable,
        state: Any,
        partition: Partition,
        config: Config,
        command: TrainUnit,
        index: int,
    ) -> Any:
        count = len(command.members)
        group: AllreduceGroup
        if index == 0:
            group = GroupLeader(self._rendezvous, command.unit, count)
        else:
            group = GroupMember(
                command.members[0].address,
                self._secret,
                command.unit,
                index,
                lambda: self._check_cancelled(command.unit),
            )
        self._group = group
        try:
            of = [int(member.partition) for member in command.members]
            return unit.train_together(
                trainable, state, [partition], config, group.reduce, seed=command.seed, group_partitions=of
            )
        finally:
            self._group = None
            group.close()

    def _track_partition(
        self, open_partitions: OpenPartitionSet, kind: Any, partition: Any, unit_id: str
    ) -> Partition:
        try:
            found = open_partitions.get(kind, partition)
        except KeyError as missing:
            raise SpecError(f"{kind} partition {partition} is not open on this worker") from missing
        rows, began, seen = max(len(found), 1), time.monotonic(), 0
        here = os.getpid(), threading.get_ident()

        def check(more: int) -> None:
            nonlocal seen
            if (os.getpid(), threading.get_ident()) != here:
                # a loader's thread, or its process, which has the link's socket but must not speak on it
                return
            self._check_cancelled(unit_id)
            self._report_progress(unit_id, time.monotonic() - began, min(seen / rows, 1.0))
            seen += more

        return TrackedPartition(found, check)
