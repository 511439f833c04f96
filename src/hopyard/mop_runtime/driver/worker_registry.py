"""The workers of a study: their connections, open partitions and losses."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from hopyard.domain.ids import PartitionId, WorkerId
from hopyard.errors import SpecError
from hopyard.mop_runtime import watchdog
from hopyard.mop_runtime.driver import partition_assignment
from hopyard.mop_runtime.messages import (
    Cancel,
    FromDriver,
    FromWorker,
    Hello,
    OpenPartitions,
    Ready,
    UnitFailure,
    from_head,
    to_head,
)
from hopyard.mop_runtime.transport.driver_server import (
    ConnectionClosed,
    DriverServer,
    DriverServerEvent,
    MessageReceived,
)

_MAX_FAILED_OPENS = 3


@dataclass(frozen=True, slots=True)
class Timeouts:
    """initial_wait_s: how long the first workers wait for the others before the study starts.
    absent_worker_s: after this time they also open the partitions of absent workers. reconnect_s: how long a
    disconnected worker may take to reconnect. heartbeat_s: after this time without a heartbeat a worker
    counts as lost. open_s: the same while it opens its data and the user's code, which may block the process
    (the import of a large library does). no_worker_s: how long a study may have no worker, or only workers
    that never finish opening. checkpoint_interval_s: between durable checkpoints."""

    initial_wait_s: float = 10.0
    absent_worker_s: float = 60.0
    reconnect_s: float = 3.0
    heartbeat_s: float = 30.0
    open_s: float = watchdog.HANG_TIMEOUT_S
    no_worker_s: float = 600.0
    checkpoint_interval_s: float = 30.0


@dataclass(slots=True, eq=False)
class RegisteredWorker:
    """connection: None while it is disconnected, since `disconnected_at`. hello_at: of its last hello. slots:
    the slots assigned to it. train_partitions, validation_partitions: its open partitions. is_synced: whether
    all repeated messages after its last hello have arrived. handovers: slots that it gives up once their new
    worker has opened them. open_id: of the last request to open partitions; only its answer counts."""

    hello: Hello
    connection: int | None
    slots: frozenset[int] = frozenset()
    train_partitions: frozenset[PartitionId] = frozenset()
    validation_partitions: frozenset[PartitionId] = frozenset()
    disconnected_at: float = 0.0
    hello_at: float = 0.0
    is_synced: bool = False
    handovers: dict[int, WorkerId] = field(default_factory=dict)
    open_id: str = ""

    @property
    def id(self) -> WorkerId:
        return self.hello.worker


class WorkerRegistry:
    """make_open: builds the `OpenPartitions` for these training partitions, with this id. open_prefix: of
    these ids, unique among all drivers of the study. record_event: records a worker's event."""

    def __init__(
        self,
        server: DriverServer,
        *,
        expected_count: int,
        partition_count: int,
        timeouts: Timeouts,
        make_open: Callable[[frozenset[PartitionId], str], OpenPartitions],
        open_prefix: str,
        record_event: Callable[[WorkerId, str, str], None],
    ) -> None:
        self._server, self._expected_count, self._partition_count, self._timeouts = (
            server,
            expected_count,
            partition_count,
            timeouts,
        )
        self._make_open, self._record_event = make_open, record_event
        self._open_prefix, self._open_count = open_prefix, 0
        self._workers: dict[WorkerId, RegisteredWorker] = {}
        self._by_connection: dict[int, WorkerId] = {}
        self._ever_assigned: set[int] = set()
        self._lost_workers: list[RegisteredWorker] = []
        # by connection, messages to be sent together
        self._batched_heads: dict[int, list[Mapping[str, Any]]] | None = None
        # how often in a row each worker was lost before it had opened its partitions
        self._failed_opens: Counter[WorkerId] = Counter()

    def __iter__(self) -> Iterator[RegisteredWorker]:
        return iter([self._workers[worker_id] for worker_id in sorted(self._workers)])

    def __len__(self) -> int:
        return len(self._workers)

    @property
    def has_viable_worker(self) -> bool:
        """Whether there is any worker except those that hang or die each time they open their first data and
        the user's code."""
        now = time.monotonic()
        return any(
            self._failed_opens[worker.id] < _MAX_FAILED_OPENS
            or now - worker.hello_at > 2 * self._timeouts.open_s
            for worker in self
        )

    @property
    def has_failing_worker(self) -> bool:
        """Whether some worker hangs or dies each time."""
        return any(times >= _MAX_FAILED_OPENS for times in self._failed_opens.values())

    def find(self, worker: WorkerId) -> RegisteredWorker | None:
        return self._workers.get(worker)

    def is_complete(self, earlier_workers: Collection[str]) -> bool:
        """Returns whether all expected workers, or all last workers of an earlier driver of this attempt,
        have opened their partitions."""
        all_connected = len(self._workers) >= self._expected_count or (
            bool(earlier_workers) and self._workers.keys() >= set(earlier_workers)
        )
        return all_connected and all(self.has_opened_all(worker) for worker in self)

    def has_opened_all(self, worker: RegisteredWorker) -> bool:
        return worker.train_partitions >= partition_assignment.partitions_of_slots(
            worker.slots, self._expected_count, self._partition_count
        )

    def send(self, worker: RegisteredWorker, message: FromDriver) -> None:
        """Sends nothing to a disconnected worker: when it reconnects, its units are compared with the
        expected ones."""
        if worker.connection is None:
            return
        if self._batched_heads is not None:
            self._batched_heads.setdefault(worker.connection, []).append(to_head(message))
        else:
            self._server.send(worker.connection, to_head(message))

    @contextmanager
    def batch_messages(self) -> Iterator[None]:
        """Sends all messages to each worker together at the end of the block, so that the worker wakes up
        once."""
        self._batched_heads = {}
        try:
            yield
        finally:
            batched, self._batched_heads = self._batched_heads, None
            for connection, heads in batched.items():
                self._server.send(connection, *heads)

    def cancel_unit(self, worker: WorkerId, unit: str) -> None:
        registered = self._workers.get(worker)
        if registered is not None:
            self.send(registered, Cancel(unit))

    # -- received events
    # ------------------------------------------------------------------------------------------

    def handle(self, event: DriverServerEvent) -> tuple[RegisteredWorker, FromWorker] | None:
        """Returns a worker's message. `Hello` and `Ready` are already applied. An answer to any other request
        to open partitions than the last one is ignored: the worker handles the last one after it."""
        if isinstance(event, ConnectionClosed):
            self._on_closed(event)
        if not isinstance(event, MessageReceived):
            return None
        try:
            message = from_head(event.head)
        except SpecError as error:
            self._record_event(
                self._by_connection.get(event.connection, WorkerId("?")), "misunderstood", str(error)
            )
            self._server.close_connection(event.connection)
            return None
        if isinstance(message, Hello):
            return self._on_hello(event.connection, message), message
        worker = self._workers.get(self._by_connection.get(event.connection, WorkerId("")))
        if worker is None:  # it counts as lost and must connect again
            self._server.close_connection(event.connection)
            return None
        if (isinstance(message, Ready) or (isinstance(message, UnitFailure) and not message.unit)) and (
            message.open_id != worker.open_id
        ):
            return None
        if isinstance(message, Ready):
            self._on_ready(worker, message)
        return worker, message  # type: ignore[return-value]

    def _on_hello(self, connection: int, hello: Hello) -> RegisteredWorker:
        worker = self._workers.get(hello.worker)
        if worker is not None and worker.hello.pid != hello.pid:
            self._mark_lost(worker, "another process replaced it")
            worker = None
        if worker is None:
            worker = self._workers[hello.worker] = RegisteredWorker(
                hello,
                connection,
                partition_assignment.slots_of_partitions(frozenset(hello.train), self._expected_count),
            )
            self._record_event(hello.worker, "joined", f"process {hello.pid} on {hello.host}")
        elif worker.connection is not None:
            self._by_connection.pop(worker.connection, None)
            self._server.close_connection(worker.connection)
        worker.hello, worker.connection, worker.is_synced = hello, connection, False
        worker.train_partitions, worker.validation_partitions, worker.hello_at = (
            frozenset(() if hello.opening else hello.train),
            frozenset(() if hello.opening else hello.validation),
            time.monotonic(),
        )
        self._by_connection[connection] = hello.worker
        self._schedule_handovers(worker)
        if not worker.slots:
            self._assign_slot(worker)
        elif not self.has_opened_all(worker):
            self._send_open(worker)
        return worker

    def _schedule_handovers(self, returning: RegisteredWorker) -> None:
        """A worker that returns with open partitions takes them back from the workers that opened them in its
        place."""
        for other in self:
            for slot in sorted(other.slots & returning.slots if other is not returning else ()):
                if len(other.slots - other.handovers.keys()) > 1:
                    other.handovers[slot] = returning.id

    def _on_ready(self, worker: RegisteredWorker, ready: Ready) -> None:
        worker.train_partitions, worker.validation_partitions = (
            frozenset(ready.train),
            frozenset(ready.validation),
        )
        self._failed_opens.pop(worker.id, None)

    def _on_closed(self, event: ConnectionClosed) -> None:
        worker = self._workers.get(self._by_connection.pop(event.connection, WorkerId("")))
        if worker is not None and worker.connection == event.connection:
            worker.connection, worker.disconnected_at = None, time.monotonic()

    # -- partitions ------------------------------------------------------------------------------------------

    def _assign_slot(self, worker: RegisteredWorker) -> None:
        slots_by_worker = {other.id: other.slots - other.handovers.keys() for other in self}
        slot, giver = partition_assignment.assign_one_slot(worker.id, slots_by_worker, self._expected_count)
        if slot is None:  # it stays as a spare
            return
        if giver is not None:
            self._workers[giver].handovers[slot] = worker.id
        worker.slots |= {slot}
        self._send_open(worker)

    def assign_free_slots(self, *, include_unclaimed: bool) -> None:
        """Assigns the slots of lost workers. include_unclaimed: also those that no worker ever had."""
        slots_by_worker = {other.id: other.slots for other in self}
        for slots in slots_by_worker.values():
            self._ever_assigned |= slots
        for worker, new_slots in partition_assignment.assign_free_slots(
            slots_by_worker, range(self._expected_count) if include_unclaimed else self._ever_assigned
        ).items():
            if new_slots != slots_by_worker[worker]:
                self._workers[worker].slots = new_slots
                self._send_open(self._workers[worker])

    def share_partitions(self, straggler: RegisteredWorker, free_worker: RegisteredWorker) -> None:
        """Lets a fast worker also open the partitions of a slow one."""
        if not straggler.slots <= free_worker.slots:
            free_worker.slots |= straggler.slots
            self._send_open(free_worker)

    def complete_handovers(
        self, is_unused: Callable[[RegisteredWorker, frozenset[PartitionId]], bool]
    ) -> list[RegisteredWorker]:
        """Completes handovers whose new worker has opened the partitions. is_unused: whether the worker reads
        none of these partitions now."""
        changed = []
        for worker in self:
            for slot, new_id in list(worker.handovers.items()):
                partitions = partition_assignment.partitions_of_slots(
                    frozenset({slot}), self._expected_count, self._partition_count
                )
                new_worker = self._workers.get(new_id)
                if new_worker is None:
                    del worker.handovers[slot]
                elif partitions <= new_worker.train_partitions and is_unused(worker, partitions):
                    del worker.handovers[slot]
                    worker.slots -= {slot}
                    worker.train_partitions -= partitions
                    worker.validation_partitions -= partitions
                    self._send_open(worker)
                    changed.append(worker)
        return changed

    def reopen(self, worker: RegisteredWorker) -> None:
        """The worker lacks a partition that it should have open: it has none until it is ready again."""
        worker.train_partitions = worker.validation_partitions = frozenset()
        self._send_open(worker)

    def _send_open(self, worker: RegisteredWorker) -> None:
        self._open_count += 1
        worker.open_id = f"{self._open_prefix}.{self._open_count}"
        partitions = partition_assignment.partitions_of_slots(
            worker.slots, self._expected_count, self._partition_count
        )
        self.send(worker, self._make_open(partitions, worker.open_id))

    # -- lost workers ----------------------------------------------------------------------------------------

    def check_timeouts(self) -> None:
        """Marks workers as lost that are disconnected or silent for too long."""
        for worker in self:
            if reason := self.loss_reason(worker):
                self._mark_lost(worker, reason)

    def loss_reason(self, worker: RegisteredWorker) -> str:
        """Returns why the worker counts as lost, or ""."""
        if worker.connection is None:
            return (
                "its connection ended"
                if time.monotonic() - worker.disconnected_at > self._timeouts.reconnect_s
                else ""
            )
        silent_s = self._timeouts.heartbeat_s if self.has_opened_all(worker) else self._timeouts.open_s
        return (
            f"no message from it for {silent_s:.0f} s"
            if self._server.seconds_since_message(worker.connection) > silent_s
            else ""
        )

    def drain_lost(self) -> list[RegisteredWorker]:
        """Returns the workers that were lost since the last call."""
        lost_workers, self._lost_workers = self._lost_workers, []
        return lost_workers

    def remove(self, worker: RegisteredWorker, reason: str) -> None:
        """Removes a worker that cannot be used."""
        self._mark_lost(worker, reason)

    def _mark_lost(self, worker: RegisteredWorker, reason: str) -> None:
        if worker.connection is not None:
            self._by_connection.pop(worker.connection, None)
            self._server.close_connection(worker.connection)
        del self._workers[worker.id]
        self._failed_opens[worker.id] += not worker.train_partitions
        self._record_event(worker.id, "lost", reason)
        self._lost_workers.append(worker)

    # -- locations of states
    # ------------------------------------------------------------------------------------

    def workers_of_stores(self, store_ids: Sequence[str] | frozenset[str]) -> list[RegisteredWorker]:
        return [worker for worker in self if worker.hello.store_id in store_ids]
