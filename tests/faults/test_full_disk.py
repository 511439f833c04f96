"""A home on a full disk: clear errors, scripts that continue, and a server that stays alive and recovers when
there is space."""

from __future__ import annotations

import json
import os
import shutil
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psutil

from hopyard.stores.disk_reserve import DEFAULT_SLICE_BYTES, DEFAULT_SLICES

from .server_home import CommandResult, ServerHome, wait_until

# Logs, saves and prints little, while the disk is full (file `full` exists) and afterwards.
GOES_ON = """
import os, sys, time
import hopyard as hop

full, free, done = sys.argv[1:]
state = {"turn": 0, "ballast": os.urandom(200_000)}
hop.bind(state=state)

def work(turns):
    for turn in turns:
        state["turn"] = turn
        hop.log(turn=turn, step=turn)
        hop.save(turn)

work(range(3))
print("begun", flush=True)
while not os.path.exists(full): time.sleep(0.01)
work(range(3, 6))
for turn in range(100_000):
    hop.log(lost=turn, also=turn, step=turn)
open(done, "w").close()
while not os.path.exists(free): time.sleep(0.01)
work(range(6, 9))
hop.summary(turn=8)
print("end", flush=True)
"""


# The server may write the remaining data of the previous run while the disk is full, which frees some of its
MORE_THAN_RESERVED = (DEFAULT_SLICES + 4) * DEFAULT_SLICE_BYTES


@contextmanager
def fill_disk(disk: Path, *, free_bytes: int = 0) -> Iterator[None]:
    """Fills the disk except for `free_bytes` while the block runs."""
    filler = disk / "filler"
    with filler.open("wb", buffering=0) as file:
        try:
            while True:
                file.write(b"\0" * 4096)
        except OSError:
            pass
        file.truncate(file.tell() - free_bytes)
    try:
        yield
    finally:
        filler.unlink()


def is_disk_full_error(done: CommandResult) -> None:
    assert done.code == 1, done
    assert "Traceback" not in done.stderr
    assert done.stderr.splitlines()[-2].startswith("error: no space left"), done.stderr
    assert done.stderr.splitlines()[-1].startswith("hint: "), done.stderr


def test_dataset_too_large_for_disk_leaves_no_bytes(small_disk_home: ServerHome, disk: Path) -> None:
    large = small_disk_home.root / "large"
    large.mkdir()
    for n in range(6):
        (large / str(n)).write_bytes(os.urandom(9 << 20))
    first = small_disk_home.run(small_disk_home.ok("run", "--json", "echo", "hello").json["name"])
    pid = small_disk_home.server_pid()
    with fill_disk(disk, free_bytes=30 << 20):
        is_disk_full_error(small_disk_home.hop("dataset", "push", "data", str(large)))
        assert small_disk_home.ok("dataset", "ls", "--json").json == []
        assert small_disk_home.log(first) == "hello\n"
    second_push = small_disk_home.ok("dataset", "push", "data", str(large), "--json").json
    assert second_push["version"]["number"] == 1
    assert 0 < second_push["uploaded_bytes"] <= 54 << 20
    small_disk_home.ok("dataset", "pull", "data", str(small_disk_home.root / "back"))
    assert (small_disk_home.root / "back" / "5").read_bytes() == (large / "5").read_bytes()
    assert small_disk_home.server_pid() == pid


def test_commands_report_full_disk_and_recover(small_disk_home: ServerHome, disk: Path) -> None:
    small_disk_home.write("main.py", "print('hello')\n")
    small_disk_home.ok("run", "main.py")
    data = small_disk_home.root / "data"
    data.write_bytes(os.urandom(MORE_THAN_RESERVED))
    pid = small_disk_home.server_pid()
    with fill_disk(disk):
        small_disk_home.write(
            "main.py", "print('hello again')  # " + os.urandom(MORE_THAN_RESERVED // 2).hex() + "\n"
        )
        is_disk_full_error(small_disk_home.hop("run", "main.py"))
        is_disk_full_error(small_disk_home.hop("dataset", "push", "data", str(data)))
        assert [run["phase"] for run in small_disk_home.ok("ps", "--all", "--json").json] == ["succeeded"]
        small_disk_home.ok("status")
    done = small_disk_home.ok("run", "main.py")
    assert done.stdout == "hello again\n"
    assert small_disk_home.ok("dataset", "push", "data", str(data), "--json").json["created"]
    assert small_disk_home.server_pid() == pid


def test_script_continues_when_logs_and_checkpoints_find_no_space(
    small_disk_home: ServerHome, disk: Path
) -> None:
    full, free, done = (small_disk_home.root / name for name in ("full", "free", "done"))
    small_disk_home.write("train.py", GOES_ON)
    name = small_disk_home.run_detached("train.py", "--", str(full), str(free), str(done))
    run = small_disk_home.wait_for_phase(name, "running")
    small_disk_home.wait_for_output(run, "begun")
    wait_until(
        lambda: len(small_disk_home.get(f"/runs/{run['id']}/checkpoints")["checkpoints"]) == 3,
        "the first checkpoints",
    )
    # which makes room
    wait_until(
        lambda: len(list((small_disk_home.replica(run) / "checkpoints").iterdir())) == 1,
        "the removal of the older ones",
    )
    with fill_disk(disk):
        full.touch()
        wait_until(
            lambda: done.exists() or small_disk_home.run(name)["phase"] != "running",
            "the script's work on a full disk",
        )
        assert small_disk_home.run(name)["phase"] == "running"
        small_disk_home.ok("ps")
    free.touch()
    run = small_disk_home.wait_for_phase(name, "succeeded")
    assert run["summary"] == {"turn": 8}
    assert small_disk_home.log(run) == "begun\nend\n"
    output = small_disk_home.log(run, "stderr")
    assert "no checkpoint of step 3: No space left on device; the script continues" in output
    assert "cannot write" in output and output.count("these records are lost") <= 2
    assert [step for step in small_disk_home.metric_series(run, "turn")[0] if step not in (3, 4, 5)] == [
        0,
        1,
        2,
        6,
        7,
        8,
    ]
    for metric in ("lost", "also"):
        steps, values = small_disk_home.metric_series(run, metric)
        assert steps == values == sorted(set(steps)), "each point that was kept is one that was logged"
    kept = [
        checkpoint["step"]
        for checkpoint in small_disk_home.get(f"/runs/{run['id']}/checkpoints")["checkpoints"]
    ]
    assert kept and set(kept) <= {0, 1, 2, 6, 7, 8} and max(kept) == 8
    small_disk_home.ok("pull", name, "pulled", "--checkpoint")


def test_run_with_output_larger_than_disk_fails_with_reason_and_is_removable(
    small_disk_home: ServerHome, disk: Path
) -> None:
    small_disk_home.write(
        "prints.py",
        "import sys\nfor n in range(90): sys.stdout.write('x' * 999_999 + chr(10))\nprint('end')\n",
    )
    small_disk_home.ok("up")
    pid = small_disk_home.server_pid()
    with fill_disk(disk, free_bytes=80 << 20):
        name = small_disk_home.run_detached("prints.py")
        run = small_disk_home.run(name)
        pid_of_script, folder = small_disk_home.replica_status(run)["child_pid"], small_disk_home.replica(run)
        before = folder.stat().st_mtime_ns
        wait_until(lambda: not psutil.pid_exists(pid_of_script), "the end of the script")
        wait_until(lambda: folder.stat().st_mtime_ns != before, "the replica's try to write down the end")
        assert small_disk_home.server_pid() == pid
        small_disk_home.ok("ps")
    ended = small_disk_home.wait_for_phase(name, "failed")
    assert ended["exit"]["code"] in (1, 120)  # 120: the interpreter could not flush its output
    assert "no space left on the disk of " in ended["exit"]["reason"]
    assert ended["attempt"]["number"] == 1
    assert len(small_disk_home.log(ended)) > 1_000_000, "what it printed before is kept"
    small_disk_home.ok("rm", "-y", name)
    assert small_disk_home.ok("run", "echo", "again").stdout == "again\n"
    assert small_disk_home.server_pid() == pid
    assert not (small_disk_home.home.streams / ended["id"]).exists()


FLOODS = "import sys\nfor n in range(400): sys.stdout.write('x' * 999_999 + chr(10))\nprint('end')\n"
WAITS = (
    "import os, sys, time\nprint('begun', flush=True)\n"
    "while not os.path.exists(sys.argv[1]): time.sleep(0.01)\n"
)


def test_run_that_fills_disk_is_removed_and_reserve_is_recreated(
    small_disk_home: ServerHome, disk: Path
) -> None:
    reserve = small_disk_home.home.root / ".reserve"
    small_disk_home.write("floods.py", FLOODS)
    small_disk_home.ok("up")
    wait_until(lambda: len(list(reserve.glob("*"))) == 16, "the reserve")
    name = small_disk_home.run_detached("floods.py")
    wait_until(lambda: os.statvfs(disk).f_bavail < 300, "a full disk")
    small_disk_home.ok("stop", name)
    ended = small_disk_home.wait_for_phase(name, "failed", "cancelled")
    # The order of the three is open: the script may end at the moment in which the server has made
    expected = ("no space left on the disk of ", "the server's disk is full")
    assert ended["phase"] == "cancelled" or any(words in ended["exit"]["reason"] for words in expected)
    wait_until(
        lambda: not (small_disk_home.home.attempts / ended["attempt"]["id"]).exists(),
        "the removal of the attempt's folder",
    )
    small_disk_home.ok("rm", "-y", name)
    assert not (small_disk_home.home.streams / ended["id"]).exists()
    wait_until(lambda: len(list(reserve.glob("*"))) == 16, "the reserve being made again")


def test_full_disk_allows_removals_server_start_and_down(small_disk_home: ServerHome, disk: Path) -> None:
    small_disk_home.write("main.py", "print('hello')\n")
    small_disk_home.write("waits.py", WAITS)
    names = [small_disk_home.run(small_disk_home.run_detached("main.py"))["name"] for _ in range(3)]
    for name in names:
        small_disk_home.wait_for_phase(name, "succeeded")
    live = small_disk_home.run(
        small_disk_home.run_detached("waits.py", "--", str(small_disk_home.root / "never"))
    )
    small_disk_home.wait_for_output(live, "begun")
    small_disk_home.ok("user", "add", "bob")
    with fill_disk(disk):
        small_disk_home.ok("rm", "-y", names[0])
        small_disk_home.ok("user", "rm", "bob")
        small_disk_home.kill_server()
        with (disk / "more").open("wb", buffering=0) as more:  # fills the released reserve, too
            try:
                while True:
                    more.write(b"\0" * 4096)
            except OSError:
                pass
        result = small_disk_home.hop("ps", "--all", "--json")
        assert (result.code, "Traceback" in result.stderr) == (0, False), result
        assert sorted(run["name"] for run in result.json) == sorted([*names[1:], live["name"]])
        assert small_disk_home.ok("logs", names[1]).stdout == "hello\n"
        small_disk_home.ok("rm", "-y", names[1])
        small_disk_home.ok("down", "--stop-runs")
        assert not small_disk_home.processes()
    (disk / "more").unlink()
    assert small_disk_home.wait_for_phase(live["name"], "cancelled")["attempt"]["number"] == 1
    assert small_disk_home.log(small_disk_home.run(names[2])) == "hello\n"
    assert sorted(folder.name for folder in small_disk_home.home.streams.iterdir()) == sorted(
        small_disk_home.run(ref)["id"] for ref in (names[2], live["name"])
    )


def test_full_disk_keeps_key_and_replaces_home_token_with_its_file(
    small_disk_home: ServerHome, disk: Path
) -> None:
    small_disk_home.ok("up")
    before = small_disk_home.home.read_token()
    with fill_disk(disk):
        shutil.rmtree(small_disk_home.home.root / ".reserve", ignore_errors=True)
        with fill_disk(disk / "home"):
            is_disk_full_error(small_disk_home.hop("token", "rotate-key"))
            rotated = small_disk_home.hop("token", "rotate")
            assert (small_disk_home.home.read_token() != before) == (rotated.code == 0), rotated
            small_disk_home.ok("ps")
    small_disk_home.ok("token", "rotate-key")


def test_removal_on_full_disk_without_reserve_is_atomic(small_disk_home: ServerHome, disk: Path) -> None:
    small_disk_home.write("main.py", "print('hello')\n")
    name = small_disk_home.run(small_disk_home.run_detached("main.py"))["name"]
    run = small_disk_home.wait_for_phase(name, "succeeded")
    with fill_disk(disk):
        shutil.rmtree(small_disk_home.home.root / ".reserve", ignore_errors=True)
        with fill_disk(disk / "home"):
            result = small_disk_home.hop("rm", "-y", name)
            exists = (small_disk_home.home.streams / run["id"]).exists()
    assert result.code in (0, 1), result
    assert exists == (result.code == 1)
    if exists:
        assert small_disk_home.log(small_disk_home.run(name)) == "hello\n"
    assert (name in {run["name"] for run in small_disk_home.ok("ps", "--all", "--json").json}) == exists


def test_script_that_ended_on_full_disk_is_not_rerun_after_replica_loss(
    small_disk_home: ServerHome, disk: Path
) -> None:
    release, begun = small_disk_home.root / "let_go", small_disk_home.root / "begun"
    small_disk_home.write("waits.py", f"open({str(begun)!r}, 'a').write('x')\n{WAITS}")
    name = small_disk_home.run_detached("waits.py", "--", str(release))
    run = small_disk_home.run(name)
    small_disk_home.wait_for_output(run, "begun")
    small_disk_home.kill_server()
    with fill_disk(disk):
        release.touch()
        status = small_disk_home.replica(run) / "status.json"
        wait_until(lambda: json.loads(status.read_bytes())["exit"], "the exit being written on a full disk")
        os.kill(json.loads(status.read_bytes())["pid"], signal.SIGKILL)
    assert small_disk_home.wait_for_phase(name, "succeeded")["attempt"]["number"] == 1
    assert begun.read_text() == "x"


def test_endless_output_does_not_fill_disk(small_disk_home: ServerHome, disk: Path) -> None:
    settings = small_disk_home.home.settings_file
    settings.write_text(settings.read_text() + "runs: {max_output: 8M}\n")
    small_disk_home.write(
        "floods.py",
        "import sys, time\nfor n in range(400): sys.stdout.write('x' * 999_999 + chr(10)); "
        "time.sleep(0.005)\nprint('end')\n",
    )
    done = small_disk_home.ok("run", "floods.py")
    assert done.stdout.endswith("end\n")
    assert "bytes of stdout of replica 0 are left out" in done.stderr
    run = small_disk_home.run("last")
    assert "has passed its limit of 8" in small_disk_home.log(run)
    assert len(small_disk_home.log(run)) < 12_000_000
