"""Limits end only the run that exceeds them, with a reason: memory, time, and an ignored stop."""

from __future__ import annotations

from pathlib import Path

from .server_home import ServerHome, has_ended, wait_until

HOGS = (
    "import time\nprint('begun', flush=True)\nkept = []\nwhile True:\n"
    "    kept.append(bytearray(b'x' * (8 << 20)))\n    time.sleep(0.01)\n"
)


def waiting_script(gate: Path) -> str:
    return (
        "import os, time\nballast = bytearray(b'x' * (20 << 20))\nprint('begun', flush=True)\n"
        f"while not os.path.exists({str(gate)!r}): time.sleep(0.01)\nprint('end')\n"
    )


def test_run_over_memory_limit_is_killed_alone(server_home: ServerHome) -> None:
    gate = server_home.root / "gate"
    server_home.write("neighbour.py", waiting_script(gate))
    server_home.write("hogs.py", HOGS)
    neighbour = server_home.run_detached("--memory", "200M", "neighbour.py")
    run = server_home.wait_for_phase(neighbour, "running")
    server_home.wait_for_output(run, "begun")
    result = server_home.hop("run", "--memory", "150M", "hogs.py")
    assert (result.code, result.stdout) == (137, "begun\n"), result
    assert "of its 150 MiB memory" in result.stderr.splitlines()[-1], result.stderr
    ended = server_home.run("last")
    assert (ended["phase"], ended["exit"]["kind"], ended["attempt"]["number"]) == (
        "failed",
        "out-of-memory",
        1,
    )
    assert server_home.run(neighbour)["phase"] == "running"
    gate.touch()
    assert server_home.wait_for_phase(neighbour, "succeeded")["attempt"]["number"] == 1
    assert server_home.log(run) == "begun\nend\n"


def test_memory_limit_is_enforced_during_outage(server_home: ServerHome) -> None:
    server_home.write(
        "hogs.py",
        (
            "import os, time\nprint('begun', flush=True)\nwhile not os.path.exists('/proc/self/none') and "
            "not os.path.exists(GATE): time.sleep(0.01)\n"
        ).replace("GATE", repr(str(server_home.root / "gate")))
        + HOGS,
    )
    name = server_home.run_detached("--memory", "150M", "hogs.py")
    run = server_home.wait_for_phase(name, "running")
    server_home.wait_for_output(run, "begun")
    state = server_home.replica_status(run)
    server_home.kill_server()
    (server_home.root / "gate").touch()
    wait_until(lambda: has_ended(state["child_pid"]), "the end of the script")
    server_home.ok("up")
    assert server_home.wait_for_phase(name, "failed")["exit"]["kind"] == "out-of-memory"


def test_time_limit_is_enforced_during_outage(server_home: ServerHome) -> None:
    server_home.write("sleep.py", "import time\nprint('begun', flush=True)\ntime.sleep(600)\n")
    result = server_home.hop("run", "--time", "1s", "sleep.py")
    assert (result.code, result.stdout) == (124, "begun\n"), result
    assert "time limit of 1 s reached" in result.stderr.splitlines()[-1]
    name = server_home.run_detached("--time", "2s", "sleep.py")
    state = server_home.replica_status(server_home.wait_for_phase(name, "running"))
    server_home.kill_server()
    wait_until(lambda: has_ended(state["child_pid"]), "the end of the script")
    server_home.ok("up")
    ended = server_home.wait_for_phase(name, "failed")
    assert (ended["exit"]["kind"], ended["exit"]["code"]) == ("time-limit", 124)


def test_script_ignoring_sigterm_is_killed_with_its_children(server_home: ServerHome) -> None:
    server_home.write(
        "deaf.py",
        "import signal, subprocess, sys, time\nsignal.signal(signal.SIGTERM, signal.SIG_IGN)\n"
        "if len(sys.argv) == 1:\n    child = subprocess.Popen([sys.executable, __file__, 'child'], "
        "start_new_session=True)\n    print('begun', child.pid, flush=True)\n"
        "time.sleep(600)\n",
    )
    name = server_home.run_detached("deaf.py")
    run = server_home.wait_for_phase(name, "running")
    server_home.wait_for_output(run, "begun ")
    state = server_home.replica_status(run)
    wait_until(lambda: server_home.log(run).endswith("\n"), "the child's number")
    child = int(server_home.log(run).split()[1])
    server_home.ok("stop", "--grace", "0.5s", name)
    ended = server_home.wait_for_phase(name, "cancelled")
    assert (ended["exit"]["kind"], ended["exit"]["reason"]) == ("stopped", "stopped by request")
    assert has_ended(state["child_pid"])
    assert has_ended(child)


def test_queued_run_is_cancelled_without_start(server_home: ServerHome) -> None:
    server_home.write("sleep.py", "import time\nprint('begun', flush=True)\ntime.sleep(600)\n")
    holder, waiting = (
        server_home.run_detached("--cpus", "4", "sleep.py"),
        server_home.run_detached("--cpus", "1", "sleep.py"),
    )
    assert server_home.run(waiting)["phase"] == "queued"
    server_home.kill_server()
    assert server_home.run(waiting)["phase"] == "queued"
    server_home.ok("stop", waiting)
    ended = server_home.wait_for_phase(waiting, "cancelled")
    assert ended["attempt"] is None
    assert server_home.hop("logs", waiting).stdout == ""
    server_home.ok("stop", "--grace", "0", holder)
    server_home.wait_for_phase(holder, "cancelled")
