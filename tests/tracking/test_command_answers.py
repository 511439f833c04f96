from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import cast

import pytest

from hopyard.domain.command import MAX_COMMANDS
from hopyard.domain.ids import AttemptId, RunId
from hopyard.errors import StorageFull
from hopyard.interfaces.command_store import CommandStore
from hopyard.interfaces.run_store import RunStore
from hopyard.tracking.live_run import LiveRun

ATTEMPT = AttemptId("a.1")


def answer_event(number: object) -> dict[str, object]:
    return {"number": number, "step": 3, "t": 1.9e9, "state": "applied", "answer": "done"}


def test_only_answers_to_numbers_of_commands_are_kept() -> None:
    live = LiveRun(RunId("a"), ATTEMPT)
    for number in (-1, 0, MAX_COMMANDS + 1, 2**62, "1", None):
        assert not live.apply_command_result(ATTEMPT, answer_event(number)), number
    for number in (1, MAX_COMMANDS):
        assert live.apply_command_result(ATTEMPT, answer_event(number)), number
    assert [number for _, number in live.answers] == [1, MAX_COMMANDS]


class SlowCommands:
    """Stores an answer when the gate is open, or fails."""

    def __init__(self, failures: Sequence[Exception] = ()) -> None:
        self.gate, self.entered = asyncio.Event(), asyncio.Event()
        self.failures, self.recorded = list(failures), list[int]()

    async def record_command_result(self, run: RunId, number: int, answer: object, **_: object) -> None:
        self.entered.set()
        await self.gate.wait()
        if self.failures:
            raise self.failures.pop(0)
        self.recorded.append(number)


@pytest.mark.parametrize("failures", [(), (StorageFull("no space"),)])
def test_write_ends_after_one_that_began_before(failures: Sequence[Exception]) -> None:
    """The end of a run is recorded after such a write: else its last answer would come too late."""

    async def scenario() -> None:
        live, commands = LiveRun(RunId("a"), ATTEMPT), SlowCommands(failures)
        stores = cast(RunStore, None), cast(CommandStore, commands)
        live.apply_command_result(ATTEMPT, answer_event(1))
        first = asyncio.create_task(live.write(*stores))
        await commands.entered.wait()  # it has taken the answer
        second = asyncio.create_task(live.write(*stores))
        await asyncio.sleep(0)
        assert not second.done()
        commands.gate.set()
        if failures:
            with pytest.raises(StorageFull):
                await first
        await asyncio.gather(first, second, return_exceptions=True)
        assert commands.recorded == [1] and not live.answers

    asyncio.run(scenario())
