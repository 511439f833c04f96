"""When demand stops, all that fits starts and ends, whatever happened before: cordons, lost machines,
reservations, clocks that jump."""

from __future__ import annotations

from dataclasses import replace
from random import Random

import pytest

from hopyard.domain.cluster import HoldReason
from hopyard.domain.gang import Gang
from hopyard.domain.ids import NodeId, ReservationId
from hopyard.domain.reservation import Reservation
from hopyard.scheduler.placement.never_fits import never_fits
from tests.exploration import seeded, seeds
from tests.scheduler.cycle.test_cycle_simulation import TREES, Life, demand, too_much_for_its_queue
from tests.scheduler.worlds import World, machine, seconds


class Trouble:
    """What else happens to a cluster, by chance from a seed."""

    def __init__(self, life: Life, random: Random) -> None:
        self._life, self._random, self._whole = life, random, dict(life.world.nodes)

    def strike(self) -> None:
        getattr(self, "_" + self._random.choice(("cordon", "lose", "repair", "reserve", "jump", "nothing")))()

    def end(self) -> None:
        """Machines are as they were; what is reserved stays so until it is over."""
        self._life.world.nodes = dict(self._whole)

    def _some_node(self) -> NodeId:
        return self._random.choice(sorted(self._whole))

    def _cordon(self) -> None:
        nodes, name = self._life.world.nodes, self._some_node()
        nodes[name] = replace(nodes[name], cordoned=not nodes[name].cordoned)

    def _lose(self) -> None:
        world, name = self._life.world, self._some_node()
        world.nodes[name] = replace(world.nodes[name], ready=False)
        for one, run in sorted(world.running.items()):
            if any(assignment.node == name for assignment in run.placement.assignments):
                self._life.leaves_at.pop(one, None)
                world.leave(one)

    def _repair(self) -> None:
        name = self._some_node()
        self._life.world.nodes[name] = self._whole[name]

    def _reserve(self) -> None:
        """At most two at a time, on machines of their own, so that they could be granted."""
        world = self._life.world
        there = tuple(one for one in world.reservations if one.end_at > world.now)[:1]
        free = sorted(self._whole.keys() - {node for one in there for node in one.nodes})
        start = world.now + seconds(self._random.choice([60, 600, 3000]))
        made = Reservation(
            ReservationId(f"r{self._random.random()}"),
            "class",
            start,
            start + seconds(self._random.choice([300, 2000])),
            users=(self._random.choice("abc"),),
            nodes=(self._random.choice(free),),
            created_at=world.now,
        )
        world.reservations = (*there, made)

    def _jump(self) -> None:
        self._life.world.now += seconds(self._random.choice([-3000, -30, 30, 3000]))

    def _nothing(self) -> None:
        pass


@seeded
@pytest.mark.parametrize("seed", seeds(*range(6)))
def test_all_that_fits_starts_and_ends_when_demand_stops(seed: int) -> None:
    random = Random(seed)
    queues = TREES[seed % len(TREES)]
    nodes = [machine(f"n{i}", random.choice([4, 4, 2]), cpus=16, rack=f"r{i % 2}") for i in range(4)]
    coming = demand(queues, random, 50)
    takes_s = {one.id: random.choice([20.0, 200.0, 2000.0]) for one in coming}
    life = Life(World({node.id: node for node in nodes}, queues), takes_s)
    trouble = Trouble(life, random)
    for number, one in enumerate(coming):
        if one.submitted_at > life.world.now:
            life.until(one.submitted_at)
        life.world.submit(one)
        if number % 3 == 0:
            trouble.strike()
        life.turn()
    trouble.end()
    life.turn()
    life.until(None)
    assert not life.world.running
    assert not [one.id for one in life.world.pending.values() if could_start(one, life.world)]
    held = {hold.gang: hold.reason for hold in life.planner(life.world.snapshot()).hold}
    assert {*held.values()} <= {HoldReason.NEVER_FITS, HoldReason.QUOTA, HoldReason.USER_LIMIT}


def could_start(one: Gang, world: World) -> bool:
    return never_fits(one, world.nodes.values()) is None and not too_much_for_its_queue(one, world.queues)
