"""The phase of a run after the end of its attempt."""

from __future__ import annotations

from dataclasses import replace

import pytest

from hopyard.domain.attempt import AttemptPhase, Exit, ExitKind
from hopyard.domain.attempt_state import AttemptState
from hopyard.domain.ids import AttemptId
from hopyard.domain.requeue import end_attempt, fail_launch, lost_exit
from hopyard.domain.requeue_backoff import MAX_BACKOFF_S, RequeueCause, ordinal
from hopyard.domain.run import RunPhase

BEFORE = AttemptState(
    AttemptId("abcdef.1"), AttemptPhase.STARTING, (), 1, 0, RunPhase.STARTING, False, max_attempts=4
)
LOW = Exit(ExitKind.NODE_FAULT, 125, "the disk is low")


def test_node_fault_requeues_the_run_without_limit_and_with_backoff() -> None:
    before, pauses = replace(BEFORE, max_attempts=1), []
    for times in range(1, 30):
        after = end_attempt(before, AttemptPhase.FAILED, LOW)
        assert (after.run_phase, after.requeue_cause, after.refusals, after.losses) == (
            RunPhase.QUEUED,
            RequeueCause.NODE_FAULT,
            times,
            0,
        )
        assert after.requeue_reason == "the disk is low" + (
            f" (the {ordinal(times)} time in a row)" if times > 1 else ""
        )
        pauses.append(after.backoff_s)
        before = replace(before, refusals=after.refusals)
    assert pauses == sorted(pauses) and pauses[0] > 1 and pauses[-1] == MAX_BACKOFF_S


def test_run_with_a_stop_request_is_not_requeued() -> None:
    after = end_attempt(replace(BEFORE, stop_requested=True), AttemptPhase.FAILED, LOW)
    assert (after.run_phase, after.requeue_cause, after.backoff_s) == (RunPhase.CANCELLED, None, 0.0)


@pytest.mark.parametrize(
    "kind", [ExitKind.PREPARE_FAILED, ExitKind.EXIT_CODE, ExitKind.OUT_OF_MEMORY, ExitKind.TIME_LIMIT]
)
def test_failure_of_the_run_itself_is_final(kind: ExitKind) -> None:
    assert end_attempt(BEFORE, AttemptPhase.FAILED, Exit(kind, 1, "x")).run_phase is RunPhase.FAILED


def test_losses_in_a_row_fail_the_run_with_their_count() -> None:
    before, pauses = BEFORE, []
    for times in range(1, 4):
        after = end_attempt(before, AttemptPhase.LOST, lost_exit("its replica died"))
        assert (after.run_phase, after.requeue_cause, after.losses) == (
            RunPhase.QUEUED,
            RequeueCause.LOST,
            times,
        )
        pauses.append(after.backoff_s)
        before = replace(before, losses=after.losses)
    assert pauses[0] == 0.0 and 0 < pauses[1] < pauses[2]
    last = end_attempt(before, AttemptPhase.LOST, lost_exit("its replica died"))
    assert last.run_phase is RunPhase.FAILED and last.exit is not None
    assert (
        last.exit.reason
        == "its replica died; no further retry after the 4th loss in a row without a newer checkpoint"
    )


def test_failed_launch_is_a_node_fault_or_a_run_failure() -> None:
    assert fail_launch(BEFORE, "no descriptors", ExitKind.NODE_FAULT).run_phase is RunPhase.QUEUED
    assert fail_launch(BEFORE, "not a name", ExitKind.PREPARE_FAILED).run_phase is RunPhase.FAILED
    assert fail_launch(BEFORE, "gone", ExitKind.LOST).losses == 1
