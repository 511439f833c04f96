"""The output of a run arrives completely, once and unchanged."""

from __future__ import annotations

import asyncio
import json
import os
from pathlib import Path

import pytest

from hopyard.domain.attempt import ExitKind
from hopyard.domain.metric_records import Point, read_records
from hopyard.domain.resources import Resources
from replica.conftest import RunScenario
from tests.engines.local.engine_fixture import LocalEngineFixture


def test_streams_arrive_unchanged(run_scenario: RunScenario) -> None:
    script = (
        r"import sys; sys.stdout.buffer.write(b'10%\r20%\r\xff\xfe\x00 done\r\n'); "
        r"sys.stderr.buffer.write(bytes(range(256)))"
    )

    async def scenario(fixture: LocalEngineFixture) -> None:
        await fixture.launch("a.1", script)
        await fixture.wait_exits("a.1")
        assert fixture.sink.stream("a.1", 0, "stdout") == b"10%\r20%\r\xff\xfe\x00 done\r\n"
        assert fixture.sink.stream("a.1", 0, "stderr") == bytes(range(256))

    run_scenario(scenario)


def test_large_output_arrives_once(run_scenario: RunScenario) -> None:
    script = "import sys\nfor i in range(50):\n sys.stdout.buffer.write((b'%06d ' % i) * (150_000))"

    async def scenario(fixture: LocalEngineFixture) -> None:
        await fixture.launch("a.1", script)
        await fixture.wait_exits("a.1")
        assert fixture.sink.stream("a.1", 0, "stdout") == b"".join(
            (b"%06d " % i) * 150_000 for i in range(50)
        )
        assert fixture.sink.refused_segments == 0

    run_scenario(scenario)


def test_output_arrives_while_run_is_running(run_scenario: RunScenario, tmp_path: Path) -> None:
    go = tmp_path / "go"
    script = (
        "import os, time; print('first', flush=True)\n"
        f"while not os.path.exists({str(go)!r}): time.sleep(0.01)\nprint('second')"
    )

    async def scenario(fixture: LocalEngineFixture) -> None:
        await fixture.launch("a.1", script)
        await fixture.wait_output("a.1", b"first")
        assert fixture.sink.statuses["a.1", 0][-1]["phase"] == "running"
        go.touch()
        await fixture.wait_exits("a.1")
        assert fixture.sink.stream("a.1", 0, "stdout") == b"first\nsecond\n"

    run_scenario(scenario)


def test_late_stream_arrives_while_run_is_running(run_scenario: RunScenario, tmp_path: Path) -> None:
    """Also when no stream started for so long that the folder is polled rarely."""
    script = f"""
import os, time
def wait(name):
    while not os.path.exists({str(tmp_path)!r} + "/" + name): time.sleep(0.01)
print("first", flush=True)
wait("second")
print("second", flush=True)
wait("third")
open(os.environ["HOPYARD_REPLICA_DIR"] + "/streams/journal", "wb").write(b"third\\n")
wait("end")
"""

    async def scenario(fixture: LocalEngineFixture) -> None:
        await fixture.launch("a.1", script)
        await fixture.wait_output("a.1", b"first")
        os.utime(fixture.folder("a.1") / "streams", (1, 1))
        (tmp_path / "second").touch()
        await fixture.wait_output("a.1", b"second")  # the folder's time stamp was seen
        (tmp_path / "third").touch()
        await fixture.observe_until(lambda _: fixture.sink.stream("a.1", 0, "journal") == b"third\n")
        (tmp_path / "end").touch()
        await fixture.wait_exits("a.1")

    run_scenario(scenario)


def test_run_that_ends_during_outage_is_reported_later(run_scenario: RunScenario) -> None:
    async def scenario(fixture: LocalEngineFixture) -> None:
        await fixture.launch(
            "a.1", "import time; print('up', flush=True); time.sleep(0.3); print('end'); raise SystemExit(4)"
        )
        await fixture.wait_output("a.1", b"up")
        await asyncio.to_thread(fixture.sink.stop_listening)
        await fixture.wait_for_state("a.1", lambda state: state.exit is not None)
        observation = await fixture.engine.observe()
        assert observation.attempts[0].replicas[0].exit is None, "the news of the end comes after the streams"
        fixture.sink.restart_listening()
        fixture.publish_address()
        (ended,) = await fixture.wait_exits("a.1")
        assert (ended.kind, ended.code) == (ExitKind.EXIT_CODE, 4)
        assert fixture.sink.stream("a.1", 0, "stdout") == b"up\nend\n"

    run_scenario(scenario)


def test_run_starts_when_server_is_back(run_scenario: RunScenario, tmp_path: Path) -> None:
    (tmp_path / "code").mkdir()
    (tmp_path / "code" / "main.py").write_text("print('here')")

    async def scenario(fixture: LocalEngineFixture) -> None:
        launch = await fixture.make_launch(
            "a.1", command=("python", "main.py"), code=fixture.sink.put_tree(tmp_path / "code")
        )
        await asyncio.to_thread(fixture.sink.stop_listening)
        await fixture.engine.launch(launch)
        await fixture.wait_for_state("a.1", lambda state: "waiting for the server" in state.detail)
        fixture.sink.restart_listening()
        fixture.publish_address()
        assert [ended.is_success for ended in await fixture.wait_exits("a.1")] == [True]
        assert fixture.sink.stream("a.1", 0, "stdout") == b"here\n"

    run_scenario(scenario)


def test_renewed_token_replaces_old_token(run_scenario: RunScenario) -> None:
    async def scenario(fixture: LocalEngineFixture) -> None:
        fixture.sink.renewed_token = "hopr_new"
        await fixture.launch("a.1", "import time; print('up', flush=True); time.sleep(0.2)")
        await fixture.wait_exits("a.1")
        assert fixture.sink.received_tokens == {"token-of-a.1", "hopr_new"}
        assert (fixture.folder("a.1") / "token").read_text() == "hopr_new"
        assert (fixture.folder("a.1") / "token").stat().st_mode & 0o777 == 0o600

    run_scenario(scenario)


def test_tensorboard_files_become_metric_points(run_scenario: RunScenario) -> None:
    script = (
        "from tensorboardX import SummaryWriter\nw = SummaryWriter('runs/x')\n"
        "for i in range(5): w.add_scalar('loss', 1.0 / (i + 1), i)\nw.close()"
    )

    async def scenario(fixture: LocalEngineFixture) -> None:
        await fixture.launch("a.1", script, resources=Resources(2000))
        assert [ended.is_success for ended in await fixture.wait_exits("a.1")] == [True]
        names: dict[int, str] = {}
        result = [
            p
            for p in read_records(fixture.sink.stream("a.1", 0, "tensorboard"), names)
            if isinstance(p, Point)
        ]
        assert [point.step for point in result] == [0, 1, 2, 3, 4]
        assert {names[point.series] for point in result} == {"loss"}

    run_scenario(scenario)


@pytest.mark.parametrize("use_cgroups", [True, False])
def test_system_samples_contain_resource_usage(run_scenario: RunScenario, use_cgroups: bool) -> None:
    script = (
        "held = b'x' * 80_000_000\nimport time\nend = time.monotonic() + 600\n"
        "while time.monotonic() < end: sum(range(10000))"
    )

    async def scenario(fixture: LocalEngineFixture) -> None:
        await fixture.launch("a.1", script)
        await fixture.observe_until(lambda _: fixture.sink.stream("a.1", 0, "system").count(b"\n") >= 2)
        first = json.loads(fixture.sink.stream("a.1", 0, "system").splitlines()[1])
        assert 60_000_000 < first["memory_bytes"] < 300_000_000
        assert 0 < first["cpu_percent"] < 150
        assert first["gpus"] == []

    run_scenario(scenario, use_cgroups=use_cgroups)
