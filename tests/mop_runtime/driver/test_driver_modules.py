"""Driver modules without a worker: slots, means, references of states, and the resume position of a trial."""

from __future__ import annotations

import math
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from hopyard.domain.ids import PartitionId, TrialId, WorkerId
from hopyard.domain.study import InitialState, PartitionPlan
from hopyard.mop.coordinator import MopCoordinator
from hopyard.mop_runtime.driver import partition_assignment
from hopyard.mop_runtime.driver.fork_state import fork_states
from hopyard.mop_runtime.driver.journal_index import FinalState, JournalIndex, TrainingPosition
from hopyard.mop_runtime.driver.resume_point import find_start_state, resume_trial
from hopyard.mop_runtime.driver.retry_counts import RetryCause
from hopyard.mop_runtime.driver.state_refs import StateRefs
from hopyard.mop_runtime.driver.stragglers import StragglerDetector, max_unit_s
from hopyard.mop_runtime.driver.units import DispatchedUnit
from hopyard.mop_runtime.driver.validation_metrics import weighted_means
from hopyard.mop_runtime.driver.worker_registry import Timeouts, WorkerRegistry
from hopyard.mop_runtime.messages import Hello, OpenPartitions, Ready, UnitFailure, to_head
from hopyard.mop_runtime.transport.driver_server import ConnectionClosed, DriverServer, MessageReceived
from hopyard.studies.journal import CONTINUED
from hopyard.studies.trainer import TrialWork

TRIAL = TrialId("0")
held = st.dictionaries(
    st.sampled_from([WorkerId(one) for one in "abcd"]), st.frozensets(st.integers(0, 3)), min_size=1
)


@given(held, st.integers(1, 4), st.integers(1, 9))
def test_slot_assignment_covers_all_slots_and_retains_existing(
    before: dict[WorkerId, frozenset[int]], count: int, parts: int
) -> None:
    before = {worker: frozenset(seat for seat in slots if seat < count) for worker, slots in before.items()}
    after = partition_assignment.assign_free_slots(before, range(count))
    assert frozenset().union(*after.values()) == frozenset(range(count))
    assert all(after[worker] >= slots for worker, slots in before.items())
    opened = [partition_assignment.partitions_of_slots(slots, count, parts) for slots in after.values()]
    assert frozenset().union(*opened) == frozenset(range(parts)), "all partitions are open somewhere"


def test_new_worker_takes_free_slot_or_one_of_most_loaded_worker() -> None:
    a, b, c = WorkerId("a"), WorkerId("b"), WorkerId("c")
    assert partition_assignment.assign_one_slot(c, {a: frozenset({0}), c: frozenset()}, 2) == (1, None)
    assert partition_assignment.assign_one_slot(
        c, {a: frozenset({0}), b: frozenset({1, 2}), c: frozenset()}, 3
    ) == (2, b)
    assert partition_assignment.assign_one_slot(
        c, {a: frozenset({0}), b: frozenset({1}), c: frozenset()}, 2
    ) == (None, None)


@given(
    st.permutations(range(4)),
    st.lists(st.tuples(st.floats(-1e9, 1e9), st.integers(0, 99)), min_size=4, max_size=4),
)
def test_mean_is_independent_of_evaluation_order(order: list[int], parts: list[tuple[float, int]]) -> None:
    results = {PartitionId(at): ({"loss": value}, rows) for at, (value, rows) in enumerate(parts)}
    shuffled = {PartitionId(at): results[PartitionId(at)] for at in order}
    one, other = weighted_means(results)["loss"], weighted_means(shuffled)["loss"]
    assert one == other or (math.isnan(one) and math.isnan(other) and not sum(rows for _, rows in parts))


def test_mean_with_opposite_infinities_is_nan() -> None:
    results = {
        PartitionId(0): ({"loss": math.inf}, 1),
        PartitionId(1): ({"loss": -math.inf, "acc": 0.5}, 3),
        PartitionId(2): ({"acc": 1.0}, 1),
    }
    result = weighted_means(results)
    assert math.isnan(result["loss"])
    assert result["acc"] == 0.625


def test_state_is_dropped_with_its_last_reference() -> None:
    keeping = StateRefs()
    assert keeping.set_refs("0", {"a", "b"}) == []
    assert keeping.set_refs("best", {"a"}) == []
    assert keeping.set_refs("0", {"c"}) == ["b"]
    assert keeping.is_referenced("a") and not keeping.is_referenced("b")
    assert keeping.set_refs("best", ()) == ["a"]


def test_unit_may_exceed_previous_durations() -> None:
    one, other = TrialId("1"), TrialId("2")
    assert max_unit_s(one, {}) == math.inf
    assert max_unit_s(one, {one: 2.0}) == 600.0, "never less than ten minutes"
    assert max_unit_s(one, {one: 60.0, other: 900.0}) == 1200.0
    assert max_unit_s(one, {other: 900.0}) == 18_000.0, "one that nobody has seen yet may be as slow as any"


def test_only_answer_to_last_request_opens_partitions() -> None:
    hub = DriverServer(b"secret", host="127.0.0.1")
    requests: list[OpenPartitions] = []

    def make_open(parts: frozenset[PartitionId], open_id: str) -> OpenPartitions:
        requests.append(OpenPartitions(tuple(parts), (), "", PartitionPlan(2), "", True, 1, open_id))
        return requests[-1]

    try:
        registry = WorkerRegistry(
            hub,
            expected_count=2,
            partition_count=2,
            timeouts=Timeouts(),
            make_open=make_open,
            open_prefix="2",
            record_event=lambda *_: None,
        )
        one = (PartitionId(1),)
        hello = Hello(WorkerId("w"), 7, "here", "store", "127.0.0.1:1", one, one, opening="1.4")
        received = registry.handle(MessageReceived(1, to_head(hello), b""))
        assert received is not None
        worker = received[0]
        assert not worker.train_partitions, "it is not known what it has open until it has done this"
        assert [(request.train, request.open_id) for request in requests] == [(one, "2.1")]
        for stale in (
            Ready(one, one, (9,), (9,), open_id="1.4"),
            UnitFailure("", "open", "it cannot be read", open_id="1.4"),
        ):
            assert registry.handle(MessageReceived(1, to_head(stale), b"")) is None
        assert not worker.train_partitions
        registry.handle(MessageReceived(1, to_head(Ready(one, (), (9,), (), open_id="2.1")), b""))
        assert worker.train_partitions == frozenset(one)
    finally:
        hub.close()


def test_hanging_worker_is_shut_down_when_it_reconnects() -> None:
    worker_events: list[tuple[str, str]] = []
    hub = DriverServer(b"secret", host="127.0.0.1")
    try:
        registry = WorkerRegistry(
            hub,
            expected_count=1,
            partition_count=1,
            timeouts=Timeouts(),
            make_open=lambda parts, number: OpenPartitions((), (), "", PartitionPlan(1), "", True, 1, number),
            open_prefix="1",
            record_event=lambda worker, event, _: worker_events.append((worker, event)),
        )
        hello = MessageReceived(1, to_head(Hello(WorkerId("w"), 7, "here", "store", "127.0.0.1:1")), b"")
        registry.handle(hello)
        registry.handle(ConnectionClosed(1, "its connection broke"))
        stragglers = StragglerDetector(
            MopCoordinator([PartitionId(0)], validation=[]),
            registry,
            lambda worker, event, _: worker_events.append((worker, event)),
            unit_timeout_s=5.0,
        )
        unit = DispatchedUnit(
            1, TRIAL, 0, (PartitionId(0),), (WorkerId("w"),), "", True, time.monotonic() - 8.0
        )
        stragglers.check([unit], [])
        assert (worker_events, unit.stuck_s) == ([("w", "joined")], 0.0)
        registry.handle(replace(hello, connection=2))
        for taken_s, expected in ((8.0, 1), (12.0, 1), (20.0, 2)):
            unit.started_at, stragglers._checked_at = time.monotonic() - taken_s, 0.0
            stragglers.check([unit], [])
            assert worker_events.count(("w", "frozen")) == expected, (
                "not at every look, but again where it goes on"
            )
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


def test_attempt_waits_for_its_own_workers() -> None:
    study_record = {"kind": "study", "attempt": "run.1"}
    worker_events = [
        {"kind": "worker", "worker": worker, "event": event}
        for worker, event in (("w0", "joined"), ("w1", "joined"), ("w1", "lost"))
    ]
    assert JournalIndex.from_records([study_record, *worker_events, study_record], 2).active_workers == {
        "w0"
    }, "another driver of the same attempt"
    assert (
        JournalIndex.from_records(
            [study_record, *worker_events, {"kind": "study", "attempt": "run.2"}], 2
        ).active_workers
        == set()
    )


def resumed_position(
    records: list[dict[str, Any]], present: str, *, done: int = 0
) -> tuple[str, TrainingPosition, tuple[int, ...]]:
    training = resume_trial(
        JournalIndex.from_records(records, 2),
        TrialWork(TRIAL, {}, 3, done, is_resumed=True),
        lambda state: state in present,
    )
    return training.state, training.position, training.replay_order


def test_trial_resumes_from_its_newest_state() -> None:
    assert resumed_position(HOPS, "abcde") == ("e", TrainingPosition(2, frozenset({PartitionId(1)})), ())


def test_lost_units_are_repeated_in_same_order() -> None:
    assert resumed_position(HOPS, "b") == ("b", TrainingPosition(1), (0, 1, 1))
    assert resumed_position(HOPS, "") == ("", TrainingPosition(), (1, 0, 0, 1, 1))
    repeated = [*HOPS, {"kind": "again", "trial": "0", "state": "b", "order": [0, 1, 1]}, hop("f", "b", 1, 0)]
    assert resumed_position(repeated, "f", done=1) == (
        "f",
        TrainingPosition(1, frozenset({PartitionId(0)})),
        (1, 1),
    ), "also if it is interrupted"
    assert resumed_position(repeated, "b", done=1) == ("b", TrainingPosition(1), (0, 1, 1)), "more than once"


def test_resume_stops_before_epoch_that_cannot_be_evaluated() -> None:
    assert resumed_position(HOPS, "abce", done=1) == (
        "c",
        TrainingPosition(1, frozenset({PartitionId(0)})),
        (1, 1),
    )
    assert resumed_position(HOPS, "ae", done=2) == ("e", TrainingPosition(2, frozenset({PartitionId(1)})), ())


def test_forked_trial_resumes_from_initial_state_when_all_others_are_lost() -> None:
    first = FinalState("begin-1", 4)
    start_record = {**BEGUN, "state": "begin-1", "epoch": 4, "budget": 6}
    records = [start_record, hop("a", "begin-1", 4, 1), hop("b", "a", 4, 0), hop("c", "b", 5, 0)]
    index = JournalIndex.from_records(records, 2, first)
    assert index.states["b"].position == TrainingPosition(5)
    for present, state, at, order in (
        ("bc", "c", TrainingPosition(5, frozenset({PartitionId(0)})), ()),
        ("b", "b", TrainingPosition(5), (0,)),
        ("", "begin-1", TrainingPosition(4), (1, 0, 0)),
    ):
        result = resume_trial(
            index,
            TrialWork(TRIAL, {}, 6, 4, is_resumed=True),
            lambda name, present=present: name in present or name == "begin-1",
        )  # type: ignore[misc]
        assert (result.state, result.position, result.replay_order) == (state, at, order)
    assert find_start_state(JournalIndex(2, first), {}, TrialWork(TRIAL, {}, 6, 4), lambda _: True) == (
        "begin-1",
        TrainingPosition(4),
    )


def test_fork_restores_only_its_initial_state_from_checkpoint(tmp_path: Path) -> None:
    begin = InitialState("source", "1.7", "alice/p/1", "3", 4, 0.5)
    source_states = {name: tmp_path / name for name in ("1.7", "1.9")}
    assert fork_states(source_states, None) == source_states
    assert fork_states(source_states, begin) == {begin.fork_state_name: tmp_path / "1.7"}, (
        "its own 1.9 is another"
    )
    own = {name: tmp_path / name for name in (begin.fork_state_name, "1.7")}
    assert fork_states(own, begin) == own
    assert fork_states({"1.9": tmp_path}, begin) == {}
    assert (
        begin.fork_state_name
        != replace(begin, run="other").fork_state_name
        != replace(begin, state="1.8").fork_state_name
    )


def test_group_unit_is_repeated_only_by_group() -> None:
    assert resumed_position([BEGUN, hop("a", "", 0, 0, 1), hop("b", "a", 1, 1)], "") == (
        "",
        TrainingPosition(),
        (),
    )
    assert resumed_position([BEGUN, hop("a", "", 0, 1), hop("b", "a", 0, 0), hop("c", "b", 1, 0, 1)], "") == (
        "",
        TrainingPosition(),
        (1, 0),
    )


def test_repeated_units_are_counted_over_restarts_of_the_driver() -> None:
    start = {"kind": "begun", "trial": "0", "state": "", "epoch": 0, "budget": 3, "params": {}}
    lost = {"kind": "retried", "trial": "0", "cause": "worker", "epoch": 1, "partitions": [0]}
    failed = {"kind": "retried", "trial": "0", "cause": "error", "epoch": 0, "partitions": []}
    restart = {"kind": "hopper", "start": 2}
    index = JournalIndex.from_records([start, lost, failed, restart, lost, {**lost, "epoch": 2}], 2)
    counts = index.retry_counts[TRIAL]
    assert counts.by_unit[RetryCause.WORKER, (1, (PartitionId(0),))] == 2
    assert counts.by_unit[RetryCause.WORKER, (2, (PartitionId(0),))] == 1
    assert counts.errors == 1
    assert not JournalIndex.from_records([start, lost, {"kind": CONTINUED}], 2).retry_counts
    assert not JournalIndex.from_records([start, lost, {**start, "budget": 9}], 2).retry_counts
