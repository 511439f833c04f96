"""A home is backed up while it works. The restored home is equal, and starts nothing in parallel with the
original."""

from __future__ import annotations

import json
import os
import shutil
import signal
import sqlite3
import stat
import subprocess
from collections.abc import Iterator
from contextlib import closing
from datetime import datetime
from pathlib import Path

import pytest

from hopyard.backup.copying import SCRATCH_FOLDER
from hopyard.backup.create import create_backup
from hopyard.backup.layout import MARK_FILE
from hopyard.backup.restore import restore_backup
from hopyard.config.home import Home
from hopyard.errors import Conflict, IntegrityError
from hopyard.private_files import remove_tree
from tests.stores.sql.postgres import PostgreSQL, running_postgres, server_programs

from .server_home import ServerHome, wait_until

# Saves and logs one step after another until the gate file exists. A checkpoint holds large and small blobs.
TRAIN_SCRIPT = """
import os, sys, time
import hopyard as hop
state = hop.bind(n=0, ballast=b"")
for step in hop.loop(range(100000), every=1):
    state.n, state.ballast = step, os.urandom(1_500_000)
    print("step", step, flush=True)
    hop.log(loss=1 / (step + 1), step=step)
    if os.path.exists(sys.argv[1]):
        break
    time.sleep(0.05)
"""


@pytest.fixture
def restored_home(tmp_path: Path) -> Iterator[ServerHome]:
    """The home into which a backup is restored."""
    root = tmp_path / "other"
    root.mkdir()
    server_home = ServerHome(root, settings="")
    try:
        yield server_home
    finally:
        server_home.end()
        remove_tree(server_home.home.trees)


def inodes_of_files(folder: Path) -> dict[str, int]:
    """Returns the inode of every file of a backup."""
    return {str(path.relative_to(folder)): path.stat().st_ino for path in folder.rglob("*") if path.is_file()}


def test_backup_of_active_home_is_restored_completely_and_starts_no_run(
    server_home: ServerHome, restored_home: ServerHome, tmp_path: Path
) -> None:
    server_home.write(
        "says.py", "import hopyard as hop\nprint('done')\nhop.log(acc=0.5, step=1)\nhop.summary(acc=0.5)\n"
    )
    server_home.write("data/a.txt", "rows")
    server_home.ok("dataset", "push", "rows", "data")
    done = server_home.wait_for_phase(server_home.run_detached("-d", "rows", "says.py"), "succeeded")
    server_home.write("train.py", TRAIN_SCRIPT)
    gate, folder = tmp_path / "gate", tmp_path / "backups" / "home"
    live = server_home.wait_for_phase(server_home.run_detached("train.py", "--", str(gate)), "running")
    wait_until(lambda: server_home.get(f"/runs/{live['id']}/checkpoints")["checkpoints"], "a checkpoint")
    first = server_home.ok("backup", str(folder), "--json").json
    assert (first["home"], first["database"]) == (str(server_home.home.root), "sqlite")
    before = inodes_of_files(folder)
    second = server_home.ok("backup", str(folder), "--json").json  # while the run is running
    assert second["created_at"] >= first["created_at"] and second["files"] > 0
    inodes_after = inodes_of_files(folder)
    packs = {name for name in before if name.startswith("blobs/packs/")} & inodes_after.keys()
    assert packs and {name: before[name] for name in packs} == {name: inodes_after[name] for name in packs}, (
        "blobs are copied once"
    )
    assert all(stat.S_IMODE(path.stat().st_mode) & 0o077 == 0 for path in (folder, *folder.rglob("*"))), (
        "nothing is readable by others"
    )

    restored_home.ok("restore", str(folder))
    restored = restored_home.run(done["name"])
    assert (restored["phase"], restored["summary"], restored_home.log(restored)) == (
        "succeeded",
        {"acc": 0.5},
        "done\n",
    )
    restored_home.ok("dataset", "pull", "rows", "pulled")
    assert (restored_home.folder / "pulled" / "a.txt").read_text() == "rows"
    queued = wait_until(
        lambda: (
            restored_home.run(live["name"]) if restored_home.run(live["name"])["phase"] == "queued" else None
        ),
        "the run being queued",
    )
    (node,) = restored_home.get("/nodes")["nodes"]
    assert node["cordoned"] and "restored from the backup of" in node["cordon_reason"]
    assert "uncordon" in restored_home.ok("why", live["name"]).stdout
    assert server_home.run(live["name"])["phase"] == "running", "the original goes on"
    (attempt,) = restored_home.get(f"/runs/{queued['id']}/attempts")["attempts"]
    ended = datetime.fromisoformat(attempt["ended_at"])
    assert ended == datetime.fromisoformat(second["created_at"]), "the time since the backup is no run time"
    step = restored_home.get(f"/runs/{queued['id']}/checkpoints")["checkpoints"][-1]["step"]
    gate.touch()
    restored_home.ok("node", "uncordon", node["id"])
    ended = restored_home.wait_for_phase(live["name"], "succeeded")
    assert ended["attempt"]["resumed_from_step"] == step


def test_killed_backup_keeps_previous_backup_complete(
    server_home: ServerHome, restored_home: ServerHome, tmp_path: Path
) -> None:
    server_home.write("data/a.bin", os.urandom(3_000_000))
    server_home.ok("dataset", "push", "blob", "data")
    folder = tmp_path / "backup"
    server_home.ok("backup", str(folder))
    mark = (folder / MARK_FILE).read_bytes()
    for number in range(40):
        server_home.write(f"data/{number}.bin", os.urandom(1_500_000))
    server_home.ok("dataset", "push", "blob", "data")
    child = server_home.start_hop("backup", str(folder))
    wait_until(
        lambda: any((folder / SCRATCH_FOLDER).glob("*")) or child.poll() is not None,
        "a copy that is under way",
    )
    child.send_signal(signal.SIGKILL)
    server_home.finish(child)
    assert (folder / MARK_FILE).read_bytes() == mark, "the kill came while files were copied"
    restored_home.ok("restore", str(folder))
    assert restored_home.get("/datasets/blob")["versions"] == 1
    restored_home.ok("dataset", "pull", "blob", "pulled")
    assert [path.name for path in (restored_home.folder / "pulled").iterdir()] == ["a.bin"]
    server_home.ok("backup", str(folder))
    assert not list(folder.rglob("*.part")) and not list(folder.rglob("*.new"))


def test_backup_and_restore_refuse_data_loss(
    server_home: ServerHome, restored_home: ServerHome, tmp_path: Path
) -> None:
    server_home.ok("up")
    folder, foreign = tmp_path / "backup", tmp_path / "foreign"
    foreign.mkdir()
    (foreign / "thesis.tex").write_text("x")
    for target, expected in (
        (foreign, "holds other files"),
        (server_home.home.root / "below", "overlap: one is inside the other"),
        (foreign / "thesis.tex", "is not a folder"),
    ):
        result = server_home.hop("backup", str(target))
        assert result.code == 2 and expected in result.stderr and "Traceback" not in result.stderr
    assert (foreign / "thesis.tex").read_text() == "x"
    result = restored_home.hop("restore", str(foreign))
    assert result.code == 2 and "is not a backup" in result.stderr
    server_home.ok("backup", str(folder))
    result = server_home.hop("restore", str(folder))
    assert result.code == 1 and "is not empty" in result.stderr
    result = restored_home.hop("restore", str(folder), "--database", "postgresql://x@y/z")
    assert result.code == 2 and "leave --database out" in result.stderr
    (folder / MARK_FILE).write_text(
        json.dumps({**json.loads((folder / MARK_FILE).read_text()), "format": 99})
    )
    assert "newer Hopyard" in restored_home.hop("restore", str(folder)).stderr


@pytest.mark.slow
def test_backup_of_another_home_is_replaced_only_with_option(
    server_home: ServerHome, restored_home: ServerHome, tmp_path: Path
) -> None:
    server_home.ok("up")
    folder = tmp_path / "backup"
    server_home.ok("backup", str(folder))
    contents = {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}
    restored_home.ok("up")
    result = restored_home.hop("backup", str(folder))
    assert (
        result.code == 1
        and f"holds the backup of the home {server_home.home.root}" in result.stderr
        and "--replace" in result.stderr
    )
    (folder / MARK_FILE).write_text(
        json.dumps({**json.loads((folder / MARK_FILE).read_text()), "home": str(restored_home.home.root)})
    )
    result = restored_home.hop("backup", str(folder))  # an empty home in place of a home that is not mounted
    assert result.code == 1 and "holds the backup of an earlier home" in result.stderr
    assert {
        path: path.read_bytes() for path in folder.rglob("*") if path.is_file() and path.name != MARK_FILE
    } == {path: held for path, held in contents.items() if path.name != MARK_FILE}
    restored_home.ok("backup", "--replace", str(folder))
    restored_home.ok("backup", str(folder))


@pytest.mark.slow
def test_backup_keeps_files_lost_or_damaged_in_home(
    server_home: ServerHome, restored_home: ServerHome, tmp_path: Path
) -> None:
    server_home.write("data/large.bin", os.urandom(3_000_000))
    server_home.write("data/small.bin", os.urandom(1000))
    server_home.write("more/rows.txt", "rows")
    server_home.ok("dataset", "push", "blob", "data")
    server_home.ok("dataset", "push", "more", "more")
    server_home.write("says.py", "print('hello')\n")
    runs = [server_home.wait_for_phase(server_home.run_detached("says.py"), "succeeded") for _ in range(2)]
    folder, home = tmp_path / "backup", server_home.home.root
    server_home.ok("backup", str(folder))
    (large,) = (folder / "blobs" / "large").glob("??/*")
    large = large.relative_to(folder)
    good = (folder / large).read_bytes()
    with (home / large).open("r+b") as file:
        file.write(b"\0" if good[:1] != b"\0" else b"\1")

    def backed_up() -> list[str]:
        result = server_home.hop("backup", str(folder), "--json")
        assert (result.code, result.json["missing"]) == (
            1,
            [],
        ) and "the backup keeps its copies" in result.stderr, result
        assert (folder / large).read_bytes() == good
        return list(result.json["restorable"])

    assert backed_up() == [str(large)]
    server_home.hop("doctor", "--verify")  # sets it aside
    assert not (home / large).exists()
    assert backed_up() == [str(large)]
    packs = list((home / "blobs" / "packs").iterdir())
    damaged = next(
        pack
        for pack in packs
        if (data := (server_home.folder / "data" / "small.bin").read_bytes()) in pack.read_bytes()
    )
    damaged.write_bytes(damaged.read_bytes().replace(data, bytes(1000)))
    server_home.hop("doctor", "--verify")
    gone = home / "streams" / runs[0]["id"]
    shutil.rmtree(gone)
    restorable = backed_up()
    assert {str(large), f"blobs/packs/{damaged.name}"} <= set(restorable) and any(
        path.startswith(f"streams/{gone.name}/") for path in restorable
    )
    restored_home.ok("restore", str(folder))
    restored_home.ok("dataset", "pull", "blob", "pulled")
    assert (restored_home.folder / "pulled" / "large.bin").read_bytes() == good and (
        restored_home.folder / "pulled" / "small.bin"
    ).read_bytes() == data
    assert restored_home.log(restored_home.run(runs[0]["name"])) == "hello\n"

    for path in restorable:  # as the hint suggests
        (home / path).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy2(folder / path, home / path)
    server_home.ok("doctor", "--verify")
    server_home.ok("backup", str(folder))
    server_home.ok("dataset", "rm", "-y", "blob")
    server_home.ok("down")
    (home / "blobs").rename(home / "aside")
    server_home.ok("up")
    before = inodes_of_files(folder)
    result = server_home.hop("backup", str(folder))
    assert (
        result.code == 1
        and "lacks most of the blobs or streams" in result.stderr
        and inodes_of_files(folder) == before
    )
    server_home.ok("down")
    for database in home.glob("hopyard.db*"):
        database.unlink()
    result = server_home.hop("backup", str(folder))
    assert result.code == 1 and "is missing: " in result.stderr and inodes_of_files(folder) == before
    server_home.ok("up")
    result = server_home.hop("backup", str(folder))
    assert (
        result.code == 1
        and "is now a different database" in result.stderr
        and inodes_of_files(folder) == before
    )
    server_home.ok("backup", "--replace", str(folder))


def test_backup_names_blobs_missing_everywhere(server_home: ServerHome, tmp_path: Path) -> None:
    server_home.write("data/large.bin", os.urandom(3_000_000))
    server_home.ok("dataset", "push", "blob", "data")
    (large,) = server_home.home.blobs.glob("large/??/*")
    large.write_bytes(bytes(large.stat().st_size))
    server_home.ok("backup", str(tmp_path / "backup"))  # a blob that is not read has no known damage
    server_home.hop("doctor", "--verify")
    assert not large.exists()
    result = server_home.hop("backup", str(tmp_path / "backup"), "--json")
    assert (result.code, result.json["missing"], result.json["restorable"]) == (1, [large.name], [])
    assert "neither the home nor the backup has" in result.stderr


@pytest.fixture
def postgres() -> Iterator[PostgreSQL]:
    with running_postgres() as server:
        yield server


@pytest.mark.skipif(server_programs() is None, reason="needs PostgreSQL's programs")
def test_backup_of_a_home_on_postgresql_has_a_dump_of_it(tmp_path: Path, postgres: PostgreSQL) -> None:
    postgres.execute("CREATE DATABASE original")
    postgres.execute("CREATE DATABASE copy")
    postgres.execute("CREATE DATABASE empty")
    worlds = []
    for name in ("first", "second"):
        (tmp_path / name).mkdir()
        original = f"node: {{id: box, cpus: 2, memory: 2G}}\ndatabase: {postgres.url_of('original')}\n"
        worlds.append(ServerHome(tmp_path / name, settings=original if name == "first" else ""))
    first, second = worlds
    try:
        first.write("says.py", "print('kept')\n")
        run = first.wait_for_phase(first.run_detached("says.py"), "succeeded")
        folder = tmp_path / "backup"
        assert first.ok("backup", str(folder), "--json").json["database"] == "postgresql"
        second.ok("restore", str(folder), "--database", postgres.url_of("copy"))
        assert second.log(second.run(run["name"])) == "kept\n"
        third = Home(tmp_path / "third")
        # the database of two servers is restored once, with one of them
        for keeps, wrong in ((False, "copy"), (True, "empty")):
            with pytest.raises(Conflict) as result:
                restore_backup(folder, third, database=postgres.url_of(wrong), keep_database=keeps)
            assert not third.root.exists()
            assert keeps or "--keep-database" in result.value.hints[0]
        restore_backup(folder, third, database=postgres.url_of("copy"), keep_database=True)
        assert (third.streams / run["id"]).is_dir() and postgres.url_of(
            "copy"
        ) in third.settings_file.read_text()
        second.ok("rm", "-y", run["name"])
        assert first.run(run["name"])["phase"] == "succeeded", "they share no database"
    finally:
        for server_home in worlds:
            server_home.end()
            remove_tree(server_home.home.trees)


def make_unused_home(root: Path) -> Home:
    """Creates a home that no server has used: a database and the output of a run."""
    home = Home(root)
    home.create()
    with closing(sqlite3.connect(home.database)) as database:
        database.execute("CREATE TABLE some (word TEXT)")
    return home


def test_script_files_are_backed_up_under_any_name(tmp_path: Path) -> None:
    home = make_unused_home(tmp_path / "50% #1?")
    work = home.retained_of("run") / "run.1-0" / "work"
    (work / "model.part").mkdir(parents=True)
    for name in ("model.part/weights", "best.part", ".cache/.hidden"):
        (work / name).parent.mkdir(exist_ok=True)
        (work / name).write_text(name)
    (work / "tool").write_text("#!/bin/sh\n")
    (work / "tool").chmod(0o700)
    (home.streams / ".reserve").mkdir(parents=True)
    (home.streams / ".reserve" / "00").write_bytes(bytes(100))
    folder, restored = tmp_path / "backup", Home(tmp_path / "restored")
    for _ in range(2):
        create_backup(home, folder)
        assert sorted(inodes_of_files(folder)) == sorted(
            [
                MARK_FILE,
                "hopyard.db",
                *(
                    f"kept/run/run.1-0/work/{name}"
                    for name in ("model.part/weights", "best.part", ".cache/.hidden", "tool")
                ),
            ]
        )
    restore_backup(folder, restored)
    result = restored.retained_of("run") / "run.1-0" / "work"
    assert all(
        (result / name).read_text() == name for name in ("model.part/weights", "best.part", ".cache/.hidden")
    )
    assert stat.S_IMODE((result / "tool").stat().st_mode) == 0o700


def test_script_links_are_backed_up_as_links(tmp_path: Path) -> None:
    home = make_unused_home(tmp_path / "home")
    work = home.retained_of("run") / "run.1-0" / "work"
    (tmp_path / "outside").mkdir()
    (tmp_path / "outside" / "secret").write_text("not of the run")
    work.mkdir(parents=True)
    (work / "weights").write_text("1")
    links = {"newest": "weights", "gone": "nowhere", "folder": str(tmp_path / "outside")}
    for name, target in links.items():
        (work / name).symlink_to(target)
    folder, restored = tmp_path / "backup", Home(tmp_path / "restored")
    create_backup(home, folder)
    (work / "newest").unlink()
    (work / "newest").symlink_to("gone")
    (work / "gone").unlink()
    (work / "gone").write_text("a file now")
    (work / "folder").unlink()
    (work / "folder").mkdir()
    (work / "folder" / "secret").write_text("of the run")
    assert create_backup(home, folder).mark.files == len(inodes_of_files(folder)) - 1
    restore_backup(folder, restored)
    result = restored.retained_of("run") / "run.1-0" / "work"
    assert (result / "newest").readlink() == Path("gone")
    assert (result / "newest").read_text() == "a file now"
    assert (result / "folder" / "secret").read_text() == "of the run"
    assert (tmp_path / "outside" / "secret").read_text() == "not of the run"


def test_failed_restore_keeps_empty_home_empty(tmp_path: Path) -> None:
    home, folder = make_unused_home(tmp_path / "home"), tmp_path / "backup"
    create_backup(home, folder)
    (folder / "hopyard.db").write_bytes(b"no database" * 1000)
    restored = Home(tmp_path / "restored")
    restored.root.mkdir()
    with pytest.raises(IntegrityError, match=r"hopyard\.db cannot be copied"):
        restore_backup(folder, restored)
    assert list(restored.root.iterdir()) == []


def test_restore_removes_remains_of_killed_restore(tmp_path: Path) -> None:
    home, folder = make_unused_home(tmp_path / "home"), tmp_path / "backup"
    create_backup(home, folder)
    child = subprocess.Popen(["true"])
    child.wait()
    leftovers, restored_home = (tmp_path / f"restored.{pid}.restoring" for pid in (child.pid, os.getppid()))
    for path in (leftovers, restored_home):
        path.mkdir()
    restore_backup(folder, Home(tmp_path / "restored"))
    assert not leftovers.exists() and restored_home.exists(), "the second one may be under way"
