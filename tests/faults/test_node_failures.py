"""Faults of the node or its server do not fail a run: failed work is retried once it is possible."""

from __future__ import annotations

import resource
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psutil

from tests.faults.server_home import ServerHome, has_ended, kill, wait_until
from tests.faults.test_bad_input import corrupt_blobs
from tests.faults.test_full_disk import fill_disk

# Saves at each step, and writes an output file.
SAVES = """
import os, sys, time
import hopyard as hop

state = {"turn": 0}
hop.bind(state=state)
print("begun", flush=True)
while not os.path.exists(sys.argv[1]): time.sleep(0.01)
for turn in hop.loop(range(8)):
    state["turn"] = turn
open("made.txt", "w").write("made")
print("end", flush=True)
"""


@contextmanager
def without_descriptors(pid: int, *, spare: int = 0) -> Iterator[Callable[[], None]]:
    """The process may open no more than `spare` descriptors for as long as the block lasts. The function that
    the block receives takes away those that the process has closed meanwhile."""
    before = resource.prlimit(pid, resource.RLIMIT_NOFILE)
    lowest = before[0] if before[0] != resource.RLIM_INFINITY else 1 << 30

    def restrict() -> None:
        nonlocal lowest
        lowest = min(lowest, spare + len(list(Path(f"/proc/{pid}/fd").iterdir())))
        resource.prlimit(pid, resource.RLIMIT_NOFILE, (lowest, before[1]))

    restrict()
    try:
        yield restrict
    finally:
        resource.prlimit(pid, resource.RLIMIT_NOFILE, before)


def test_checkpoints_and_files_are_uploaded_after_server_outage(
    server_home: ServerHome,
) -> None:
    server_home.write("saves.py", SAVES)
    name = server_home.run_detached("saves.py", "--", str(server_home.root / "go"))
    run = server_home.wait_for_phase(name, "running")
    server_home.wait_for_output(run, "begun")
    pid, log = server_home.server_pid(), server_home.replica(run) / "replica.log"
    soft, hard = resource.prlimit(pid, resource.RLIMIT_NOFILE)
    assert soft == (65_536 if hard == resource.RLIM_INFINITY else min(hard, 65_536)), (
        "it raised its own limit"
    )
    with without_descriptors(pid):
        (server_home.root / "go").touch()
        server_home.wait_for_output(run, "end")
        wait_until(lambda: "checkpoint waits: " in log.read_text(), "a failed try to store a checkpoint")
    run = server_home.wait_for_phase(name, "succeeded")
    assert [
        checkpoint["step"] for checkpoint in server_home.get(f"/runs/{run['id']}/checkpoints")["checkpoints"]
    ] == [
        6,
        7,
        8,
    ]
    assert run["artifact"] and run["unstored"] == []


def test_replica_without_descriptors_uploads_checkpoints_and_files_later(server_home: ServerHome) -> None:
    """The script does not count as failed or as not started, and its child processes end with it."""
    server_home.write(
        "saves.py",
        SAVES + "import subprocess\nopen('child', 'w').write(str(subprocess.Popen(['sleep', '600']).pid))\n",
    )
    name = server_home.run_detached("saves.py", "--", str(server_home.root / "go"))
    run = server_home.wait_for_phase(name, "running")
    server_home.wait_for_output(run, "begun")
    log, pid = server_home.replica(run) / "replica.log", server_home.replica_status(run)["pid"]
    # including its open descriptors
    before = resource.prlimit(
        pid, resource.RLIMIT_NOFILE, (3, resource.prlimit(pid, resource.RLIMIT_NOFILE)[1])
    )
    (server_home.root / "go").touch()
    child = server_home.replica(run) / "work" / "child"
    pid_of_child = int(wait_until(lambda: child.exists() and child.read_text(), "the child of the script"))
    wait_until(
        lambda: "cannot list processes: " in log.read_text(),
        "a script with processes that cannot be found",
    )
    resource.prlimit(pid, resource.RLIMIT_NOFILE, before)
    run = server_home.wait_for_phase(name, "succeeded")
    assert [
        checkpoint["step"] for checkpoint in server_home.get(f"/runs/{run['id']}/checkpoints")["checkpoints"]
    ] == [
        6,
        7,
        8,
    ]
    assert run["artifact"] and run["unstored"] == [] and run["attempt"]["number"] == 1
    assert has_ended(pid_of_child)


def test_runs_wait_while_disk_is_low_and_start_afterwards(small_disk_home: ServerHome, disk: Path) -> None:
    small_disk_home.write("main.py", "print('hello')\n")
    small_disk_home.ok("run", "main.py")
    with fill_disk(disk, free_bytes=40 << 20):
        names = [small_disk_home.run_detached("main.py") for _ in range(3)]
        wait_until(lambda: small_disk_home.get("/nodes")["nodes"][0]["trouble"], "the node out of service")
        listed = small_disk_home.ok("node", "ls").stdout
        assert "out of service" in listed and "are free on the disk" in listed
        wait_until(lambda: all(small_disk_home.run(name)["hold_reason"] for name in names), "why they wait")
        output = small_disk_home.ok("ps").stdout
        assert output.count("are free on the disk") == len(names) and "failed" not in output
        assert "are free on the disk" in small_disk_home.ok("why", names[-1]).stdout
    for name in names:
        run = small_disk_home.wait_for_phase(name, "succeeded")
        assert len(small_disk_home.get(f"/runs/{run['id']}")["attempts"]) <= 3, (
            "tries have pauses between them"
        )
    assert small_disk_home.get("/nodes")["nodes"][0]["trouble"] == ""


def test_run_is_requeued_when_node_cannot_start_replicas(server_home: ServerHome) -> None:
    server_home.ok("up")
    client, pid = server_home.client(), server_home.server_pid()
    spawner = next(
        child for child in psutil.Process(pid).children() if "hopyard.replica.spawner" in child.cmdline()
    )
    role = {"command": ["sh", "-c", "echo hello"], "resources": {"cpu_milli": 100}}
    with without_descriptors(pid, spare=2) as restrict:  # a new spawner needs a few
        kill(spawner.pid)
        run = client.post("/runs", {"spec": {"project": "work", "roles": [role], "max_attempts": 1}})

        def put_back_run() -> Any:
            restrict()  # else the retry of the server may succeed before its node is seen out of service
            current = client.get(f"/runs/{run['id']}")
            return current["phase"] == "queued" and current["attempt"] and current

        def trouble() -> Any:
            restrict()  # likewise: a check of the node that succeeds ends the trouble
            return client.get("/nodes")["nodes"][0]["trouble"]

        put_back = wait_until(put_back_run, "a failed start")
        assert put_back["attempt"]["exit"]["kind"] == "node-fault"
        assert "Too many open files" in wait_until(trouble, "the node out of service")
    ended = server_home.wait_for_phase(run["name"], "succeeded")
    assert server_home.log(ended) == "hello\n"


MARKED = """
import os, sys, time
import hopyard as hop

state = {"turn": 0, "mark": ""}
hop.bind(state=state)
for turn in hop.loop(range(6)):
    while turn == 4 and not os.path.exists(sys.argv[1]): time.sleep(0.01)
    state["turn"], state["mark"] = turn, f"the mark of turn {turn} " * 20
    print("turn", turn, flush=True)
    hop.log(turn=turn, step=turn)
"""


def test_resume_skips_damaged_checkpoint(server_home: ServerHome) -> None:
    server_home.write("marked.py", MARKED)
    name = server_home.run_detached(
        "--replicas", "2", "--cpus", "0.5", "marked.py", "--", str(server_home.root / "go")
    )
    run = server_home.wait_for_phase(name, "running")
    checkpoints = f"/runs/{run['id']}/checkpoints"
    wait_until(
        lambda: (
            [checkpoint["step"] for checkpoint in server_home.get(checkpoints)["checkpoints"]] == [2, 3, 4]
        ),
        "the newest checkpoint",
    )
    server_home.wait_for_output(run, "turn 3", rank=1)
    assert corrupt_blobs(server_home.home.root, b"the mark of turn 3 the mark of turn 3") >= 1
    kill(server_home.replica_status(run)["pid"])
    (server_home.root / "go").touch()
    run = server_home.wait_for_phase(name, "succeeded")
    attempts = server_home.get(f"/runs/{run['id']}")["attempts"]
    assert [(attempt["resumed_from_step"], attempt["exit"]["kind"]) for attempt in attempts] == [
        (None, "lost"),
        (4, "node-fault"),
        (3, "exit-code"),
    ]
    assert "the checkpoint of step 4 cannot be read" in server_home.ok("info", name).stdout
    assert "; the next attempt starts from the previous checkpoint" in attempts[1]["exit"]["reason"]
    for rank in (0, 1):
        assert server_home.log(run, rank=rank).splitlines() == [f"turn {turn}" for turn in range(6)]


def test_pull_and_fork_skip_damaged_checkpoint(
    server_home: ServerHome,
) -> None:
    server_home.write("marked.py", MARKED)
    (server_home.root / "go").touch()
    name = server_home.wait_for_phase(
        server_home.run_detached("marked.py", "--", str(server_home.root / "go")), "succeeded"
    )["name"]
    assert corrupt_blobs(server_home.home.root, b"the mark of turn 5 the mark of turn 5") >= 1
    assert server_home.hop("doctor", "--verify").code == 1
    listed = [line for line in server_home.ok("info", name).stdout.splitlines() if "KiB" in line]
    assert ["damaged: it cannot be read" in line for line in listed] == [False, False, True], listed
    pulled = server_home.ok("pull", name, "here", "--checkpoint")
    assert "the checkpoint of step 6 is damaged: that of step 5 is fetched" in pulled.stderr
    assert (server_home.folder / "here" / "checkpoint-5").is_dir()
    result = server_home.hop("pull", name, "there", "--step", "6")
    assert (
        result.code,
        "is damaged" in result.stderr,
        "it has: 4, 5" in result.stderr,
    ) == (1, True, True), result
    assert (
        "warning: the checkpoint of step 6"
        in server_home.ok("fork", name, "--checkpoint", "newest", "--detach").stderr
    )
