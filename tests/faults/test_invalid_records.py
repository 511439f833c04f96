"""Runs that current rules would refuse, or with damaged records or folders, are listed, stopped and
removed."""

from __future__ import annotations

import json
import os
import shutil
import signal
import sqlite3
from pathlib import Path

import psutil
import pytest

from tests.faults.server_home import ServerHome, has_ended, wait_until

WAITS = "import time\nprint('begun', flush=True)\ntime.sleep(600)\n"
ODD_SPECS = (
    '{"project":5,"roles":"none","label":["x"],"unknown":{}}',
    '{"project":"odd","roles":[{"command":"echo hello"}],"priority":"high","env":{"A":1}}',
    "[]",
    "no JSON",
)


def rename_run(server_home: ServerHome, run: str, invalid_id: str) -> None:
    """Give a run an id that an earlier version may have accepted. No server runs."""
    with sqlite3.connect(server_home.home.database) as database:
        for (table,) in database.execute("SELECT name FROM sqlite_master WHERE type = 'table'").fetchall():
            columns = {column[1] for column in database.execute(f"PRAGMA table_info({table})")}
            if "run" in columns or table == "runs":
                column = "id" if table == "runs" else "run"
                database.execute(f"UPDATE {table} SET {column} = ? WHERE {column} = ?", (invalid_id, run))
    database.close()


@pytest.mark.slow
def test_runs_with_invalid_stored_ids_are_stopped_and_removed(server_home: ServerHome) -> None:
    server_home.write("waits.py", WAITS)
    full = server_home.run(server_home.run_detached("--cpus", "4", "waits.py"))
    server_home.wait_for_phase(full["id"], "running")
    invalid_ids = ("abcdef\n", "-leading with space-")
    queued, started = (
        [server_home.run(server_home.run_detached("waits.py")) for _ in invalid_ids] for _ in range(2)
    )
    server_home.ok("down", "--keep-runs")
    for invalid_id, first, second in zip(invalid_ids, queued, started, strict=True):
        rename_run(server_home, first["id"], invalid_id)
        rename_run(server_home, second["id"], f"{invalid_id}{invalid_id}")
    server_home.ok("up")
    # two queued runs, and the run that blocks the others
    server_home.ok("stop", *(run["name"] for run in queued), full["id"])
    wait_until(
        lambda: all(server_home.run(run["name"])["phase"] != "queued" for run in started),
        "the start of the other two",
    )
    server_home.ok("stop", *(run["name"] for run in started))
    wait_until(lambda: not server_home.ok("ps", "--json").json, "the end of the runs")
    for run in (*queued, *started):
        server_home.ok("info", run["name"])
    server_home.ok("rm", "-y", *(run["name"] for run in (*queued, *started)))
    assert [run["id"] for run in server_home.ok("ps", "--all", "--json").json] == [full["id"]]
    wait_until(
        lambda: not [attempt for attempt in server_home.home.attempts.iterdir() if attempt.name[0] != "."],
        "the removal of their folders",
    )
    assert not [process for process in server_home.processes() if "waits.py" in " ".join(process.cmdline())]


def test_runs_with_unreadable_specs_are_listed_stopped_and_removed(
    server_home: ServerHome,
) -> None:
    server_home.write("waits.py", WAITS)
    server_home.write("says.py", "print('hello')\n")
    live = [server_home.run(server_home.run_detached("--cpus", "0.5", "waits.py")) for _ in ODD_SPECS]
    for run in live:
        server_home.wait_for_output(run, "begun")
    over = server_home.wait_for_phase(server_home.run_detached("--cpus", "0.5", "says.py"), "succeeded")
    waiting = server_home.run(server_home.run_detached("--cpus", "4", "waits.py"))
    server_home.kill_server()
    with sqlite3.connect(server_home.home.database) as database:
        for run, spec in zip(live, ODD_SPECS, strict=True):
            database.execute("UPDATE run_contents SET spec = ? WHERE run = ?", (spec, run["id"]))
        database.execute(
            "UPDATE run_contents SET spec = '{}' WHERE run IN (?, ?)", (waiting["id"], over["id"])
        )
        database.execute("UPDATE runs SET gang = 'none' WHERE id IN (?, ?)", (waiting["id"], live[0]["id"]))
    database.close()
    ids = [run["id"] for run in (*live, waiting, over)]
    assert {run["id"] for run in server_home.ok("ps", "--all", "--json").json} == set(ids)
    assert server_home.log(over) == "hello\n"
    ended = server_home.wait_for_phase(waiting["id"], "failed")
    assert "spec of the run cannot be read" in ended["exit"]["reason"]
    second_run = server_home.run_detached("--cpus", "0.5", "says.py")
    server_home.wait_for_phase(second_run, "succeeded")
    for run in live:
        server_home.ok("info", run["id"])
        server_home.ok("stop", run["id"])
        server_home.wait_for_phase(run["id"], "cancelled")
    server_home.ok("rm", "-y", *ids)
    assert [run["name"] for run in server_home.ok("ps", "--all", "--json").json] == [second_run]


def remove_all(folder: Path) -> None:
    shutil.rmtree(folder.parent)


def remove_status(folder: Path) -> None:
    (folder / "status.json").unlink()
    os.kill(replica_pid(folder), signal.SIGSTOP)  # it cannot find the order by itself


def damage_all(folder: Path) -> None:
    for name in ("status.json", "spec.json"):
        (folder / name).write_bytes(b"{")


def freeze(folder: Path) -> None:
    os.kill(replica_pid(folder), signal.SIGSTOP)


def replace_by_folders(folder: Path) -> None:
    for name in ("status.json", "spec.json"):
        (folder / name).unlink()
        (folder / name).mkdir()


def replica_pid(folder: Path) -> int:
    """Returns the pid of the replica program."""
    return next(
        int(p.pid) for p in psutil.process_iter() if any(f.path == str(folder / "lock") for f in _files(p))
    )


def _files(process: psutil.Process) -> list[psutil._common.popenfile]:
    try:
        return list(process.open_files())
    except psutil.Error:
        return []


def test_runs_with_damaged_folders_and_frozen_replicas_are_stopped(server_home: ServerHome) -> None:
    server_home.write("waits.py", WAITS)
    damages = (remove_all, remove_status, damage_all, freeze, replace_by_folders)
    runs = [server_home.run(server_home.run_detached("--cpus", "0.5", "waits.py")) for _ in damages]
    ids = [run["id"] for run in runs]
    for run in runs:
        server_home.wait_for_output(run, "begun")
    folders = [server_home.replica(run) for run in runs]
    processes = [
        pid
        for run, folder in zip(runs, folders, strict=True)
        for pid in (
            int(server_home.replica_status(run)["child_pid"]),
            int(json.loads((folder / "status.json").read_bytes())["pid"]),
        )
    ]
    for damage, folder in zip(damages, folders, strict=True):
        damage(folder)
    server_home.hop("stop", *ids, "--grace", "1")
    wait_until(lambda: all(map(has_ended, processes)), "the end of their processes")
    wait_until(
        lambda: all(server_home.run(run)["phase"] in ("cancelled", "failed") for run in ids),
        "the end of the runs",
    )
    wait_until(lambda: not server_home.ok("ps", "--json").json, "no live run")
    server_home.ok("rm", "-y", *ids)
    wait_until(lambda: not any(folder.exists() for folder in folders), "the removal of their folders")


def test_output_limit_is_minimum_of_run_and_server_limit(server_home: ServerHome) -> None:
    settings = server_home.home.settings_file
    settings.write_text(settings.read_text() + "runs: {max_output: 4M}\n")
    server_home.write("floods.py", "for n in range(800): print('x' * 9_999)\nprint('end')\n")
    small_run = server_home.wait_for_phase(
        server_home.run_detached("--max-output", "1M", "floods.py"), "succeeded"
    )
    forked = server_home.wait_for_phase(
        server_home.ok("fork", small_run["name"], "--detach").stdout.strip(), "succeeded"
    )
    server_home.write("hop.yaml", "max_output: 8M\nroles: [{command: [python, floods.py]}]\n")
    large = server_home.wait_for_phase(server_home.run_detached("hop.yaml"), "succeeded")
    sizes = [round(len(server_home.log(run)) / 2**20, 1) for run in (small_run, forked, large)]
    assert sizes == [1.2, 1.2, 5.0], (
        "what it asks for or the server allows, and a quarter of it from the end, less what is no whole line"
    )
    assert "1M of each of stdout and stderr" in server_home.ok("info", small_run["name"]).stdout
    other = server_home.wait_for_phase(
        server_home.ok(
            "fork", small_run["name"], "--max-output", "2M", "--project", "other", "--detach"
        ).stdout.strip(),
        "succeeded",
    )
    assert (round(len(server_home.log(other)) / 2**20, 1), other["name"].split("/")[1]) == (2.5, "other")
    result = server_home.hop("run", "--max-output", "10K", "floods.py")
    assert (result.code, "--max-output: `10K` is too small" in result.stderr) == (2, True), result


LOGS_WITHOUT_END = """
import hopyard as hop
for step in range(300_000):
    hop.log(loss=1 / (step + 1), step=step)
for number in range(12_000):
    hop.summary(acc=number, **{f"first{number % 5}": number})
    hop.log(late=number)
print("end")
"""


def test_metrics_of_tight_loop_are_bounded_and_keep_last_values(
    server_home: ServerHome,
) -> None:
    server_home.write("logs.py", LOGS_WITHOUT_END)
    run = server_home.wait_for_phase(server_home.run_detached("--max-metrics", "1M", "logs.py"), "succeeded")
    kept = {path.name: path.stat().st_size for path in server_home.home.streams.glob(f"{run['id']}/*/0/*")}
    assert {name: kept[name] < 1.3 * 2**20 for name in ("metrics", "events")} == {
        "metrics": True,
        "events": True,
    }, kept
    listed_run = server_home.ok("ps", "-a", "--json").json[0]
    assert (listed_run["latest"]["loss"][0], listed_run["latest"]["late"], listed_run["summary"]["acc"]) == (
        299_999,
        [11_999, 11_999.0],
        11_999,
    )
    curve = server_home.ok("plot", run["name"], "loss", "--json").json[run["name"]]["loss"]
    assert (curve["steps"][-1], curve["count"] > 31_000) == (299_999, True)
    # Where the newest values find no place, the run ends all the same, and is bounded.
    server_home.write(
        "blocks.py",
        "import os\nopen(os.environ['HOPYARD_REPLICA_DIR'] + '/reports', 'w').close()\n" + LOGS_WITHOUT_END,
    )
    blocked = server_home.wait_for_phase(
        server_home.run_detached("--max-metrics", "1M", "blocks.py"), "succeeded"
    )
    sizes = [path.stat().st_size for path in server_home.home.streams.glob(f"{blocked['id']}/*/0/metrics")]
    assert sizes and max(sizes) <= 2**20
    limit = "metrics of replica 0 passed the limit of 1M"
    for command in (("info", run["name"]), ("plot", run["name"]), ("ps", "-a")):
        result = server_home.ok(*command)
        assert limit in result.stdout + result.stderr, command
