"""Runs that today's rules would refuse, or whose records and folders were damaged: they are listed, stopped and removed."""

from __future__ import annotations

import json
import os
import shutil
import signal
import sqlite3
from collections.abc import Callable
from pathlib import Path

import psutil
import pytest

from .world import World, is_gone, until

WAITS = "import time\nprint('begun', flush=True)\ntime.sleep(600)\n"
ODD_SPECS = (
    '{"project":5,"roles":"none","label":["x"],"unknown":{}}',
    '{"project":"odd","roles":[{"command":"echo hello"}],"priority":"high","env":{"A":1}}',
    "[]",
    "no JSON",
)


def rename(world: World, run: str, odd: str) -> None:
    """Give a run an id that an earlier version may have accepted. No server runs."""
    with sqlite3.connect(world.home.database) as database:
        for (table,) in database.execute("SELECT name FROM sqlite_master WHERE type = 'table'").fetchall():
            columns = {column[1] for column in database.execute(f"PRAGMA table_info({table})")}
            if "run" in columns or table == "runs":
                column = "id" if table == "runs" else "run"
                database.execute(f"UPDATE {table} SET {column} = ? WHERE {column} = ?", (odd, run))
    database.close()


@pytest.mark.parametrize("odd", ["abcdef\n", "-leading with space-"])
def test_a_run_with_an_id_that_is_refused_today_is_stopped_and_removed(world: World, odd: str) -> None:
    world.write("waits.py", WAITS)
    full = world.run(world.detach("--cpus", "4", "waits.py"))
    world.reaches(full["id"], "running")
    first, second = (world.run(world.detach("waits.py")) for _ in range(2))
    world.ok("down", "--keep-runs")
    rename(world, first["id"], odd)
    rename(world, second["id"], f"{odd}{odd}")
    world.ok("up")
    world.ok("stop", first["name"], full["id"])  # one that waits, and what makes the other one start
    until(lambda: world.run(second["name"])["phase"] != "queued", "the start of the other one")
    world.ok("stop", second["name"])
    until(lambda: not world.ok("ps", "--json").json, "the end of the runs")
    for run in (first, second):
        world.ok("info", run["name"])
        world.ok("rm", "-y", run["name"])
    assert [run["id"] for run in world.ok("ps", "--all", "--json").json] == [full["id"]]
    until(lambda: not [one for one in world.home.attempts.iterdir() if one.name[0] != "."], "the removal of their folders")
    assert not [process for process in world.processes() if "waits.py" in " ".join(process.cmdline())]


def test_runs_whose_specs_cannot_be_read_are_listed_stopped_and_removed_and_the_others_go_on(world: World) -> None:
    world.write("waits.py", WAITS)
    world.write("says.py", "print('hello')\n")
    live = [world.run(world.detach("--cpus", "0.5", "waits.py")) for _ in ODD_SPECS]
    for run in live:
        world.says(run, "begun")
    over = world.reaches(world.detach("--cpus", "0.5", "says.py"), "succeeded")
    waiting = world.run(world.detach("--cpus", "4", "waits.py"))
    world.kill_server()
    with sqlite3.connect(world.home.database) as database:
        for run, spec in zip(live, ODD_SPECS, strict=True):
            database.execute("UPDATE run_contents SET spec = ? WHERE run = ?", (spec, run["id"]))
        database.execute("UPDATE run_contents SET spec = '{}' WHERE run IN (?, ?)", (waiting["id"], over["id"]))
        database.execute("UPDATE runs SET gang = 'none' WHERE id IN (?, ?)", (waiting["id"], live[0]["id"]))
    database.close()
    ids = [run["id"] for run in (*live, waiting, over)]
    assert {run["id"] for run in world.ok("ps", "--all", "--json").json} == set(ids)
    assert world.log(over) == "hello\n"
    ended = world.reaches(waiting["id"], "failed")
    assert "spec cannot be read" in ended["exit"]["reason"]
    again = world.detach("--cpus", "0.5", "says.py")
    world.reaches(again, "succeeded")
    for run in live:
        world.ok("info", run["id"])
        world.ok("stop", run["id"])
        world.reaches(run["id"], "cancelled")
    world.ok("rm", "-y", *ids)
    assert [run["name"] for run in world.ok("ps", "--all", "--json").json] == [again]


def remove_all(folder: Path) -> None:
    shutil.rmtree(folder.parent)


def remove_status(folder: Path) -> None:
    (folder / "status.json").unlink()
    os.kill(holder(folder), signal.SIGSTOP)  # it cannot find the order by itself


def damage_all(folder: Path) -> None:
    for name in ("status.json", "spec.json"):
        (folder / name).write_bytes(b"{")


def freeze(folder: Path) -> None:
    os.kill(holder(folder), signal.SIGSTOP)


def replace_by_folders(folder: Path) -> None:
    for name in ("status.json", "spec.json"):
        (folder / name).unlink()
        (folder / name).mkdir()


def holder(folder: Path) -> int:
    """The replica program."""
    return next(int(p.pid) for p in psutil.process_iter() if any(f.path == str(folder / "lock") for f in _files(p)))


def _files(process: psutil.Process) -> list[psutil._common.popenfile]:
    try:
        return list(process.open_files())
    except psutil.Error:
        return []


@pytest.mark.parametrize("damage", [remove_all, remove_status, damage_all, freeze, replace_by_folders])
def test_a_run_whose_folder_is_damaged_or_replica_frozen_is_stopped_with_its_processes(world: World, damage: Callable[[Path], None]) -> None:
    world.write("waits.py", WAITS)
    run = world.run(world.detach("waits.py"))
    world.says(run, "begun")
    script = int(world.state(run)["child_pid"])
    folder = world.replica(run)
    replica = json.loads((folder / "status.json").read_bytes())["pid"]
    damage(folder)
    world.hop("stop", run["id"], "--grace", "1")
    until(lambda: is_gone(script) and is_gone(replica), "the end of its processes")
    until(lambda: world.run(run["id"])["phase"] in ("cancelled", "failed"), "the end of the run")
    until(lambda: not world.ok("ps", "--json").json, "no live run")
    world.ok("rm", "-y", run["id"])
    until(lambda: not folder.exists(), "the removal of its folder")


def test_a_run_keeps_as_much_output_as_it_asks_for_and_the_server_allows(world: World) -> None:
    settings = world.home.settings_file
    settings.write_text(settings.read_text() + "runs: {max_output: 4M}\n")
    world.write("floods.py", "for n in range(8): print('x' * 999_999)\nprint('end')\n")
    small = world.reaches(world.detach("--max-output", "1M", "floods.py"), "succeeded")
    forked = world.reaches(world.ok("fork", small["name"], "--detach").out.strip(), "succeeded")
    world.write("hop.yaml", "max_output: 8M\nroles: [{command: [python, floods.py]}]\n")
    large = world.reaches(world.detach("hop.yaml"), "succeeded")
    sizes = [len(world.log(run)) >> 20 for run in (small, forked, large)]
    assert sizes == [1, 1, 5], "what it asks for or the server allows, and a quarter of it from the end"
    assert "1M of each of stdout and stderr" in world.ok("info", small["name"]).out
    refused = world.hop("run", "--max-output", "10K", "floods.py")
    assert (refused.code, "--max-output: `10K` is too little" in refused.talk) == (2, True), refused
