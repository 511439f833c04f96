"""Limits end the run that is over them, in words, and nobody else: memory, time, a stop that is not listened
to."""

from __future__ import annotations

from pathlib import Path

from .world import World, is_gone, until

HOGS = (
    "import time\nprint('begun', flush=True)\nkept = []\nwhile True:\n"
    "    kept.append(bytearray(b'x' * (8 << 20)))\n    time.sleep(0.01)\n"
)


def waits(gate: Path) -> str:
    return (
        "import os, time\nballast = bytearray(b'x' * (20 << 20))\nprint('begun', flush=True)\n"
        f"while not os.path.exists({str(gate)!r}): time.sleep(0.01)\nprint('end')\n"
    )


def test_a_run_over_its_memory_ends_and_its_neighbour_lives_on(world: World) -> None:
    gate = world.root / "gate"
    world.write("neighbour.py", waits(gate))
    world.write("hogs.py", HOGS)
    neighbour = world.detach("--memory", "200M", "neighbour.py")
    run = world.reaches(neighbour, "running")
    world.says(run, "begun")
    done = world.hop("run", "--memory", "150M", "hogs.py")
    assert (done.code, done.out) == (137, "begun\n"), done
    assert "of its 150 MiB memory" in done.talk.splitlines()[-1], done.talk
    ended = world.run("last")
    assert (ended["phase"], ended["exit"]["kind"], ended["attempt"]["number"]) == (
        "failed",
        "out-of-memory",
        1,
    )
    assert world.run(neighbour)["phase"] == "running"
    gate.touch()
    assert world.reaches(neighbour, "succeeded")["attempt"]["number"] == 1
    assert world.log(run) == "begun\nend\n"


def test_a_run_over_its_memory_is_ended_while_the_server_is_dead(world: World) -> None:
    world.write(
        "hogs.py",
        (
            "import os, time\nprint('begun', flush=True)\nwhile not os.path.exists('/proc/self/none') and "
            "not os.path.exists(GATE): time.sleep(0.01)\n"
        ).replace("GATE", repr(str(world.root / "gate")))
        + HOGS,
    )
    name = world.detach("--memory", "150M", "hogs.py")
    run = world.reaches(name, "running")
    world.says(run, "begun")
    state = world.state(run)
    world.kill_server()
    (world.root / "gate").touch()
    until(lambda: is_gone(state["child_pid"]), "the end of the script")
    world.ok("up")
    assert world.reaches(name, "failed")["exit"]["kind"] == "out-of-memory"


def test_a_time_limit_also_while_the_server_is_dead(world: World) -> None:
    world.write("sleep.py", "import time\nprint('begun', flush=True)\ntime.sleep(600)\n")
    done = world.hop("run", "--time", "1s", "sleep.py")
    assert (done.code, done.out) == (124, "begun\n"), done
    assert "time limit of 1 s reached" in done.talk.splitlines()[-1]
    name = world.detach("--time", "2s", "sleep.py")
    state = world.state(world.reaches(name, "running"))
    world.kill_server()
    until(lambda: is_gone(state["child_pid"]), "the end of the script")
    world.ok("up")
    ended = world.reaches(name, "failed")
    assert (ended["exit"]["kind"], ended["exit"]["code"]) == ("time-limit", 124)


def test_a_script_that_ignores_sigterm_is_killed_with_its_children(world: World) -> None:
    world.write(
        "deaf.py",
        "import signal, subprocess, sys, time\nsignal.signal(signal.SIGTERM, signal.SIG_IGN)\n"
        "if len(sys.argv) == 1:\n    child = subprocess.Popen([sys.executable, __file__, 'child'], "
        "start_new_session=True)\n    print('begun', child.pid, flush=True)\n"
        "time.sleep(600)\n",
    )
    name = world.detach("deaf.py")
    run = world.reaches(name, "running")
    world.says(run, "begun ")
    state = world.state(run)
    until(lambda: world.log(run).endswith("\n"), "the child's number")
    child = int(world.log(run).split()[1])
    world.ok("stop", "--grace", "0.5s", name)
    ended = world.reaches(name, "cancelled")
    assert (ended["exit"]["kind"], ended["exit"]["reason"]) == ("stopped", "stopped by request")
    assert is_gone(state["child_pid"])
    assert is_gone(child)


def test_what_waits_is_stopped_before_it_starts(world: World) -> None:
    world.write("sleep.py", "import time\nprint('begun', flush=True)\ntime.sleep(600)\n")
    holder, waiting = world.detach("--cpus", "4", "sleep.py"), world.detach("--cpus", "1", "sleep.py")
    assert world.run(waiting)["phase"] == "queued"
    world.kill_server()
    assert world.run(waiting)["phase"] == "queued"
    world.ok("stop", waiting)
    ended = world.reaches(waiting, "cancelled")
    assert ended["attempt"] is None
    assert world.hop("logs", waiting).out == ""
    world.ok("stop", "--grace", "0", holder)
    world.reaches(holder, "cancelled")
