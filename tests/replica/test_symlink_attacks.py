"""A script replaces files that its replica ships, writes or removes by links. The replica, which can access
the complete home, follows none."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import psutil
import pytest

from hopyard.domain.attempt import ReplicaPhase
from hopyard.domain.ids import AttemptId, RunId
from hopyard.domain.launch import ReplicaLaunch
from hopyard.domain.replica import NodeContext, ReplicaSpec, ReplicaState, StopOrder
from hopyard.domain.resources import Resources
from hopyard.engines.local.replica_folder import ReplicaFolder, replica_folders
from hopyard.errors import IntegrityError
from hopyard.private_files import make_folder, open_below
from hopyard.replica import checkpoint_uploads
from hopyard.replica.checkpoint_uploads import CheckpointUploader
from hopyard.replica.gang_folder import GangFolder
from hopyard.replica.replica_dir import ReplicaDir, acquire_lock
from hopyard.replica.replica_log import redirect_standard_streams
from hopyard.replica.unstored_folders import UnstoredFolders
from hopyard.replica.user_process import open_stream
from hopyard.sdk.checkpoints import discard_folder
from hopyard.sdk.punch_hole import BLOCK_BYTES, punch_hole
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


def _replica_of(tmp_path: Path) -> tuple[ReplicaDir, ReplicaSpec, Path]:
    """Returns a replica of a run, and the home with a file of another run's checkpoint."""
    home = tmp_path / "home"
    folder = ReplicaDir(make_folder(home / "attempts" / "a.1" / "0"))
    folder.create()
    launch = ReplicaLaunch(
        AttemptId("a.1"), RunId("a"), "alice/p/1", 0, "worker", 0, 1, ("python",), Resources(), "", ""
    )
    node = NodeContext("box", str(home), "", 0, gang_folder=str(folder.root.parent))
    spec = ReplicaSpec(launch, node)
    folder.write_spec(spec)
    (make_folder(home / "blobs") / "one").write_text("OF ANOTHER")
    return folder, spec, home


def _swap(folder: Path, target: Path) -> None:
    """Replaces a folder by a link, as a script can do at any moment."""
    folder.rename(folder.with_name(f"{folder.name}-away"))
    folder.symlink_to(target)


def test_older_checkpoint_is_not_removed_through_link(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder, spec, home = _replica_of(tmp_path)
    for name in ("blobs", "2"):
        (make_folder(folder.checkpoints / name) / "data").write_text("own")
    uploaded = []

    def create(attempt: str, body: dict[str, object]) -> None:
        uploaded.append(body["step"])
        if len(uploaded) == 2:
            _swap(folder.checkpoints, home)

    client = SimpleNamespace(create_attempt_checkpoint=create)
    monkeypatch.setattr(
        checkpoint_uploads, "upload_folder", lambda client, folder: SimpleNamespace(digest="", size_bytes=0)
    )
    uploader = CheckpointUploader(
        folder,
        spec,
        SimpleNamespace(client=client),  # type: ignore[arg-type]
        UnstoredFolders(folder, spec),
        dict,
    )
    for step, name in ((1, "blobs"), (2, "2")):
        folder.append_json("events", kind="checkpoint", step=step, folder=name)
    uploader.finish()
    assert uploaded == [1, 2]
    assert (home / "blobs" / "one").read_text() == "OF ANOTHER"


def test_older_checkpoint_is_removed_after_upload(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder, spec, _ = _replica_of(tmp_path)
    for name in ("1", "2"):
        (make_folder(folder.checkpoints / name / "deep") / "data").write_text("own")
        folder.append_json("events", kind="checkpoint", step=int(name), folder=name)
    client = SimpleNamespace(create_attempt_checkpoint=lambda attempt, body: None)
    monkeypatch.setattr(
        checkpoint_uploads, "upload_folder", lambda client, folder: SimpleNamespace(digest="", size_bytes=0)
    )
    CheckpointUploader(
        folder,
        spec,
        SimpleNamespace(client=client),  # type: ignore[arg-type]
        UnstoredFolders(folder, spec),
        dict,
    ).finish()
    assert [path.name for path in folder.checkpoints.iterdir()] == ["2"]


def test_checkpoint_that_is_removed_during_its_upload_is_not_recorded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder, spec, _ = _replica_of(tmp_path)
    for name in ("1", "2", "3"):
        (make_folder(folder.checkpoints / name) / "data").write_text(name)
        folder.append_json("events", kind="checkpoint", step=int(name), folder=name)
    recorded: list[object] = []
    client = SimpleNamespace(create_attempt_checkpoint=lambda attempt, body: recorded.append(body["step"]))

    def upload(client: object, descriptor: int) -> SimpleNamespace:
        if (step := Path(f"/proc/self/fd/{descriptor}").readlink().name) in ("1", "2"):
            discard_folder(str(folder.checkpoints / step))
        if step == "2":  # saved again
            make_folder(folder.checkpoints / step)
        return SimpleNamespace(digest="", size_bytes=0)

    monkeypatch.setattr(checkpoint_uploads, "upload_folder", upload)
    CheckpointUploader(
        folder,
        spec,
        SimpleNamespace(client=client),  # type: ignore[arg-type]
        UnstoredFolders(folder, spec),
        dict,
    ).finish()
    assert recorded == [3]


def test_unstored_folder_is_not_moved_through_link(tmp_path: Path) -> None:
    folder, spec, home = _replica_of(tmp_path)
    _swap(folder.checkpoints, home)
    UnstoredFolders(folder, spec).retain("the checkpoint", folder.checkpoints / "blobs", "no")
    assert (home / "blobs" / "one").read_text() == "OF ANOTHER"
    assert b"could not be moved aside either" in (folder.streams / "events").read_bytes()


def _write_log(folder: ReplicaDir, spec: ReplicaSpec) -> None:
    pid = os.fork()
    if pid == 0:
        try:
            redirect_standard_streams(folder.root)
            os.write(2, b"a line of the log")
        finally:
            os._exit(0)
    os.waitpid(pid, 0)


def _write_output(folder: ReplicaDir, spec: ReplicaSpec) -> None:
    descriptor = open_stream(folder.streams / "stdout")
    os.write(descriptor, b"output of the next process")
    os.close(descriptor)


def _take_lock(folder: ReplicaDir, spec: ReplicaSpec) -> None:
    lock = acquire_lock(folder.root)
    assert lock is not None
    os.close(lock)


_CREATED: dict[str, Callable[[ReplicaDir, ReplicaSpec], object]] = {
    "0/replica.log": _write_log,
    "0/streams/stdout": _write_output,
    "0/lock": _take_lock,
    "ended/0": lambda folder, spec: GangFolder(folder.root.parent, spec).mark_ended(),
    "folders.ready": lambda folder, spec: GangFolder(folder.root.parent, spec).mark_ready(),
}


@pytest.mark.parametrize("is_missing", [False, True])
@pytest.mark.parametrize("path", _CREATED)
def test_no_file_is_written_or_created_through_link(tmp_path: Path, path: str, is_missing: bool) -> None:
    folder, spec, home = _replica_of(tmp_path)
    target, link = home / "config.yaml", folder.root.parent / path
    if not is_missing:
        target.write_text("settings\n")
    make_folder(link.parent)
    link.symlink_to(target)
    _CREATED[path](folder, spec)
    assert (target.read_text() == "settings\n") if not is_missing else not target.exists()
    assert link.is_symlink() is (path == "ended/0"), "a link in the place of a file is removed"


@pytest.mark.parametrize("path", ["0/streams/stdout", "ended/0"])
def test_no_file_is_created_in_folder_behind_link(tmp_path: Path, path: str) -> None:
    folder, spec, home = _replica_of(tmp_path)
    place, target = (folder.root.parent / path).parent, make_folder(home / "empty")
    make_folder(place)
    _swap(place, target)
    _CREATED[path](folder, spec)
    assert list(target.iterdir()) == []


def test_stream_is_not_created_in_folder_behind_link(tmp_path: Path) -> None:
    folder, _, home = _replica_of(tmp_path)
    _swap(folder.streams, home)
    with pytest.raises(FileNotFoundError, match="only through a link"):
        folder.append("system", b"a sample")
    assert not (home / "system").exists()


def test_blocks_of_other_run_are_not_released(tmp_path: Path) -> None:
    folder, _, home = _replica_of(tmp_path)
    other = home / "stdout"
    other.write_bytes(b"x" * 4 * BLOCK_BYTES)
    _swap(folder.streams, home)
    with pytest.raises(FileNotFoundError):
        punch_hole(str(folder.streams / "stdout"), 0, 4 * BLOCK_BYTES)
    assert other.read_bytes() == b"x" * 4 * BLOCK_BYTES


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


def test_place_of_folder_decides_over_spec_that_script_wrote(tmp_path: Path) -> None:
    folder, spec, home = _replica_of(tmp_path)
    gang, own = str(folder.root.parent), "/sys/fs/cgroup/memory/hopyard/tag-a.1-0"
    node = replace(spec.node, gang_folder=str(home), cgroups={"memory": own, "cpu": "/sys/fs/cgroup/cpu/x"})
    folder.write_spec(replace(spec, node=node))
    read = folder.read_spec().node
    assert (read.gang_folder, dict(read.cgroups)) == (gang, {"memory": own})
    for launch in (
        replace(spec.launch, attempt=AttemptId("b.1")),
        replace(spec.launch, rank=1),
        replace(spec.launch, run=RunId("b")),
    ):
        folder.write_spec(replace(spec, launch=launch))
        with pytest.raises(IntegrityError, match="that of another replica"):
            folder.read_spec()


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
