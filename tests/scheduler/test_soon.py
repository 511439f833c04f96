"""What is worked out once in a turn, and kept up by what starts, is what would be worked out anew."""

from __future__ import annotations

from hypothesis import given, settings

from hopyard.scheduler.cycle.soon import SOON, Soon
from hopyard.scheduler.cycle.standing import Standing

from .worlds import World, worlds


@settings(max_examples=150, deadline=None)
@given(worlds())
def test_who_may_use_so_much_soon_follows_what_starts(world: World) -> None:
    standing = Standing(world.snapshot())
    future, capacity, accounts = standing.future, standing.capacity, standing.accounts.copy()
    kept = Soon(future, capacity, accounts)
    waiting = list(world.pending.values())
    for one in waiting:
        assert [kept.allows(gang) for gang in waiting] == [Soon(future, capacity, accounts).allows(gang) for gang in waiting]
        place = capacity.place(one) if accounts.refusal(one) is None else None
        if place is not None:
            capacity.take(place)
            accounts.charge(place)
            kept.starts(place)


@settings(max_examples=150, deadline=None)
@given(worlds())
def test_there_is_room_soon_where_a_place_is_found_once_they_have_gone(world: World) -> None:
    standing = Standing(world.snapshot())
    gone, _ = standing.future.gone_by(SOON.total_seconds())
    capacity = standing.capacity.copy()
    capacity.give_back_all(gone)
    soon = Soon(standing.future, standing.capacity, standing.accounts)
    for gang in world.pending.values():
        smallest = gang.sized([role.fewest for role in gang.roles])
        fits = bool(gone) and capacity.place(smallest, score="first-fit") is not None
        assert soon.holds(smallest) == (fits and soon.allows(smallest))
