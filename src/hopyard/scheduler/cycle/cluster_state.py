"""State of the cluster that is kept between cycles and updated by the changes between snapshots."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Sequence

from hopyard.domain.cluster import Node, Running, Snapshot
from hopyard.domain.effective_limits import queue_path
from hopyard.domain.gang import Gang, Placement
from hopyard.domain.ids import GangId, NodeId, QueueName
from hopyard.domain.placement_causes import NeverFitsCause
from hopyard.domain.queue import QueueTree
from hopyard.scheduler.cycle.borrowed_runs import BorrowedRuns
from hopyard.scheduler.cycle.demand import Demand
from hopyard.scheduler.cycle.no_capacity_cache import NoCapacityCache
from hopyard.scheduler.cycle.pending_gangs import GangClass, PendingGangs, Rank
from hopyard.scheduler.cycle.snapshot_diff import changed_keys, diff_sequences
from hopyard.scheduler.cycle.time_slices import TimeSlices
from hopyard.scheduler.placement.capacity import Capacity
from hopyard.scheduler.placement.never_fits import never_fits
from hopyard.scheduler.placement.node_table import is_same_machine
from hopyard.scheduler.quota.quota_usage import QuotaUsage
from hopyard.scheduler.time_slicing import service_class
from hopyard.scheduler.timeline.run_end_estimates import RunEndEstimates

MAX_INCREMENTAL_NODES = 8  # if more nodes change at once, everything is rebuilt


class ClusterState:
    """The cluster as of the newest snapshot.

    capacity, quota_usage: free resources and quota in use now. empty_cluster: the free resources if no run
    existed and all nodes were schedulable. run_ends: the runs that hold resources, with their estimated ends.
    pending_gangs: the pending gangs. running_by_queue: the runs that hold resources, by queue. evaluators:
    those of them that follow a gang, by this gang.
    """

    def __init__(self, snapshot: Snapshot) -> None:
        self.snapshot = snapshot
        self._empty_quota_usage: QuotaUsage | None = None
        self.no_capacity_cache = NoCapacityCache()
        self._preemptible_priorities: dict[QueueName, Counter[int]] = {}
        self.running_by_queue: dict[QueueName, dict[GangId, Running]] = {}
        self.evaluators: dict[GangId, dict[GangId, Running]] = {}
        self.stopping: dict[GangId, Running] = {}
        self._demand = Demand()
        self._rebuild_nodes()
        self._rebuild_quota_usage()
        self.run_ends = RunEndEstimates.of(
            snapshot.running, snapshot.durations, snapshot.now, grace_s=snapshot.preempt_grace_s
        )
        self._rebuild_pending()
        for gang_class in self.pending_gangs.classes:
            self._demand.record(gang_class.representative, gang_class.pending_count)
        for running in snapshot.running:
            self._add_running(running)
        self._update_demand_weights()

    def update(self, snapshot: Snapshot) -> None:
        """Applies the changes of this snapshot."""
        before, self.snapshot = self.snapshot, snapshot
        ended, started = diff_sequences(before.running, snapshot.running)
        self._update_running(ended, started)
        self.run_ends.advance(snapshot.now, snapshot.durations, grace_s=snapshot.preempt_grace_s)
        nodes = [
            name
            for name in changed_keys(before.nodes, snapshot.nodes)
            if before.nodes.get(name) != snapshot.nodes.get(name)
        ]
        if len(nodes) > MAX_INCREMENTAL_NODES:
            self._rebuild_nodes()
        else:
            for name in nodes:
                self._update_node(name, before.nodes.get(name))
        if snapshot.queues != before.queues or any(
            _gpu_models_changed(before.nodes.get(name), snapshot.nodes.get(name)) for name in nodes
        ):
            self._rebuild_quota_usage()
        else:
            for name in nodes:
                self.quota_usage.set_node(before.nodes[name], snapshot.nodes[name])
            self.quota_usage.set_history(snapshot.past_usage, snapshot.now)
        self._update_pending(before)
        self._update_demand_weights()

    def _update_pending(self, before: Snapshot) -> None:
        removed, added = diff_sequences(before.pending, self.snapshot.pending)
        for gang in removed:
            self._demand.record(gang, -1)
        for gang in added:
            self._demand.record(gang, 1)
        if self.snapshot.queues != before.queues:
            self._rebuild_pending()
            for running in self.snapshot.running:
                self.time_slices.add(running)
            return
        for gang in removed:
            self.pending_gangs.remove(gang)
        for gang in added:
            self.pending_gangs.add(gang)

    def never_schedulable(self, gang_class: GangClass) -> bool:
        """Returns whether a gang of this shape does not fit even on an empty cluster with all nodes
        schedulable."""
        never = self._never_schedulable.get(gang_class)
        if never is None:
            has_nodes = bool(self.snapshot.nodes)
            never = self._never_schedulable[gang_class] = has_nodes and not _fits_in(
                self.empty_cluster, gang_class.representative
            )
        return never

    def never_admissible(self, gang: Gang) -> bool:
        """Returns whether its queue would refuse the gang even if no run existed."""
        if self._empty_quota_usage is None:
            snapshot = self.snapshot
            self._empty_quota_usage = QuotaUsage.of(
                snapshot.queues, snapshot.nodes.values(), (), {}, snapshot.now
            )
        return self._empty_quota_usage.refusal(gang) is not None

    def never_fits_check(self) -> Callable[[Gang], NeverFitsCause | None]:
        """Returns a function that says why a gang never fits, or None, as of now."""
        empty_cluster, nodes = self.empty_cluster.copy(), self.snapshot.nodes

        def why(gang: Gang) -> NeverFitsCause | None:
            if not nodes or _fits_in(empty_cluster, gang):
                return None
            return never_fits(gang, nodes.values())

        return why

    def _rebuild_nodes(self) -> None:
        self.no_capacity_cache.clear()
        nodes = self.snapshot.nodes.values()
        self.capacity = Capacity.of(nodes, (running.placement for running in self.snapshot.running))
        self.empty_cluster = Capacity.of(node.as_schedulable() for node in nodes)
        self._never_schedulable: dict[GangClass, bool] = {}
        self._empty_quota_usage = None

    def _rebuild_quota_usage(self) -> None:
        snapshot = self.snapshot
        self.borrowed_runs = BorrowedRuns(snapshot.queues, snapshot.nodes, self.running_by_queue)
        self.quota_usage = QuotaUsage.of(
            snapshot.queues, snapshot.nodes.values(), snapshot.running, snapshot.past_usage, snapshot.now
        )

    def _update_demand_weights(self) -> None:
        """Preserves capacity for the shapes of pending and running gangs."""
        self.capacity.update_weights(self._demand.mix())

    def _rebuild_pending(self) -> None:
        queues = self.snapshot.queues
        self._empty_quota_usage = None
        self.rank_function = rank_function_for(queues)
        self.pending_gangs = PendingGangs(self.snapshot.pending, self.rank_function)
        self.time_slices = TimeSlices(queues)
        parents = {queue.parent for queue in queues.queues.values()}
        self.leaf_queues = sorted(name for name in queues.queues if name not in parents)
        self.leaf_queues_below: dict[QueueName, list[QueueName]] = {}  # includes the leaves themselves
        for leaf in self.leaf_queues:
            for name in queue_path(queues, leaf):
                self.leaf_queues_below.setdefault(name, []).append(leaf)

    def _update_node(self, name: NodeId, before: Node | None) -> None:
        node = self.snapshot.nodes.get(name)
        self._empty_quota_usage = None
        if node is None:
            self.capacity.drop_node(name)
            self.empty_cluster.drop_node(name)
            self._never_schedulable.clear()
            return
        self.capacity.set_node(node)
        self.no_capacity_cache.invalidate_nodes([name])
        if before is None or not is_same_machine(before, node):
            self.empty_cluster.set_node(node.as_schedulable())
            self._never_schedulable.clear()

    def _update_running(self, ended: Iterable[Running], started: Sequence[Running]) -> None:
        ended_by_id = {running.gang.id: running for running in ended}
        released: list[Placement] = []
        allocated: list[Placement] = []
        for running in started:
            before = ended_by_id.pop(running.gang.id, None)
            if before is None or before.placement != running.placement:
                if before is not None:
                    released.append(self._remove_running(before))
                allocated.append(running.placement)
            self._add_running(running)
        self.run_ends.add_all(started)
        for running in ended_by_id.values():
            released.append(self._remove_running(running))
            self.run_ends.drop(running.gang.id)
        self.capacity.release_all(released)
        self.quota_usage.credit_all(released)
        self.capacity.allocate_all(allocated)
        self.quota_usage.charge_all(allocated)

    def lowest_priority(self, queue: QueueName) -> int | None:
        """Returns the lowest priority of the runs of a queue that can be preempted."""
        return min(self._preemptible_priorities.get(queue, ()), default=None)

    def evaluators_of(self, gang: GangId) -> list[Running]:
        """Returns the runs that follow the gang and hold resources, in a stable order."""
        return sorted(self.evaluators.get(gang, {}).values(), key=lambda running: running.gang.id)

    def evaluated_gangs(self) -> list[Gang]:
        """Returns the pending gangs of which evaluators hold resources: these wait for them."""
        found = (self.pending_gangs.find(gang) for gang in sorted(self.evaluators))
        return [gang for gang in found if gang is not None]

    def _count_priority(self, gang: Gang, delta: int) -> None:
        if gang.preemptible:
            counts = self._preemptible_priorities.setdefault(gang.queue, Counter())
            counts[gang.priority] += delta
            if not counts[gang.priority]:
                del counts[gang.priority]

    def _add_running(self, running: Running) -> None:
        runs = self.running_by_queue.setdefault(running.gang.queue, {})
        if running.gang.id not in runs:
            self._demand.record(running.gang, 1)
            self._count_priority(running.gang, 1)
        runs[running.gang.id] = running
        if running.gang.follows is not None:
            self.evaluators.setdefault(running.gang.follows, {})[running.gang.id] = running
        self.borrowed_runs.invalidate_queue(running.gang.queue)
        self.time_slices.add(running)
        if running.stopping:
            self.stopping[running.gang.id] = running
        else:
            self.stopping.pop(running.gang.id, None)

    def _remove_running(self, running: Running) -> Placement:
        """Returns the placement that the caller must release."""
        self.stopping.pop(running.gang.id, None)
        runs = self.running_by_queue[running.gang.queue]
        del runs[running.gang.id]
        if running.gang.follows is not None:
            evaluators = self.evaluators[running.gang.follows]
            del evaluators[running.gang.id]
            if not evaluators:
                del self.evaluators[running.gang.follows]
        self._demand.record(running.gang, -1)
        self._count_priority(running.gang, -1)
        self.borrowed_runs.forget_run(running)
        self.time_slices.drop(running)
        self.no_capacity_cache.invalidate_nodes(
            assignment.node for assignment in running.placement.assignments
        )
        if not runs:
            del self.running_by_queue[running.gang.queue]
        return running.placement


def rank_function_for(queues: QueueTree) -> Callable[[Gang], Rank]:
    """Returns the function that ranks gangs in their queue, regardless of their users."""
    sliced_queues = {name for name, queue in queues.queues.items() if queue.time_slices}

    def rank(gang: Gang) -> Rank:
        return -gang.priority, service_class(gang, gang.served_s) if gang.queue in sliced_queues else 0

    return rank


def _fits_in(empty_cluster: Capacity, gang: Gang) -> bool:
    """Returns whether the smallest size of the gang fits; same as `placement.unschedulable.fits`."""
    smallest = gang.with_replica_counts([role.required_replicas for role in gang.roles])
    return empty_cluster.place(smallest, score="first-fit") is not None or (
        len(gang.roles) > 1 and empty_cluster.place(smallest) is not None
    )


def _gpu_models_changed(before: Node | None, after: Node | None) -> bool:
    """Returns whether amounts charged on this node may count differently now, because GPU amounts depend on
    the GPU models of the node."""
    return before is None or after is None or before.gpus != after.gpus
