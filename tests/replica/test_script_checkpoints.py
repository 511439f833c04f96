"""Checkpoints that a script saves itself are stored whole, and listed once per version."""

from __future__ import annotations

import json
import os
import time
import zipfile
from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from hopyard.domain.ids import Digest
from hopyard.domain.manifest import FileEntry, Manifest
from hopyard.domain.metric_records import POINT, pack_definition, pack_point, series_id
from hopyard.domain.replica import NodeContext, ReplicaSpec
from hopyard.errors import ServerUnavailable
from hopyard.replica import run_folder
from hopyard.replica.gang_folder import GangFolder
from hopyard.replica.metric_history import MetricHistory
from hopyard.replica.open_files import find_open_for_writing
from hopyard.replica.process_restarts import ProcessRestarts
from hopyard.replica.replica_dir import ReplicaDir
from hopyard.replica.run_folder import RunFolder
from hopyard.replica.script_checkpoints import ScriptCheckpoints
from hopyard.replica.supervisor import Wakeup
from tests.replica.test_param_file import launch as make_launch
from tests.replica.test_run_folder import _pack


class RecordingServer:
    """Keeps manifests and the records of checkpoints."""

    def __init__(self) -> None:
        self.client = self
        self.manifests: dict[str, Manifest] = {}
        self.folder: list[str] = []
        self.records: list[dict[str, Any]] = []
        self.failures = 0
        self.listed: list[dict[str, Any]] = []

    def put_blob(self, digest: str, data: bytes) -> None:
        self.manifests[digest] = Manifest.decode(data)

    def record_run_folder(self, attempt: str, body: Mapping[str, str]) -> None:
        self.folder = [file.path for file in self.manifests[body["manifest"]].files]

    def create_attempt_checkpoint(self, attempt: str, body: dict[str, Any]) -> None:
        if self.failures:
            self.failures -= 1
            raise ServerUnavailable("the server is away")
        self.records.append(body)

    def iterate_run_checkpoints(self, run: str) -> list[dict[str, Any]]:
        return self.listed

    def rediscover(self) -> bool:
        return True

    @property
    def steps(self) -> list[tuple[str, int]]:
        return [(record["path"], record["step"]) for record in self.records]


class Folder:
    """A run folder with its server, in the process of a replica."""

    def __init__(self, root: Path) -> None:
        self.root, self.server, self.notes = root, RecordingServer(), list[str]()
        launch = replace(make_launch("c.json"), checkpoint_files=("out", "best-*"))
        self.replica = ReplicaDir(root / "0")
        self.replica.streams.mkdir(parents=True)
        self.work = root / "work"
        self.work.mkdir()
        self.run_folder = RunFolder(
            GangFolder(root, ReplicaSpec(launch, NodeContext("n", str(root), "", 0))),
            self.work,
            self.server,  # type: ignore[arg-type]
            lambda: False,
            self.notes.append,
            lambda: [str(p.relative_to(self.work)) for p in self.work.rglob("*") if p.is_file()],
            ScriptCheckpoints(launch, self.server, MetricHistory(self.replica)),  # type: ignore[arg-type]
        )
        self.run_folder.create()

    def write(self, path: str, data: bytes = b"state") -> Path:
        file = self.work / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(data)
        return file

    def settle(self) -> None:
        """Two scans: a file that did not change between them is complete."""
        self.run_folder._store()
        self.run_folder._store()


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Folder:
    monkeypatch.setattr(run_folder, "upload_folder", _pack)
    return Folder(tmp_path)


def test_each_version_of_an_overwritten_file_is_a_checkpoint(folder: Folder) -> None:
    points = b"".join(
        pack_point(POINT, series_id("loss"), step, 1000.0 + step, step / 2) for step in range(30)
    )
    (folder.replica.streams / "metrics").write_bytes(pack_definition("loss") + points)
    for at in (1010, 1020):
        os.utime(folder.write("out/ckpt.pt", str(at).encode()), (at, at))
        folder.settle()
    folder.settle()
    assert folder.server.steps == [("work/out/ckpt.pt", 10), ("work/out/ckpt.pt", 20)]
    assert [record["metrics"] for record in folder.server.records] == [{"loss": 5.0}, {"loss": 10.0}]
    assert folder.server.folder == ["work/out/ckpt.pt"]


def test_open_or_changing_file_keeps_its_earlier_version(folder: Folder) -> None:
    folder.write("out/a-1.pt", b"one")
    folder.settle()
    with (folder.work / "out/a-1.pt").open("wb") as file:
        file.write(b"half")
        file.flush()
        folder.settle()
        assert len(folder.server.records) == 1, "a process has it open"
    folder.run_folder._store()
    assert folder.server.steps == [("work/out/a-1.pt", 1)] * 2


def test_file_that_differs_at_each_scan_is_stored_when_it_shows_its_end(folder: Folder) -> None:
    for version in range(1, 4):
        with zipfile.ZipFile(folder.work / "best-1.pt", "w") as archive:
            archive.writestr("data", "state" * version)
        folder.write("best-2.pt", b"a format without an end" * version)
        folder.run_folder._store()
        assert folder.server.steps == [("work/best-1.pt", 1)] * version
    folder.write("best-1.pt", (folder.work / "best-1.pt").read_bytes()[:-5])
    folder.write("best-2.pt", b"another one")
    folder.run_folder._store()
    assert len(folder.server.records) == 3, "neither is known to be complete"


def test_new_folder_is_stored_at_once_when_no_other_file_follows(folder: Folder) -> None:
    for name in ("epoch_1", "epoch_2"):
        folder.write(f"out/{name}/state.pkl", b".")
    folder.write("out/epoch_1/training_metadata.json", b"{}")
    folder.run_folder._store()
    assert folder.server.steps == [("work/out/epoch_1", 1)]
    folder.run_folder._store()
    assert folder.server.steps == [("work/out/epoch_1", 1), ("work/out/epoch_2", 2)]


def test_checkpoint_that_is_replaced_during_its_upload_is_stored(
    folder: Folder, monkeypatch: pytest.MonkeyPatch
) -> None:
    def pack(client: object, staged: int) -> Any:
        packed = _pack(client, staged)
        for path in replaced:
            path.unlink()
        for path in written:
            path.write_bytes(b"in place")
        return packed

    replaced = [folder.write("out/ckpt-1.pt"), folder.write("out/checkpoint-5/model.pt")]
    written = [folder.write("out/ckpt-2.pt"), folder.write("out/checkpoint-6/model.pt")]
    folder.write("out/checkpoint-6/optimizer.pt")
    monkeypatch.setattr(run_folder, "upload_folder", pack)
    folder.settle()
    assert sorted(folder.server.steps) == [("work/out/checkpoint-5", 5), ("work/out/ckpt-1.pt", 1)]


def test_newest_checkpoint_stays_until_the_next_one_is_stored(folder: Folder) -> None:
    folder.write("out/ckpt-1.pt")
    folder.settle()
    (folder.work / "out/ckpt-1.pt").unlink()
    folder.settle()
    folder.settle()
    assert folder.server.folder == ["work/out/ckpt-1.pt"]
    folder.write("out/ckpt-2.pt")
    folder.run_folder._store()
    assert folder.server.folder == ["work/out/ckpt-1.pt"]
    folder.run_folder._store()
    assert folder.server.folder == ["work/out/ckpt-2.pt"]
    (folder.work / "out/ckpt-2.pt").unlink()
    folder.run_folder.finish(is_failed=True)
    assert folder.server.folder == ["work/out/ckpt-2.pt"]
    folder.run_folder.finish(is_failed=False)
    assert folder.server.folder == [], "a script that succeeds may remove its checkpoints"


def test_folder_is_stored_with_its_last_file(folder: Folder) -> None:
    folder.write("out/checkpoint-5/optimizer.pt")
    folder.settle()
    assert folder.server.folder == [] == folder.server.records
    folder.write("out/checkpoint-5/trainer_state.json", b"{}")
    folder.settle()
    folder.settle()
    assert folder.server.steps == [("work/out/checkpoint-5", 5)]
    (record,) = folder.server.records
    names = [file.path for file in folder.server.manifests[record["manifest"]].files]
    assert names == ["work/out/checkpoint-5/optimizer.pt", "work/out/checkpoint-5/trainer_state.json"]


def test_renamed_file_is_a_checkpoint_once(folder: Folder) -> None:
    folder.write("out/state.tmp")
    folder.settle()
    (folder.work / "out/state.tmp").rename(folder.work / "out/state-3.pt")
    folder.settle()
    folder.settle()
    assert folder.server.steps == [("work/out/state-3.pt", 3)]


def test_killed_script_leaves_no_half_checkpoint(folder: Folder) -> None:
    """Of a format that shows no end, a file counts only if it was written some time before the kill."""
    for name in ("out/best-1.bin", "out/old-2.bin", "out/checkpoint-5/model.bin"):
        os.utime(folder.write(name, b"\0"), (1000, 1000))
    folder.settle()
    recorded = len(folder.server.records)
    now = time.time()
    folder.write("out/best-1.bin", b"\0\0")
    os.utime(folder.write("out/new-3.bin", b"\0"), (now - 60, now - 60))
    folder.write("out/new-4.bin", b"\0")
    folder.write("out/checkpoint-5/model.bin", b"\0\0")
    folder.write("out/checkpoint-5/more.bin", b"\0")
    with zipfile.ZipFile(folder.work / "out/whole-6.pt", "w") as archive:
        archive.writestr("data", b"x")
    folder.write("out/cut-7.pt", (folder.work / "out/whole-6.pt").read_bytes()[:-1])
    assert folder.run_folder.finish(is_failed=True, killed_at=now) == ""
    assert sorted(folder.server.steps[recorded:]) == [("work/out/new-3.bin", 3), ("work/out/whole-6.pt", 6)]
    assert folder.server.folder == [
        "work/out/best-1.bin",
        "work/out/checkpoint-5/model.bin",
        "work/out/new-3.bin",
        "work/out/old-2.bin",
        "work/out/whole-6.pt",
    ]
    assert folder.notes == [
        "`out/best-1.bin` was not written completely: its earlier version is kept",
        "`out/checkpoint-5` was not written completely: its earlier version is kept",
        "`out/cut-7.pt` was not written completely: it is not kept",
        "`out/new-4.bin` was not written completely: it is not kept",
    ]


def test_record_that_the_server_missed_is_sent_later(folder: Folder) -> None:
    folder.write("best-1.pt")
    folder.server.failures = 1
    folder.run_folder._store()
    with pytest.raises(ServerUnavailable):
        folder.run_folder._store()
    assert folder.run_folder.finish(is_failed=False) == ""
    assert folder.server.steps == [("work/best-1.pt", 1)]
    record = json.loads((folder.root / "run-folder.json").read_text())
    assert list(record["checkpoints"]) == ["work/best-1.pt"]


def test_time_of_a_file_that_is_no_date_is_now(folder: Folder) -> None:
    file = folder.write("out/a-1.pt")
    folder.run_folder.checkpoints.record(
        Manifest.build([FileEntry("work/out/a-1.pt", 5, (Digest("0" * 64),))], []),
        {"work/out/a-1.pt": (1, 5, 10**24)},
    )
    (record,) = folder.server.records
    assert datetime.fromisoformat(record["created_at"]) <= datetime.now(UTC)
    assert folder.run_folder.contains("work/out/a-1.pt") and file.exists()
    folder.run_folder.work = None  # a replica with a folder of its own
    assert not folder.run_folder.contains("work/out/a-1.pt")


def test_process_does_not_restart_from_a_checkpoint_of_the_script(folder: Folder) -> None:
    folder.server.listed = [{"damaged": False, "step": 7, "path": "work/a-7.pt", "manifest": "0" * 64}]
    spec = ReplicaSpec(make_launch("c.json"), NodeContext("n", str(folder.root), "", 0))
    with ExitStack() as stack:
        restarts = ProcessRestarts(
            folder.replica,
            spec,
            folder.server,  # type: ignore[arg-type]
            stack,
            Wakeup(),
            lambda: None,
            dict,
            lambda _: None,
        )
        assert restarts._fetch_newest() is None
    assert restarts.restored is None


def test_only_files_that_are_open_for_writing_are_found(tmp_path: Path) -> None:
    file = tmp_path / "a"
    file.write_text("x")
    key = (file.stat().st_dev, file.stat().st_ino)
    with file.open("rb"):
        assert find_open_for_writing({key}) == set()
    with file.open("ab"):
        assert find_open_for_writing({key}) == {key}
