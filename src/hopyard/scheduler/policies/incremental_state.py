"""State that a baseline policy keeps between cycles, updated by the changes between snapshots."""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence, Set
from datetime import datetime
from heapq import heapify, heappop, heapreplace
from typing import Generic, TypeVar

from hopyard.domain.cluster import Running, Snapshot
from hopyard.domain.gang import Gang, Placement, Role, Topology
from hopyard.domain.ids import GangId, NodeId
from hopyard.domain.placement_causes import NeverFitsCause
from hopyard.scheduler.cycle.snapshot_diff import changed_keys, diff_sequences
from hopyard.scheduler.placement.capacity import Capacity
from hopyard.scheduler.placement.feasibility import NodeFeasibility, ReplicaRequest
from hopyard.scheduler.placement.free_resources import FreeResources
from hopyard.scheduler.placement.never_fits import never_fits
from hopyard.scheduler.placement.node_table import NodeTable
from hopyard.scheduler.quota.quota_usage import QuotaUsage

K = TypeVar("K", bound=Hashable)
BaselineOrder = tuple[int, datetime, GangId]
GangClassKey = tuple[tuple[Role, ...], Topology | None]


def submission_order(gang: Gang) -> BaselineOrder:
    """Orders gangs by priority, then first come, first served."""
    return -gang.priority, gang.submitted_at, gang.id


def class_of(gang: Gang) -> GangClassKey:
    """Returns the shape of the gang: gangs of one shape fit on the same nodes."""
    return gang.roles, gang.topology


class IncrementalState(Generic[K]):
    """The state as of the newest snapshot.

    capacity, quota_usage: what is free and used now. pending: waiting gangs in groups, each in order.
    running: the gangs that hold resources. may_have_freed: whether capacity or quota may have become free
    since the snapshot before.
    """

    def __init__(self, group_of: Callable[[Gang], K]) -> None:
        """group_of: returns the group of a waiting gang; it must not change while the gang waits."""
        self._group_of = group_of
        self._snapshot: Snapshot | None = None
        self._never_fits: dict[GangClassKey, NeverFitsCause | None] = {}
        self._capable_nodes: dict[tuple[Role, ...], frozenset[NodeId]] = {}
        self.pending: dict[K, list[Gang]] = {}
        self.running: dict[GangId, Running] = {}
        self.may_have_freed = True

    def update(self, snapshot: Snapshot) -> None:
        """Applies the changes of this snapshot."""
        before, self._snapshot = self._snapshot, snapshot
        removed, added = diff_sequences(() if before is None else before.pending, snapshot.pending)
        for gang in removed:
            self._remove_pending(gang)
        for gang in added:
            insort(self.pending.setdefault(self._group_of(gang), []), gang, key=submission_order)
        ended, started = diff_sequences(() if before is None else before.running, snapshot.running)
        needs_rebuild = before is None or snapshot.queues != before.queues or _nodes_differ(before, snapshot)
        self.may_have_freed = needs_rebuild
        for running in ended:
            del self.running[running.gang.id]
        for running in started:
            self.running[running.gang.id] = running
        if needs_rebuild:
            self._never_fits.clear()
            self._capable_nodes.clear()
            self._open_nodes = FreeResources.of_empty_nodes(
                NodeTable(node for node in snapshot.nodes.values() if node.schedulable)
            )
            self.capacity = Capacity.of(
                snapshot.nodes.values(), (running.placement for running in snapshot.running)
            )
            self.quota_usage = QuotaUsage.of(
                snapshot.queues, snapshot.nodes.values(), snapshot.running, {}, snapshot.now
            )
        else:
            self._update_running(ended, started)

    def never_fits_cause(self, gang: Gang) -> NeverFitsCause | None:
        """Returns why the gang never fits, or None."""
        gang_class = class_of(gang)
        if gang_class not in self._never_fits:
            assert self._snapshot is not None
            self._never_fits[gang_class] = never_fits(gang, self._snapshot.nodes.values())
        return self._never_fits[gang_class]

    @property
    def open_nodes(self) -> int:
        """Returns the number of schedulable nodes."""
        return len(self._open_nodes.node_table.nodes)

    def capable_nodes(self, gang: Gang) -> frozenset[NodeId]:
        """Returns the schedulable nodes that could hold at least one of its replicas when empty."""
        if gang.roles not in self._capable_nodes:
            fitting = [
                NodeFeasibility(self._open_nodes.node_table, ReplicaRequest(role.resources, role.where)).fits(
                    self._open_nodes
                )
                for role in gang.roles
            ]
            nodes = self._open_nodes.node_table.nodes
            self._capable_nodes[gang.roles] = frozenset(
                node.id for row, node in enumerate(nodes) if any(fits[row] for fits in fitting)
            )
        return self._capable_nodes[gang.roles]

    def _remove_pending(self, gang: Gang) -> None:
        group = self._group_of(gang)
        gangs = self.pending[group]
        del gangs[bisect_left(gangs, submission_order(gang), key=submission_order)]
        if not gangs:
            del self.pending[group]

    def _update_running(self, ended: Iterable[Running], started: Iterable[Running]) -> None:
        """Applies ended and started placements; other changes of an attempt change nothing."""
        ended_placements = {running.gang.id: running.placement for running in ended}
        for running in started:
            if ended_placements.get(running.gang.id) == running.placement:
                del ended_placements[running.gang.id]
            else:
                self.capacity.allocate(running.placement)
                self.quota_usage.charge(running.placement)
        for placement in ended_placements.values():
            self.capacity.release(placement)
            self.quota_usage.credit(placement)
            self.may_have_freed = True


def _nodes_differ(before: Snapshot, after: Snapshot) -> bool:
    return any(
        before.nodes.get(name) != after.nodes.get(name) for name in changed_keys(before.nodes, after.nodes)
    )


def merge_in_order(groups: Mapping[K, Sequence[Gang]], skipped: Set[K]) -> Iterator[tuple[K, Gang]]:
    """Yields the gangs of all groups in one order, but none of a group in `skipped`, which may grow
    meanwhile."""
    heap = [
        (submission_order(gangs[0]), 0, gangs, group)
        for group, gangs in groups.items()
        if group not in skipped
    ]
    heapify(heap)
    while heap:
        _, index, gangs, group = heap[0]
        if group not in skipped:
            yield group, gangs[index]
        if group in skipped or index + 1 == len(gangs):
            heappop(heap)
        else:
            heapreplace(heap, (submission_order(gangs[index + 1]), index + 1, gangs, group))


class TentativePlan:
    """What is free and used while a plan is made. score: the rule that selects nodes."""

    def __init__(self, state: IncrementalState[K], score: str) -> None:
        self.capacity, self.quota_usage, self._score = state.capacity.copy(), state.quota_usage.copy(), score
        self.placed: list[Placement] = []

    def find_placement(self, gang: Gang) -> Placement | None:
        """Returns a place for a gang that no limit refuses; takes nothing."""
        return self.capacity.place_largest(self.quota_usage.allowed_sizes(gang), score=self._score)

    def try_start(self, gang: Gang) -> Placement | None:
        """Starts the gang if it fits."""
        placement = self.find_placement(gang)
        if placement is not None:
            self.capacity.allocate(placement)
            self.quota_usage.charge(placement)
            self.placed.append(placement)
        return placement
