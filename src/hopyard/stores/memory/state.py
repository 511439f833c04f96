"""The state that the memory stores share. The parts of a snapshot are cached, so that it copies only changed
parts."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Generic, TypeVar

from hopyard.domain.amounts import total_amounts
from hopyard.domain.cluster import Node, Promise, Running, ServerRecord, Snapshot
from hopyard.domain.gang import Gang, Role
from hopyard.domain.ids import AttemptId, GangId, NodeId, QueueName, RunId, RunName, Version
from hopyard.domain.node_allocations import NodeAllocations
from hopyard.domain.persistent_sequence import PersistentMap
from hopyard.domain.plan_record import HoldRecord
from hopyard.domain.queue import SINGLE_QUEUE_TREE, Amounts, PastUsage, QueueTree
from hopyard.domain.quota_check import QuotaCheck
from hopyard.domain.reservation import Reservation
from hopyard.interfaces.cluster_store import Lease
from hopyard.stores.memory.rows import AttemptRow, RunRow

T = TypeVar("T")


class CachedValue(Generic[T]):
    """A value that is computed again after an invalidation, and is the same object until then."""

    def __init__(self, compute: Callable[[], T]) -> None:
        self._compute = compute
        self._value: T = compute()
        self._is_stale = False

    def invalidate(self) -> None:
        self._is_stale = True

    def get(self) -> T:
        if self._is_stale:
            self._value, self._is_stale = self._compute(), False
        return self._value


@dataclass(frozen=True, slots=True)
class AttemptUsage:
    """The resources that an attempt held from its placement to its end, with its user, queue and project."""

    placed_at: datetime
    ended_at: datetime
    amounts: Amounts
    user: str
    queue: str
    project: str


class MemoryState:
    """All state, by id. Only the stores of this package change it; they invalidate the cached parts of
    snapshots."""

    def __init__(self) -> None:
        self.runs: dict[RunId, RunRow] = {}
        self.by_name: dict[RunName, RunId] = {}
        self.numbers: dict[tuple[str, str], int] = {}
        self.version = 0
        self.declaration_version = 0  # the version of the last change of queues or reservations
        self.lease: Lease | None = None
        self.servers: dict[str, ServerRecord] = {}
        self.epoch = 0
        self.nodes: dict[NodeId, Node] = {}
        self.reported_nodes: dict[str, Sequence[Node]] = {}  # the last reported nodes of each engine
        self.cordoned: dict[NodeId, str] = {}  # with the reason
        self.node_allocations = NodeAllocations()
        self.quota_check = QuotaCheck()
        self.pending: PersistentMap[GangId, Gang] = PersistentMap()
        # the version since which each waiting gang is unchanged
        self.pending_since: dict[GangId, int] = {}
        self.backing_off: dict[GangId, Gang] = {}  # waiting gangs that are not retried before their time
        self.running: PersistentMap[AttemptId, Running] = PersistentMap()
        self.live_attempts: dict[AttemptId, str] = {}
        self.tree: QueueTree = SINGLE_QUEUE_TREE
        self.reservations: dict[str, Reservation] = {}
        self.past_usage: dict[tuple[QueueName, str], PastUsage] = {}
        self.finished_usage: list[AttemptUsage] = []
        self.promises: dict[GangId, Promise] = {}
        self.durations: dict[str, tuple[float, ...]] = {}
        self.inbox_reads: dict[str, datetime] = {}  # by user
        self._holds: Mapping[GangId, HoldRecord] = {}
        self._unindexed_holds: Sequence[HoldRecord] = ()
        self._shared_roles: dict[tuple[Role, ...], tuple[Role, ...]] = {}
        self.cached_nodes = CachedValue(lambda: dict(sorted(self.nodes.items())))
        self.cached_totals = CachedValue(
            lambda: total_amounts(node for node in self.nodes.values() if node.ready)
        )
        self.cached_reservations = CachedValue(
            lambda: tuple(
                sorted(
                    self.reservations.values(),
                    key=lambda reservation: (reservation.start_at, reservation.name),
                )
            )
        )
        self.cached_past_usage = CachedValue(lambda: dict(self.past_usage))
        self.cached_promises = CachedValue(lambda: dict(self.promises))
        self.cached_durations = CachedValue(lambda: dict(self.durations))

    def snapshot(self, now: datetime) -> Snapshot:
        for gang in [
            gang for gang in self.backing_off.values() if gang.not_before is None or gang.not_before <= now
        ]:
            self.pending[gang.id] = self.backing_off.pop(gang.id)
        return Snapshot(
            version=Version(self.version),
            now=now,
            nodes=self.cached_nodes.get(),
            pending=self.pending.to_sequence(),
            running=self.running.to_sequence(),
            queues=self.tree,
            past_usage=self.cached_past_usage.get(),
            reservations=self.cached_reservations.get(),
            promises=self.cached_promises.get(),
            durations=self.cached_durations.get(),
            backing_off=tuple(self.backing_off.values()),
        )

    def mark_changed(self) -> None:
        """Marks a change of the snapshot."""
        self.version += 1

    def mark_declarations_changed(self) -> None:
        """Marks a change of queues or reservations: earlier plans did not know it."""
        self.mark_changed()
        self.declaration_version = self.version

    def share_roles(self, roles: tuple[Role, ...]) -> tuple[Role, ...]:
        """Returns one shared object for all gangs with equal roles."""
        return self._shared_roles.setdefault(roles, roles)

    # -- waiting and running gangs ---------------------------------------------------------------------------

    def add_pending(self, gang: Gang) -> None:
        self.pending_since[gang.id] = self.version + 1  # `mark_changed` follows
        if gang.not_before is None:
            self.pending[gang.id] = gang
        else:
            self.backing_off[gang.id] = gang

    def is_pending(self, gang: GangId) -> bool:
        return gang in self.pending or gang in self.backing_off

    def is_pending_unchanged(self, gang: GangId, based_on: Version) -> bool:
        """Returns whether the gang waits unchanged since this version, on which a plan is based."""
        return self.is_pending(gang) and self.pending_since[gang] <= based_on

    def remove_pending(self, gang: GangId) -> None:
        self.pending.discard(gang)  # a held gang is missing there
        self.backing_off.pop(gang, None)
        self.pending_since.pop(gang, None)
        if self.promises.pop(gang, None) is not None:
            self.cached_promises.invalidate()

    def add_running(self, row: AttemptRow) -> None:
        """Adds a live attempt to the snapshot."""
        self.live_attempts[row.id] = row.phase.value
        self.running[row.id] = Running(
            row.placement,
            row.placed_at,
            row.id,
            row.started_at,
            row.saved_at,
            stopping=row.phase.value == "stopping",
            preempted_for=row.preempted_for,
            preempt_requested_at=row.preempt_requested_at,
        )

    def remove_running(self, row: AttemptRow, now: datetime) -> None:
        """Removes an ended attempt and frees its resources."""
        del self.live_attempts[row.id], self.running[row.id]
        self.node_allocations.count(row.placement, -1)
        gang = row.placement.gang
        self.quota_check.charge(gang.queue, gang.user, row.amounts, -1)
        if row.ended_at is not None:
            self.finished_usage.append(AttemptUsage(row.placed_at, now, row.amounts, *self.usage_owner(row)))

    def usage_owner(self, row: AttemptRow) -> tuple[str, str, str]:
        """Returns the user, queue and project to which an attempt is charged."""
        run = self.runs[run_of_attempt(row.id)]
        return row.placement.gang.user, row.placement.gang.queue, run.spec.project

    def live_run(self, attempt: AttemptId) -> RunRow | None:
        """Returns the run whose newest attempt this is, while it is live."""
        return self.runs[run_of_attempt(attempt)] if attempt in self.live_attempts else None

    # -- holds -----------------------------------------------------------------------------------------------

    def record_holds(self, holds: Sequence[HoldRecord], based_on: Version) -> None:
        """Stores holds without an index: holds of a long queue are written often and read seldom. A gang that
        was changed after `based_on` keeps its hold."""
        changed = {gang for gang, since in self.pending_since.items() if since > based_on}
        if changed:
            unchanged_holds = [hold for gang, hold in self.holds().items() if gang in changed]
            holds = [*(hold for hold in holds if hold.gang not in changed), *unchanged_holds]
        self._holds, self._unindexed_holds = {}, holds

    def holds(self) -> Mapping[GangId, HoldRecord]:
        """Returns the last recorded holds; their gangs may no longer wait."""
        if self._unindexed_holds:
            self._holds, self._unindexed_holds = {hold.gang: hold for hold in self._unindexed_holds}, ()
        return self._holds

    def remove_hold(self, gang: GangId) -> None:
        """Removes a hold, because the request of its gang changed."""
        self._holds = {held_gang: hold for held_gang, hold in self.holds().items() if held_gang != gang}

    def hold_of(self, run: RunRow) -> HoldRecord | None:
        return self.holds().get(run.gang.id) if self.is_pending(run.gang.id) else None


def run_of_attempt(attempt: AttemptId) -> RunId:
    return RunId(attempt.rpartition(".")[0])
