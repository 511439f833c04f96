"""The workers of a study: who is connected, what each has open, who is lost."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from hopyard.domain.ids import PartitionId, WorkerId
from hopyard.errors import SpecError
from hopyard.studies import pulse
from hopyard.studies.hopper import seats
from hopyard.studies.link.hub import Came, Closed, Hub, HubEvent
from hopyard.studies.messages import Cancel, FromDriver, FromWorker, Hello, Open, Ready, from_head, to_head

_FRUITLESS = 3


@dataclass(frozen=True, slots=True)
class Patience:
    """gather_s: how long the first workers wait for the others before they begin. absent_s: after so long
    they open the partitions of those that did not come, too. grace_s: how long one whose connection broke may
    take to come back. silent_s: without a beat for so long it is taken for lost; opening_s: while it opens
    its data and the user's code, which may keep a process from all else (importing a large library does).
    nobody_s: for how long a study may be without any worker, or with none but those who never come to open
    anything. save_s: between durable checkpoints."""

    gather_s: float = 10.0
    absent_s: float = 60.0
    grace_s: float = 3.0
    silent_s: float = 30.0
    opening_s: float = pulse.PATIENCE_S
    nobody_s: float = 600.0
    save_s: float = 30.0


@dataclass(slots=True, eq=False)
class Worker:
    """connection: None while it is away, since `away_since`. greeted_at: of its last hello. seats: those that
    it was told to open. open, judges: the partitions that it has open for training and for validation.
    settled: whether all that it had to say again after its last hello has come. gives: seats that it gives up
    once who takes them has them open."""

    hello: Hello
    connection: int | None
    seats: frozenset[int] = frozenset()
    open: frozenset[PartitionId] = frozenset()
    judges: frozenset[PartitionId] = frozenset()
    away_since: float = 0.0
    greeted_at: float = 0.0
    settled: bool = False
    gives: dict[int, WorkerId] = field(default_factory=dict)

    @property
    def id(self) -> WorkerId:
        return self.hello.worker


class Crew:
    """opening: makes the `Open` of these training partitions. note: writes a worker's news down."""

    def __init__(
        self,
        hub: Hub,
        *,
        count: int,
        parts: int,
        patience: Patience,
        opening: Callable[[frozenset[PartitionId]], Open],
        note: Callable[[WorkerId, str, str], None],
    ) -> None:
        self._hub, self._count, self._parts, self._patience = hub, count, parts, patience
        self._opening, self._note = opening, note
        self._workers: dict[WorkerId, Worker] = {}
        self._by_connection: dict[int, WorkerId] = {}
        self._ever_taken: set[int] = set()
        self._lost: list[Worker] = []
        # by connection, what is to be sent together
        self._held: dict[int, list[Mapping[str, Any]]] | None = None
        # how often each was lost before it had opened anything, one after the other
        self._fruitless: Counter[WorkerId] = Counter()

    def __iter__(self) -> Iterator[Worker]:
        return iter([self._workers[one] for one in sorted(self._workers)])

    def __len__(self) -> int:
        return len(self._workers)

    @property
    def has_hope(self) -> bool:
        """Whether there is anybody but those who hang or die each time while they open their first data and
        the user's code."""
        now = time.monotonic()
        return any(
            self._fruitless[one.id] < _FRUITLESS or now - one.greeted_at > 2 * self._patience.opening_s
            for one in self
        )

    @property
    def begins_in_vain(self) -> bool:
        """Whether somebody does so."""
        return any(times >= _FRUITLESS for times in self._fruitless.values())

    def find(self, worker: WorkerId) -> Worker | None:
        return self._workers.get(worker)

    def is_complete(self, known: Collection[str]) -> bool:
        """Whether as many workers as were promised, or all that an earlier driver of this attempt had in the
        end, have all open that they were told to open."""
        there = len(self._workers) >= self._count or (bool(known) and self._workers.keys() >= set(known))
        return there and all(self.has_opened(one) for one in self)

    def has_opened(self, worker: Worker) -> bool:
        return worker.open >= seats.partitions_of(worker.seats, self._count, self._parts)

    def send(self, worker: Worker, message: FromDriver) -> None:
        """To one that is away nothing is sent: when it comes back, what it does is compared with what it
        should do."""
        if worker.connection is None:
            return
        if self._held is not None:
            self._held.setdefault(worker.connection, []).append(to_head(message))
        else:
            self._hub.send(worker.connection, to_head(message))

    @contextmanager
    def in_one_piece(self) -> Iterator[None]:
        """What each worker is sent inside, it is sent together at the end: it wakes up once for all of it."""
        self._held = {}
        try:
            yield
        finally:
            held, self._held = self._held, None
            for connection, heads in held.items():
                self._hub.send(connection, *heads)

    def cancel(self, worker: WorkerId, unit: str) -> None:
        found = self._workers.get(worker)
        if found is not None:
            self.send(found, Cancel(unit))

    # -- what comes
    # ---------------------------------------------------------------------------------------------------

    def take(self, event: HubEvent) -> tuple[Worker, FromWorker] | None:
        """What a worker said; its `Hello` and `Ready` are seen to already."""
        if isinstance(event, Closed):
            self._close(event)
        if not isinstance(event, Came):
            return None
        try:
            message = from_head(event.head)
        except SpecError as bad:
            self._note(self._by_connection.get(event.connection, WorkerId("?")), "misunderstood", str(bad))
            self._hub.end(event.connection)
            return None
        if isinstance(message, Hello):
            return self._greet(event.connection, message), message
        worker = self._workers.get(self._by_connection.get(event.connection, WorkerId("")))
        if worker is None:  # one that was taken for lost: it has to come anew
            self._hub.end(event.connection)
            return None
        if isinstance(message, Ready):
            self._ready(worker, message)
        return worker, message  # type: ignore[return-value]

    def _greet(self, connection: int, hello: Hello) -> Worker:
        known = self._workers.get(hello.worker)
        if known is not None and known.hello.pid != hello.pid:
            self._lose(known, "another process came in its place")
            known = None
        if known is None:
            known = self._workers[hello.worker] = Worker(
                hello, connection, seats.seats_of(frozenset(hello.train), self._count)
            )
            self._note(hello.worker, "joined", f"process {hello.pid} on {hello.host}")
        elif known.connection is not None:
            self._by_connection.pop(known.connection, None)
            self._hub.end(known.connection)
        known.hello, known.connection, known.settled = hello, connection, False
        known.open, known.judges, known.greeted_at = (
            frozenset(hello.train),
            frozenset(hello.validation),
            time.monotonic(),
        )
        self._by_connection[connection] = hello.worker
        self._relieve(known)
        if not known.seats:
            self._seat(known)
        elif not self.has_opened(known):
            self._open(known)
        return known

    def _relieve(self, back: Worker) -> None:
        """One that comes back with its partitions open takes them from those who opened them in its place."""
        for other in self:
            for seat in sorted(other.seats & back.seats if other is not back else ()):
                if len(other.seats - other.gives.keys()) > 1:
                    other.gives[seat] = back.id

    def _ready(self, worker: Worker, ready: Ready) -> None:
        worker.open, worker.judges = frozenset(ready.train), frozenset(ready.validation)
        self._fruitless.pop(worker.id, None)

    def _close(self, event: Closed) -> None:
        worker = self._workers.get(self._by_connection.pop(event.connection, WorkerId("")))
        if worker is not None and worker.connection == event.connection:
            worker.connection, worker.away_since = None, time.monotonic()

    # -- who opens what
    # -------------------------------------------------------------------------------------------------

    def _seat(self, worker: Worker) -> None:
        held = {one.id: one.seats - one.gives.keys() for one in self}
        seat, giver = seats.with_one_for(worker.id, held, self._count)
        if seat is None:  # it stands by
            return
        if giver is not None:
            self._workers[giver].gives[seat] = worker.id
        worker.seats |= {seat}
        self._open(worker)

    def take_all_seats(self, *, absent: bool) -> None:
        """Let those that are there open what a lost one had; absent: also what nobody ever had."""
        held = {one.id: one.seats for one in self}
        for seats_of_one in held.values():
            self._ever_taken |= seats_of_one
        for worker, wanted in seats.with_all_taken(
            held, range(self._count) if absent else self._ever_taken
        ).items():
            if wanted != held[worker]:
                self._workers[worker].seats = wanted
                self._open(self._workers[worker])

    def second(self, slow: Worker, fast: Worker) -> None:
        """The fast one opens what the slow one has, too."""
        if not slow.seats <= fast.seats:
            fast.seats |= slow.seats
            self._open(fast)

    def give_up(self, may: Callable[[Worker, frozenset[PartitionId]], bool]) -> list[Worker]:
        """Let seats go that another has opened by now.
        may: whether the worker reads none of these partitions now."""
        changed = []
        for worker in self:
            for seat, taker in list(worker.gives.items()):
                partitions = seats.partitions_of(frozenset({seat}), self._count, self._parts)
                heir = self._workers.get(taker)
                if heir is None:
                    del worker.gives[seat]
                elif partitions <= heir.open and may(worker, partitions):
                    del worker.gives[seat]
                    worker.seats -= {seat}
                    worker.open -= partitions
                    worker.judges -= partitions
                    self._open(worker)
                    changed.append(worker)
        return changed

    def _open(self, worker: Worker) -> None:
        self.send(worker, self._opening(seats.partitions_of(worker.seats, self._count, self._parts)))

    # -- who is lost
    # ------------------------------------------------------------------------------------------------------

    def check(self) -> None:
        """Look who is away or silent for too long."""
        for worker in self:
            if why := self.why_gone(worker):
                self._lose(worker, why)

    def why_gone(self, worker: Worker) -> str:
        """Why it is to be taken for lost; "" where it is not."""
        if worker.connection is None:
            return (
                "its connection ended"
                if time.monotonic() - worker.away_since > self._patience.grace_s
                else ""
            )
        silent_s = self._patience.silent_s if self.has_opened(worker) else self._patience.opening_s
        return (
            f"nothing was heard of it for {silent_s:.0f} s"
            if self._hub.silent_s(worker.connection) > silent_s
            else ""
        )

    def take_lost(self) -> list[Worker]:
        """Those that were lost since the last time."""
        lost, self._lost = self._lost, []
        return lost

    def leave(self, worker: Worker, why: str) -> None:
        """It is of no use."""
        self._lose(worker, why)

    def _lose(self, worker: Worker, why: str) -> None:
        if worker.connection is not None:
            self._by_connection.pop(worker.connection, None)
            self._hub.end(worker.connection)
        del self._workers[worker.id]
        self._fruitless[worker.id] += not worker.open
        self._note(worker.id, "lost", why)
        self._lost.append(worker)

    # -- where states are
    # ---------------------------------------------------------------------------------------------------

    def on_shelves(self, shelves: Sequence[str] | frozenset[str]) -> list[Worker]:
        return [worker for worker in self if worker.hello.shelf in shelves]
