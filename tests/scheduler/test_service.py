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
from hopyard.scheduler.service import CLASSES, FACTOR, FIRST_S, QUANTUM_S, served_s, service_class, yields_in_s, yields_to

NOW = datetime(2030, 1, 1, tzinfo=UTC)
seconds = st.floats(0, 1e9, allow_nan=False)
gpus = st.sampled_from([0, 1, 2, 8, 64])


def gang(name: str, served: float = 0.0, *, gpus: int = 1) -> Gang:
    return Gang(GangId(name), (Role("main", 1, Resources(gpus=gpus)),), NOW, served_s=served)


def running(name: str, *, served: float = 0.0, for_s: float | None = 0.0, gpus: int = 1) -> Running:
    began = None if for_s is None else NOW - timedelta(seconds=for_s)
    return Running(Placement(gang(name, served, gpus=gpus), ()), NOW - timedelta(days=1), started_at=began)


def class_of(one: Gang) -> int:
    return service_class(one, one.served_s)


def test_classes_grow_by_a_factor_and_the_last_has_no_end() -> None:
    served = (0.0, FIRST_S - 0.001, FIRST_S, FIRST_S * FACTOR - 0.001, FIRST_S * FACTOR)
    assert [class_of(gang("a", s)) for s in served] == [0, 0, 1, 1, 2]
    assert class_of(gang("a", 1e300)) == CLASSES - 1


def test_gpus_count_by_their_square_root_and_none_as_one() -> None:
    assert [class_of(gang("a", FIRST_S / 2 - 1, gpus=count)) for count in (0, 1, 4, 64)] == [0, 0, 0, 1]
    assert class_of(gang("a", FIRST_S / 2, gpus=4)) == 1


@given(seconds, seconds, gpus)
def test_a_class_never_gets_better_by_being_served(a: float, b: float, gpus: int) -> None:
    assert class_of(gang("a", min(a, b), gpus=gpus)) <= class_of(gang("a", max(a, b), gpus=gpus))


def test_earlier_attempts_count_as_served_and_preparing_does_not() -> None:
    assert served_s(running("a", served=100.0, for_s=30.0), NOW) == 130.0
    assert served_s(running("a", served=100.0, for_s=None), NOW) == 100.0
    assert served_s(running("a", served=100.0, for_s=-30.0), NOW) == 100.0, "a clock that went back"


@pytest.mark.parametrize(
    ("served", "for_s", "waits", "in_s"),
    [
        (0.0, 0.0, 0, QUANTUM_S),  # the quantum is longer than the first class
        (0.0, QUANTUM_S, 0, 0.0),
        (5000.0, 0.0, 0, QUANTUM_S),  # served long, but it only just came back
        (5000.0, None, 0, QUANTUM_S),
        (0.0, QUANTUM_S, 3, 3840.0 - QUANTUM_S),  # class 3 ends at 3840 s
        (3000.0, QUANTUM_S, 3, 240.0),
        (1e12, 1e6, CLASSES - 1, math.inf),  # nothing is worse than the last class
    ],
)
def test_when_a_run_gives_way(served: float, for_s: float | None, waits: int, in_s: float) -> None:
    assert yields_in_s(running("r", served=served, for_s=for_s), waits, NOW) == pytest.approx(in_s)


@given(seconds, st.floats(0, 1e6), gpus, st.integers(0, CLASSES - 1))
def test_it_gives_way_to_better_classes_only_and_exactly_when_it_was_said(
    served: float, for_s: float, gpus: int, waits: int
) -> None:
    run = running("r", served=served, for_s=for_s, gpus=gpus)
    in_s = yields_in_s(run, waits, NOW)
    if yields_to(run, NOW) >= waits:
        assert in_s <= 1e-3
        assert service_class(run.gang, served_s(run, NOW)) > waits
        assert for_s >= QUANTUM_S - 1e-3
    elif math.isfinite(in_s):
        assert yields_to(run, NOW + timedelta(seconds=in_s + 1e-2)) >= waits
        assert yields_to(run, NOW + timedelta(seconds=in_s * 0.999 - 1e-2)) < waits


@given(st.floats(0, 1e6), st.floats(0, 1e6), gpus, gpus)
def test_two_gangs_on_one_place_change_it_seldom(first: float, second: float, gpus: int, others: int) -> None:
    """Both want the only place for ever. Whoever waits takes it as soon as the other gives way."""
    here, waits, turns = running("a", served=first, gpus=gpus), gang("b", second, gpus=others), []
    now = NOW
    while math.isfinite(in_s := yields_in_s(here, class_of(waits), now)):
        now += timedelta(seconds=in_s + 1e-2)
        assert yields_to(here, now) >= class_of(waits)
        turns.append((now - (here.started_at or now)).total_seconds())
        out = replace(here.gang, served_s=served_s(here, now))
        here, waits = Running(Placement(waits, ()), now, started_at=now), out
    assert len(turns) <= 2 * CLASSES
    assert all(turn >= QUANTUM_S for turn in turns)
