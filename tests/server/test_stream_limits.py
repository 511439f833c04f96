"""A script holds its run's token, and may send bytes of its streams itself: the server keeps no more than a
replica sends."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from hopyard.domain.stream_limits import JOURNAL_SLACK_BYTES, StreamLimits
from tests.server.stage import Stage, play

LIMITS = StreamLimits(output_bytes=2000, reports_bytes=4000)
MOST = {
    "stdout": 2500 + JOURNAL_SLACK_BYTES,
    "stderr": 2500 + JOURNAL_SLACK_BYTES,
    "metrics": 5000 + JOURNAL_SLACK_BYTES,
    "tensorboard": 5000 + JOURNAL_SLACK_BYTES,
    "events": 5000 + JOURNAL_SLACK_BYTES,
    "system": 5000 + JOURNAL_SLACK_BYTES,
    "journal": JOURNAL_SLACK_BYTES,
}
FLOOD = b"x" * 400_000 + b"\n"


async def flood(stage: Stage, run: Any, stream: str, *, times: int, at: int = 0, **more: Any) -> int:
    """Send one piece after another from byte `at` on, as a replica does; up to where the server acknowledges
    it."""
    for _ in range(times):
        at = (await stage.sync(run, [(stream, at, FLOOD)], **more))["offsets"][stream]
    return at


async def kept(stage: Stage, run: Any, *, rank: int = 0, attempt: int = 1) -> Any:
    return await stage.parts.streams.lengths(f"{run['id']}.{attempt}", rank)


async def unstored(stage: Stage, run: Any) -> list[str]:
    return list((await stage.ask("GET", f"/runs/{run['id']}"))["unstored"])


def test_a_stream_is_kept_up_to_its_limit_and_acknowledged_beyond(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async def scene(stage: Stage) -> None:
        run = await stage.started()
        token = stage.token_of(run)
        for stream in MOST:
            assert await flood(stage, run, stream, times=5, token=token) == 5 * len(FLOOD)
        assert await kept(stage, run) == MOST
        told = await unstored(stage, run)
        assert sorted(text.split()[0] for text in told) == sorted(MOST)
        assert (await stage.sync(run, []))["offsets"] == dict.fromkeys(MOST, 5 * len(FLOOD)), (
            "what is refused is not asked for again"
        )
        assert (await stage.sync(run, [("stdout", 10**12, b"gap")]))["offsets"]["stdout"] == 5 * len(FLOOD)
        ended = await stage.finish(run)
        assert (ended["phase"], ended["unstored"]) == ("succeeded", told)

    play(tmp_path, scene, stream_limits=LIMITS)
    assert sum("stores no more of it" in record.message for record in caplog.records) == len(MOST)


def test_each_replica_has_its_limit_after_a_restart_too(tmp_path: Path) -> None:
    made: dict[str, Any] = {}

    async def before(stage: Stage) -> None:
        made["run"] = run = await stage.started(
            roles=[{"name": "a", "command": ["x"]}, {"name": "b", "command": ["x"], "replicas": 2}]
        )
        for rank in range(3):
            await flood(stage, run, "stdout", times=2, rank=rank)

    async def after(stage: Stage) -> None:
        run = made["run"]
        for rank in range(3):
            assert await flood(stage, run, "stdout", times=3, at=2 * len(FLOOD), rank=rank) == 5 * len(FLOOD)
            assert await kept(stage, run, rank=rank) == {"stdout": MOST["stdout"]}

    async def once_more(stage: Stage) -> None:
        run = made["run"]
        at = (await stage.sync(run, []))["offsets"]["stdout"]
        assert at == MOST["stdout"], "a new server knows what it keeps"
        assert await flood(stage, run, "stdout", times=3, at=at) == at + 3 * len(FLOOD)
        assert await kept(stage, run) == {"stdout": MOST["stdout"]}
        assert len(await unstored(stage, run)) == 3

    for scene in (before, after, once_more):
        play(tmp_path, scene, stream_limits=LIMITS)


def test_a_smaller_limit_of_the_run_holds_and_without_any_all_is_kept(tmp_path: Path) -> None:
    async def scene(stage: Stage) -> None:
        small, free = await stage.started(max_output_bytes=2**20), await stage.started()
        for run, stored in ((small, 2**20 + 2**18 + JOURNAL_SLACK_BYTES), (free, 7 * len(FLOOD))):
            await flood(stage, run, "stdout", times=7)
            assert (await kept(stage, run))["stdout"] == stored
        assert await unstored(stage, free) == []

    play(tmp_path, scene)
