"""The visible parts of a run's streams after its attempts."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime

from hopyard.domain.checkpoint import Checkpoint
from hopyard.domain.ids import AttemptId, Digest, RunId, RunName, attempt_id
from hopyard.domain.run import Attempt, RoleSpec, Run, RunPhase, RunSpec
from hopyard.tracking.rollback import VisibleStreams, visible_streams

NOW = datetime(2026, 1, 1, tzinfo=UTC)
ID = RunId("abcdefgh")
RUN = Run(ID, RunName("alice", "p", 1), RunSpec("p", (RoleSpec(("x",)),)), RunPhase.RUNNING, NOW)


def attempt(number: int, resumed: int | None = None) -> Attempt:
    return Attempt(
        attempt_id(ID, number), number, "lost", ("n",), ((),), "local", NOW, resumed_from_step=resumed
    )


def checkpoint(number: int, step: int, offsets: Mapping[str, int], rank: int = 0) -> Checkpoint:
    return Checkpoint(ID, attempt_id(ID, number), rank, step, Digest("0" * 64), 1, NOW, offsets=offsets)


def visible_attempts(view: VisibleStreams) -> list[int]:
    return [int(a.rpartition(".")[2]) for a in view.attempts]


def attempt_of(number: int) -> AttemptId:
    return attempt_id(ID, number)


def test_single_attempt_is_visible_completely() -> None:
    view = visible_streams(RUN, [attempt(1)], [checkpoint(1, 5, {"stdout": 10})])
    assert visible_attempts(view) == [1]
    assert view.visible_length_of(attempt_of(1), 0, "stdout") is None


def test_restart_without_checkpoint_hides_earlier_attempts() -> None:
    assert visible_attempts(visible_streams(RUN, [attempt(1), attempt(2)], [])) == [2]


def test_resume_cuts_saving_attempt_and_hides_attempts_between() -> None:
    checkpoints = [checkpoint(1, 5, {"stdout": 10, "metrics": 99}), checkpoint(1, 6, {"stdout": 20})]
    view = visible_streams(RUN, [attempt(1), attempt(2, 6), attempt(3, 5)], checkpoints)
    assert visible_attempts(view) == [1, 3]
    assert view.visible_length_of(attempt_of(1), 0, "stdout") == 10
    assert view.visible_length_of(attempt_of(1), 0, "metrics") == 99
    assert view.visible_length_of(attempt_of(1), 1, "stdout") is None  # another rank saved nothing
    assert view.visible_length_of(attempt_of(3), 0, "stdout") is None


def test_chain_of_resumes_cuts_each_attempt_permanently() -> None:
    checkpoints = [
        checkpoint(1, 5, {"stdout": 10}),
        checkpoint(2, 8, {"stdout": 7}),
        checkpoint(1, 6, {"stdout": 30}),
    ]
    view = visible_streams(RUN, [attempt(1), attempt(2, 5), attempt(3, 8)], checkpoints)
    assert visible_attempts(view) == [1, 2, 3]
    assert (
        view.visible_length_of(attempt_of(1), 0, "stdout"),
        view.visible_length_of(attempt_of(2), 0, "stdout"),
    ) == (10, 7)


def test_newest_checkpoint_of_step_counts() -> None:
    checkpoints = [checkpoint(1, 5, {"stdout": 10}), checkpoint(2, 5, {"stdout": 3})]
    view = visible_streams(RUN, [attempt(1), attempt(2, 5), attempt(3, 5)], checkpoints)
    assert visible_attempts(view) == [1, 2, 3]
    assert view.visible_length_of(attempt_of(2), 0, "stdout") == 3


def test_each_rank_is_cut_at_its_own_checkpoint() -> None:
    checkpoints = [checkpoint(1, 5, {"stdout": 10}), checkpoint(1, 5, {"stdout": 4}, rank=1)]
    view = visible_streams(RUN, [attempt(1), attempt(2, 5)], checkpoints)
    assert (
        view.visible_length_of(attempt_of(1), 0, "stdout"),
        view.visible_length_of(attempt_of(1), 1, "stdout"),
    ) == (10, 4)


def test_fork_starts_from_checkpoint_of_another_run() -> None:
    assert visible_attempts(visible_streams(RUN, [attempt(1, 40)], [])) == [1]
    assert visible_attempts(visible_streams(RUN, [attempt(1, 40), attempt(2, 40)], [])) == [2]
