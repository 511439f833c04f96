"""Who may be asked to make room for whom, and who of them is."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property

from hopyard.domain.cluster import Running
from hopyard.domain.gang import Gang, Placement
from hopyard.domain.ids import GangId, NodeId, QueueName
from hopyard.scheduler.cycle.cluster_state import ClusterState
from hopyard.scheduler.cycle.victim_search import Victim, VictimSearch, gpu_weight_of, unsaved_gpu_seconds
from hopyard.scheduler.placement.capacity import Capacity
from hopyard.scheduler.placement.optimistic_fit import OptimisticFit
from hopyard.scheduler.quota.quota_usage import QuotaUsage
from hopyard.scheduler.time_slicing import CLASS_COUNT, service_class

# the tier of lower priorities and of what was lent; those that only take turns come after it
RECLAIM_TIER = -CLASS_COUNT


@dataclass(frozen=True, slots=True)
class _PreemptionKey:
    """What decides who may be asked to make room for a gang."""

    queue: QueueName
    priority: int
    service_class: int
    reclaimable_queues: frozenset[QueueName]


class Preemptor:
    """Of one turn. It looks at the world as it will be once all that was asked to end has ended, and those
    for whom it was asked have started.

    Each of these is a law, and together they leave no two gangs that preempt each other in turn:
    - a run of lower priority in the same queue gives way, never one of the same priority;
    - a run that its queue started with what others are sure of gives way to a gang within its own queue's
      guarantee, which is therefore not borrowed itself (see `BorrowedRuns`): so who was preempted cannot
      reclaim in turn;
    - where the queue slices time, a run gives way to one of the same priority that was served much less.
    """

    def __init__(self, cluster_state: ClusterState, capacity: Capacity, quota_usage: QuotaUsage) -> None:
        """capacity, quota_usage: as they are now, what starts in this turn included; it is told of what
        starts from then on."""
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
        """They were asked to end."""
        for running in runs:
            if running.gang.id not in self._preempted:
                self._preempted.add(running.gang.id)
                self._capacity.release(running.placement)
                self.quota_usage.credit(running.placement)
                self._clear_caches()

    def record_placement(self, placement: Placement) -> None:
        """It was placed, or will be once others have left."""
        self._capacity.allocate(placement)
        self.quota_usage.charge(placement)
        self._clear_caches()

    def _clear_caches(self) -> None:
        for known in (
            self._candidates_by_key,
            self._victims_by_key,
            self._optimistic_fit_by_key,
            self._capacity_by_key,
            self._may_help_by_key,
            self._borrowers,
        ):
            known.clear()

    def may_preempt(self, queue: QueueName, priority: int) -> bool:
        """Whether there is anybody at all who might have to make room for gangs of this priority in the
        queue."""
        known = self._queues.get(queue)
        if known is None:
            return False
        if known.preempts_lower or known.time_slices:
            lowest = self._cluster_state.lowest_priority(queue)
            if lowest is not None and (known.time_slices or lowest < priority):
                return True
        return self.quota_usage.may_reclaim(queue)

    def candidate_victims(
        self, gang: Gang, *, excluded_nodes: frozenset[NodeId] = frozenset()
    ) -> list[Victim]:
        """All who may be asked to stop for it. excluded_nodes: nodes to keep out of."""
        claim = self._key_of(gang)
        found = self._victims_by_key.get(claim)
        if found is None:
            found = self._victims_by_key[claim] = [
                Victim(running, self._unsaved_work(running), tier)
                for tier, running in self._candidates(gang, claim)
            ]
        return (
            [victim for victim in found if not excluded_nodes.intersection(_nodes_of(victim.running))]
            if excluded_nodes
            else found
        )

    def _candidates(self, gang: Gang, key: _PreemptionKey) -> list[tuple[int, Running]]:
        """All who may be asked, with their tiers."""
        found = self._candidates_by_key.get(key)
        if found is None:
            found = self._candidates_by_key[key] = list(self._find_candidates(gang, key))
        return found

    def _find_candidates(self, gang: Gang, key: _PreemptionKey) -> Iterator[tuple[int, Running]]:
        yield from self._lower_ranked_runs(gang)
        for owing in sorted(key.reclaimable_queues):
            for running in self._cluster_state.borrowed_runs.runs_borrowed_from(owing, gang.queue):
                if self._is_preemptible(running):
                    yield RECLAIM_TIER, running

    def may_help(self, gang: Gang) -> bool:
        """Whether the gang would have room, whatever its queue may use, if everybody left who may be asked.
        Known for all of its claim and shape at once, and much cheaper than to look for those who suffice."""
        claim = self._key_of(gang)
        key = claim, (gang.roles, gang.topology)
        if key not in self._may_help_by_key:
            smallest = gang.with_replica_counts([role.required_replicas for role in gang.roles])
            self._may_help_by_key[key] = self._optimistic_fit(gang, claim).may_fit(
                smallest
            ) and self._fits_without_candidates(smallest, claim)
        return self._may_help_by_key[key]

    def _optimistic_fit(self, gang: Gang, key: _PreemptionKey) -> OptimisticFit:
        """As `_holds`, but hopeful and much cheaper still."""
        found = self._optimistic_fit_by_key.get(key)
        if found is None:
            found = self._optimistic_fit_by_key[key] = OptimisticFit(
                self._capacity, [one.placement for _, one in self._candidates(gang, key)]
            )
        return found

    def _fits_without_candidates(self, gang: Gang, key: _PreemptionKey) -> bool:
        emptied = self._capacity_by_key.get(key)
        if emptied is None:
            emptied = self._capacity_by_key[key] = self._capacity.copy()
            emptied.release_all(running.placement for _, running in self._candidates(gang, key))
        return emptied.place(gang, score="first-fit") is not None

    def _key_of(self, gang: Gang) -> _PreemptionKey:
        sliced = service_class(gang, gang.served_s) if self._queues[gang.queue].time_slices else 0
        return _PreemptionKey(gang.queue, gang.priority, sliced, self._reclaimable_queues(gang))

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
        """Whom of these to ask, and where the gang will go; None where it would not help, or all will be well
        without."""
        capacity = self._capacity
        if excluded_nodes:
            capacity = capacity.copy()
            capacity.close_nodes(excluded_nodes)
        search = VictimSearch(gang, capacity, self.quota_usage)
        if search.place_without(()) is not None:
            return None
        found = None
        for few in _tier_prefixes(victims):
            found = search.cheapest(few)
            if found is not None:
                break
        place = None if found is None else search.place_without(found)
        if found is None or place is None:
            return None
        runs = [victim.running for victim in found]
        return (
            (runs, place)
            if all(run.gang.queue == gang.queue for run in runs) or self._uses_only_reclaimable(gang, place)
            else None
        )

    def _uses_only_reclaimable(self, gang: Gang, placement: Placement) -> bool:
        """Whether what others are sure of and its own lender is not is free where it goes, and allowed,
        before anybody leaves. Else those who leave could take that back from it in turn: of two queues one is
        sure of GPUs, the other of CPUs, and their runs ask for both."""
        names = self.quota_usage.not_reclaimable(gang)
        return not names or (
            self._capacity.is_free(placement, names)
            and not self.quota_usage.is_refused_for(placement.gang, names)
        )

    def preemption_reason(self, running: Running, gang: Gang) -> str:
        """Returns the message for the run that is preempted."""
        if running.gang.queue != gang.queue:
            lender = self.quota_usage.find_lender(gang)[0] or gang.queue
            return (
                f"queue {running.gang.queue} uses more than its guarantee; run {gang.id} reclaims "
                f"what queue {lender} lent"
            )
        if running.gang.priority < gang.priority:
            return f"run {gang.id} has priority {gang.priority}, this one {running.gang.priority}"
        return f"run {gang.id} has received much less service, and queue {gang.queue} uses time slicing"

    def _lower_ranked_runs(self, gang: Gang) -> list[tuple[int, Running]]:
        """Of its own queue, with tiers: lower priorities, then those that were served most."""
        queue, found = self._queues[gang.queue], []
        lowest = self._cluster_state.lowest_priority(gang.queue) if queue.preempts_lower else None
        if lowest is not None and lowest < gang.priority:
            found += [
                (RECLAIM_TIER, running)
                for running in self._runs_in(gang.queue)
                if running.gang.priority < gang.priority
            ]
        if queue.time_slices:
            waits = service_class(gang, gang.served_s)
            for yields_to, running in self._cluster_state.time_slices.preemptible_runs(
                gang.queue, gang.priority, waits, self._now
            ):
                if running.gang.id not in self._preempted:
                    found.append((-yields_to, running))
        return found

    def next_time_slice_in_s(self, gang: Gang) -> float | None:
        """In how many seconds another run will give way to it; None where none will."""
        waits = service_class(gang, gang.served_s)
        return self._cluster_state.time_slices.next_preemptible_in_s(
            gang.queue, gang.priority, waits, self._now
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
    """The best tier, the best two, and so on."""
    for tier in sorted({victim.tier for victim in victims}):
        yield [victim for victim in victims if victim.tier <= tier]


def _nodes_of(running: Running) -> set[NodeId]:
    return {assignment.node for assignment in running.placement.assignments}
