"""A preemptor starts after its victims end and preempts no run twice, for any history and order of ends."""

from __future__ import annotations

from dataclasses import replace

from hypothesis import example, given, settings
from hypothesis import strategies as st

from hopyard.domain.duration_keys import history_keys
from hopyard.domain.gang import Gang
from hopyard.domain.ids import GangId, QueueName
from hopyard.domain.queue import QueueTree
from tests.scheduler.cluster_model import T0, ClusterModel, gang, machine, queue, seconds, tree
from tests.scheduler.cycle.test_cycle_simulation import ClusterSimulation

LONG_S = 1e5  # longer than any test: runs end only when preempted
ONE = tree(queue("default"))
TWO = tree(queue("root"), queue("a", "root"), queue("b", "root", guarantee=4))
BUSY = st.lists(
    st.builds(
        dict,
        gpus=st.sampled_from([1, 1, 2, 4]),
        milli=st.sampled_from([0, 0, 0, 500]),
        priority=st.sampled_from([10, 50, 50]),
        script=st.sampled_from(["short.py", "short.py", "new.py", "long.py"]),
        replicas=st.sampled_from([1, 1, 2]),
        min_replicas=st.sampled_from([0, 0, 1]),
        preemptible=st.sampled_from([True, True, True, False]),
        limit_s=st.sampled_from([None, None, LONG_S]),
    ),
    max_size=10,
)
PREEMPTORS = st.lists(
    st.builds(
        dict,
        gpus=st.sampled_from([1, 2, 4]),
        replicas=st.sampled_from([1, 1, 2, 3]),
        min_replicas=st.sampled_from([0, 0, 1]),
        priority=st.sampled_from([70, 90]),
        script=st.sampled_from(["short.py", "new.py"]),
        after_s=st.sampled_from([0.0, 0.5, 4.0, 30.0]),
    ),
    min_size=1,
    max_size=4,
)


def make_simulation(
    queues: QueueTree,
    nodes: list[int],
    busy: list[dict[str, object]],
    *,
    short_s: float,
    eviction_gap_s: float,
    stateless_planner: bool,
) -> ClusterSimulation:
    """A cluster full of endless runs, although the history of some says that they take `short_s`."""
    machines = [machine(f"n{number}", gpus, cpus=8) for number, gpus in enumerate(nodes)]
    cluster = ClusterModel({node.id: node for node in machines}, queues)
    for script, took_s in (("short.py", short_s), ("long.py", 3600.0)):
        for key in history_keys(replace(gang("any", script=script), queue=queues.default)):
            cluster.durations[key] = (took_s,) * 8
    simulation = ClusterSimulation(
        cluster, {}, eviction_gap_s=eviction_gap_s, stateless_planner=stateless_planner
    )
    for number, about in enumerate(busy):
        submit(simulation, gang(f"busy{number}", queue=_first(queues), cpus=0.5, at=number, **about))  # type: ignore[arg-type]
    simulation.run_cycle()
    simulation.run_until(T0 + seconds(20))
    return simulation


def submit(simulation: ClusterSimulation, gang: Gang) -> None:
    simulation.duration_s[gang.id] = LONG_S
    simulation.cluster.submit(gang)


def _first(queues: QueueTree) -> str:
    return next(name for name in queues.queues if name != "root")


FOUR = [{"gpus": 1, "script": "short.py"}] * 4


@settings(max_examples=60, deadline=None)
@given(
    st.sampled_from([ONE, ONE, TWO]),
    st.lists(st.sampled_from([2, 4]), min_size=1, max_size=3),
    BUSY,
    PREEMPTORS,
    st.sampled_from([0.05, 2.0, 40.0]),
    st.sampled_from([0.0, 0.01, 1.0]),
    st.booleans(),
)
# the victims returned to the nodes that they had freed
@example(ONE, [4], FOUR, [{"gpus": 4, "priority": 90, "after_s": 0.0}], 2.0, 0.01, False)
@example(ONE, [4], FOUR, [{"gpus": 4, "priority": 90, "after_s": 0.0}], 2.0, 0.01, True)
# two gangs blocked each other
@example(
    ONE,
    [2],
    FOUR,
    [{"gpus": 1, "priority": 70, "after_s": after_s} for after_s in (0.0, 0.0, 0.5)],
    2.0,
    0.0,
    False,
)
def test_preemptor_starts_after_its_victims_and_preempts_none_twice(
    queues: QueueTree,
    nodes: list[int],
    busy: list[dict[str, object]],
    preemptors: list[dict[str, object]],
    short_s: float,
    eviction_gap_s: float,
    stateless_planner: bool,
) -> None:
    simulation = make_simulation(
        queues,
        nodes,
        busy,
        short_s=short_s,
        eviction_gap_s=eviction_gap_s,
        stateless_planner=stateless_planner,
    )
    for number, about in enumerate(preemptors):
        simulation.run_until(simulation.cluster.now + seconds(float(about["after_s"])))  # type: ignore[arg-type]
        options = {key: value for key, value in about.items() if key != "after_s"}
        submit(
            simulation,
            gang(f"first{number}", queue=str(queues.default), cpus=0.5, at=20 + number, **options),
        )  # type: ignore[arg-type]
        simulation.run_cycle()
    simulation.run_until(simulation.cluster.now + seconds(120))
    assert not simulation.futile_preemptions
    assert not simulation.starved_preemptors


def test_two_concurrent_preemptors_both_start() -> None:
    simulation = make_simulation(
        ONE,
        [4, 4],
        [{"gpus": 1, "script": "short.py"}] * 8,
        short_s=2.0,
        eviction_gap_s=0.02,
        stateless_planner=False,
    )
    for name in ("first", "second"):
        submit(simulation, gang(name, 4, priority=90, cpus=0.5, at=20))
    simulation.run_cycle()
    simulation.run_until(simulation.cluster.now + seconds(4))
    assert {GangId("first"), GangId("second")} <= simulation.cluster.running.keys()
    assert simulation.preemption_count == 8


def test_capacity_freed_for_a_cancelled_gang_is_reused() -> None:
    simulation = make_simulation(ONE, [4], FOUR, short_s=2.0, eviction_gap_s=0.5, stateless_planner=False)
    submit(simulation, gang("first", 4, priority=90, cpus=0.5, at=20))
    simulation.run_cycle()
    simulation.run_until(
        simulation.cluster.now + seconds(3.6)
    )  # two of four victims have ended and are pending
    assert len(simulation.cluster.pending) == 3
    del simulation.cluster.pending[GangId("first")]
    simulation.run_cycle()
    simulation.run_until(simulation.cluster.now + seconds(10))
    assert {*simulation.cluster.running} == {GangId(f"busy{number}") for number in range(4)}


def test_runs_of_a_removed_queue_are_reclaimed_for_guaranteed_gangs() -> None:
    before = tree(queue("root"), queue("a", "root"), queue("b", "root"))
    simulation = make_simulation(
        before, [4], [{"gpus": 1}] * 4, short_s=2.0, eviction_gap_s=0.01, stateless_planner=False
    )
    simulation.cluster.queues = tree(queue("root"), queue("b", "root", guarantee=2))
    submit(simulation, replace(gang("owed", 2, cpus=0.5, at=20), queue=QueueName("b")))
    simulation.run_cycle()
    simulation.run_until(simulation.cluster.now + seconds(4))
    assert GangId("owed") in simulation.cluster.running
    assert simulation.preemption_count == 2
