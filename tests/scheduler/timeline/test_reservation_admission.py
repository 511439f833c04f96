"""Reservations, and their use by the owner while other gangs have promises there for later."""

from __future__ import annotations

from dataclasses import replace
from datetime import datetime
from typing import Any

import pytest

from hopyard.domain.breach_causes import BreachCause
from hopyard.domain.cluster import Breach
from hopyard.domain.gang import Gang
from hopyard.domain.hold_reason import HoldReason
from hopyard.domain.ids import GangId, NodeId, ReservationId
from hopyard.domain.queue import QueueTree
from hopyard.domain.reservation import Reservation
from hopyard.domain.resources import Gpu, Resources
from hopyard.scheduler.explain.breach_messages import breach_message
from hopyard.scheduler.timeline.reservation_admission import (
    Admitted,
    Rejected,
    RunPreemptions,
    admit_reservation,
)
from tests.scheduler.cluster_model import T0, ClusterModel, gang, machine, queue, seconds, tree

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


def make_cluster(sizes: dict[str, int], *reservations: Reservation, queues: QueueTree = ONE) -> ClusterModel:
    return ClusterModel(
        {NodeId(name): machine(name, gpus) for name, gpus in sizes.items()}, queues, reservations=reservations
    )


def submit_and_plan(cluster: ClusterModel, *gangs: Gang) -> list[Breach]:
    """Submits gangs ten seconds later, runs a cycle and returns its breaches."""
    cluster.now += seconds(10)
    cluster.submit(*gangs)
    return list(cluster.run_cycle().breaches)


def promised_start(cluster: ClusterModel, name: str) -> datetime:
    """Returns the promised start of a gang."""
    return cluster.promises[GangId(name)].start_at


def test_owner_uses_the_reservation_at_once_and_later_promises_break() -> None:
    cluster = make_cluster({"n1": 8}, reserved("exam", "bob", "n1"))
    assert not submit_and_plan(cluster, gang("wide", 8, user="ada"))
    assert promised_start(cluster, "wide") == T0 + seconds(3600)
    (breach,) = submit_and_plan(cluster, gang("his", 4, user="bob"))
    assert GangId("his") in cluster.running
    assert (breach.gang, breach.cause) == (GangId("wide"), BreachCause.RESERVATION)
    assert breach_message(breach.detail) == "run his uses its reserved capacity in reservation exam"
    assert not submit_and_plan(cluster)


@pytest.mark.parametrize(
    ("options", "starts"),
    [
        ({}, True),
        ({"preemptible": False}, False),
        ({"preemptible": False, "limit_s": 600}, True),
        ({"preemptible": False, "limit_s": 9000}, False),
    ],
)
def test_non_preemptible_run_does_not_start_before_a_reservation(
    options: dict[str, Any], starts: bool
) -> None:
    cluster = make_cluster({"n1": 8}, replace(reserved("exam", "bob", "n1"), start_at=T0 + seconds(1000)))
    cluster.durations = {"all": (2.0,) * 20}
    cluster.submit(gang("mine", 1, **options))
    new_plan = cluster.run_cycle()
    assert (GangId("mine") in cluster.running) is starts
    if not starts:
        assert [hold.reason for hold in new_plan.hold] == [HoldReason.RESERVED]


def test_run_preempted_for_a_reservation_does_not_restart_before_it() -> None:
    cluster = make_cluster({"n1": 8}, replace(reserved("exam", "bob", "n1"), start_at=T0 + seconds(200)))
    cluster.durations = {"all": (2.0,) * 20}
    cluster.submit(gang("mine", 1))
    cluster.run_cycle()
    cluster.now = T0 + seconds(30)
    assert [preemption.gang for preemption in cluster.run_cycle().preempt] == ["mine"]
    cluster.now = T0 + seconds(31)
    cluster.evict(GangId("mine"))
    (hold,) = cluster.run_cycle().hold
    assert hold.reason is HoldReason.RESERVED
    cluster.now = T0 + seconds(3601)
    cluster.run_cycle()
    assert GangId("mine") in cluster.running


def test_other_reservations_do_not_change_the_placement() -> None:
    cluster = make_cluster(
        {"n0": 8, "n1": 8, "n2": 8},
        reserved("exam", "bob", "n1"),
        reserved("other", "cy", "n0", until_s=50_000),
    )
    submit_and_plan(cluster, gang("busy", 8, limit_s=9000))
    submit_and_plan(cluster, gang("wide", 8, user="ada"))
    submit_and_plan(cluster, gang("his", 4, user="bob"))
    assert {a.node for a in cluster.running[GangId("his")].placement.assignments} == {"n1"}


@pytest.mark.parametrize("cpus", [0.5, 1, 4, 9])
def test_owner_uses_no_more_than_the_reservation(cpus: float) -> None:
    cluster = make_cluster({"n1": 8}, reserved("exam", "bob", "n1", piece=Resources(4000, 0, 1), pieces=2))
    submit_and_plan(cluster, gang("old", 1, limit_s=5000))
    submit_and_plan(cluster, gang("wide", 8, user="ada"))
    submit_and_plan(cluster, *(gang(f"his{i}", user="bob", cpus=cpus, at=i) for i in range(6)))
    assert sorted(cluster.running) == ["his0", "his1", "old"]


def test_promised_quota_is_not_used_by_the_reservation_owner() -> None:
    cluster = make_cluster(
        {"n1": 8, "n2": 4, "n3": 4},
        reserved("exam", "bob", "n1"),
        queues=tree(queue("root"), queue("q", "root", maximum=12)),
    )
    submit_and_plan(cluster, gang("old", 4, limit_s=50_000, queue="q", user="cy"))
    submit_and_plan(cluster, gang("wide", 8, user="ada", queue="q"))
    assert not submit_and_plan(cluster, gang("his", 4, user="bob", queue="q"))
    assert GangId("his") not in cluster.running
    assert promised_start(cluster, "wide") == T0 + seconds(3600)
    assert promised_start(cluster, "his") > T0 + seconds(3600)


def test_displaced_gang_is_promised_the_earliest_start_on_any_node() -> None:
    cluster = make_cluster({"n1": 8, "n2": 8}, reserved("exam", "bob", "n1"))
    submit_and_plan(cluster, gang("busy", 8, limit_s=5000))
    submit_and_plan(cluster, gang("wide", 8, user="ada"))
    submit_and_plan(cluster, gang("his", 4, user="bob", limit_s=1e6))
    assert cluster.promises[GangId("wide")].nodes == ("n2",)
    assert promised_start(cluster, "wide") == T0 + seconds(5010)


def test_gang_delayed_by_a_displaced_gang_gets_a_breach() -> None:
    cluster = make_cluster({"n1": 8, "n2": 8}, reserved("exam", "bob", "n1", "n2"))
    submit_and_plan(cluster, gang("a", 8, user="ada"))
    submit_and_plan(cluster, gang("b", 8, user="eve", at=1))
    result = submit_and_plan(cluster, gang("his", 4, user="bob"))
    assert [(row.cause, breach_message(row.detail)) for row in result] == [
        (BreachCause.RESERVATION, "run his uses its reserved capacity in reservation exam")
    ]


@pytest.mark.parametrize("also", [(), (reserved("other", "cy", "n2", piece=Resources(1000, 0, 1)),)])
def test_owner_of_another_reservation_is_displaced_too(also: tuple[Reservation, ...]) -> None:
    cluster = make_cluster(
        {"n1": 8, "n2": 2}, reserved("exam", "bob", "n1", "n2", piece=Resources(1000, 0, 1), pieces=2), *also
    )
    submit_and_plan(cluster, gang("wide", 7, user="cy"))
    submit_and_plan(cluster, gang("his", 2, user="bob"))
    assert GangId("his") in cluster.running


def test_promises_of_the_same_owner_are_not_displaced() -> None:
    cluster = make_cluster({"n1": 8}, reserved("exam", "bob", "n1"))
    submit_and_plan(cluster, gang("first", 4, user="bob", limit_s=100))
    submit_and_plan(cluster, gang("large", 8, user="bob"))
    assert promised_start(cluster, "large") == T0 + seconds(110)
    assert not submit_and_plan(cluster, gang("small", 4, user="bob", limit_s=200))
    assert GangId("small") not in cluster.running
    submit_and_plan(cluster, gang("short", 4, user="bob", limit_s=50))
    assert GangId("short") in cluster.running


def test_gang_is_displaced_by_one_occurrence_only() -> None:
    """Reserved for one hour in every two: a gang displaced by runs that overran one occurrence starts after
    the next."""
    cluster = make_cluster({"n1": 8}, reserved("exam", "bob", "n1", every_s=7200))
    submit_and_plan(cluster, gang("wide", 8, user="ada", limit_s=3000))
    cluster.now = T0 + seconds(3000)
    (breach,) = submit_and_plan(cluster, gang("his", 4, user="bob", limit_s=5000))
    assert breach.cause is BreachCause.RESERVATION
    assert promised_start(cluster, "wide") == T0 + seconds(10_800)
    cluster.now = T0 + seconds(8010)
    cluster.finish(GangId("his"))
    cluster.now = T0 + seconds(10_000)
    assert not submit_and_plan(cluster, gang("again", 4, user="bob", limit_s=5000))
    cluster.now = T0 + seconds(10_790)
    submit_and_plan(cluster)
    assert sorted(cluster.running) == ["wide"]


def test_owner_is_promised_the_reservation_at_the_end_of_its_run() -> None:
    cluster = make_cluster({"n1": 8}, reserved("exam", "bob", "n1"))
    submit_and_plan(cluster, gang("first", 8, user="bob", limit_s=600))
    submit_and_plan(cluster, gang("wide", 8, user="ada"))
    submit_and_plan(cluster, gang("his", 8, user="bob"))
    assert promised_start(cluster, "his") == T0 + seconds(610)
    cluster.now = T0 + seconds(610)
    cluster.finish(GangId("first"))
    submit_and_plan(cluster)
    assert GangId("his") in cluster.running


def test_promised_owner_breaks_no_promise_before_it_starts() -> None:
    cluster = make_cluster({"n1": 8}, reserved("exam", "bob", "n1"))
    submit_and_plan(cluster, gang("first", 4, user="bob", limit_s=3000))
    submit_and_plan(cluster, gang("wide", 4, user="cy", priority=90))
    submit_and_plan(cluster, gang("his", 8, user="bob", priority=10, limit_s=36_000))
    for _ in range(3):
        assert not submit_and_plan(cluster)
    assert promised_start(cluster, "wide") == T0 + seconds(3600)
    assert promised_start(cluster, "his") == T0 + seconds(3010)
    cluster.now = T0 + seconds(3010)
    cluster.finish(GangId("first"))
    (breach,) = submit_and_plan(cluster)
    assert (breach.gang, breach.cause) == (GangId("wide"), BreachCause.RESERVATION)


@pytest.mark.parametrize("lacks", ["a card", "half a card", "nothing", "a card that stays in use"])
def test_run_is_not_preempted_without_gain_for_the_owner(lacks: str) -> None:
    """It needs no GPU, which is all that is missing."""
    cards = 1 if lacks == "a card" else 2
    cluster = make_cluster({"n1": cards}, reserved("exam", "bob", "n1", piece=Resources(1000, 0, 2)))
    if lacks == "half a card":
        submit_and_plan(cluster, gang("his", 0, milli=500, user="bob"))
    if lacks == "a card that stays in use":
        cluster.reservations, reservations = (), cluster.reservations
        submit_and_plan(cluster, gang("stays", 1, preemptible=False))
        cluster.reservations = reservations
    submit_and_plan(cluster, gang("hers", 0, user="ada"))
    for _ in range(5):
        cluster.now += seconds(10)
        assert not cluster.run_cycle().preempt
    assert GangId("hers") in cluster.running


def test_gpu_of_another_model_is_not_reserved() -> None:
    cards = (Gpu(0, "T4"), Gpu(1, "A100"))
    cluster = make_cluster({"n1": 2}, reserved("exam", "bob", "n1", piece=Resources(1000, 0, 1, ("a100",))))
    cluster.nodes[NodeId("n1")] = replace(cluster.nodes[NodeId("n1")], gpus=cards)
    wants = Resources(1000, 0, 1, ("T4",))
    his = gang("his", 1, user="bob")
    submit_and_plan(cluster, replace(his, roles=(replace(his.roles[0], resources=wants),)))
    submit_and_plan(cluster, gang("hers", 1, user="ada"))
    assert sorted(cluster.running) == ["his"]
    submit_and_plan(cluster, gang("again", 1, user="bob"))
    assert sorted(cluster.running) == ["again", "his"]


@pytest.mark.parametrize("other", ["bob", "cy"])
@pytest.mark.parametrize("gpus", [1, 2, 3])
def test_run_uses_capacity_of_one_reservation_only(other: str, gpus: int) -> None:
    """Two pieces are kept by either, on the same node."""
    piece = Resources(1000, 0, 1)
    cluster = make_cluster(
        {"n1": 8},
        reserved("exam", "bob", "n1", piece=piece, pieces=2),
        reserved("lab", other, "n1", piece=piece, pieces=2),
    )
    submit_and_plan(cluster, gang("his", gpus, user="bob"))
    submit_and_plan(cluster, *(gang(f"hers{i}", user="ada", at=i) for i in range(8)))
    used = gpus if other == "bob" else min(gpus, 2)
    assert len(cluster.running) - 1 == 8 - 4 - (gpus - used)


def test_runs_are_preempted_for_all_overlapping_reservations() -> None:
    four = Resources(4000, 0, 4)
    cluster = make_cluster({"n1": 8})
    submit_and_plan(cluster, gang("hers", 4, user="ada"))
    cluster.reservations = (
        reserved("exam", "bob", "n1", piece=four),
        reserved("lab", "cy", "n1", piece=four),
    )
    cluster.now += seconds(10)
    assert [preemption.gang for preemption in cluster.run_cycle().preempt] == [GangId("hers")]


@pytest.mark.parametrize("owner", ["ada", "bob"])
def test_reservation_is_refused_without_capacity_beside_fixed_runs_and_reservations(
    owner: str,
) -> None:
    """Four of eight GPUs are reserved and four in use, by a user with or without access to the
    reservation."""
    four = Resources(4000, 0, 4)
    cluster = make_cluster({"n1": 8})
    submit_and_plan(cluster, gang("stays", 4, user=owner, limit_s=9000, preemptible=False))
    cluster.reservations = (reserved("exam", "bob", "n1", piece=four),)
    admission = admit_reservation(replace(reserved("lab", "cy", piece=four), pieces=(1,)), cluster.snapshot())
    assert isinstance(admission, Rejected) == (owner == "ada")
    if isinstance(admission, Rejected):
        assert admission.conflicts == ("run:stays",)


@pytest.mark.parametrize("every_s", [6000, 86_400, 7 * 86_400])
def test_gang_longer_than_the_gaps_gets_no_breakable_promise(
    every_s: int,
) -> None:
    """The reservation repeats for 50 minutes, beyond the planning horizon; `wide` has no time limit, `short`
    has one."""
    cluster = make_cluster({"n1": 8}, reserved("exam", "bob", "n1", until_s=3000, every_s=every_s))
    assert not submit_and_plan(
        cluster, gang("wide", 8, user="ada"), gang("short", 8, user="ada", limit_s=1000, at=1)
    )
    assert GangId("wide") not in cluster.promises
    assert promised_start(cluster, "short") == T0 + seconds(3000)
    del cluster.pending[GangId("short")]
    for _ in range(6):
        cluster.now += seconds(every_s / 2)
        assert not submit_and_plan(cluster)
    assert not cluster.started and not cluster.promises


@pytest.mark.parametrize(("gpus", "preemptible"), [(4, True), (5, True), (4, False)])
def test_only_conflicting_runs_are_named(gpus: int, preemptible: bool) -> None:
    """Four GPUs of eight are reserved from now on."""
    cluster = make_cluster({"n1": 8})
    submit_and_plan(cluster, gang("hers", gpus, user="ada", preemptible=preemptible))
    cluster.now += seconds(10)
    requested = replace(
        reserved("exam", "bob", piece=Resources(4000, 0, 4)), pieces=(1,), start_at=cluster.now
    )
    admission = admit_reservation(requested, cluster.snapshot())
    assert isinstance(admission, Admitted)
    cluster.reservations = (admission.reservation,)
    preempted = [preemption.gang for preemption in cluster.run_cycle().preempt]
    assert preempted == ([GangId("hers")] if gpus == 5 else [])
    assert admission.warnings == ((RunPreemptions((GangId("hers"),)),) if preempted else ())
