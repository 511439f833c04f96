"""A script holds its run's token, and may send bytes of its streams itself: the server keeps no more than a
replica sends."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from hopyard.domain.stream_limits import JOURNAL_SLACK_BYTES, StreamLimits
from tests.server.api_server import ApiServer, run_scenario

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


async def flood(api: ApiServer, run: Any, stream: str, *, times: int, at: int = 0, **options: Any) -> int:
    """Sends segments from byte `at` on, as a replica does, and returns the acknowledged offset."""
    for _ in range(times):
        at = (await api.sync(run, [(stream, at, FLOOD)], **options))["offsets"][stream]
    return at


async def stored_sizes(api: ApiServer, run: Any, *, rank: int = 0, attempt: int = 1) -> Any:
    return await api.services.streams.lengths(f"{run['id']}.{attempt}", rank)


async def unstored_messages(api: ApiServer, run: Any) -> list[str]:
    return list((await api.request("GET", f"/runs/{run['id']}"))["unstored"])


def test_stream_is_stored_up_to_its_limit_and_acknowledged_beyond(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async def scenario(api: ApiServer) -> None:
        run = await api.start_run()
        token = api.run_token(run)
        for stream in MOST:
            assert await flood(api, run, stream, times=5, token=token) == 5 * len(FLOOD)
        assert await stored_sizes(api, run) == MOST
        result = await unstored_messages(api, run)
        assert sorted(text.split()[0] for text in result) == sorted(MOST)
        assert (await api.sync(run, []))["offsets"] == dict.fromkeys(MOST, 5 * len(FLOOD)), (
            "refused segments are not requested again"
        )
        assert (await api.sync(run, [("stdout", 10**12, b"gap")]))["offsets"]["stdout"] == 5 * len(FLOOD)
        ended = await api.finish(run)
        assert (ended["phase"], ended["unstored"]) == ("succeeded", result)

    run_scenario(tmp_path, scenario, stream_limits=LIMITS)
    assert sum("stores no more of it" in record.message for record in caplog.records) == len(MOST)


def test_limit_of_each_replica_holds_after_a_restart(tmp_path: Path) -> None:
    created: dict[str, Any] = {}

    async def before(api: ApiServer) -> None:
        created["run"] = run = await api.start_run(
            roles=[{"name": "a", "command": ["x"]}, {"name": "b", "command": ["x"], "replicas": 2}]
        )
        for rank in range(3):
            await flood(api, run, "stdout", times=2, rank=rank)

    async def after(api: ApiServer) -> None:
        run = created["run"]
        for rank in range(3):
            assert await flood(api, run, "stdout", times=3, at=2 * len(FLOOD), rank=rank) == 5 * len(FLOOD)
            assert await stored_sizes(api, run, rank=rank) == {"stdout": MOST["stdout"]}

    async def repeat(api: ApiServer) -> None:
        run = created["run"]
        at = (await api.sync(run, []))["offsets"]["stdout"]
        assert at == MOST["stdout"], "a new server knows the stored sizes"
        assert await flood(api, run, "stdout", times=3, at=at) == at + 3 * len(FLOOD)
        assert await stored_sizes(api, run) == {"stdout": MOST["stdout"]}
        assert len(await unstored_messages(api, run)) == 3

    for scenario in (before, after, repeat):
        run_scenario(tmp_path, scenario, stream_limits=LIMITS)


def test_limit_of_the_run_holds_and_without_a_limit_all_is_stored(tmp_path: Path) -> None:
    async def scenario(api: ApiServer) -> None:
        small, free = await api.start_run(max_output_bytes=2**20), await api.start_run()
        for run, stored in ((small, 2**20 + 2**18 + JOURNAL_SLACK_BYTES), (free, 7 * len(FLOOD))):
            await flood(api, run, "stdout", times=7)
            assert (await stored_sizes(api, run))["stdout"] == stored
        assert await unstored_messages(api, free) == []

    run_scenario(tmp_path, scenario)
