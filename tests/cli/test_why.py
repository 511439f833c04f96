"""`hop why`, as people type it."""

from __future__ import annotations

from .terminal import Shell

SLEEP = "import time\ntime.sleep(600)\n"


def test_why_a_run_waits(shell: Shell) -> None:
    shell.write("sleep.py", SLEEP)
    first = shell.hop("run", "--json", "--detach", "--cpus", "3", "--time", "1h", "sleep.py").json
    waits = shell.hop("run", "--json", "--detach", "--cpus", "4", "--time", "10m", "sleep.py").json
    try:
        lines = shell.hop("why", waits["name"]).text.splitlines()
        assert lines[0] == f"{waits['name']} waits in queue default, position 1 of 1"
        assert lines[1].endswith("[no-capacity]")
        assert any(line.startswith(f"  run {first['name']}, probably until ") for line in lines)
        assert any(line.startswith("expected start: ") for line in lines)
        assert "it would start" in lines and "  with 1 CPU: now" in lines
        told = shell.hop("why", waits["name"], "--json").json
        assert told["reason"] == "no-capacity" and told["expected"]["mid_at"]
        assert shell.hop("why", first["name"]).text.startswith(f"{first['name']}: it does not wait: it ")
        assert "expected to start at " in shell.hop("ps").text
    finally:
        shell.hop("stop", "--grace", "0", first["name"], waits["name"])
    assert "it has ended (cancelled)" in shell.hop("why", waits["name"]).text


def test_a_run_that_is_not_there(shell: Shell) -> None:
    done = shell.hop("why", "nobody/nothing/1")
    assert done.code == 2 and "there is no run" in done.talk
