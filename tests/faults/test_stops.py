"""A server that is killed within the grace of a stop repeats the same stop when it starts again."""

from __future__ import annotations

from .server_home import ServerHome, submit, wait_until

SAVES_AFTER_INTERRUPT = """
import os, signal, time

signals = []
for name in ("SIGINT", "SIGTERM"):
    signal.signal(getattr(signal, name), lambda number, _: signals.append(number))
print("begun", flush=True)
while not signals:
    time.sleep(0.02)
print("saves", flush=True)
while not os.path.exists(GATE):
    time.sleep(0.02)
print("signals", signals, flush=True)
"""


def test_killed_server_repeats_the_signal_and_the_grace(server_home: ServerHome) -> None:
    gate = server_home.root / "gate"
    script = f"GATE = {str(gate)!r}\n{SAVES_AFTER_INTERRUPT}"
    submitted = submit(server_home, ["python", "-c", script])
    run = server_home.wait_for_phase(submitted["id"], "running")
    server_home.wait_for_output(run, "begun")
    server_home.ok("stop", "--signal", "INT", "--grace", "10m", run["id"])
    server_home.wait_for_output(run, "saves")
    killed = server_home.kill_server()
    server_home.ok("ps")  # starts the next server
    wait_until(lambda: server_home.server_pid() != killed, "the file of the next server")
    server_home.ok("stop", "--grace", "10m", run["id"])  # without a signal of its own: that of the first
    gate.touch()
    ended = server_home.wait_for_phase(run["id"], "succeeded", "cancelled", "failed")
    assert "signals [2]" in server_home.log(run), server_home.log(run)
    assert ended["exit"]["reason"].endswith("stopped by request with SIGINT")
