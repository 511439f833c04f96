"""Runs that today's rules would refuse, or whose records and folders were damaged: they are listed, stopped
and removed."""

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

from tests.faults.world import World, is_gone, until

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
    until(
        lambda: not [one for one in world.home.attempts.iterdir() if one.name[0] != "."],
        "the removal of their folders",
    )
    assert not [process for process in world.processes() if "waits.py" in " ".join(process.cmdline())]


def test_runs_whose_specs_cannot_be_read_are_listed_stopped_and_removed_and_the_others_go_on(
    world: World,
) -> None:
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
        database.execute(
            "UPDATE run_contents SET spec = '{}' WHERE run IN (?, ?)", (waiting["id"], over["id"])
        )
        database.execute("UPDATE runs SET gang = 'none' WHERE id IN (?, ?)", (waiting["id"], live[0]["id"]))
    database.close()
    ids = [run["id"] for run in (*live, waiting, over)]
    assert {run["id"] for run in world.ok("ps", "--all", "--json").json} == set(ids)
    assert world.log(over) == "hello\n"
    ended = world.reaches(waiting["id"], "failed")
    assert "spec of the run cannot be read" in ended["exit"]["reason"]
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
    return next(
        int(p.pid) for p in psutil.process_iter() if any(f.path == str(folder / "lock") for f in _files(p))
    )


def _files(process: psutil.Process) -> list[psutil._common.popenfile]:
    try:
        return list(process.open_files())
    except psutil.Error:
        return []


@pytest.mark.parametrize("damage", [remove_all, remove_status, damage_all, freeze, replace_by_folders])
def test_a_run_whose_folder_is_damaged_or_replica_frozen_is_stopped_with_its_processes(
    world: World, damage: Callable[[Path], None]
) -> None:
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
    world.write("floods.py", "for n in range(800): print('x' * 9_999)\nprint('end')\n")
    small = world.reaches(world.detach("--max-output", "1M", "floods.py"), "succeeded")
    forked = world.reaches(world.ok("fork", small["name"], "--detach").out.strip(), "succeeded")
    world.write("hop.yaml", "max_output: 8M\nroles: [{command: [python, floods.py]}]\n")
    large = world.reaches(world.detach("hop.yaml"), "succeeded")
    sizes = [round(len(world.log(run)) / 2**20, 1) for run in (small, forked, large)]
    assert sizes == [1.2, 1.2, 5.0], (
        "what it asks for or the server allows, and a quarter of it from the end, less what is no whole line"
    )
    assert "1M of each of stdout and stderr" in world.ok("info", small["name"]).out
    other = world.reaches(
        world.ok("fork", small["name"], "--max-output", "2M", "--project", "other", "--detach").out.strip(),
        "succeeded",
    )
    assert (round(len(world.log(other)) / 2**20, 1), other["name"].split("/")[1]) == (2.5, "other")
    refused = world.hop("run", "--max-output", "10K", "floods.py")
    assert (refused.code, "--max-output: `10K` is too small" in refused.talk) == (2, True), refused


LOGS_WITHOUT_END = """
import hopyard as hop
for step in range(300_000):
    hop.log(loss=1 / (step + 1), step=step)
for number in range(12_000):
    hop.summary(acc=number, **{f"first{number % 5}": number})
    hop.log(late=number)
print("end")
"""


def test_a_run_that_logs_in_a_tight_loop_is_bounded_and_keeps_its_last_values(world: World) -> None:
    world.write("logs.py", LOGS_WITHOUT_END)
    run = world.reaches(world.detach("--max-metrics", "1M", "logs.py"), "succeeded")
    kept = {path.name: path.stat().st_size for path in world.home.streams.glob(f"{run['id']}/*/0/*")}
    assert {name: kept[name] < 1.3 * 2**20 for name in ("metrics", "events")} == {
        "metrics": True,
        "events": True,
    }, kept
    shown = world.ok("ps", "-a", "--json").json[0]
    assert (shown["latest"]["loss"][0], shown["latest"]["late"], shown["summary"]["acc"]) == (
        299_999,
        [11_999, 11_999.0],
        11_999,
    )
    curve = world.ok("plot", run["name"], "loss", "--json").json[run["name"]]["loss"]
    assert (curve["steps"][-1], curve["count"] > 31_000) == (299_999, True)
    # Where the newest values find no place, the run ends all the same, and is bounded.
    world.write(
        "blocks.py",
        "import os\nopen(os.environ['HOPYARD_REPLICA_DIR'] + '/reports', 'w').close()\n" + LOGS_WITHOUT_END,
    )
    blocked = world.reaches(world.detach("--max-metrics", "1M", "blocks.py"), "succeeded")
    sizes = [path.stat().st_size for path in world.home.streams.glob(f"{blocked['id']}/*/0/metrics")]
    assert sizes and max(sizes) <= 2**20
    limit = "metrics of replica 0 passed the limit of 1M"
    for command in (("info", run["name"]), ("plot", run["name"]), ("ps", "-a")):
        said = world.ok(*command)
        assert limit in said.out + said.talk, command
