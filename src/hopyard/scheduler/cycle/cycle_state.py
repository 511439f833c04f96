"""State that the steps of one cycle share: the cluster after the decisions so far."""

from __future__ import annotations

from collections.abc import Callable

from hopyard.domain.gang import Gang, Placement
from hopyard.domain.hold_reason import HoldReason
from hopyard.domain.ids import GangId
from hopyard.scheduler.cycle.cluster_state import ClusterState
from hopyard.scheduler.cycle.hold_explanations import HoldDetail
from hopyard.scheduler.cycle.pending_gangs import GangClass
from hopyard.scheduler.cycle.promises import CyclePromises
from hopyard.scheduler.duration_estimates import DurationEstimate, estimate_duration
from hopyard.scheduler.placement.capacity import Capacity
from hopyard.scheduler.timeline.backfill import BackfillTimeline
from hopyard.scheduler.timeline.block_reason import BlockReason
from hopyard.scheduler.timeline.run_end_estimates import HistoryKey, history_key


class CycleState:
    """placed: the gangs that start. own_holds: holds of gangs that were examined individually. promised: the
    promises of this cycle, and the gangs that they bind."""

    def __init__(self, cluster_state: ClusterState) -> None:
        self.cluster_state, self.snapshot, self.pending_gangs = (
            cluster_state,
            cluster_state.snapshot,
            cluster_state.pending_gangs,
        )
        self.now = self.snapshot.now
        # not a copy: its score cache is up to date; `close` releases what starts
        self.capacity = cluster_state.capacity
        self.quota_usage = cluster_state.quota_usage.copy()
        self.timeline = BackfillTimeline(
            self.capacity,
            self.quota_usage,
            cluster_state.run_ends,
            self.snapshot.reservations,
            self.now,
            self.snapshot.queues,
            self.snapshot.promises.values(),
        )
        self.promises = CyclePromises(
            self.snapshot.promises,
            self.timeline,
            self.quota_usage,
            self.pending_gangs,
            self.snapshot.queues.queues,
            self.now,
        )
        self.placed: dict[GangId, Placement] = {}
        self.own_holds: dict[GangId, HoldDetail] = {}
        self.start_listeners: list[Callable[[Placement], None]] = []
        self._estimates: dict[tuple[HistoryKey, float | None, float], DurationEstimate] = {}

    def close(self) -> Capacity:
        """Returns the capacity after all starts, and restores the capacity of the cluster state."""
        after_starts = self.capacity.copy()
        self.capacity.release_all(self.placed.values())
        return after_starts

    def pending_gang(self, gang: GangId) -> Gang:
        """Returns a pending gang."""
        pending = self.pending_gangs.find(gang)
        assert pending is not None
        return pending

    def estimate_of(self, gang: Gang) -> DurationEstimate:
        """Returns the estimated duration of the gang."""
        key = history_key(gang), gang.time_limit_s, gang.served_s
        estimate = self._estimates.get(key)
        if estimate is None:
            estimate = self._estimates[key] = estimate_duration(gang, self.snapshot.durations)
        return estimate

    def try_start(self, gang: Gang, *, quota_checked: bool = False) -> Placement | BlockReason:
        """quota_checked: the caller knows that the queue does not refuse the gang."""
        promise = self.snapshot.promises.get(gang.id)
        preferred_nodes = frozenset(promise.nodes) if promise is not None else frozenset()
        return self.timeline.try_backfill(
            gang,
            self.estimate_of(self.pending_gang(gang.id)),
            preferred_nodes=preferred_nodes,
            explain=False,
            quota_checked=quota_checked,
        )

    def start(self, placement: Placement) -> None:
        gang = placement.gang.id
        self.promises.drop(gang)
        self.timeline.start(placement, self.estimate_of(self.pending_gang(gang)))
        self.placed[gang] = placement
        self.own_holds.pop(gang, None)
        for listener in self.start_listeners:
            listener(placement)

    def try_promise(self, gang: Gang, block: BlockReason) -> bool:
        """Returns whether the gang is promised a start, or its earlier promise is kept."""
        if self.promises.promise_start(gang, self.estimate_of(gang), block.reason) is None:
            return False
        self.set_hold(gang, block)
        return True

    def has_room(self, gang_class: GangClass) -> bool:
        """Returns whether a gang of this shape fits, ignoring promises. A gang of several roles fits only if
        it can be placed as a whole."""
        gang = gang_class.representative
        if len(gang.roles) > 1:
            return self.capacity.place(gang) is not None
        return (
            self.capacity.place(
                gang.with_replica_counts([role.required_replicas for role in gang.roles]), score="first-fit"
            )
            is not None
        )

    def confirm_promise(self, gang: Gang, block: BlockReason) -> bool:
        """Same as `promise`, with the estimate from the start of the cycle."""
        if self.promises.confirm(gang, block.reason) is None:
            return False
        self.set_hold(gang, block)
        return True

    def quick_block_reason(self, gang: Gang) -> BlockReason | None:
        """Returns a reason that is quick to find, or None: quota, or too little capacity regardless of
        promises."""
        refusal = self.quota_usage.refusal(gang)
        if refusal is not None:
            return BlockReason.of(refusal.cause, refusal.blocked_by)
        if self.capacity.place(gang) is None:
            return BlockReason(self.capacity.why_not_reason(gang), None)
        return None

    def set_hold(self, gang: Gang, block: BlockReason) -> None:
        """Records that the gang waits for its promised start."""
        self.own_holds[gang.id] = HoldDetail(
            block.reason, block.cause, block.blocked_by or self.timeline.blocking_runs(gang.id)
        )

    def renew_promise(self, gang: Gang) -> None:
        """Renews the promise of a gang that yielded to another gang."""
        detail = self.own_holds.pop(gang.id, None)
        estimate = self.estimate_of(gang)
        if (
            self.promises.promise_start(gang, estimate, detail.reason if detail else HoldReason.BEHIND)
            is not None
            and detail is not None
        ):
            self.own_holds[gang.id] = detail
