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
    """initial_wait_s: how long the first workers wait for the others before they begin. absent_worker_s:
    after so long they open the partitions of those that did not come, too. reconnect_s: how long one whose
    connection broke may take to come back. heartbeat_s: without a beat for so long it is taken for lost;
    open_s: while it opens its data and the user's code, which may keep a process from all else (importing a
    large library does). no_worker_s: for how long a study may be without any worker, or with none but those
    who never come to open anything. checkpoint_interval_s: between durable checkpoints."""

    initial_wait_s: float = 10.0
    absent_worker_s: float = 60.0
    reconnect_s: float = 3.0
    heartbeat_s: float = 30.0
    open_s: float = watchdog.HANG_TIMEOUT_S
    no_worker_s: float = 600.0
    checkpoint_interval_s: float = 30.0


@dataclass(slots=True, eq=False)
class RegisteredWorker:
    """connection: None while it is away, since `disconnected_at`. hello_at: of its last hello. slots: those
    that it was told to open. train_partitions, validation_partitions: the partitions that it has open for
    training and for validation. is_synced: whether all that it had to say again after its last hello has
    come. handovers: seats that it gives up once who takes them has them open."""

    hello: Hello
    connection: int | None
    slots: frozenset[int] = frozenset()
    train_partitions: frozenset[PartitionId] = frozenset()
    validation_partitions: frozenset[PartitionId] = frozenset()
    disconnected_at: float = 0.0
    hello_at: float = 0.0
    is_synced: bool = False
    handovers: dict[int, WorkerId] = field(default_factory=dict)

    @property
    def id(self) -> WorkerId:
        return self.hello.worker


class WorkerRegistry:
    """make_open: makes the `OpenPartitions` of these training partitions.
    record_event: writes a worker's news down."""

    def __init__(
        self,
        server: DriverServer,
        *,
        expected_count: int,
        partition_count: int,
        timeouts: Timeouts,
        make_open: Callable[[frozenset[PartitionId]], OpenPartitions],
        record_event: Callable[[WorkerId, str, str], None],
    ) -> None:
        self._server, self._expected_count, self._partition_count, self._timeouts = (
            server,
            expected_count,
            partition_count,
            timeouts,
        )
        self._make_open, self._record_event = make_open, record_event
        self._workers: dict[WorkerId, RegisteredWorker] = {}
        self._by_connection: dict[int, WorkerId] = {}
        self._ever_assigned: set[int] = set()
        self._lost_workers: list[RegisteredWorker] = []
        # by connection, what is to be sent together
        self._batched_heads: dict[int, list[Mapping[str, Any]]] | None = None
        # how often each was lost before it had opened anything, one after the other
        self._failed_opens: Counter[WorkerId] = Counter()

    def __iter__(self) -> Iterator[RegisteredWorker]:
        return iter([self._workers[one] for one in sorted(self._workers)])

    def __len__(self) -> int:
        return len(self._workers)

    @property
    def has_viable_worker(self) -> bool:
        """Whether there is anybody but those who hang or die each time while they open their first data and
        the user's code."""
        now = time.monotonic()
        return any(
            self._failed_opens[one.id] < _MAX_FAILED_OPENS or now - one.hello_at > 2 * self._timeouts.open_s
            for one in self
        )

    @property
    def has_failing_worker(self) -> bool:
        """Whether somebody does so."""
        return any(times >= _MAX_FAILED_OPENS for times in self._failed_opens.values())

    def find(self, worker: WorkerId) -> RegisteredWorker | None:
        return self._workers.get(worker)

    def is_complete(self, earlier_workers: Collection[str]) -> bool:
        """Whether as many workers as were promised, or all that an earlier driver of this attempt had in the
        end, have all open that they were told to open."""
        there = len(self._workers) >= self._expected_count or (
            bool(earlier_workers) and self._workers.keys() >= set(earlier_workers)
        )
        return there and all(self.has_opened_all(one) for one in self)

    def has_opened_all(self, worker: RegisteredWorker) -> bool:
        return worker.train_partitions >= partition_assignment.partitions_of_slots(
            worker.slots, self._expected_count, self._partition_count
        )

    def send(self, worker: RegisteredWorker, message: FromDriver) -> None:
        """To one that is away nothing is sent: when it comes back, what it does is compared with what it
        should do."""
        if worker.connection is None:
            return
        if self._batched_heads is not None:
            self._batched_heads.setdefault(worker.connection, []).append(to_head(message))
        else:
            self._server.send(worker.connection, to_head(message))

    @contextmanager
    def batch_messages(self) -> Iterator[None]:
        """What each worker is sent inside, it is sent together at the end: it wakes up once for all of it."""
        self._batched_heads = {}
        try:
            yield
        finally:
            held, self._batched_heads = self._batched_heads, None
            for connection, heads in held.items():
                self._server.send(connection, *heads)

    def cancel_unit(self, worker: WorkerId, unit: str) -> None:
        found = self._workers.get(worker)
        if found is not None:
            self.send(found, Cancel(unit))

    # -- what comes ------------------------------------------------------------------------------------------

    def handle(self, event: DriverServerEvent) -> tuple[RegisteredWorker, FromWorker] | None:
        """What a worker said; its `Hello` and `Ready` are seen to already."""
        if isinstance(event, ConnectionClosed):
            self._on_closed(event)
        if not isinstance(event, MessageReceived):
            return None
        try:
            message = from_head(event.head)
        except SpecError as bad:
            self._record_event(
                self._by_connection.get(event.connection, WorkerId("?")), "misunderstood", str(bad)
            )
            self._server.close_connection(event.connection)
            return None
        if isinstance(message, Hello):
            return self._on_hello(event.connection, message), message
        worker = self._workers.get(self._by_connection.get(event.connection, WorkerId("")))
        if worker is None:  # one that was taken for lost: it has to come anew
            self._server.close_connection(event.connection)
            return None
        if isinstance(message, Ready):
            self._on_ready(worker, message)
        return worker, message  # type: ignore[return-value]

    def _on_hello(self, connection: int, hello: Hello) -> RegisteredWorker:
        known = self._workers.get(hello.worker)
        if known is not None and known.hello.pid != hello.pid:
            self._mark_lost(known, "another process replaced it")
            known = None
        if known is None:
            known = self._workers[hello.worker] = RegisteredWorker(
                hello,
                connection,
                partition_assignment.slots_of_partitions(frozenset(hello.train), self._expected_count),
            )
            self._record_event(hello.worker, "joined", f"process {hello.pid} on {hello.host}")
        elif known.connection is not None:
            self._by_connection.pop(known.connection, None)
            self._server.close_connection(known.connection)
        known.hello, known.connection, known.is_synced = hello, connection, False
        known.train_partitions, known.validation_partitions, known.hello_at = (
            frozenset(hello.train),
            frozenset(hello.validation),
            time.monotonic(),
        )
        self._by_connection[connection] = hello.worker
        self._schedule_handovers(known)
        if not known.slots:
            self._assign_slot(known)
        elif not self.has_opened_all(known):
            self._send_open(known)
        return known

    def _schedule_handovers(self, returning: RegisteredWorker) -> None:
        """One that comes back with its partitions open takes them from those who opened them in its place."""
        for other in self:
            for seat in sorted(other.slots & returning.slots if other is not returning else ()):
                if len(other.slots - other.handovers.keys()) > 1:
                    other.handovers[seat] = returning.id

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
        held = {one.id: one.slots - one.handovers.keys() for one in self}
        seat, giver = partition_assignment.assign_one_slot(worker.id, held, self._expected_count)
        if seat is None:  # it stands by
            return
        if giver is not None:
            self._workers[giver].handovers[seat] = worker.id
        worker.slots |= {seat}
        self._send_open(worker)

    def assign_free_slots(self, *, include_unclaimed: bool) -> None:
        """Let those that are there open what a lost one had; include_unclaimed: also what nobody ever had."""
        held = {one.id: one.slots for one in self}
        for seats_of_one in held.values():
            self._ever_assigned |= seats_of_one
        for worker, wanted in partition_assignment.assign_free_slots(
            held, range(self._expected_count) if include_unclaimed else self._ever_assigned
        ).items():
            if wanted != held[worker]:
                self._workers[worker].slots = wanted
                self._send_open(self._workers[worker])

    def share_partitions(self, straggler: RegisteredWorker, free_worker: RegisteredWorker) -> None:
        """The fast one opens what the slow one has, too."""
        if not straggler.slots <= free_worker.slots:
            free_worker.slots |= straggler.slots
            self._send_open(free_worker)

    def complete_handovers(
        self, is_unused: Callable[[RegisteredWorker, frozenset[PartitionId]], bool]
    ) -> list[RegisteredWorker]:
        """Let seats go that another has opened by now.
        is_unused: whether the worker reads none of these partitions now."""
        changed = []
        for worker in self:
            for seat, taker in list(worker.handovers.items()):
                partitions = partition_assignment.partitions_of_slots(
                    frozenset({seat}), self._expected_count, self._partition_count
                )
                heir = self._workers.get(taker)
                if heir is None:
                    del worker.handovers[seat]
                elif partitions <= heir.train_partitions and is_unused(worker, partitions):
                    del worker.handovers[seat]
                    worker.slots -= {seat}
                    worker.train_partitions -= partitions
                    worker.validation_partitions -= partitions
                    self._send_open(worker)
                    changed.append(worker)
        return changed

    def _send_open(self, worker: RegisteredWorker) -> None:
        self.send(
            worker,
            self._make_open(
                partition_assignment.partitions_of_slots(
                    worker.slots, self._expected_count, self._partition_count
                )
            ),
        )

    # -- lost workers ----------------------------------------------------------------------------------------

    def check_timeouts(self) -> None:
        """Look who is away or silent for too long."""
        for worker in self:
            if why := self.loss_reason(worker):
                self._mark_lost(worker, why)

    def loss_reason(self, worker: RegisteredWorker) -> str:
        """Why it is to be taken for lost; "" where it is not."""
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
        """Those that were lost since the last time."""
        lost, self._lost_workers = self._lost_workers, []
        return lost

    def remove(self, worker: RegisteredWorker, reason: str) -> None:
        """It is of no use."""
        self._mark_lost(worker, reason)

    def _mark_lost(self, worker: RegisteredWorker, reason: str) -> None:
        if worker.connection is not None:
            self._by_connection.pop(worker.connection, None)
            self._server.close_connection(worker.connection)
        del self._workers[worker.id]
        self._failed_opens[worker.id] += not worker.train_partitions
        self._record_event(worker.id, "lost", reason)
        self._lost_workers.append(worker)

    # -- where states are ------------------------------------------------------------------------------------

    def workers_of_stores(self, store_ids: Sequence[str] | frozenset[str]) -> list[RegisteredWorker]:
        return [worker for worker in self if worker.hello.store_id in store_ids]
