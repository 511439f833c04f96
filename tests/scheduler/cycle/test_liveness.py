"""When demand stops, all fitting gangs start and end, despite cordons, lost nodes, reservations and clock
jumps."""

from __future__ import annotations

from dataclasses import replace
from random import Random

import pytest

from hopyard.domain.gang import Gang
from hopyard.domain.hold_reason import HoldReason
from hopyard.domain.ids import NodeId, ReservationId
from hopyard.domain.reservation import Reservation
from hopyard.scheduler.placement.never_fits import never_fits
from tests.exploration import seeded, seeds
from tests.scheduler.cluster_model import ClusterModel, machine, seconds
from tests.scheduler.cycle.test_cycle_simulation import (
    TREES,
    ClusterSimulation,
    demand,
    exceeds_its_queue,
)


class Disruptions:
    """Random changes of a cluster, reproducible by their seed."""

    def __init__(self, simulation: ClusterSimulation, random: Random) -> None:
        self._simulation, self._random, self._all_nodes = simulation, random, dict(simulation.cluster.nodes)

    def apply_one(self) -> None:
        getattr(self, "_" + self._random.choice(("cordon", "lose", "repair", "reserve", "jump", "nothing")))()

    def finish(self) -> None:
        """Restores all nodes. Reservations stay until they end."""
        self._simulation.cluster.nodes = dict(self._all_nodes)

    def _some_node(self) -> NodeId:
        return self._random.choice(sorted(self._all_nodes))

    def _cordon(self) -> None:
        nodes, name = self._simulation.cluster.nodes, self._some_node()
        nodes[name] = replace(nodes[name], cordoned=not nodes[name].cordoned)

    def _lose(self) -> None:
        cluster, name = self._simulation.cluster, self._some_node()
        cluster.nodes[name] = replace(cluster.nodes[name], ready=False)
        for one, run in sorted(cluster.running.items()):
            if any(assignment.node == name for assignment in run.placement.assignments):
                self._simulation.evict_at.pop(one, None)
                cluster.evict(one)

    def _repair(self) -> None:
        name = self._some_node()
        self._simulation.cluster.nodes[name] = self._all_nodes[name]

    def _reserve(self) -> None:
        """Adds a reservation. At most two exist at a time, on different nodes: both can be granted."""
        cluster = self._simulation.cluster
        current = tuple(
            reservation for reservation in cluster.reservations if reservation.end_at > cluster.now
        )[:1]
        free = sorted(
            self._all_nodes.keys() - {node for reservation in current for node in reservation.nodes}
        )
        start = cluster.now + seconds(self._random.choice([60, 600, 3000]))
        added = Reservation(
            ReservationId(f"r{self._random.random()}"),
            "class",
            start,
            start + seconds(self._random.choice([300, 2000])),
            users=(self._random.choice("abc"),),
            nodes=(self._random.choice(free),),
            created_at=cluster.now,
        )
        cluster.reservations = (*current, added)

    def _jump(self) -> None:
        self._simulation.cluster.now += seconds(self._random.choice([-3000, -30, 30, 3000]))

    def _nothing(self) -> None:
        pass


@seeded
@pytest.mark.parametrize("seed", seeds(*range(6)))
def test_all_fitting_gangs_start_and_end_after_disruptions(seed: int) -> None:
    random = Random(seed)
    queues = TREES[seed % len(TREES)]
    nodes = [machine(f"n{i}", random.choice([4, 4, 2]), cpus=16, rack=f"r{i % 2}") for i in range(4)]
    coming = demand(queues, random, 50)
    duration_s = {gang.id: random.choice([20.0, 200.0, 2000.0]) for gang in coming}
    simulation = ClusterSimulation(ClusterModel({node.id: node for node in nodes}, queues), duration_s)
    disruptions = Disruptions(simulation, random)
    for number, one in enumerate(coming):
        if one.submitted_at > simulation.cluster.now:
            simulation.run_until(one.submitted_at)
        simulation.cluster.submit(one)
        if number % 3 == 0:
            disruptions.apply_one()
        simulation.run_cycle()
    disruptions.finish()
    simulation.run_cycle()
    simulation.run_until(None)
    assert not simulation.cluster.running
    assert not [
        gang.id for gang in simulation.cluster.pending.values() if could_start(gang, simulation.cluster)
    ]
    held = {hold.gang: hold.reason for hold in simulation.planner(simulation.cluster.snapshot()).hold}
    assert {*held.values()} <= {HoldReason.NEVER_FITS, HoldReason.QUOTA, HoldReason.USER_LIMIT}


def could_start(gang: Gang, cluster: ClusterModel) -> bool:
    return never_fits(gang, cluster.nodes.values()) is None and not exceeds_its_queue(gang, cluster.queues)
