"""When a gang would start, before it is submitted."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hopyard.domain.gang import Assignment, Placement
from hopyard.domain.ids import NodeId
from hopyard.scheduler.cycle.planner import plan
from hopyard.scheduler.explain.start_preview import preview_sentence, preview_start
from tests.scheduler.timeline_clusters import limited_gang, machine, running_attempt, snapshot

BUSY = Placement(limited_gang("a", 6, limit_s=1200), (Assignment(0, NodeId("n1"), (0, 1, 2, 3, 4, 5)),))


@pytest.mark.parametrize(
    ("gpus", "sentence"),
    [
        (2, "starts now on n1"),
        (4, "starts in 20 min, probably"),
    ],
)
def test_sentence_names_the_node_or_the_wait(gpus: int, sentence: str) -> None:
    view = snapshot([machine("n1", 8)], [running_attempt(BUSY)], [])
    result = preview_start(view, limited_gang("new", gpus))
    assert preview_sentence(result, view) == sentence
    assert result.nodes == ((NodeId("n1"),) if gpus == 2 else ())
    assert (result.placement is None) == (result.explanation is not None)


def test_wait_for_a_cordoned_node_has_no_time() -> None:
    cordoned = replace(machine("n1", 8), cordoned=True)
    view = snapshot([cordoned], [], [])
    result = preview_start(view, limited_gang("new", 4))
    assert preview_sentence(result, view) == "would wait: no start can be predicted under present conditions"


@given(
    used=st.integers(0, 8),
    waiting=st.lists(st.integers(1, 8), max_size=4),
    wanted=st.integers(1, 8),
)
@settings(max_examples=60, deadline=None)
def test_gang_starts_now_exactly_if_the_next_plan_places_it(
    used: int, waiting: list[int], wanted: int
) -> None:
    gpus = tuple(range(used))
    running = [running_attempt(Placement(limited_gang("a", used), (Assignment(0, NodeId("n1"), gpus),)))]
    pending = [limited_gang(f"w{place}", count, at_s=-9 + place) for place, count in enumerate(waiting)]
    view = snapshot([machine("n1", 8)], running if used else [], pending)
    new = limited_gang("new", wanted)
    result = preview_start(view, new)
    placed = {item.gang.id for item in plan(replace(view, pending=(*view.pending, new))).place}
    assert (result.placement is not None) == (new.id in placed)
    assert new.id not in {gang.id for gang in view.pending}
