"""`hop stop --signal`: all replicas of a run get the signal, behind a shell too."""

from __future__ import annotations

import time

from hopyard.api_client.client import Client
from tests.cli.shell import Shell

INTERRUPTED = """
import time
try:
    print("up", flush=True)
    time.sleep(600)
except KeyboardInterrupt:
    time.sleep(0.3)
    print("saved", flush=True)
"""


def _lines(shell: Shell, run: str, text: str, count: int) -> str:
    deadline = time.monotonic() + 120
    while (output := shell.hop("logs", run).text).count(text) < count:
        assert time.monotonic() < deadline, output
        time.sleep(0.1)
    return output


def test_interrupt_reaches_all_replicas_and_they_save(shell: Shell, client: Client) -> None:
    shell.write("train.py", INTERRUPTED)
    shell.write("train.sh", "python -u train.py\necho after $?\n")
    run = shell.detach("--replicas", "2", "--cpus", "0.5", "sh", "--", "train.sh")
    _lines(shell, run, "up", 2)
    stopped = shell.hop("stop", "--signal", "sigint", "--grace", "10m", run)
    assert stopped.stderr_text == f"{run}  stopping with SIGINT\n"
    assert shell.hop("logs", "-f", run).text.count("saved") == 2
    info = shell.hop("info", "--json", run).json
    assert (info["phase"], info["exit"]["kind"]) == ("cancelled", "stopped")
    assert info["exit"]["reason"] == "stopped by request with SIGINT"
    (record,) = client.iterate_audit(action="run.stop", target=info["id"])
    assert record["detail"]["signal"] == "INT", record


def test_unknown_signal_is_refused(shell: Shell) -> None:
    refused = shell.hop("stop", "--signal", "KILL", "last")
    assert (refused.code, "use --grace 0 to kill at once" in refused.stderr_text) == (2, True)
