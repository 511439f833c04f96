"""Sentences are made when they are read; what is said before is the same."""

from __future__ import annotations

from hypothesis import given, settings

from hopyard.scheduler.placement.capacity import Capacity
from tests.scheduler.worlds import World, worlds


@settings(max_examples=60)
@given(worlds(reserved=False))
def test_the_reason_alone_is_that_of_the_sentence(world: World) -> None:
    capacity = Capacity.of(world.nodes.values(), [running.placement for running in world.running.values()])
    for gang in world.pending.values():
        if capacity.place(gang) is None:
            reason, detail = capacity.why_not(gang)
            assert capacity.why_not_reason(gang) is reason
            later = capacity.copy().why_not_message(gang)
            for running in world.running.values():
                capacity.release(running.placement)
            assert later() == detail
            for running in world.running.values():
                capacity.allocate(running.placement)
