"""A gang that preempts starts when its victims have left, and preempts no run twice, whatever history says
and however they leave."""

from __future__ import annotations

from dataclasses import replace

from hypothesis import example, given, settings
from hypothesis import strategies as st

from hopyard.domain.duration_keys import history_keys
from hopyard.domain.gang import Gang
from hopyard.domain.ids import GangId, QueueName
from hopyard.domain.queue import QueueTree
from tests.scheduler.cycle.test_cycle_simulation import Life
from tests.scheduler.worlds import T0, World, gang, machine, queue, seconds, tree

LONG_S = 1e5  # runs never end by themselves while a law looks
ONE = tree(queue("default"))
TWO = tree(queue("root"), queue("a", "root"), queue("b", "root", sure=4))
BUSY = st.lists(
    st.builds(
        dict,
        gpus=st.sampled_from([1, 1, 2, 4]),
        milli=st.sampled_from([0, 0, 0, 500]),
        priority=st.sampled_from([10, 50, 50]),
        script=st.sampled_from(["short.py", "short.py", "new.py", "long.py"]),
        replicas=st.sampled_from([1, 1, 2]),
        fewest=st.sampled_from([0, 0, 1]),
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
        fewest=st.sampled_from([0, 0, 1]),
        priority=st.sampled_from([70, 90]),
        script=st.sampled_from(["short.py", "new.py"]),
        after_s=st.sampled_from([0.0, 0.5, 4.0, 30.0]),
    ),
    min_size=1,
    max_size=4,
)


def life(
    queues: QueueTree,
    nodes: list[int],
    busy: list[dict[str, object]],
    *,
    short_s: float,
    apart_s: float,
    restarts: bool,
) -> Life:
    """A cluster that is full of runs which go on for ever, although the history of some says that they take
    `short_s`."""
    machines = [machine(f"n{number}", gpus, cpus=8) for number, gpus in enumerate(nodes)]
    world = World({node.id: node for node in machines}, queues)
    for script, took_s in (("short.py", short_s), ("long.py", 3600.0)):
        for key in history_keys(replace(gang("any", script=script), queue=queues.default)):
            world.durations[key] = (took_s,) * 8
    found = Life(world, {}, apart_s=apart_s, restarts=restarts)
    for number, about in enumerate(busy):
        submit(found, gang(f"busy{number}", queue=_first(queues), cpus=0.5, at=number, **about))  # type: ignore[arg-type]
    found.turn()
    found.until(T0 + seconds(20))
    return found


def submit(found: Life, one: Gang) -> None:
    found.takes_s[one.id] = LONG_S
    found.world.submit(one)


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
# runs came back to the place that they had left
@example(ONE, [4], FOUR, [{"gpus": 4, "priority": 90, "after_s": 0.0}], 2.0, 0.01, False)
@example(ONE, [4], FOUR, [{"gpus": 4, "priority": 90, "after_s": 0.0}], 2.0, 0.01, True)
# two kept out each other
@example(
    ONE,
    [2],
    FOUR,
    [{"gpus": 1, "priority": 70, "after_s": after_s} for after_s in (0.0, 0.0, 0.5)],
    2.0,
    0.0,
    False,
)
def test_a_gang_that_preempts_starts_when_its_victims_have_left_and_preempts_none_twice(
    queues: QueueTree, nodes: list[int], busy: list[dict[str, object]], preemptors: list[dict[str, object]],
    short_s: float, apart_s: float, restarts: bool,
) -> None:  # fmt: skip
    found = life(queues, nodes, busy, short_s=short_s, apart_s=apart_s, restarts=restarts)
    for number, about in enumerate(preemptors):
        found.until(found.world.now + seconds(float(about["after_s"])))  # type: ignore[arg-type]
        given_to = {key: value for key, value in about.items() if key != "after_s"}
        submit(found, gang(f"first{number}", queue=str(queues.default), cpus=0.5, at=20 + number, **given_to))  # type: ignore[arg-type]
        found.turn()
    found.until(found.world.now + seconds(120))
    assert not found.in_vain
    assert not found.stranded


def test_two_gangs_that_preempt_at_once_both_start() -> None:
    found = life(
        ONE, [4, 4], [{"gpus": 1, "script": "short.py"}] * 8, short_s=2.0, apart_s=0.02, restarts=False
    )
    for name in ("first", "second"):
        submit(found, gang(name, 4, priority=90, cpus=0.5, at=20))
    found.turn()
    found.until(found.world.now + seconds(4))
    assert {GangId("first"), GangId("second")} <= found.world.running.keys()
    assert found.asked == 8


def test_what_was_left_for_a_gang_that_is_gone_is_used_again() -> None:
    found = life(ONE, [4], FOUR, short_s=2.0, apart_s=0.5, restarts=False)
    submit(found, gang("first", 4, priority=90, cpus=0.5, at=20))
    found.turn()
    found.until(found.world.now + seconds(3.6))  # two of four have left, and wait
    assert len(found.world.pending) == 3
    del found.world.pending[GangId("first")]
    found.turn()
    found.until(found.world.now + seconds(10))
    assert {*found.world.running} == {GangId(f"busy{number}") for number in range(4)}


def test_runs_of_a_removed_queue_make_room_for_gangs_that_are_owed() -> None:
    before = tree(queue("root"), queue("a", "root"), queue("b", "root"))
    found = life(before, [4], [{"gpus": 1}] * 4, short_s=2.0, apart_s=0.01, restarts=False)
    found.world.queues = tree(queue("root"), queue("b", "root", sure=2))
    submit(found, replace(gang("owed", 2, cpus=0.5, at=20), queue=QueueName("b")))
    found.turn()
    found.until(found.world.now + seconds(4))
    assert GangId("owed") in found.world.running
    assert found.asked == 2
