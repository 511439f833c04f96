"""Explains why gangs are held. Explanations are built only when they are read."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass, replace
from datetime import datetime
from operator import itemgetter

from hopyard.domain.cluster import Hold
from hopyard.domain.gang import Gang
from hopyard.domain.hold_causes import EvaluationDeferred, GpuModelsClosed, HoldCause
from hopyard.domain.hold_reason import HoldReason
from hopyard.domain.ids import GangId, QueueName
from hopyard.domain.placement_causes import NeverFitsCause
from hopyard.domain.quota_causes import NonLendableCapacity
from hopyard.scheduler.cycle.pending_gangs import GangClassKey, Rank
from hopyard.scheduler.lazy_holds import LazyHolds
from hopyard.scheduler.placement.capacity import Capacity
from hopyard.scheduler.quota.quota_usage import QuotaUsage

HoldOrder = tuple[QueueName, bool, Rank, tuple[float, ...]]


@dataclass(frozen=True, slots=True)
class HoldDetail:
    """The content of a Hold without the position. cause: None if equivalent gangs share one."""

    reason: HoldReason
    cause: HoldCause | None
    blocked_by: tuple[str, ...] = ()

    @classmethod
    def of(cls, cause: HoldCause, blocked_by: tuple[str, ...] = ()) -> HoldDetail:
        return cls(cause.reason, cause, blocked_by)


NOT_YET_EXAMINED = HoldDetail.of(EvaluationDeferred())


class HoldGroup:
    """Data that gangs of one queue, user and shape share. never_fits: why they never fit. user_key: the
    fair-share key of their user."""

    __slots__ = ("never_fits", "shared_detail", "user_key")

    def __init__(self, never_fits: HoldDetail | None, user_key: tuple[float, ...]) -> None:
        self.never_fits, self.user_key = never_fits, user_key
        self.shared_detail: HoldDetail | None = None


class HoldExplainer:
    """Explains each hold as of the end of the cycle; its data no longer changes.

    own_holds: holds of gangs that were examined individually; a hold without a cause has the cause of its
    equivalent gangs. blocked_classes: one shared hold per shape of gangs that fit, but would delay other
    gangs. held_back_detail: holds of gangs that are held back for a gang of their own queue.
    never_fits_cause: returns why a gang never fits, or None.
    """

    def __init__(
        self,
        capacity: Capacity,
        quota_usage: QuotaUsage,
        never_fits_cause: Callable[[Gang], NeverFitsCause | None],
        own_holds: Mapping[GangId, HoldDetail],
        blocked_classes: Mapping[GangClassKey, HoldDetail],
        held_back_detail: Callable[[Gang], HoldDetail | None],
    ) -> None:
        self.quota_usage = quota_usage
        self._capacity = capacity
        self._never_fits_cause = never_fits_cause
        self._own_holds = own_holds
        self._blocked_classes = blocked_classes
        self._held_back_detail = held_back_detail
        self._never_fits_by_class: dict[GangClassKey, HoldDetail | None] = {}
        self._no_capacity_by_class: dict[tuple[GangClassKey, frozenset[str]], HoldDetail | None] = {}

    def never_fits(self, gang: Gang) -> HoldDetail | None:
        key = gang.roles, gang.topology
        if key not in self._never_fits_by_class:
            cause = self._never_fits_cause(gang)
            self._never_fits_by_class[key] = None if cause is None else HoldDetail.of(cause)
        return self._never_fits_by_class[key]

    def detail_of(self, gang: Gang, group: HoldGroup) -> HoldDetail:
        if group.never_fits is not None:
            return group.never_fits
        own_hold = self._own_holds.get(gang.id)
        if own_hold is not None and own_hold.cause is not None:
            return own_hold
        if group.shared_detail is None:
            group.shared_detail = self._compute_shared_detail(gang)
        return (
            group.shared_detail
            if own_hold is None
            else replace(group.shared_detail, blocked_by=own_hold.blocked_by)
        )

    def group_of(self, gang: Gang) -> HoldGroup:
        return HoldGroup(self.never_fits(gang), self.quota_usage.user_key(gang.queue, gang.user))

    def _compute_shared_detail(self, gang: Gang) -> HoldDetail:
        refusal = self.quota_usage.refusal(gang)
        is_reclaimable = (
            refusal is not None
            and isinstance(refusal.cause, NonLendableCapacity)
            and self.quota_usage.find_lender(gang)[0] is not None
        )
        no_capacity = self._no_capacity(gang) if refusal is None or is_reclaimable else None
        if refusal is not None and no_capacity is None:
            return HoldDetail.of(refusal.cause, refusal.blocked_by)
        return (
            no_capacity
            or self._held_back_detail(gang)
            or self._blocked_classes.get((gang.roles, gang.topology), NOT_YET_EXAMINED)
        )

    def _no_capacity(self, gang: Gang) -> HoldDetail | None:
        """Returns None if the gang fits. A gang within its guarantee also waits for capacity if other queues
        borrow it."""
        key = (gang.roles, gang.topology), self.quota_usage.closed_models(gang)
        if key not in self._no_capacity_by_class:
            self._no_capacity_by_class[key] = self._compute_no_capacity(gang, key[1])
        return self._no_capacity_by_class[key]

    def _compute_no_capacity(self, gang: Gang, closed_models: frozenset[str]) -> HoldDetail | None:
        """Returns None if the gang fits."""
        if self._capacity.place(gang, closed_models=closed_models) is not None:
            return None
        if closed_models and self._capacity.place(gang) is not None:
            return HoldDetail.of(GpuModelsClosed(tuple(sorted(closed_models))), (f"queue:{gang.queue}",))
        return HoldDetail.of(self._capacity.why_not(gang))


PendingEntry = tuple[datetime, GangId, Gang, HoldGroup]
_BY_SUBMISSION = itemgetter(0, 1)


class CycleHolds(LazyHolds):
    """One hold for each pending gang that was not placed, sorted by queue and position.

    ranks: the rank of each gang in its queue.
    """

    def __init__(
        self,
        pending: Sequence[Gang],
        placed: Set[GangId],
        rank_of: Callable[[Gang], Rank],
        explainer: HoldExplainer,
    ) -> None:
        super().__init__(pending, placed)
        self._rank_of, self._explainer = rank_of, explainer

    def _build_holds(self) -> Iterator[Hold]:
        """Sorts gangs that never fit last in their queue."""
        queue, position = None, 0
        groups = self._group_by_order()
        for order in sorted(groups):
            position = position if order[0] == queue else 0
            queue = order[0]
            for _, _, gang, hold_group in sorted(groups[order], key=_BY_SUBMISSION):
                position += 1
                detail = self._explainer.detail_of(gang, hold_group)
                assert detail.cause is not None
                yield Hold(gang.id, detail.cause, position, detail.blocked_by)

    def _group_by_order(self) -> dict[HoldOrder, list[PendingEntry]]:
        """Groups pending gangs by everything that decides their order except submission time. Most gangs
        already come sorted by that."""
        explainer, placed, rank_of = self._explainer, self._placed, self._rank_of
        groups: dict[HoldOrder, list[PendingEntry]] = {}
        # by identity, because hashing a shape is the most expensive step
        cache: dict[tuple[QueueName, str, int, int], tuple[HoldGroup, dict[Rank, list[PendingEntry]]]] = {}
        for gang in self._pending:
            if gang.id in placed:
                continue
            key = gang.queue, gang.user, id(gang.roles), id(gang.topology)
            cached = cache.get(key)
            if cached is None:
                cached = cache[key] = explainer.group_of(gang), {}
            hold_group, by_rank = cached
            rank = rank_of(gang)
            group = by_rank.get(rank)
            if group is None:
                order = gang.queue, hold_group.never_fits is not None, rank, hold_group.user_key
                group = by_rank[rank] = groups.setdefault(order, [])
            group.append((gang.submitted_at, gang.id, gang, hold_group))
        return groups
