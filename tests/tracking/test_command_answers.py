from __future__ import annotations

from hopyard.domain.command import MAX_COMMANDS
from hopyard.domain.ids import AttemptId, RunId
from hopyard.tracking.live_run import LiveRun


def test_only_answers_to_numbers_of_commands_are_kept() -> None:
    live = LiveRun(RunId("a"), AttemptId("a.1"))
    for number in (-1, 0, MAX_COMMANDS + 1, 2**62, "1", None):
        event = {"number": number, "step": 3, "t": 1.9e9, "state": "applied", "answer": "done"}
        assert not live.apply_command_result(AttemptId("a.1"), event), number
    for number in (1, MAX_COMMANDS):
        event = {"number": number, "step": 3, "t": 1.9e9, "state": "applied", "answer": "done"}
        assert live.apply_command_result(AttemptId("a.1"), event), number
    assert [number for _, number in live.answers] == [1, MAX_COMMANDS]
