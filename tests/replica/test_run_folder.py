"""The files that survive an attempt: the run folder, and checkpoints of the script in its working folder."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import psutil
import pytest

from hopyard.datasets.ignore_rules import ALL_FILES_RULES
from hopyard.datasets.pack import pack_tree
from hopyard.datasets.packed_tree import PackedTree
from hopyard.domain.ids import Digest, RunId
from hopyard.domain.manifest import Manifest
from hopyard.domain.replica import NodeContext, ReplicaSpec
from hopyard.domain.run import DatasetRef, Environment
from hopyard.errors import ServerUnavailable, SpecError
from hopyard.replica import gang_folder, run_folder
from hopyard.replica.gang_folder import GangFolder
from hopyard.replica.metric_history import MetricHistory
from hopyard.replica.mount_namespace import IsolationMode
from hopyard.replica.process_env import process_env
from hopyard.replica.replica_dir import ReplicaDir, acquire_lock
from hopyard.replica.run_folder import RunFolder
from hopyard.replica.script_checkpoints import ScriptCheckpoints
from tests.engines.local.engine_fixture import LocalEngineFixture
from tests.replica.conftest import RunScenario
from tests.replica.test_code_data_outputs import with_replica_changes
from tests.replica.test_param_file import launch as make_launch

SCRIPT = """
import json, os, pathlib, time
run = pathlib.Path(os.environ["HOPYARD_RUN_DIR"])
folders = (run, pathlib.Path())
found = sorted(str(p.relative_to(base)) for base in folders for p in base.rglob("*") if p.is_file())
print(json.dumps(found), flush=True)
attempt = int(os.environ["HOPYARD_ATTEMPT"].rpartition(".")[2])
os.makedirs("ckpt", exist_ok=True)
(run / "deep").mkdir(exist_ok=True)
(run / "deep" / f"{attempt}.txt").write_text("x" * attempt)
pathlib.Path("ckpt/state.json").write_text(json.dumps(attempt))
pathlib.Path("best-1.bin").write_text("best")
os.utime("best-1.bin", (0, 0))  # written long before the kill
pathlib.Path("other.txt").write_text("other")
if not os.path.islink("ckpt/last"):
    os.symlink(os.path.abspath("ckpt/state.json"), "ckpt/last")
print("saved", json.load(open("ckpt/last")), run, flush=True)
if attempt == 1:
    pathlib.Path("ckpt/torn.json").write_text('{"a":')
    time.sleep(600)
"""


def test_next_attempt_begins_with_the_files_of_the_killed_one(
    run_scenario: RunScenario, tmp_path: Path
) -> None:
    async def scenario(fixture: LocalEngineFixture) -> None:
        (tmp_path / "code").mkdir()
        (tmp_path / "code" / "main.txt").write_text("code")
        code = fixture.sink.put_tree(tmp_path / "code")
        first = await fixture.make_launch("a.1", SCRIPT, code=code)
        changes = {"checkpoint_files": ("best-*",)}
        await fixture.engine.launch(with_replica_changes(first, **changes))
        await fixture.wait_output("a.1", b"saved 1")
        state = await fixture.wait_until_running("a.1")
        psutil.Process(state.pid).send_signal(signal.SIGKILL)  # of the replica; the script ends with it
        await fixture.wait_exits("a.1")
        await asyncio.to_thread(fixture.sink.wait_final, "a.1")  # after the upload
        manifest = Digest(fixture.sink.run_folders["a.1"])
        tree = Manifest.decode(fixture.sink.blobs[manifest])
        stored = ["run/deep/1.txt", "work/best-1.bin", "work/ckpt/state.json"]
        assert [file.path for file in tree.files] == stored
        assert [(link.path, link.target) for link in tree.links] == [("work/ckpt/last", "state.json")]
        second = await fixture.make_launch("a.2", SCRIPT, code=code)
        await fixture.engine.launch(with_replica_changes(second, **changes, run_folder=manifest))
        (exit_,) = await fixture.wait_exits("a.2")
        assert exit_.is_success, exit_.reason + fixture.sink.stream("a.2", 0, "stderr").decode()
        found, saved = fixture.sink.stream("a.2", 0, "stdout").decode().splitlines()
        assert found == '["best-1.bin", "ckpt/last", "ckpt/state.json", "deep/1.txt", "main.txt"]'
        assert saved == f"saved 2 {fixture.home.run_places}/a/run", "the same path as in the first attempt"
        assert f"saved 1 {fixture.home.run_places}/a/run" in fixture.sink.stream("a.1", 0, "stdout").decode()
        await asyncio.to_thread(fixture.sink.wait_final, "a.2")
        tree = Manifest.decode(fixture.sink.blobs[Digest(fixture.sink.run_folders["a.2"])])
        assert [file.path for file in tree.files] == ["run/deep/1.txt", "run/deep/2.txt", *stored[1:]]
        outputs = Manifest.decode(fixture.sink.blobs[Digest(fixture.sink.artifacts["a.2"])])
        assert [file.path for file in outputs.files] == ["best-1.bin", "ckpt/state.json", "other.txt"]

    run_scenario(scenario)


SHARING = """
import os, pathlib, time
rank = os.environ["RANK"]
pathlib.Path(f"from-{rank}.txt").write_text(rank)
other = pathlib.Path(f"from-{1 - int(rank)}.txt")
deadline = time.monotonic() + (60 if SHARED else 0)
while not other.exists() and time.monotonic() < deadline:
    time.sleep(0.01)
print(other.exists(), os.path.exists("../data/a.txt"))
if rank == "1":
    pathlib.Path("last.txt").write_text("1")
"""


class UnreliableServer:
    """Records the trees that replicas send; fails as often as requested."""

    def __init__(self) -> None:
        self.failures, self.trees = 0, list[list[str]]()
        self.client = self

    def put_blob(self, digest: str, data: bytes) -> None:
        if self.failures:
            self.failures -= 1
            raise ServerUnavailable("the server is away")
        self.trees.append([file.path for file in Manifest.decode(data).files])

    def record_run_folder(self, attempt: str, body: Mapping[str, str]) -> None:
        pass

    def rediscover(self) -> bool:
        return True


def _pack(_: object, folder: int) -> PackedTree:
    return pack_tree(Path(f"/proc/self/fd/{folder}"), rules=ALL_FILES_RULES)


def _open_run_folder(root: Path, server: UnreliableServer, rank: int, notes: list[str]) -> RunFolder:
    spec = ReplicaSpec(
        replace(make_launch("c.json"), rank=rank),
        NodeContext("n", str(root), "", 0, local_rank=rank, local_world_size=2),
    )
    history = MetricHistory(ReplicaDir(root / str(rank)))
    checkpoints = ScriptCheckpoints(spec.launch, server, history)  # type: ignore[arg-type]
    return RunFolder(GangFolder(root, spec), None, server, lambda: False, notes.append, list, checkpoints)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("took_s", "is_settled", "interval_s"),
    [(0.01, True, 10), (0.01, False, 2), (5, True, 50), (60, True, 600), (3600, False, 600)],
)
def test_slow_scans_are_rare_but_no_longer_than_ten_minutes_apart(
    took_s: float, is_settled: bool, interval_s: float
) -> None:
    assert run_folder._next_interval_s(took_s, is_settled=is_settled) == interval_s


def test_file_that_cannot_be_read_keeps_no_other_file_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def pack(client: object, folder: int) -> PackedTree:
        if "odd.bin" in os.listdir(folder):
            raise SpecError("odd.bin: changed while it was read")
        return _pack(client, folder)

    monkeypatch.setattr(run_folder, "upload_folder", pack)
    server, notes = UnreliableServer(), list[str]()
    folder = _open_run_folder(tmp_path, server, 0, notes)
    folder.create()
    for name in ("a.bin", "odd.bin", "y.bin", "z.bin"):
        (tmp_path / "run" / name).write_text(name)
    assert folder.finish(is_failed=False) == ""
    assert server.trees == [["run/a.bin", "run/y.bin", "run/z.bin"]]
    assert notes == ["`odd.bin` of the run folder is not kept: odd.bin: changed while it was read"]


def test_files_with_odd_paths_are_named_at_the_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(run_folder, "upload_folder", _pack)
    server, notes = UnreliableServer(), list[str]()
    folder = _open_run_folder(tmp_path, server, 0, notes)
    folder.create()
    for name in (b"a.bin", b"b\n.bin", b"\xff/c.bin", b"d\\.bin"):
        path = Path(os.fsdecode(bytes(folder.gang.run) + b"/" + name))
        path.parent.mkdir(exist_ok=True)
        path.write_bytes(b"x")
    assert folder.finish(is_failed=False) == ""
    assert server.trees == [["run/a.bin"]]
    (note,) = notes
    assert note.startswith(
        "`b%0A.bin` and 2 other files: not kept for the next attempt, because the path is "
    )


def test_files_are_kept_although_the_server_was_away(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(run_folder, "upload_folder", _pack)
    server = UnreliableServer()
    first, last = (_open_run_folder(tmp_path, server, rank, []) for rank in (0, 1))
    first.create()
    (tmp_path / "run" / "best.json").write_text("[1]")
    server.failures = 1
    assert first.finish(is_failed=False) == ""
    assert server.trees == [["run/best.json"]]
    (tmp_path / "run" / "best.json").write_text("[1,")  # torn: the stored version stays
    (tmp_path / "run" / "log.txt").write_text("x")
    last.load_record()
    assert last.finish(is_failed=True) == ""
    assert server.trees[1:] == [["run/best.json", "run/log.txt"]]


def test_folder_behind_a_link_is_not_read_and_not_waited_for(tmp_path: Path) -> None:
    server = UnreliableServer()
    folder = _open_run_folder(tmp_path, server, 0, [])
    folder.create()
    (tmp_path / "home" / "sub").mkdir(parents=True)
    (tmp_path / "home" / "sub" / "token").write_text("OF ANOTHER")
    (tmp_path / "run").rmdir()
    (tmp_path / "run").symlink_to(tmp_path / "home")
    assert folder.finish(is_failed=False) == "the script replaced the folder `run` by a link"
    assert server.trees == []


def test_replica_that_never_starts_keeps_nothing_from_being_stored(tmp_path: Path) -> None:
    first, second = (_open_run_folder(tmp_path, UnreliableServer(), rank, []).gang for rank in (0, 1))
    for rank in (0, 1):
        (tmp_path / str(rank)).mkdir()
    lock = acquire_lock(tmp_path / "1")
    assert lock is not None
    assert not first.mark_ended(), "the second one stores what they share"
    os.close(lock)
    assert first.mark_ended(), "its program is dead"
    assert second.mark_ended(), "it was adopted"


@pytest.mark.parametrize("mode", IsolationMode)
def test_paths_are_those_of_the_first_run_only_with_private_mounts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, mode: IsolationMode
) -> None:
    monkeypatch.setattr(gang_folder, "detect_isolation_mode", lambda: mode)
    launch = replace(
        make_launch("c.json"),
        run=RunId("own"),
        continued_runs=(RunId("first"),),
        environment=Environment(folder="code", editable={"proj": "lib"}),
    )
    spec = ReplicaSpec(launch, NodeContext("n", str(tmp_path), "", 0))
    folder = ReplicaDir(tmp_path / "attempts" / "own.1" / "0")
    (folder.work / "lib" / "src").mkdir(parents=True)
    env = process_env(
        spec, folder, url="", interpreter="/p/python", datasets={}, restored=False, virtual_env=Path("/p")
    )
    work = tmp_path / "run-folders" / ("own" if mode is IsolationMode.MODES else "first") / "work"
    assert env["HOPYARD_RUN_DIR"] == env["HOPYARD_WORKSPACE"] == str(work.parent / "run")
    assert {str(work / "lib"), str(work / "lib" / "src")} <= set(env["PYTHONPATH"].split(":"))


def test_replicas_on_a_node_share_a_working_folder(run_scenario: RunScenario, tmp_path: Path) -> None:
    async def scenario(fixture: LocalEngineFixture) -> None:
        (tmp_path / "data").mkdir()
        (tmp_path / "data" / "a.txt").write_text("a")
        data = DatasetRef("d", 1, Digest(fixture.sink.put_tree(tmp_path / "data")), "../data")
        for attempt, private in (("a.1", False), ("b.1", True)):
            script = SHARING.replace("SHARED", str(not private))
            launch = await fixture.make_launch(attempt, script, script)
            await fixture.engine.launch(
                with_replica_changes(launch, private_folders=private, datasets=(data,))
            )
            assert all(ended.is_success for ended in await fixture.wait_exits(attempt))
            for rank in range(2):
                await asyncio.to_thread(fixture.sink.wait_final, attempt, rank)
                assert fixture.sink.stream(attempt, rank, "stdout").split() == [
                    str(not private).encode(),
                    b"True",
                ]
        outputs = Manifest.decode(fixture.sink.blobs[Digest(fixture.sink.artifacts["a.1"])])
        assert [file.path for file in outputs.files] == ["from-0.txt", "from-1.txt", "last.txt"]

    run_scenario(scenario)
