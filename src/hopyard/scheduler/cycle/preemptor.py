"""Selects the runs that are preempted for a gang."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property

from hopyard.domain.cluster import Running
from hopyard.domain.gang import Gang, Placement
from hopyard.domain.ids import GangId, NodeId, QueueName
from hopyard.domain.preemption_causes import (
    EvaluationPreemption,
    PreemptionCause,
    PriorityPreemption,
    QuotaReclamation,
    TimeSlicePreemption,
)
from hopyard.scheduler.cycle.cluster_state import ClusterState
from hopyard.scheduler.cycle.victim_search import Victim, VictimSearch, gpu_weight_of, unsaved_gpu_seconds
from hopyard.scheduler.placement.capacity import Capacity
from hopyard.scheduler.placement.optimistic_fit import OptimisticFit
from hopyard.scheduler.quota.quota_usage import QuotaUsage
from hopyard.scheduler.time_slicing import CLASS_COUNT, service_class

# the tier of lower priorities and borrowed runs; the tiers of time slicing come after it
RECLAIM_TIER = -CLASS_COUNT
EVALUATION_TIER = RECLAIM_TIER - 1  # evaluators of the gang itself are preempted before all others


@dataclass(frozen=True, slots=True)
class _PreemptionKey:
    """Everything that decides which runs a gang may preempt."""

    queue: QueueName
    priority: int
    service_class: int
    reclaimable_queues: frozenset[QueueName]
    followed: GangId | None = None  # the gang, if evaluators of it run


class Preemptor:
    """Valid for one cycle. It works on the cluster as it will be once all runs that were asked to stop have
    ended, and the gangs that they were asked for have started.

    Four rules together guarantee that no two gangs preempt each other in turn:

    - a gang preempts runs of lower priority in its queue, never of the same priority;
    - a gang within its queue's guarantee preempts runs that another queue started with borrowed capacity. The
      gang itself is not borrowed then (see `BorrowedRuns`), so the preempted run cannot reclaim in turn;
    - in a queue that uses time slicing, a gang preempts runs of the same priority that have received much
      more service;
    - a gang preempts the evaluators that follow it, in any queue and of any priority. An evaluator that
      follows a run preempts none itself (see `PreemptionRequests.preempt_for`).
    """

    def __init__(self, cluster_state: ClusterState, capacity: Capacity, quota_usage: QuotaUsage) -> None:
        """capacity, quota_usage: the current state, including the starts of this cycle. The caller reports
        later starts with `record_placement`."""
        self._cluster_state, self._now = cluster_state, cluster_state.snapshot.now
        self._queues = cluster_state.snapshot.queues.queues
        self._capacity, self.quota_usage = capacity.copy(), quota_usage.copy()
        self._preempted: set[GangId] = set()
        self._candidates_by_key: dict[_PreemptionKey, list[tuple[int, Running]]] = {}
        self._victims_by_key: dict[_PreemptionKey, list[Victim]] = {}
        self._optimistic_fit_by_key: dict[_PreemptionKey, OptimisticFit] = {}
        self._capacity_by_key: dict[_PreemptionKey, Capacity] = {}
        self._borrowers: dict[tuple[QueueName, tuple[str, ...]], frozenset[QueueName]] = {}
        self._may_help_by_key: dict[tuple[_PreemptionKey, object], bool] = {}
        self.record_preempted(cluster_state.stopping.values())

    def record_preempted(self, runs: Iterable[Running]) -> None:
        """Records that these runs are being stopped."""
        for running in runs:
            if running.gang.id not in self._preempted:
                self._preempted.add(running.gang.id)
                self._capacity.release(running.placement)
                self.quota_usage.credit(running.placement)
                self._clear_caches()

    def record_placement(self, placement: Placement) -> None:
        """Records that the gang was placed, or will be once preempted runs have ended."""
        self._capacity.allocate(placement)
        self.quota_usage.charge(placement)
        self._clear_caches()

    def _clear_caches(self) -> None:
        for cache in (
            self._candidates_by_key,
            self._victims_by_key,
            self._optimistic_fit_by_key,
            self._capacity_by_key,
            self._may_help_by_key,
            self._borrowers,
        ):
            cache.clear()

    def may_preempt(self, queue: QueueName, priority: int) -> bool:
        """Returns whether any run could be preempted by gangs of this priority in the queue, apart from
        their own evaluators."""
        found_queue = self._queues.get(queue)
        if found_queue is None:
            return False
        if found_queue.preempts_lower or found_queue.time_slices:
            lowest = self._cluster_state.lowest_priority(queue)
            if lowest is not None and (found_queue.time_slices or lowest < priority):
                return True
        return self.quota_usage.may_reclaim(queue)

    def candidate_victims(
        self, gang: Gang, *, excluded_nodes: frozenset[NodeId] = frozenset()
    ) -> list[Victim]:
        """Returns the runs that the gang may preempt. excluded_nodes: nodes that the gang cannot use."""
        key = self._key_of(gang)
        victims = self._victims_by_key.get(key)
        if victims is None:
            victims = self._victims_by_key[key] = [
                Victim(running, self._unsaved_work(running), tier)
                for tier, running in self._candidates(gang, key)
            ]
        return (
            [victim for victim in victims if not excluded_nodes.intersection(_nodes_of(victim.running))]
            if excluded_nodes
            else victims
        )

    def _candidates(self, gang: Gang, key: _PreemptionKey) -> list[tuple[int, Running]]:
        """Returns the runs that the gang may preempt, with their tiers."""
        candidates = self._candidates_by_key.get(key)
        if candidates is None:
            candidates = self._candidates_by_key[key] = list(self._find_candidates(gang, key))
        return candidates

    def _find_candidates(self, gang: Gang, key: _PreemptionKey) -> Iterator[tuple[int, Running]]:
        evaluators = [
            running
            for running in self._cluster_state.evaluators_of(gang.id)
            if running.gang.id not in self._preempted
        ]
        found = {running.gang.id for running in evaluators}
        yield from ((EVALUATION_TIER, running) for running in evaluators)
        for tier, running in self._other_candidates(gang, key):
            if running.gang.id not in found:
                yield tier, running

    def _other_candidates(self, gang: Gang, key: _PreemptionKey) -> Iterator[tuple[int, Running]]:
        yield from self._lower_ranked_runs(gang)
        for borrower in sorted(key.reclaimable_queues):
            for running in self._cluster_state.borrowed_runs.runs_borrowed_from(borrower, gang.queue):
                if self._is_preemptible(running):
                    yield RECLAIM_TIER, running

    def may_help(self, gang: Gang) -> bool:
        """Returns whether the gang would fit if all candidates ended, regardless of its quota. The answer is
        shared by gangs of equal key and shape, and much cheaper than the search for victims."""
        preemption_key = self._key_of(gang)
        key = preemption_key, (gang.roles, gang.topology)
        if key not in self._may_help_by_key:
            smallest = gang.with_replica_counts([role.required_replicas for role in gang.roles])
            self._may_help_by_key[key] = self._optimistic_fit(gang, preemption_key).may_fit(
                smallest
            ) and self._fits_without_candidates(smallest, preemption_key)
        return self._may_help_by_key[key]

    def _optimistic_fit(self, gang: Gang, key: _PreemptionKey) -> OptimisticFit:
        """Does the same as `_fits_without_candidates`, but optimistically, and is much cheaper."""
        optimistic_fit = self._optimistic_fit_by_key.get(key)
        if optimistic_fit is None:
            optimistic_fit = self._optimistic_fit_by_key[key] = OptimisticFit(
                self._capacity, [run.placement for _, run in self._candidates(gang, key)]
            )
        return optimistic_fit

    def _fits_without_candidates(self, gang: Gang, key: _PreemptionKey) -> bool:
        capacity = self._capacity_by_key.get(key)
        if capacity is None:
            capacity = self._capacity_by_key[key] = self._capacity.copy()
            capacity.release_all(running.placement for _, running in self._candidates(gang, key))
        return capacity.place(gang, score="first-fit") is not None

    def _key_of(self, gang: Gang) -> _PreemptionKey:
        gang_service_class = service_class(gang, gang.served_s) if self._queues[gang.queue].time_slices else 0
        return _PreemptionKey(
            gang.queue,
            gang.priority,
            gang_service_class,
            self._reclaimable_queues(gang),
            gang.id if gang.id in self._cluster_state.evaluators else None,
        )

    def _reclaimable_queues(self, gang: Gang) -> frozenset[QueueName]:
        lender, names = self.quota_usage.find_lender(gang)
        if lender is None:
            return frozenset()
        key = lender, tuple(names)
        if key not in self._borrowers:
            self._borrowers[key] = self.quota_usage.borrowers(lender, names)
        return self._borrowers[key]

    def find_victims(
        self, gang: Gang, victims: Sequence[Victim], *, excluded_nodes: frozenset[NodeId] = frozenset()
    ) -> tuple[list[Running], Placement] | None:
        """Returns the victims and the placement of the gang. Returns None if preemption does not help or is
        not needed."""
        capacity = self._capacity
        if excluded_nodes:
            capacity = capacity.copy()
            capacity.close_nodes(excluded_nodes)
        search = VictimSearch(gang, capacity, self.quota_usage)
        if search.place_without(()) is not None:
            return None
        chosen = None
        for candidates in _tier_prefixes(victims):
            chosen = search.cheapest(candidates)
            if chosen is not None:
                break
        placement = None if chosen is None else search.place_without(chosen)
        if chosen is None or placement is None:
            return None
        runs = [victim.running for victim in chosen]
        return (
            (runs, placement)
            if all(run.gang.queue == gang.queue or run.gang.follows == gang.id for run in runs)
            or self._uses_only_reclaimable(gang, placement)
            else None
        )

    def _uses_only_reclaimable(self, gang: Gang, placement: Placement) -> bool:
        """Returns whether the requested resources that the gang cannot reclaim are free in its placement, and
        allowed by quota, before any run stops. Otherwise the preempted runs could reclaim them in turn.
        Example: one of two queues has a guarantee for GPUs, the other for CPUs, and their runs request
        both."""
        names = self.quota_usage.not_reclaimable(gang)
        return not names or (
            self._capacity.is_free(placement, names)
            and not self.quota_usage.is_refused_for(placement.gang, names)
        )

    def preemption_cause(self, running: Running, gang: Gang) -> PreemptionCause:
        """Returns why the run is preempted for the gang."""
        if running.gang.follows == gang.id:
            return EvaluationPreemption(gang.id)
        if running.gang.queue != gang.queue:
            lender = self.quota_usage.find_lender(gang)[0] or gang.queue
            return QuotaReclamation(gang.id, running.gang.queue, lender)
        if running.gang.priority < gang.priority:
            return PriorityPreemption(gang.id, gang.priority, running.gang.priority)
        return TimeSlicePreemption(gang.id, gang.queue)

    def _lower_ranked_runs(self, gang: Gang) -> list[tuple[int, Running]]:
        """Returns runs of the gang's queue with tiers: lower priorities first, then the runs with the most
        service."""
        queue, runs = self._queues[gang.queue], []
        lowest = self._cluster_state.lowest_priority(gang.queue) if queue.preempts_lower else None
        if lowest is not None and lowest < gang.priority:
            runs += [
                (RECLAIM_TIER, running)
                for running in self._runs_in(gang.queue)
                if running.gang.priority < gang.priority
            ]
        if queue.time_slices:
            gang_class = service_class(gang, gang.served_s)
            for worst_class, running in self._cluster_state.time_slices.preemptible_runs(
                gang.queue, gang.priority, gang_class, self._now
            ):
                if running.gang.id not in self._preempted:
                    runs.append((-worst_class, running))
        return runs

    def next_time_slice_in_s(self, gang: Gang) -> float | None:
        """Returns the seconds until the gang may preempt another run of its queue; None if it never may."""
        gang_class = service_class(gang, gang.served_s)
        return self._cluster_state.time_slices.next_preemptible_in_s(
            gang.queue, gang.priority, gang_class, self._now
        )

    def _runs_in(self, queue: QueueName) -> list[Running]:
        return [
            running
            for running in self._cluster_state.running_by_queue.get(queue, {}).values()
            if self._is_preemptible(running)
        ]

    def _is_preemptible(self, running: Running) -> bool:
        return running.gang.preemptible and running.gang.id not in self._preempted

    @cached_property
    def _gpu_weight(self) -> Callable[[Placement], int]:
        return gpu_weight_of(node for node in self._cluster_state.snapshot.nodes.values() if node.schedulable)

    def _unsaved_work(self, running: Running) -> int:
        return unsaved_gpu_seconds(running, self._now, self._gpu_weight)


def _tier_prefixes(victims: Sequence[Victim]) -> Iterator[list[Victim]]:
    """Yields the best tier, the best two tiers, and so on."""
    for tier in sorted({victim.tier for victim in victims}):
        yield [victim for victim in victims if victim.tier <= tier]


def _nodes_of(running: Running) -> set[NodeId]:
    return {assignment.node for assignment in running.placement.assignments}
