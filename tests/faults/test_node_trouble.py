"""Trouble of the node or of its server is not the run's: what could not be done is done once that is possible."""

from __future__ import annotations

import resource
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from .world import World, until

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
def without_descriptors(pid: int) -> Iterator[None]:
    """The process may open nothing more for as long as the block lasts."""
    before = resource.prlimit(pid, resource.RLIMIT_NOFILE)
    resource.prlimit(pid, resource.RLIMIT_NOFILE, (len(list(Path(f"/proc/{pid}/fd").iterdir())), before[1]))
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
    assert soft == (65_536 if hard == resource.RLIM_INFINITY else min(hard, 65_536)), "it raised its own limit"
    with without_descriptors(pid):
        (world.root / "go").touch()
        world.says(run, "end")
        until(lambda: "checkpoint waits: the server failed" in log.read_text(), "a failed try to store a checkpoint")
    run = world.reaches(name, "succeeded")
    assert [one["step"] for one in world.get(f"/runs/{run['id']}/checkpoints")["checkpoints"]] == [6, 7, 8]
    assert run["artifact"] and run["unstored"] == []
