"""What is reserved, and what its owner may do with it while others were promised a start there for
afterwards."""

from __future__ import annotations

from dataclasses import replace
from datetime import datetime
from typing import Any

import pytest

from hopyard.domain.cluster import Breach, BreachCause, HoldReason
from hopyard.domain.gang import Gang
from hopyard.domain.ids import GangId, NodeId, ReservationId
from hopyard.domain.queue import QueueTree
from hopyard.domain.reservation import Reservation
from hopyard.domain.resources import Gpu, Resources
from hopyard.scheduler.timeline.reservation_admission import Admitted, Rejected, admit_reservation
from tests.scheduler.worlds import T0, World, gang, machine, queue, seconds, tree

ONE = tree(queue("default"))


def reserved(
    name: str,
    user: str,
    *nodes: str,
    until_s: float = 3600,
    piece: Resources | None = None,
    pieces: int = 1,
    every_s: float = 0,
) -> Reservation:
    return Reservation(
        ReservationId(name),
        name,
        T0 - seconds(100),
        T0 + seconds(until_s),
        users=(user,),
        nodes=tuple(NodeId(node) for node in nodes),
        pieces=() if piece is None else (pieces,) * len(nodes),
        resources=piece,
        every_s=every_s,
    )


def world(sizes: dict[str, int], *reservations: Reservation, queues: QueueTree = ONE) -> World:
    return World(
        {NodeId(name): machine(name, gpus) for name, gpus in sizes.items()}, queues, reservations=reservations
    )


def comes(there: World, *gangs: Gang) -> list[Breach]:
    """Ten seconds later; what is told as broken."""
    there.now += seconds(10)
    there.submit(*gangs)
    return list(there.turn().breaches)


def starts_at(there: World, name: str) -> datetime:
    """At the latest, as was promised."""
    return there.promises[GangId(name)].start_at


def test_it_is_used_at_once_and_who_was_promised_it_for_afterwards_is_told() -> None:
    there = world({"n1": 8}, reserved("exam", "bob", "n1"))
    assert not comes(there, gang("wide", 8, user="ada"))
    assert starts_at(there, "wide") == T0 + seconds(3600)
    (told,) = comes(there, gang("his", 4, user="bob"))
    assert GangId("his") in there.running
    assert (told.gang, told.cause) == (GangId("wide"), BreachCause.RESERVATION)
    assert told.detail == "run his uses its reserved capacity in reservation exam"
    assert not comes(there)


@pytest.mark.parametrize(
    ("more", "starts"),
    [
        ({}, True),
        ({"preemptible": False}, False),
        ({"preemptible": False, "limit_s": 600}, True),
        ({"preemptible": False, "limit_s": 9000}, False),
    ],
)
def test_what_nothing_ends_does_not_start_before_a_reservation(more: dict[str, Any], starts: bool) -> None:
    there = world({"n1": 8}, replace(reserved("exam", "bob", "n1"), start_at=T0 + seconds(1000)))
    there.durations = {"all": (2.0,) * 20}
    there.submit(gang("mine", 1, **more))
    wanted = there.turn()
    assert (GangId("mine") in there.running) is starts
    if not starts:
        assert [hold.reason for hold in wanted.hold] == [HoldReason.RESERVED]


def test_a_run_that_left_for_a_reservation_does_not_come_back_before_it() -> None:
    there = world({"n1": 8}, replace(reserved("exam", "bob", "n1"), start_at=T0 + seconds(200)))
    there.durations = {"all": (2.0,) * 20}
    there.submit(gang("mine", 1))
    there.turn()
    there.now = T0 + seconds(30)
    assert [one.gang for one in there.turn().preempt] == ["mine"]
    there.now = T0 + seconds(31)
    there.leave(GangId("mine"))
    (hold,) = there.turn().hold
    assert hold.reason is HoldReason.RESERVED
    there.now = T0 + seconds(3601)
    there.turn()
    assert GangId("mine") in there.running


def test_what_is_free_elsewhere_and_reserved_for_somebody_else_changes_nothing() -> None:
    there = world(
        {"n0": 8, "n1": 8, "n2": 8},
        reserved("exam", "bob", "n1"),
        reserved("other", "cy", "n0", until_s=50_000),
    )
    comes(there, gang("busy", 8, limit_s=9000))
    comes(there, gang("wide", 8, user="ada"))
    comes(there, gang("his", 4, user="bob"))
    assert {a.node for a in there.running[GangId("his")].placement.assignments} == {"n1"}


@pytest.mark.parametrize("cpus", [0.5, 1, 4, 9])
def test_no_more_is_used_than_is_reserved(cpus: float) -> None:
    there = world({"n1": 8}, reserved("exam", "bob", "n1", piece=Resources(4000, 0, 1), pieces=2))
    comes(there, gang("old", 1, limit_s=5000))
    comes(there, gang("wide", 8, user="ada"))
    comes(there, *(gang(f"his{i}", user="bob", cpus=cpus, at=i) for i in range(6)))
    assert sorted(there.running) == ["his0", "his1", "old"]


def test_what_its_queue_may_use_stays_promised() -> None:
    there = world(
        {"n1": 8, "n2": 4, "n3": 4},
        reserved("exam", "bob", "n1"),
        queues=tree(queue("root"), queue("q", "root", most=12)),
    )
    comes(there, gang("old", 4, limit_s=50_000, queue="q", user="cy"))
    comes(there, gang("wide", 8, user="ada", queue="q"))
    assert not comes(there, gang("his", 4, user="bob", queue="q"))
    assert GangId("his") not in there.running
    assert starts_at(there, "wide") == T0 + seconds(3600)
    assert starts_at(there, "his") > T0 + seconds(3600)


def test_who_gives_way_is_promised_the_earliest_start_wherever_that_is() -> None:
    there = world({"n1": 8, "n2": 8}, reserved("exam", "bob", "n1"))
    comes(there, gang("busy", 8, limit_s=5000))
    comes(there, gang("wide", 8, user="ada"))
    comes(there, gang("his", 4, user="bob", limit_s=1e6))
    assert there.promises[GangId("wide")].nodes == ("n2",)
    assert starts_at(there, "wide") == T0 + seconds(5010)


def test_who_is_late_because_another_gave_way_is_told_so() -> None:
    there = world({"n1": 8, "n2": 8}, reserved("exam", "bob", "n1", "n2"))
    comes(there, gang("a", 8, user="ada"))
    comes(there, gang("b", 8, user="eve", at=1))
    found = comes(there, gang("his", 4, user="bob"))
    assert [(one.cause, one.detail) for one in found] == [
        (BreachCause.RESERVATION, "run his uses its reserved capacity in reservation exam")
    ]


@pytest.mark.parametrize("also", [(), (reserved("other", "cy", "n2", piece=Resources(1000, 0, 1)),)])
def test_who_has_something_reserved_elsewhere_gives_way_too(also: tuple[Reservation, ...]) -> None:
    there = world(
        {"n1": 8, "n2": 2}, reserved("exam", "bob", "n1", "n2", piece=Resources(1000, 0, 1), pieces=2), *also
    )
    comes(there, gang("wide", 7, user="cy"))
    comes(there, gang("his", 2, user="bob"))
    assert GangId("his") in there.running


def test_others_for_whom_it_is_reserved_do_not_give_way() -> None:
    there = world({"n1": 8}, reserved("exam", "bob", "n1"))
    comes(there, gang("first", 4, user="bob", limit_s=100))
    comes(there, gang("large", 8, user="bob"))
    assert starts_at(there, "large") == T0 + seconds(110)
    assert not comes(there, gang("small", 4, user="bob", limit_s=200))
    assert GangId("small") not in there.running
    comes(there, gang("short", 4, user="bob", limit_s=50))
    assert GangId("short") in there.running


def test_nobody_gives_way_each_time_that_it_comes_up_again() -> None:
    """One hour in every two: who waited through one time for those that went on beyond it starts after the
    next."""
    there = world({"n1": 8}, reserved("exam", "bob", "n1", every_s=7200))
    comes(there, gang("wide", 8, user="ada", limit_s=3000))
    there.now = T0 + seconds(3000)
    (told,) = comes(there, gang("his", 4, user="bob", limit_s=5000))
    assert told.cause is BreachCause.RESERVATION
    assert starts_at(there, "wide") == T0 + seconds(10_800)
    there.now = T0 + seconds(8010)
    there.end(GangId("his"))
    there.now = T0 + seconds(10_000)
    assert not comes(there, gang("again", 4, user="bob", limit_s=5000))
    there.now = T0 + seconds(10_790)
    comes(there)
    assert sorted(there.running) == ["wide"]


def test_who_waits_for_its_own_run_is_promised_what_is_reserved_when_that_ends() -> None:
    there = world({"n1": 8}, reserved("exam", "bob", "n1"))
    comes(there, gang("first", 8, user="bob", limit_s=600))
    comes(there, gang("wide", 8, user="ada"))
    comes(there, gang("his", 8, user="bob"))
    assert starts_at(there, "his") == T0 + seconds(610)
    there.now = T0 + seconds(610)
    there.end(GangId("first"))
    comes(there)
    assert GangId("his") in there.running


def test_who_is_promised_what_is_reserved_breaks_no_promise_before_it_starts() -> None:
    there = world({"n1": 8}, reserved("exam", "bob", "n1"))
    comes(there, gang("first", 4, user="bob", limit_s=3000))
    comes(there, gang("wide", 4, user="cy", priority=90))
    comes(there, gang("his", 8, user="bob", priority=10, limit_s=36_000))
    for _ in range(3):
        assert not comes(there)
    assert starts_at(there, "wide") == T0 + seconds(3600)
    assert starts_at(there, "his") == T0 + seconds(3010)
    there.now = T0 + seconds(3010)
    there.end(GangId("first"))
    (told,) = comes(there)
    assert (told.gang, told.cause) == (GangId("wide"), BreachCause.RESERVATION)


@pytest.mark.parametrize("lacks", ["a card", "half a card", "nothing", "a card that stays in use"])
def test_nobody_is_asked_to_leave_whose_leaving_gives_the_owner_nothing(lacks: str) -> None:
    """It needs no GPU, which is all that is missing."""
    cards = 1 if lacks == "a card" else 2
    there = world({"n1": cards}, reserved("exam", "bob", "n1", piece=Resources(1000, 0, 2)))
    if lacks == "half a card":
        comes(there, gang("his", 0, milli=500, user="bob"))
    if lacks == "a card that stays in use":
        there.reservations, kept = (), there.reservations
        comes(there, gang("stays", 1, preemptible=False))
        there.reservations = kept
    comes(there, gang("hers", 0, user="ada"))
    for _ in range(5):
        there.now += seconds(10)
        assert not there.turn().preempt
    assert GangId("hers") in there.running


def test_a_card_of_another_model_is_not_what_is_reserved() -> None:
    cards = (Gpu(0, "T4"), Gpu(1, "A100"))
    there = world({"n1": 2}, reserved("exam", "bob", "n1", piece=Resources(1000, 0, 1, ("a100",))))
    there.nodes[NodeId("n1")] = replace(there.nodes[NodeId("n1")], gpus=cards)
    wants = Resources(1000, 0, 1, ("T4",))
    his = gang("his", 1, user="bob")
    comes(there, replace(his, roles=(replace(his.roles[0], resources=wants),)))
    comes(there, gang("hers", 1, user="ada"))
    assert sorted(there.running) == ["his"]
    comes(there, gang("again", 1, user="bob"))
    assert sorted(there.running) == ["again", "his"]


@pytest.mark.parametrize("other", ["bob", "cy"])
@pytest.mark.parametrize("gpus", [1, 2, 3])
def test_what_a_run_uses_is_used_of_one_reservation_only(other: str, gpus: int) -> None:
    """Two pieces are kept by either, on the same node."""
    one = Resources(1000, 0, 1)
    there = world(
        {"n1": 8},
        reserved("exam", "bob", "n1", piece=one, pieces=2),
        reserved("lab", other, "n1", piece=one, pieces=2),
    )
    comes(there, gang("his", gpus, user="bob"))
    comes(there, *(gang(f"hers{i}", user="ada", at=i) for i in range(8)))
    used = gpus if other == "bob" else min(gpus, 2)
    assert len(there.running) - 1 == 8 - 4 - (gpus - used)


def test_so_many_are_asked_to_leave_that_there_is_room_for_all_that_is_reserved() -> None:
    four = Resources(4000, 0, 4)
    there = world({"n1": 8})
    comes(there, gang("hers", 4, user="ada"))
    there.reservations = (reserved("exam", "bob", "n1", piece=four), reserved("lab", "cy", "n1", piece=four))
    there.now += seconds(10)
    assert [one.gang for one in there.turn().preempt] == [GangId("hers")]


@pytest.mark.parametrize("owner", ["ada", "bob"])
def test_what_may_not_be_preempted_and_what_is_reserved_already_leave_room_together_or_it_is_refused(
    owner: str,
) -> None:
    """Four GPUs of eight are reserved, four are used: by who may use what is reserved, or by somebody
    else."""
    four = Resources(4000, 0, 4)
    there = world({"n1": 8})
    comes(there, gang("stays", 4, user=owner, limit_s=9000, preemptible=False))
    there.reservations = (reserved("exam", "bob", "n1", piece=four),)
    found = admit_reservation(replace(reserved("lab", "cy", piece=four), pieces=(1,)), there.snapshot())
    assert isinstance(found, Rejected) == (owner == "ada")
    if isinstance(found, Rejected):
        assert found.conflicts == ("run:stays",)


@pytest.mark.parametrize("every_s", [6000, 86_400, 7 * 86_400])
def test_who_needs_more_than_the_time_between_is_promised_nothing_that_comes_to_be_broken(
    every_s: int,
) -> None:
    """It comes up for 50 minutes again and again, further than a plan looks; `wide` may take as long as it
    likes, `short` does not."""
    there = world({"n1": 8}, reserved("exam", "bob", "n1", until_s=3000, every_s=every_s))
    assert not comes(there, gang("wide", 8, user="ada"), gang("short", 8, user="ada", limit_s=1000, at=1))
    assert GangId("wide") not in there.promises
    assert starts_at(there, "short") == T0 + seconds(3000)
    del there.pending[GangId("short")]
    for _ in range(6):
        there.now += seconds(every_s / 2)
        assert not comes(there)
    assert not there.started and not there.promises


@pytest.mark.parametrize(("gpus", "preemptible"), [(4, True), (5, True), (4, False)])
def test_only_those_are_named_who_are_in_its_way(gpus: int, preemptible: bool) -> None:
    """Four GPUs of eight are reserved from now on."""
    there = world({"n1": 8})
    comes(there, gang("hers", gpus, user="ada", preemptible=preemptible))
    there.now += seconds(10)
    wanted = replace(reserved("exam", "bob", piece=Resources(4000, 0, 4)), pieces=(1,), start_at=there.now)
    found = admit_reservation(wanted, there.snapshot())
    assert isinstance(found, Admitted)
    there.reservations = (found.reservation,)
    asked = [one.gang for one in there.turn().preempt]
    assert asked == ([GangId("hers")] if gpus == 5 else [])
    assert found.warnings == (("preempted if they still run then: run hers",) if asked else ())
