"""Trouble of the node or of its server is not the run's: what could not be done is done once that is
possible."""

from __future__ import annotations

import resource
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psutil

from tests.faults.test_bad_input import damage
from tests.faults.test_full_disk import filled
from tests.faults.world import World, is_gone, kill, until

# Saves at each turn, and leaves a file.
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
def without_descriptors(pid: int, *, spare: int = 0) -> Iterator[None]:
    """The process may open no more than `spare` descriptors for as long as the block lasts."""
    before = resource.prlimit(pid, resource.RLIMIT_NOFILE)
    resource.prlimit(
        pid, resource.RLIMIT_NOFILE, (spare + len(list(Path(f"/proc/{pid}/fd").iterdir())), before[1])
    )
    try:
        yield
    finally:
        resource.prlimit(pid, resource.RLIMIT_NOFILE, before)


def test_a_server_that_fails_for_a_while_gets_every_checkpoint_and_file_later(world: World) -> None:
    world.write("saves.py", SAVES)
    name = world.detach("saves.py", "--", str(world.root / "go"))
    run = world.reaches(name, "running")
    world.says(run, "begun")
    pid, log = world.server_pid(), world.replica(run) / "replica.log"
    soft, hard = resource.prlimit(pid, resource.RLIMIT_NOFILE)
    assert soft == (65_536 if hard == resource.RLIM_INFINITY else min(hard, 65_536)), (
        "it raised its own limit"
    )
    with without_descriptors(pid):
        (world.root / "go").touch()
        world.says(run, "end")
        until(lambda: "checkpoint waits: " in log.read_text(), "a failed try to store a checkpoint")
    run = world.reaches(name, "succeeded")
    assert [one["step"] for one in world.get(f"/runs/{run['id']}/checkpoints")["checkpoints"]] == [6, 7, 8]
    assert run["artifact"] and run["unstored"] == []


def test_a_replica_without_descriptors_sends_checkpoints_and_files_later(world: World) -> None:
    """The script is not taken for one that failed or never began, and what it started ends with it."""
    world.write(
        "saves.py",
        SAVES + "import subprocess\nopen('child', 'w').write(str(subprocess.Popen(['sleep', '600']).pid))\n",
    )
    name = world.detach("saves.py", "--", str(world.root / "go"))
    run = world.reaches(name, "running")
    world.says(run, "begun")
    log, pid = world.replica(run) / "replica.log", world.state(run)["pid"]
    # whatever it has open
    before = resource.prlimit(
        pid, resource.RLIMIT_NOFILE, (3, resource.prlimit(pid, resource.RLIMIT_NOFILE)[1])
    )
    (world.root / "go").touch()
    child = world.replica(run) / "work" / "child"
    pid_of_child = int(until(lambda: child.exists() and child.read_text(), "the child of the script"))
    until(
        lambda: "cannot list processes: " in log.read_text(),
        "a script with processes that cannot be found",
    )
    resource.prlimit(pid, resource.RLIMIT_NOFILE, before)
    run = world.reaches(name, "succeeded")
    assert [one["step"] for one in world.get(f"/runs/{run['id']}/checkpoints")["checkpoints"]] == [6, 7, 8]
    assert run["artifact"] and run["unstored"] == [] and run["attempt"]["number"] == 1
    assert is_gone(pid_of_child)


def test_runs_wait_while_the_disk_is_low_and_start_by_themselves_afterwards(small: World, disk: Path) -> None:
    small.write("main.py", "print('hello')\n")
    small.ok("run", "main.py")
    with filled(disk, free_bytes=40 << 20):
        names = [small.detach("main.py") for _ in range(3)]
        until(lambda: small.get("/nodes")["nodes"][0]["trouble"], "the node out of service")
        listed = small.ok("node", "ls").out
        assert "out of service" in listed and "are free on the disk" in listed
        until(lambda: all(small.run(name)["hold_reason"] for name in names), "why they wait")
        said = small.ok("ps").out
        assert said.count("are free on the disk") == len(names) and "failed" not in said
        assert "are free on the disk" in small.ok("why", names[-1]).out
    for name in names:
        run = small.reaches(name, "succeeded")
        assert len(small.get(f"/runs/{run['id']}")["attempts"]) <= 3, "tries have pauses between them"
    assert small.get("/nodes")["nodes"][0]["trouble"] == ""


def test_a_node_that_cannot_start_replicas_puts_its_run_back(world: World) -> None:
    world.ok("up")
    client, pid = world.client(), world.server_pid()
    spawner = next(
        child for child in psutil.Process(pid).children() if "hopyard.replica.spawner" in child.cmdline()
    )
    role = {"command": ["sh", "-c", "echo hello"], "resources": {"cpu_milli": 100}}
    with without_descriptors(pid, spare=2):  # a new spawner needs a few
        kill(spawner.pid)
        run = client.post("/runs", {"spec": {"project": "work", "roles": [role], "max_attempts": 1}})
        put_back = until(
            lambda: (
                (found := client.get(f"/runs/{run['id']}"))["phase"] == "queued"
                and found["attempt"]
                and found
            ),
            "a failed start",
        )
        assert put_back["attempt"]["exit"]["kind"] == "node-fault"
        assert "Too many open files" in until(
            lambda: client.get("/nodes")["nodes"][0]["trouble"], "the node out of service"
        )
    ended = world.reaches(run["name"], "succeeded")
    assert world.log(ended) == "hello\n"


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


def test_a_damaged_checkpoint_is_passed_over_for_the_one_before(world: World) -> None:
    world.write("marked.py", MARKED)
    name = world.detach("--replicas", "2", "--cpus", "0.5", "marked.py", "--", str(world.root / "go"))
    run = world.reaches(name, "running")
    checkpoints = f"/runs/{run['id']}/checkpoints"
    until(
        lambda: [one["step"] for one in world.get(checkpoints)["checkpoints"]] == [2, 3, 4],
        "the newest checkpoint",
    )
    world.says(run, "turn 3", rank=1)
    assert damage(world.home.root, b"the mark of turn 3 the mark of turn 3") >= 1
    kill(world.state(run)["pid"])
    (world.root / "go").touch()
    run = world.reaches(name, "succeeded")
    attempts = world.get(f"/runs/{run['id']}")["attempts"]
    assert [(one["resumed_from_step"], one["exit"]["kind"]) for one in attempts] == [
        (None, "lost"),
        (4, "node-fault"),
        (3, "exit-code"),
    ]
    assert "the checkpoint of step 4 cannot be read" in world.ok("info", name).out
    assert "; the next attempt starts from the previous checkpoint" in attempts[1]["exit"]["reason"]
    for rank in (0, 1):
        assert world.log(run, rank=rank).splitlines() == [f"turn {turn}" for turn in range(6)]


def test_a_damaged_checkpoint_is_marked_and_the_one_before_is_pulled_and_forked(world: World) -> None:
    world.write("marked.py", MARKED)
    (world.root / "go").touch()
    name = world.reaches(world.detach("marked.py", "--", str(world.root / "go")), "succeeded")["name"]
    assert damage(world.home.root, b"the mark of turn 5 the mark of turn 5") >= 1
    assert world.hop("doctor", "--verify").code == 1
    listed = [line for line in world.ok("info", name).out.splitlines() if "KiB" in line]
    assert ["damaged: it cannot be read" in line for line in listed] == [False, False, True], listed
    pulled = world.ok("pull", name, "here", "--checkpoint")
    assert "the checkpoint of step 6 is damaged: that of step 5 is fetched" in pulled.talk
    assert (world.folder / "here" / "checkpoint-5").is_dir()
    refused = world.hop("pull", name, "there", "--step", "6")
    assert (refused.code, "is damaged" in refused.talk, "it has: 4, 5" in refused.talk) == (1, True, True), (
        refused
    )
    assert (
        "warning: the checkpoint of step 6"
        in world.ok("fork", name, "--checkpoint", "newest", "--detach").talk
    )
