"""Adds holds for requeued runs in backoff. A policy does not see these runs."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import overload

from hopyard.domain.cluster import Hold, Plan, Snapshot
from hopyard.domain.gang import Gang
from hopyard.domain.hold_causes import RequeueBackoff


def with_backoff_holds(plan: Plan, snapshot: Snapshot) -> Plan:
    """Returns the plan with a hold for each of the snapshot's `backing_off`. The next cycle begins at the
    latest when the first of them may be retried."""
    if not snapshot.backing_off:
        return plan
    times = [gang.not_before for gang in snapshot.backing_off if gang.not_before is not None]
    soonest = min([*times, *([plan.next_cycle_at] if plan.next_cycle_at is not None else [])], default=None)
    return replace(
        plan,
        hold=_ConcatenatedHolds(plan.hold, [backoff_hold(gang) for gang in snapshot.backing_off]),
        next_cycle_at=soonest,
    )


def backoff_hold(gang: Gang) -> Hold:
    """Returns the hold of a gang in backoff. Its position is 0, since the gang waits for no other run."""
    return Hold(gang.id, RequeueBackoff(gang.not_before, gang.requeue_reason), 0)


class _ConcatenatedHolds(Sequence[Hold]):
    """Two sequences as one. The first may be long and lazy, so it is not copied."""

    def __init__(self, first: Sequence[Hold], second: Sequence[Hold]) -> None:
        self._first, self._second = first, second

    def __len__(self) -> int:
        return len(self._first) + len(self._second)

    def __iter__(self) -> Iterator[Hold]:
        yield from self._first
        yield from self._second

    @overload
    def __getitem__(self, index: int, /) -> Hold: ...
    @overload
    def __getitem__(self, index: slice, /) -> Sequence[Hold]: ...
    def __getitem__(self, index: int | slice, /) -> Hold | Sequence[Hold]:
        if isinstance(index, slice):
            return tuple(self)[index]
        first_length = len(self._first)
        position = index + len(self) if index < 0 else index
        return self._first[position] if position < first_length else self._second[position - first_length]
