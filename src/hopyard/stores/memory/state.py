"""What the memory stores share. What a policy sees is kept ready, so that a snapshot copies nothing that has
not changed."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Generic, TypeVar

from hopyard.domain.amounts import totals
from hopyard.domain.charges import Charges
from hopyard.domain.chunked import Chunks
from hopyard.domain.cluster import Hold, KnownServer, Node, Promise, Running, Snapshot
from hopyard.domain.gang import Gang, Role
from hopyard.domain.holdings import Holdings
from hopyard.domain.ids import AttemptId, GangId, NodeId, QueueName, RunId, RunName, Version
from hopyard.domain.queue import ONE_QUEUE, Amounts, QueueTree, Used
from hopyard.domain.reservation import Reservation
from hopyard.interfaces.cluster_store import Lease
from hopyard.stores.memory.rows import AttemptRow, RunRow

T = TypeVar("T")


class Cached(Generic[T]):
    """A value that is made anew after it was marked stale, and is the same object until then."""

    def __init__(self, make: Callable[[], T]) -> None:
        self._make = make
        self._value: T = make()
        self._stale = False

    def stale(self) -> None:
        self._stale = True

    def get(self) -> T:
        if self._stale:
            self._value, self._stale = self._make(), False
        return self._value


@dataclass(frozen=True, slots=True)
class Held:
    """What an attempt held from its placement to its end, and for whom."""

    placed_at: datetime
    ended_at: datetime
    amounts: Amounts
    user: str
    queue: str
    project: str


class State:
    """Every fact, by id. Changed only by the stores of this folder, which mark what a policy sees as
    stale."""

    def __init__(self) -> None:
        self.runs: dict[RunId, RunRow] = {}
        self.by_name: dict[RunName, RunId] = {}
        self.numbers: dict[tuple[str, str], int] = {}
        self.version = 0
        self.declared_at = 0  # the version at which queues or reservations were changed last
        self.lease: Lease | None = None
        self.servers: dict[str, KnownServer] = {}
        self.epoch = 0
        self.nodes: dict[NodeId, Node] = {}
        self.said: dict[str, Sequence[Node]] = {}  # by each engine, of its nodes, the last time
        self.cordoned: dict[NodeId, str] = {}  # with the reason
        self.holdings = Holdings()
        self.charges = Charges()
        self.pending: Chunks[GangId, Gang] = Chunks()
        # the version from which on each gang that waits does so as it does now
        self.waits_since: dict[GangId, int] = {}
        self.delayed: dict[GangId, Gang] = {}  # of those that wait, not to be tried before their time
        self.running: Chunks[AttemptId, Running] = Chunks()
        self.live: dict[AttemptId, str] = {}
        self.tree: QueueTree = ONE_QUEUE
        self.reservations: dict[str, Reservation] = {}
        self.used: dict[tuple[QueueName, str], Used] = {}
        self.held: list[Held] = []
        self.promises: dict[GangId, Promise] = {}
        self.durations: dict[str, tuple[float, ...]] = {}
        self._holds: Mapping[GangId, Hold] = {}
        self._unread: Sequence[Hold] = ()
        self._shapes: dict[tuple[Role, ...], tuple[Role, ...]] = {}
        self.seen_nodes = Cached(lambda: dict(sorted(self.nodes.items())))
        self.totals = Cached(lambda: totals(node for node in self.nodes.values() if node.ready))
        self.seen_reservations = Cached(
            lambda: tuple(sorted(self.reservations.values(), key=lambda one: (one.start_at, one.name)))
        )
        self.seen_used = Cached(lambda: dict(self.used))
        self.seen_promises = Cached(lambda: dict(self.promises))
        self.seen_durations = Cached(lambda: dict(self.durations))

    def snapshot(self, now: datetime) -> Snapshot:
        for gang in [
            gang for gang in self.delayed.values() if gang.not_before is None or gang.not_before <= now
        ]:
            self.pending[gang.id] = self.delayed.pop(gang.id)
        return Snapshot(
            version=Version(self.version),
            now=now,
            nodes=self.seen_nodes.get(),
            pending=self.pending.seen(),
            running=self.running.seen(),
            queues=self.tree,
            used=self.seen_used.get(),
            reservations=self.seen_reservations.get(),
            promises=self.seen_promises.get(),
            durations=self.seen_durations.get(),
            delayed=tuple(self.delayed.values()),
        )

    def changed(self) -> None:
        """A policy sees something else now."""
        self.version += 1

    def declared(self) -> None:
        """What was planned before knew other queues or reservations."""
        self.changed()
        self.declared_at = self.version

    def shape(self, roles: tuple[Role, ...]) -> tuple[Role, ...]:
        """One object for all gangs that ask for the same."""
        return self._shapes.setdefault(roles, roles)

    # -- what waits and what runs
    # -----------------------------------------------------------------------------------

    def wait(self, gang: Gang) -> None:
        self.waits_since[gang.id] = self.version + 1  # `changed` follows
        if gang.not_before is None:
            self.pending[gang.id] = gang
        else:
            self.delayed[gang.id] = gang

    def waits(self, gang: GangId) -> bool:
        return gang in self.pending or gang in self.delayed

    def waits_unchanged(self, gang: GangId, based_on: Version) -> bool:
        """Whether it waits as it did for a plan that is based on this version."""
        return self.waits(gang) and self.waits_since[gang] <= based_on

    def wait_no_more(self, gang: GangId) -> None:
        self.pending.discard(gang)  # one that is held is not there
        self.delayed.pop(gang, None)
        self.waits_since.pop(gang, None)
        if self.promises.pop(gang, None) is not None:
            self.seen_promises.stale()

    def show_running(self, row: AttemptRow) -> None:
        """A live attempt as a policy sees it."""
        self.live[row.id] = row.phase.value
        self.running[row.id] = Running(
            row.placement,
            row.placed_at,
            row.id,
            row.started_at,
            row.saved_at,
            stopping=row.phase.value == "stopping",
            preempted_for=row.preempted_for,
            asked_at=row.asked_at,
        )

    def hide_running(self, row: AttemptRow, now: datetime) -> None:
        """It is over: what it held until now is free again."""
        del self.live[row.id], self.running[row.id]
        self.holdings.hold(row.placement, -1)
        gang = row.placement.gang
        self.charges.charge(gang.queue, gang.user, row.amounts, -1)
        if row.ended_at is not None:
            self.held.append(Held(row.placed_at, now, row.amounts, *self.holder_of(row)))

    def holder_of(self, row: AttemptRow) -> tuple[str, str, str]:
        """The user, queue and project that an attempt is counted for."""
        run = self.runs[run_of(row.id)]
        return row.placement.gang.user, row.placement.gang.queue, run.spec.project

    def live_run(self, attempt: AttemptId) -> RunRow | None:
        """The run whose newest attempt this is, while it is live."""
        return self.runs[run_of(attempt)] if attempt in self.live else None

    # -- why runs wait
    # ----------------------------------------------------------------------------------------------

    def note_holds(self, holds: Sequence[Hold], based_on: Version) -> None:
        """Kept as they come: the holds of a long queue are written often and read seldom.
        A gang that was changed after `based_on` keeps the hold that it has."""
        changed = {gang for gang, since in self.waits_since.items() if since > based_on}
        if changed:
            kept = [hold for gang, hold in self.holds().items() if gang in changed]
            holds = [*(hold for hold in holds if hold.gang not in changed), *kept]
        self._holds, self._unread = {}, holds

    def holds(self) -> Mapping[GangId, Hold]:
        """Those told last, of gangs that may have left since."""
        if self._unread:
            self._holds, self._unread = {hold.gang: hold for hold in self._unread}, ()
        return self._holds

    def forget_hold(self, gang: GangId) -> None:
        """It asks for something else than when this was noted."""
        self._holds = {one: hold for one, hold in self.holds().items() if one != gang}

    def hold_of(self, run: RunRow) -> Hold | None:
        return self.holds().get(run.gang.id) if self.waits(run.gang.id) else None


def run_of(attempt: AttemptId) -> RunId:
    return RunId(attempt.rpartition(".")[0])
