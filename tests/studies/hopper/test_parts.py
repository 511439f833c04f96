"""The parts of the driver's side that need no worker: seats, means, what is kept, from where a trial goes
on."""

from __future__ import annotations

import math
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from hopyard.domain.ids import PartitionId, TrialId, WorkerId
from hopyard.domain.study import Beginning, PartitionPlan
from hopyard.mop.coordinator import MopCoordinator
from hopyard.studies.hopper import seats
from hopyard.studies.hopper.beginning import states_in
from hopyard.studies.hopper.book import Book, Left, Position
from hopyard.studies.hopper.crew import Crew, Patience
from hopyard.studies.hopper.keeping import Keeping
from hopyard.studies.hopper.means import weighted
from hopyard.studies.hopper.restoring import origin_of, resumed
from hopyard.studies.hopper.stragglers import Stragglers, allowed_s
from hopyard.studies.hopper.units import Unit
from hopyard.studies.link.hub import Came, Closed, Hub
from hopyard.studies.messages import Hello, Open, to_head
from hopyard.studies.trainer import Work

TRIAL = TrialId("0")
held = st.dictionaries(
    st.sampled_from([WorkerId(one) for one in "abcd"]), st.frozensets(st.integers(0, 3)), min_size=1
)


@given(held, st.integers(1, 4), st.integers(1, 9))
def test_every_seat_is_taken_and_nobody_loses_one(
    before: dict[WorkerId, frozenset[int]], count: int, parts: int
) -> None:
    before = {worker: frozenset(seat for seat in taken if seat < count) for worker, taken in before.items()}
    after = seats.with_all_taken(before, range(count))
    assert frozenset().union(*after.values()) == frozenset(range(count))
    assert all(after[worker] >= taken for worker, taken in before.items())
    opened = [seats.partitions_of(taken, count, parts) for taken in after.values()]
    assert frozenset().union(*opened) == frozenset(range(parts)), "all partitions are open somewhere"


def test_a_newcomer_takes_what_is_free_or_from_who_has_most() -> None:
    a, b, c = WorkerId("a"), WorkerId("b"), WorkerId("c")
    assert seats.with_one_for(c, {a: frozenset({0}), c: frozenset()}, 2) == (1, None)
    assert seats.with_one_for(c, {a: frozenset({0}), b: frozenset({1, 2}), c: frozenset()}, 3) == (2, b)
    assert seats.with_one_for(c, {a: frozenset({0}), b: frozenset({1}), c: frozenset()}, 2) == (None, None)


@given(
    st.permutations(range(4)),
    st.lists(st.tuples(st.floats(-1e9, 1e9), st.integers(0, 99)), min_size=4, max_size=4),
)
def test_a_mean_is_the_same_whoever_evaluated_first(order: list[int], parts: list[tuple[float, int]]) -> None:
    results = {PartitionId(at): ({"loss": value}, rows) for at, (value, rows) in enumerate(parts)}
    shuffled = {PartitionId(at): results[PartitionId(at)] for at in order}
    one, other = weighted(results)["loss"], weighted(shuffled)["loss"]
    assert one == other or (math.isnan(one) and math.isnan(other) and not sum(rows for _, rows in parts))


def test_a_mean_of_what_is_no_number_is_none() -> None:
    results = {
        PartitionId(0): ({"loss": math.inf}, 1),
        PartitionId(1): ({"loss": -math.inf, "acc": 0.5}, 3),
        PartitionId(2): ({"acc": 1.0}, 1),
    }
    found = weighted(results)
    assert math.isnan(found["loss"])
    assert found["acc"] == 0.625


def test_a_state_goes_when_its_last_keeper_lets_it_go() -> None:
    keeping = Keeping()
    assert keeping.keep("0", {"a", "b"}) == []
    assert keeping.keep("best", {"a"}) == []
    assert keeping.keep("0", {"c"}) == ["b"]
    assert keeping.needs("a") and not keeping.needs("b")
    assert keeping.keep("best", ()) == ["a"]


def test_a_unit_may_take_far_longer_than_those_before_it() -> None:
    one, other = TrialId("1"), TrialId("2")
    assert allowed_s(one, {}) == math.inf
    assert allowed_s(one, {one: 2.0}) == 600.0, "never less than ten minutes"
    assert allowed_s(one, {one: 60.0, other: 900.0}) == 1200.0
    assert allowed_s(one, {other: 900.0}) == 18_000.0, "one that nobody has seen yet may be as slow as any"


def test_who_hangs_is_ended_once_it_is_there_to_be_told() -> None:
    notes: list[tuple[str, str]] = []
    hub = Hub(b"secret", host="127.0.0.1")
    try:
        crew = Crew(
            hub,
            count=1,
            parts=1,
            patience=Patience(),
            opening=lambda parts: Open((), (), "", PartitionPlan(1), "", True, 1),
            note=lambda worker, event, _: notes.append((worker, event)),
        )
        there = Came(1, to_head(Hello(WorkerId("w"), 7, "here", "shelf", "127.0.0.1:1")), b"")
        crew.take(there)
        crew.take(Closed(1, "its connection broke"))
        stragglers = Stragglers(
            MopCoordinator([PartitionId(0)], validation=[]),
            crew,
            lambda worker, event, _: notes.append((worker, event)),
            unit_timeout_s=5.0,
        )
        unit = Unit(1, TRIAL, 0, (PartitionId(0),), (WorkerId("w"),), "", True, time.monotonic() - 8.0)
        stragglers.check([unit], [])
        assert (notes, unit.frozen_s) == ([("w", "joined")], 0.0)
        crew.take(replace(there, connection=2))
        for taken_s, told in ((8.0, 1), (12.0, 1), (20.0, 2)):
            unit.begun_at, stragglers._checked_at = time.monotonic() - taken_s, 0.0
            stragglers.check([unit], [])
            assert notes.count(("w", "frozen")) == told, "not at every look, but again where it goes on"
    finally:
        hub.close()


def hop(state: str, parent: str, epoch: int, *partitions: int) -> dict[str, Any]:
    return {
        "kind": "hop",
        "trial": "0",
        "epoch": epoch,
        "partitions": list(partitions),
        "start_from": parent,
        "state": state,
    }


BEGUN = {"kind": "begun", "trial": "0", "state": "", "epoch": 0, "budget": 3, "params": {}}
HOPS = [
    BEGUN,
    hop("a", "", 0, 1),
    hop("b", "a", 0, 0),
    hop("c", "b", 1, 0),
    hop("d", "c", 1, 1),
    hop("e", "d", 2, 1),
]


def test_an_attempt_waits_for_workers_of_its_own() -> None:
    begun = {"kind": "study", "attempt": "run.1"}
    notes = [
        {"kind": "worker", "worker": worker, "event": event}
        for worker, event in (("w0", "joined"), ("w1", "joined"), ("w1", "lost"))
    ]
    assert Book.of([begun, *notes, begun], 2).present == {"w0"}, "another driver of the same attempt"
    assert Book.of([begun, *notes, {"kind": "study", "attempt": "run.2"}], 2).present == set()


def gone_on(
    records: list[dict[str, Any]], there: str, *, done: int = 0
) -> tuple[str, Position, tuple[int, ...]]:
    training = resumed(
        Book.of(records, 2), Work(TRIAL, {}, 3, done, resumed=True), lambda state: state in there
    )
    return training.state, training.at, training.order


def test_a_trial_goes_on_from_its_newest_state() -> None:
    assert gone_on(HOPS, "abcde") == ("e", Position(2, frozenset({PartitionId(1)})), ())


def test_what_was_lost_is_done_again_in_the_same_order() -> None:
    assert gone_on(HOPS, "b") == ("b", Position(1), (0, 1, 1))
    assert gone_on(HOPS, "") == ("", Position(), (1, 0, 0, 1, 1))
    again = [*HOPS, {"kind": "again", "trial": "0", "state": "b", "order": [0, 1, 1]}, hop("f", "b", 1, 0)]
    assert gone_on(again, "f", done=1) == ("f", Position(1, frozenset({PartitionId(0)})), (1, 1)), (
        "also if it is interrupted"
    )
    assert gone_on(again, "b", done=1) == ("b", Position(1), (0, 1, 1)), "more than once"


def test_it_does_not_go_past_an_epoch_that_cannot_be_evaluated_any_more() -> None:
    assert gone_on(HOPS, "abce", done=1) == ("c", Position(1, frozenset({PartitionId(0)})), (1, 1))
    assert gone_on(HOPS, "ae", done=2) == ("e", Position(2, frozenset({PartitionId(1)})), ())


def test_the_trial_of_a_fork_goes_on_from_what_it_began_with_where_all_else_is_lost() -> None:
    first = Left("begin-1", 4)
    begun = {**BEGUN, "state": "begin-1", "epoch": 4, "budget": 6}
    records = [begun, hop("a", "begin-1", 4, 1), hop("b", "a", 4, 0), hop("c", "b", 5, 0)]
    book = Book.of(records, 2, first)
    assert book.made["b"].at == Position(5)
    for there, state, at, order in (
        ("bc", "c", Position(5, frozenset({PartitionId(0)})), ()),
        ("b", "b", Position(5), (0,)),
        ("", "begin-1", Position(4), (1, 0, 0)),
    ):
        found = resumed(
            book,
            Work(TRIAL, {}, 6, 4, resumed=True),
            lambda name, there=there: name in there or name == "begin-1",
        )  # type: ignore[misc]
        assert (found.state, found.at, found.order) == (state, at, order)
    assert origin_of(Book(2, first), {}, Work(TRIAL, {}, 6, 4), lambda _: True) == ("begin-1", Position(4))


def test_of_another_studys_checkpoint_a_fork_takes_only_what_it_begins_with(tmp_path: Path) -> None:
    begin = Beginning("source", "1.7", "alice/p/1", "3", 4, 0.5)
    theirs = {name: tmp_path / name for name in ("1.7", "1.9")}
    assert states_in(theirs, None) == theirs
    assert states_in(theirs, begin) == {begin.kept_as: tmp_path / "1.7"}, "its own 1.9 is another"
    own = {name: tmp_path / name for name in (begin.kept_as, "1.7")}
    assert states_in(own, begin) == own
    assert states_in({"1.9": tmp_path}, begin) == {}
    assert begin.kept_as != replace(begin, run="other").kept_as != replace(begin, state="1.8").kept_as


def test_what_a_group_did_is_done_again_when_there_is_a_group() -> None:
    assert gone_on([BEGUN, hop("a", "", 0, 0, 1), hop("b", "a", 1, 1)], "") == ("", Position(), ())
    assert gone_on([BEGUN, hop("a", "", 0, 1), hop("b", "a", 0, 0), hop("c", "b", 1, 0, 1)], "") == (
        "",
        Position(),
        (1, 0),
    )
