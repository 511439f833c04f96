"""Hours of a cluster's life, on a clock that jumps: legal at every moment, nobody starves, nobody preempts
back and forth."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field, replace
from datetime import datetime
from random import Random

import pytest

from hopyard.domain.gang import Gang
from hopyard.domain.ids import GangId, NodeId, QueueName
from hopyard.domain.queue import CPU, GPU, QueueTree
from hopyard.scheduler.cycle.planner import Planner
from hopyard.scheduler.placement.never_fits import never_fits
from tests.exploration import seeded, seeds
from tests.scheduler.worlds import (
    T0,
    World,
    beyond_limits,
    gang,
    machine,
    overcommitted,
    queue,
    seconds,
    tree,
)


@dataclass
class Life:
    """What comes when, and what came of it. takes_s: how long each gang runs in all."""

    world: World
    takes_s: dict[GangId, float]
    planner: Planner = field(default_factory=Planner)
    leaves_at: dict[GangId, datetime] = field(default_factory=dict)
    look_at: datetime | None = None
    # how often the second had started by then
    preempted: dict[tuple[GangId, GangId], int] = field(default_factory=dict)
    asked: int = 0  # runs, in all
    # asked again for somebody who had not started meanwhile
    in_vain: list[tuple[GangId, GangId]] = field(default_factory=list)
    # for whom, by who was asked and has not left
    making_room: dict[GangId, set[GangId]] = field(default_factory=dict)
    # did not start when all had left, although nothing else had changed
    let_down: list[GangId] = field(default_factory=list)
    starts: Counter[GangId] = field(default_factory=Counter)
    waited_s: dict[GangId, float] = field(default_factory=dict)
    leaves_s: float = 3  # so long after it was asked, one makes room
    apart_s: float = 0.0  # those asked in one turn leave one after another, so long apart
    # gangs for which runs were asked to leave, and which have not started since
    owed: set[GangId] = field(default_factory=set)
    # of these, who had not when all that were asked, for whomever, had left
    stranded: list[GangId] = field(default_factory=list)
    restarts: bool = False  # the planner remembers nothing from turn to turn, as after a change of the leader

    def ends_at(self, one: GangId) -> datetime:
        run = self.world.running[one]
        assert run.started_at is not None
        limit_s = run.gang.time_limit_s
        left_s = self.takes_s[one] - run.gang.served_s
        return run.started_at + seconds(left_s if limit_s is None else min(left_s, limit_s))

    def turn(self) -> None:
        world = self.world
        wanted = (Planner() if self.restarts else self.planner)(world.snapshot())
        for placement in wanted.place:
            self.making_room.pop(placement.gang.id, None)
            self.waited_s.setdefault(
                placement.gang.id, (world.now - placement.gang.submitted_at).total_seconds()
            )
            self.starts[placement.gang.id] += 1
        self.let_down += [one for one, runs in self.making_room.items() if not runs & world.running.keys()]
        self.making_room = {one: runs for one, runs in self.making_room.items() if one not in self.let_down}
        for number, one in enumerate(wanted.preempt):
            if self.preempted.get((one.gang, one.for_gang)) == self.starts[one.for_gang]:
                self.in_vain.append((one.gang, one.for_gang))
            self.asked += 1
            self.making_room.setdefault(one.for_gang, set()).add(one.gang)
            self.preempted[one.gang, one.for_gang] = self.starts[one.for_gang]
            self.leaves_at[one.gang] = world.now + seconds(self.leaves_s + number * self.apart_s)
        self.owed -= {placement.gang.id for placement in wanted.place}
        self.owed |= {one.for_gang for one in wanted.preempt if one.for_gang}
        if not self.leaves_at:
            self.stranded += sorted(self.owed & world.pending.keys())
        world.apply(wanted)
        self.look_at = wanted.next_cycle_at
        running = [run.placement for run in world.running.values()]
        assert not overcommitted(world.nodes, running)
        assert not beyond_limits(world.queues, world.nodes, running)

    def next_at(self) -> datetime | None:
        times = [self.ends_at(one) for one in self.world.running] + list(self.leaves_at.values())
        if self.look_at is not None and self.world.pending:
            times.append(self.look_at)
        return min(times, default=None)

    def until(self, at: datetime | None) -> None:
        """Let things happen until then, or until nothing happens any more."""
        for _ in range(5000):
            following = self.next_at()
            if following is None or (at is not None and following > at):
                break
            self.world.now = max(following, self.world.now)
            self.happen()
            self.turn()
        else:
            pytest.fail("it never comes to rest")
        if at is not None:
            self.world.now = at

    def happen(self) -> None:
        for one in sorted(self.world.running):
            if self.ends_at(one) <= self.world.now:
                self.leaves_at.pop(one, None)
                self.world.end(one)
        for one, at in sorted(self.leaves_at.items()):
            if at <= self.world.now:
                del self.leaves_at[one]
                if one in self.world.running:
                    self.world.leave(one)


TREES = (
    tree(queue("default")),
    tree(
        queue("root"),
        queue("a", "root", sure=8),
        queue("b", "root", sure=4, user_limit={GPU: 6000}),
        queue("c", "root", borrow=6),
    ),
    tree(
        queue("root"),
        queue("x", "root", sure=8),
        queue("y", "root", sure=4),
        queue("a", "x", sure=4),
        queue("b", "x", sure=4, most=10),
        queue("c", "y", sure=4, time_slices=True),
    ),
)

SURE_OF_OTHER_THINGS = tree(
    queue("root"),
    queue("a", "root", sure=6),
    replace(queue("b", "root"), guarantee={CPU: 8000}),
    queue("c", "root", most=8),
    queue("x", "c", sure=2),
    replace(queue("y", "c"), guarantee={CPU: 2000}),
)


def demand(queues: QueueTree, random: Random, count: int) -> list[Gang]:
    above = {one.parent for one in queues.queues.values()}
    leaves = [name for name in queues.queues if name not in above]
    found = []
    for number in range(count):
        replicas = random.choice([1, 1, 1, 2, 4])
        one = gang(
            f"g{number:03}",
            random.choice([0, 1, 1, 2, 4]),
            replicas=replicas,
            fewest=random.choice([0, 0, 1]),
            queue=random.choice(leaves),
            user=random.choice("abc"),
            priority=random.choice([10, 50, 50, 90]),
            at=random.uniform(0, 3000),
            cpus=random.choice([1, 2]),
            limit_s=random.choice([None, 600, 5000]),
            script=random.choice(["", "x.py", "y.py"]),
            preemptible=random.random() < 0.9,
        )
        found.append(one)
    return sorted(found, key=lambda one: one.submitted_at)


# In the lives of 40, 44 and 65, what some had left for a gang was taken by others; in those of whoever takes
# long to leave, it was where a minute was expected to be enough.
@seeded
@pytest.mark.parametrize(
    ("seed", "leaves_s", "grace_s", "cpus"),
    [
        *((seed, 3, 60, 16) for seed in seeds(*range(6), 40, 44, 65)),
        *((seed, 400, 600, 16) for seed in seeds(5, 6, 9)),
        *((seed, 3, 60, 4) for seed in seeds(*range(6))),
    ],
)
def test_when_demand_stops_all_that_fits_runs_and_the_cluster_comes_to_rest(
    seed: int, leaves_s: float, grace_s: float, cpus: int
) -> None:
    """With few CPUs, some queues are sure of CPUs and others of GPUs."""
    random = Random(seed)
    queues = TREES[seed % len(TREES)] if cpus > 4 else SURE_OF_OTHER_THINGS
    nodes = [machine(f"n{i}", random.choice([4, 4, 2]), cpus=cpus, rack=f"r{i % 2}") for i in range(4)]
    coming = demand(queues, random, 60)
    life = Life(
        World({node.id: node for node in nodes}, queues, grace_s=grace_s),
        {one.id: random.choice([20.0, 200.0, 2000.0]) for one in coming},
        leaves_s=leaves_s,
    )
    for number, one in enumerate(coming):
        life.until(one.submitted_at)
        life.world.submit(one)
        if number % 20 == 10:
            life.making_room.clear()
            name = NodeId(f"n{random.randrange(4)}")
            life.world.nodes[name] = replace(
                life.world.nodes[name], cordoned=not life.world.nodes[name].cordoned
            )
        life.turn()
    life.world.nodes = {node.id: node for node in nodes}
    life.turn()
    life.until(None)
    assert not life.world.running
    left = {
        one.id
        for one in life.world.pending.values()
        if never_fits(one, nodes) is None
        and not beyond_limits(queues, life.world.nodes, [])
        and not too_much_for_its_queue(one, queues)
    }
    assert not left
    assert not life.in_vain
    assert not life.let_down
    for victim, preemptor in life.preempted:
        assert (preemptor, victim) not in life.preempted or queues.queues[
            life.world.originals[victim].queue
        ].time_slices


def too_much_for_its_queue(one: Gang, queues: QueueTree) -> bool:
    """Asks, in its smallest size, for more GPUs than the queue or a user may ever use."""
    from hopyard.domain.effective_limits import maximum_amounts, queue_path

    asked = sum(role.required_replicas * role.resources.gpus for role in one.roles) * 1000
    limits = maximum_amounts(queues)
    for level in queue_path(queues, one.queue):
        caps = [limits[level].get(GPU), queues.queues[level].user_limit.get(GPU)]
        if any(cap is not None and asked > cap for cap in caps):
            return True
    return False


@pytest.mark.parametrize("limit_s", [None, 100.0])
def test_a_large_gang_is_not_overtaken_for_ever(limit_s: float | None) -> None:
    """Small runs come faster than they end; one gang wants all nodes at once."""
    nodes = [machine(f"n{i}", 4) for i in range(4)]
    life = Life(World({node.id: node for node in nodes}, tree(queue("default"))), {})
    large = gang("large", 4, replicas=4, at=500, limit_s=limit_s, user="bob")
    life.takes_s[large.id] = 50.0
    for second in range(0, 2500, 5):
        at = T0 + seconds(second)
        life.until(at)
        life.world.now = at
        small = gang(f"s{second:04}", 1, at=second, limit_s=limit_s, script="small.py")
        life.takes_s[small.id] = 100.0
        life.world.submit(*([small, large] if second == 500 else [small]))
        life.turn()
        if large.id in life.world.started:
            break
    assert life.waited_s[large.id] <= 2 * 100.0


def test_two_queues_that_take_back_from_each_other_come_to_rest() -> None:
    """Each is sure of half and wants all: once both have their half nobody is asked to leave any more."""
    queues = tree(queue("root"), queue("a", "root", sure=4), queue("b", "root", sure=4))
    life = Life(World({NodeId("n"): machine("n", 8)}, queues), {})
    for name in ("a", "b"):
        for number in range(12):
            one = gang(f"{name}{number:02}", 1, queue=name, at=number)
            life.takes_s[one.id] = 10000.0
            life.world.submit(one)
        life.turn()
        life.until(life.world.now + seconds(100))
    assert life.asked == 4
    held = Counter(run.gang.queue for run in life.world.running.values())
    assert held == {QueueName("a"): 4, QueueName("b"): 4}
