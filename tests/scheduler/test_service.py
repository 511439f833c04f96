"""Time slicing: who gives way to whom, and that it comes to an end."""

from __future__ import annotations

import math
from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hopyard.domain.cluster import Running
from hopyard.domain.gang import Gang, Placement, Role
from hopyard.domain.ids import GangId
from hopyard.domain.resources import Resources
from hopyard.scheduler.service import (
    CLASSES,
    FACTOR,
    FIRST_S,
    QUANTUM_S,
    gives_way,
    gives_way_in_s,
    served_s,
    service_class,
)

NOW = datetime(2030, 1, 1, tzinfo=UTC)
seconds = st.floats(0, 1e9, allow_nan=False)


def gang(name: str, served: float = 0.0) -> Gang:
    return Gang(GangId(name), (Role("main", 1, Resources()),), NOW, served_s=served)


def running(name: str, *, served: float = 0.0, for_s: float | None = 0.0) -> Running:
    began = None if for_s is None else NOW - timedelta(seconds=for_s)
    return Running(Placement(gang(name, served), ()), NOW - timedelta(days=1), started_at=began)


def test_classes_grow_by_a_factor_and_the_last_has_no_end() -> None:
    assert [service_class(s) for s in (0.0, FIRST_S - 0.001, FIRST_S, FIRST_S * FACTOR - 0.001, FIRST_S * FACTOR)] == [
        0,
        0,
        1,
        1,
        2,
    ]
    assert service_class(1e300) == CLASSES - 1


@given(seconds, seconds)
def test_a_class_never_gets_better_by_being_served(a: float, b: float) -> None:
    assert service_class(min(a, b)) <= service_class(max(a, b))


def test_earlier_attempts_count_as_served_and_preparing_does_not() -> None:
    assert served_s(running("a", served=100.0, for_s=30.0), NOW) == 130.0
    assert served_s(running("a", served=100.0, for_s=None), NOW) == 100.0
    assert served_s(running("a", served=100.0, for_s=-30.0), NOW) == 100.0, "a clock that went back"


@pytest.mark.parametrize(
    ("served", "for_s", "waited_served", "in_s"),
    [
        (0.0, 0.0, 0.0, QUANTUM_S),  # the quantum is longer than the first class
        (0.0, QUANTUM_S, 0.0, 0.0),
        (5000.0, 0.0, 0.0, QUANTUM_S),  # served long, but it only just came back
        (5000.0, None, 0.0, QUANTUM_S),
        (0.0, QUANTUM_S, 1000.0, 3840.0 - QUANTUM_S),  # who waits is in class 3: 960 to 3840 s
        (3000.0, QUANTUM_S, 1000.0, 240.0),
        (1e12, 1e6, 1e12, math.inf),  # nothing is worse than the last class
    ],
)
def test_when_a_run_gives_way(served: float, for_s: float | None, waited_served: float, in_s: float) -> None:
    assert gives_way_in_s(running("r", served=served, for_s=for_s), gang("w", waited_served), NOW) == pytest.approx(in_s)


@given(seconds, st.floats(0, 1e6), seconds)
def test_it_gives_way_to_better_classes_only_and_exactly_when_it_was_said(served: float, for_s: float, waited: float) -> None:
    run, waits = running("r", served=served, for_s=for_s), gang("w", waited)
    in_s = gives_way_in_s(run, waits, NOW)
    if gives_way(run, waits, NOW):
        assert in_s == 0.0
        assert service_class(served_s(run, NOW)) > service_class(waited)
        assert for_s >= QUANTUM_S - 1e-6
    elif math.isfinite(in_s):
        later = NOW + timedelta(seconds=in_s + 1e-3)
        assert gives_way(run, waits, later)
        assert not gives_way(run, waits, NOW + timedelta(seconds=in_s * 0.999 - 1e-3))


@given(st.floats(0, 1e6), st.floats(0, 1e6))
def test_two_gangs_on_one_place_change_it_seldom_and_ever_more_seldom(first: float, second: float) -> None:
    """Both want the only place for ever. Whoever waits takes it as soon as the other gives way."""
    here, waits, turns = running("a", served=first), gang("b", second), []
    now = NOW
    while math.isfinite(in_s := gives_way_in_s(here, waits, now)):
        now += timedelta(seconds=in_s + 1e-3)
        assert gives_way(here, waits, now)
        turns.append((now - (here.started_at or now)).total_seconds())
        out = replace(here.gang, served_s=served_s(here, now))
        here, waits = Running(Placement(waits, ()), now, started_at=now), out
    assert len(turns) <= 2 * CLASSES
    assert all(turn >= QUANTUM_S for turn in turns)
