"""A script replaces files that its replica ships, writes or removes by links. The replica, which can access
the complete home, follows none."""

from __future__ import annotations

import os
from pathlib import Path

import psutil
import pytest

from hopyard.domain.attempt import ReplicaPhase
from hopyard.domain.ids import AttemptId
from hopyard.domain.replica import ReplicaState, StopOrder
from hopyard.engines.local.replica_folder import ReplicaFolder, replica_folders
from hopyard.private_files import open_below
from hopyard.replica.replica_dir import ReplicaDir
from hopyard.sdk.report_limit import ReportLimit
from tests.engines.local.engine_fixture import LocalEngineFixture
from tests.replica.conftest import RunScenario

_PLANTS = """
import json, os, time
replica = os.environ["HOPYARD_REPLICA_DIR"]
home = replica.partition("/attempts/")[0]
for name, target in (("streams/tensorboard", "token"), ("checkpoints/7", "private"), ("outputs", "private"),
                     ("streams/journal", "missing")):
    os.symlink(f"{home}/{target}", f"{replica}/{name}")
os.makedirs("sub/deep")
open("sub/deep/made.txt", "w").write("made by the run")
open("config.yaml", "w").write("planted: true")
with open(f"{replica}/streams/events", "a") as events:
    events.write(json.dumps({"t": time.time(), "kind": "checkpoint", "step": 7, "folder": "7"}) + "\\n")
"""


def test_replica_follows_no_link_of_script(run_scenario: RunScenario) -> None:
    async def scenario(fixture: LocalEngineFixture) -> None:
        private = fixture.home.root / "private"
        private.mkdir()
        for file in (fixture.home.root / "token", private / "spec.json"):
            file.write_text("SECRET OF ANOTHER")
        await fixture.launch("a.1", _PLANTS)
        assert [ended.code for ended in await fixture.wait_exits("a.1")] == [0]
        assert b"made by the run" in fixture.sink.blobs.values(), "its own files are sent"
        assert not [blob for blob in fixture.sink.blobs.values() if b"SECRET OF ANOTHER" in blob]
        assert fixture.sink.stream("a.1", 0, "tensorboard") == b""
        assert sorted(path.name for path in private.iterdir()) == ["spec.json"]
        assert not (fixture.home.root / "missing").exists()

    run_scenario(scenario)


def test_nothing_is_written_through_link_that_replaces_folder(tmp_path: Path) -> None:
    folder, other = ReplicaDir(tmp_path / "a.1" / "0"), tmp_path / "other"
    for place in (folder.root, other):
        place.mkdir(parents=True)
        (place / "spec.json").write_text("{}")
    folder.write_token("own")
    folder.root.rename(tmp_path / "away")
    folder.root.symlink_to(other)
    folder.write_token("renewed")
    for write in (
        lambda: folder.write_state(ReplicaState(ReplicaPhase.RUNNING, 1)),
        lambda: folder.request_stop(StopOrder(1.0)),
        lambda: folder.write_study({}, ""),
    ):
        with pytest.raises(FileNotFoundError):
            write()
    assert not folder.exists()
    assert sorted(path.name for path in other.iterdir()) == ["spec.json"]


@pytest.mark.parametrize("swapped", ["0", "0/streams", "0/streams/events"])
def test_no_file_is_opened_through_link(tmp_path: Path, swapped: str) -> None:
    for folder in ("gang/0/streams", "other/0/streams"):
        (tmp_path / folder).mkdir(parents=True)
        (tmp_path / folder / "events").write_text("x")
    place = tmp_path / "gang" / swapped
    place.rename(tmp_path / "away")
    place.symlink_to(tmp_path / "other" / swapped)
    with pytest.raises(FileNotFoundError):
        open_below(tmp_path / "gang" / "0", "streams/events", 0)


_PIPES = """
import os, time
while not os.path.exists("go"):
    time.sleep(0.01)
replica = os.environ["HOPYARD_REPLICA_DIR"]
for name in ("status.json", "spec.json", "stop.json", "left.json", "token", "lock",
             "streams/events", "streams/metrics", "streams/stdout"):
    path = f"{replica}/{name}"
    if os.path.lexists(path):
        os.unlink(path)
    os.mkfifo(path)
os.mkfifo("events.out.tfevents.1.x")
open("planted", "w").close()
time.sleep(600)
"""


@pytest.mark.parametrize("linked", ["reports", "reports/metrics.5"])
def test_output_limit_never_ships_foreign_file(tmp_path: Path, linked: str) -> None:
    secret, replica = tmp_path / "secret", tmp_path / "a.1" / "0"
    (secret if linked == "reports" else secret.parent).mkdir(exist_ok=True)
    target = secret / "metrics.5" if linked == "reports" else secret
    target.write_text("SECRET OF ANOTHER")
    (replica / linked).parent.mkdir(parents=True)
    (replica / linked).symlink_to(secret)
    stream = tmp_path / "stream"
    stream.write_bytes(b"x" * 1000)
    descriptor = os.open(stream, os.O_RDONLY)
    try:
        with pytest.raises(FileNotFoundError):
            ReportLimit(100, replica / "reports").update(
                "metrics", str(stream), descriptor, 1000, acknowledged=0, now=0.0, ended=True
            )
    finally:
        os.close(descriptor)
    assert target.read_text() == "SECRET OF ANOTHER"


def test_named_pipes_do_not_block_replica_or_engine(
    run_scenario: RunScenario,
) -> None:
    async def scenario(fixture: LocalEngineFixture) -> None:
        await fixture.launch("a.1", _PIPES)
        processes = [
            psutil.Process(pid)
            for state in [await fixture.wait_until_running("a.1")]
            for pid in (state.pid, state.child_pid)
        ]
        work = fixture.folder("a.1") / "work"
        (work / "go").touch()
        await fixture.observe_until(lambda _: (work / "planted").exists())
        await fixture.launch("b.1", "print('of another run')")
        assert [ended.code for ended in await fixture.wait_exits("b.1")] == [0]
        await fixture.engine.stop(AttemptId("a.1"), StopOrder(1.0))
        await fixture.engine.forget(AttemptId("a.1"))
        await fixture.observe_until(lambda _: not fixture.folder("a.1").exists())
        await fixture.observe_until(
            lambda _: (
                not any(
                    process.is_running() and process.status() != psutil.STATUS_ZOMBIE for process in processes
                )
            )
        )

    run_scenario(scenario)


def test_engine_writes_through_no_link_that_replaces_folder(tmp_path: Path) -> None:
    own, other = tmp_path / "a.1" / "0", tmp_path / "b.1" / "0"
    for place in (own, other):
        place.mkdir(parents=True)
    folder = ReplicaFolder(own)
    own.rename(tmp_path / "a.1" / "away")
    own.symlink_to(other)
    with pytest.raises(FileNotFoundError):
        folder.request_stop(StopOrder(1.0))
    assert list(other.iterdir()) == [] and replica_folders(tmp_path / "a.1") == []
