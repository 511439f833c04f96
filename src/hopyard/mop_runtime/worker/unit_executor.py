"""Executes units: reads a state from the store, trains or evaluates it, stores the result, and measures the
times."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple, Protocol

from hopyard.datasets.partitions.partition import Partition
from hopyard.domain.ids import WorkerId
from hopyard.errors import SpecError
from hopyard.mop_runtime.messages import (
    EvaluateUnit,
    EvaluationResult,
    HopResult,
    MeasurementResult,
    MeasureState,
    TrainUnit,
)
from hopyard.mop_runtime.worker import unit
from hopyard.mop_runtime.worker.allreduce_group import GroupLeader, GroupMember, GroupRendezvous
from hopyard.mop_runtime.worker.open_partitions import OpenPartitionSet
from hopyard.mop_runtime.worker.prefetch import BackgroundThread, Prefetcher
from hopyard.mop_runtime.worker.tracked_partition import TrackedPartition
from hopyard.mop_runtime.worker.trial_output import trial_output
from hopyard.mop_runtime.worker.unit_failure import PartitionClosed
from hopyard.sdk import rng_state
from hopyard.trainables.config import Config, track_reads
from hopyard.trainables.metric_aggregation import check_gathered_size
from hopyard.trainables.protocol import Trainable
from hopyard.trial_state.decode import decode
from hopyard.trial_state.encode import encode
from hopyard.trial_state.shared_memory_store import StateStore

CheckCancelled = Callable[[str], None]
"""Takes the unit; raises UnitCancelled if it was cancelled."""
ReportProgress = Callable[[str, float, float], None]
"""Takes the unit, the seconds since it began, and its completed share."""


class AllreduceGroup(Protocol):
    def reduce(self, arrays: Any) -> list[Any]: ...

    def close(self) -> None: ...


class LastResult(NamedTuple):
    """The result of the last unit. name: of the state; params: of its trial.

    generators: their states directly after training. The user's `capture`, or a thread of the user, may draw
    from them later, but a reader of the stored state gets these.
    """

    name: str
    params: Mapping[str, Any]
    state: Any
    generators: Mapping[str, Any]


class UnitExecutor:
    """Used by the training thread; `leave_group` is thread-safe. is_executing: set while the user's code
    runs."""

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
        """untrusted: as in `decode`, for the states that it loads."""
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
        """Raises UnitCancelled, GroupBroken, StateMissing, StorageFull, and any exception of the
        user's code."""
        requested_at = time.perf_counter()
        index = next(
            (position for position, member in enumerate(command.members) if member.worker == worker_id), None
        )
        if index is None:
            raise SpecError(f"worker {worker_id} is not a member of unit {command.unit}")
        config = Config(dict(command.params), command.trial, command.seed, command.epoch, command.budget)
        partition = self._track_partition(
            open_partitions, "train", command.members[index].partition, command.unit
        )
        with track_reads() as read, trial_output(command.trial) as logged:
            state, fetched = self._load_state(trainable, command, config)
            fetch_s = time.perf_counter() - requested_at
            self.is_executing.set()
            began_at, started_at = time.time(), time.perf_counter()
            if len(command.members) == 1:
                state = unit.train(trainable, state, partition, config)
            else:
                state = self._train_together(trainable, state, partition, config, command, index)
            trained_at = time.perf_counter()
        generators = rng_state.capture()
        self.is_executing.clear()
        ended_at = began_at + trained_at - started_at
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
            save_s=time.perf_counter() - trained_at,
            fetched_bytes=fetched,
            read=tuple(sorted(read)),
            logged=logged.means(),
        )

    def evaluate(
        self, trainable: Trainable, command: EvaluateUnit, open_partitions: OpenPartitionSet
    ) -> EvaluationResult:
        """Raises as `train`."""
        config = Config(dict(command.params), command.trial, command.seed, command.epoch, command.budget)
        partition = self._track_partition(
            open_partitions, "train" if command.training else "validation", command.partition, command.unit
        )
        with track_reads() as read, trial_output(command.trial):
            state, _ = self._load_state(trainable, command, config)
            self.is_executing.set()
            began_at, started_at = time.time(), time.perf_counter()
            metrics, gathered = unit.evaluate(trainable, state, partition, config)
            self.is_executing.clear()
        if gathered is not None:
            encoded = encode(gathered, name="gathered")
            check_gathered_size(encoded.size, len(partition), sum(partition.peers))
            self._check_cancelled(command.unit)
            self._store.put(command.unit, encoded)
        return EvaluationResult(
            unit=command.unit,
            trial=command.trial,
            epoch=command.epoch,
            partition=command.partition,
            state=command.state,
            metrics=metrics,
            rows=len(partition),
            began_at=began_at,
            ended_at=began_at + time.perf_counter() - started_at,
            gathered=gathered is not None,
            read=tuple(sorted(read)),
        )

    def measure(self, trainable: Trainable, command: MeasureState) -> MeasurementResult:
        """Computes the metrics of the whole validation set. Raises as `train`."""
        config = Config(dict(command.params), command.trial, command.seed, command.epoch, command.budget)
        began_at, started_at = time.time(), time.perf_counter()
        gathered = [
            decode(bytearray(self._prefetcher.get(part.name, part.sources)[0]), untrusted=self._untrusted)
            for part in command.outputs
        ]
        self._last_result = None
        self.is_executing.set()
        with trial_output(command.trial):
            metrics = unit.measure(trainable, gathered, config, seed=command.seed)
        self.is_executing.clear()
        ended_at = began_at + time.perf_counter() - started_at
        return MeasurementResult(
            command.unit, command.trial, command.epoch, command.state, metrics, began_at, ended_at
        )

    def leave_group(self) -> None:
        """The unit was cancelled: ends a wait for the other members."""
        group = self._group
        if group is not None:
            group.close()

    def free_memory(self) -> None:
        self._last_result = None
        unit.free_memory()

    def _load_state(
        self, trainable: Trainable, command: TrainUnit | EvaluateUnit, config: Config
    ) -> tuple[Any, int]:
        """Returns the decoded state, and how many bytes were received over the network. A state that is
        evaluated directly after it was produced here is used without decoding."""
        last, self._last_result = self._last_result, None
        if (
            last is not None
            and isinstance(command, EvaluateUnit)
            and (last.name, last.params) == (command.state, command.params)
        ):
            rng_state.restore(last.generators)
            return last.state, 0
        last = None  # frees memory before the next state is loaded
        if not command.state:
            initial = unit.init_state(trainable, config, command.seed)
            generators = rng_state.capture()
            # this also detects parts that cannot be serialized before any training
            self._reserve_memory(unit.encode_state(trainable, initial, generators).size)
            rng_state.restore(generators)
            return initial, 0
        data, fetched = self._prefetcher.get(command.state, command.sources)
        if isinstance(command, TrainUnit):
            self._reserve_memory(len(data))
        return unit.load_state(trainable, data, config, untrusted=self._untrusted), fetched

    def _reserve_memory(self, size: int) -> None:
        """Reserves memory for the resulting state while the unit runs."""
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
            group_partitions = [int(member.partition) for member in command.members]
            return unit.train_together(
                trainable,
                state,
                [partition],
                config,
                group.reduce,
                seed=command.seed,
                group_partitions=group_partitions,
            )
        finally:
            self._group = None
            group.close()

    def _track_partition(
        self, open_partitions: OpenPartitionSet, kind: Any, partition: Any, unit_id: str
    ) -> Partition:
        try:
            partition_data = open_partitions.get(kind, partition)
        except KeyError as error:
            raise PartitionClosed(f"{kind} partition {partition} is not open on this worker") from error
        rows, started_at, rows_read = max(len(partition_data), 1), time.monotonic(), 0
        process_and_thread = os.getpid(), threading.get_ident()

        def check(row_count: int) -> None:
            nonlocal rows_read
            if (os.getpid(), threading.get_ident()) != process_and_thread:
                # a loader's thread or process, which inherited the driver's connection but must not use it
                return
            self._check_cancelled(unit_id)
            self._report_progress(unit_id, time.monotonic() - started_at, min(rows_read / rows, 1.0))
            rows_read += row_count

        return TrackedPartition(partition_data, check)
