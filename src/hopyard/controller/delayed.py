"""Runs that were put back and are not to be tried before their time: a policy does not see them, and a plan
holds them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import overload

from hopyard.domain.cluster import Hold, HoldReason, Plan, Snapshot
from hopyard.domain.gang import Gang


def with_delayed(plan: Plan, snapshot: Snapshot) -> Plan:
    """The plan with a hold for each of the snapshot's `delayed`; it is made anew when the first of them may
    be tried."""
    if not snapshot.delayed:
        return plan
    times = [gang.not_before for gang in snapshot.delayed if gang.not_before is not None]
    soonest = min([*times, *([plan.look_again_at] if plan.look_again_at is not None else [])], default=None)
    return replace(
        plan, hold=_Both(plan.hold, [hold_of(gang) for gang in snapshot.delayed]), look_again_at=soonest
    )


def hold_of(gang: Gang) -> Hold:
    """Why it waits. It has no position: it waits for no other run."""
    at = f" before {gang.not_before:%Y-%m-%d %H:%M:%S} UTC" if gang.not_before is not None else ""
    return Hold(gang.id, HoldReason.PUT_BACK, f"not tried again{at}: {gang.put_back}", 0)


class _Both(Sequence[Hold]):
    """The first may be long and lazy."""

    def __init__(self, first: Sequence[Hold], second: Sequence[Hold]) -> None:
        self._first, self._second = first, second

    def __len__(self) -> int:
        return len(self._first) + len(self._second)

    def __iter__(self) -> Iterator[Hold]:
        yield from self._first
        yield from self._second

    @overload
    def __getitem__(self, at: int, /) -> Hold: ...
    @overload
    def __getitem__(self, at: slice, /) -> Sequence[Hold]: ...
    def __getitem__(self, at: int | slice, /) -> Hold | Sequence[Hold]:
        if isinstance(at, slice):
            return tuple(self)[at]
        here = len(self._first)
        place = at + len(self) if at < 0 else at
        return self._first[place] if place < here else self._second[place - here]
