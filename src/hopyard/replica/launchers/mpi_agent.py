"""The agent of a replica in an MPI gang: starts the daemon of `mpirun` when the first replica requests it.

It takes the place of an SSH server. Its process ends with the `mpirun` of the first replica.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

from hopyard.private_files import make_folder
from hopyard.replica.launchers.mpi_channel import Channel, ChannelRefused, accept
from hopyard.replica.launchers.mpi_plan import FAILURES_DIR, MpiPlan, read_plan, replica_folder
from hopyard.replica.signal_text import signal_text

START, CONTROL = "start", "control"  # requests
OUTPUT, EXITED, READY, END, FAILED, FAILURES = b"o", b"x", b"r", b"e", b"b", b"f"  # frames
_STOP_TIMEOUT_S = 60.0
_POLL_INTERVAL_S = 0.25
# The daemons of several replicas on one machine would take the files of each other for their own.
_FOLDER_VARIABLES = (
    "OMPI_MCA_orte_tmpdir_base",
    "OMPI_MCA_btl_vader_backing_directory",
    "OMPI_MCA_btl_sm_backing_directory",
    "PRTE_MCA_prte_tmpdir_base",
)


class MpiAgent:
    """Serves the requests of the first replica. exit_code: of this replica, once the gang has ended."""

    def __init__(self, plan: MpiPlan) -> None:
        self._plan = plan
        self.exit_code: int | None = None
        self.is_over = threading.Event()
        # of an earlier process of this replica
        shutil.rmtree(os.path.join(replica_folder(), FAILURES_DIR), ignore_errors=True)
        own = plan.peer(plan.name)
        assert own is not None
        self._server = socket.create_server((own.address, own.port), backlog=256)
        threading.Thread(target=self._accept, name="accept", daemon=True).start()

    def close(self) -> None:
        self._server.close()

    def _accept(self) -> None:
        while True:
            try:
                connection, _ = self._server.accept()
            except OSError:
                return
            threading.Thread(target=self._serve, args=(connection,), daemon=True).start()

    def _serve(self, connection: socket.socket) -> None:
        try:
            channel, request = accept(connection, self._plan.secret)
            if request["kind"] == START:
                self._start_daemon(channel, str(request["command"]))
            else:
                self._obey(channel)
        except (OSError, ValueError, ChannelRefused) as error:
            print(f"hopyard: mpi: a connection failed: {error}", file=sys.stderr, flush=True)
        finally:
            connection.close()

    def _start_daemon(self, channel: Channel, command: str) -> None:
        """Runs the command of `mpirun`, and sends its output and exit code. The command ends with the
        connection."""
        env = {**daemon_variables(self._plan, "agent"), **os.environ, "HOPYARD_MPI_FOLDER": os.getcwd()}
        process = subprocess.Popen(
            ["/bin/sh", "-c", command],
            env=env,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        threading.Thread(target=_end_with_connection, args=(channel, process), daemon=True).start()
        assert process.stdout is not None
        while data := os.read(process.stdout.fileno(), 1 << 16):
            channel.send(OUTPUT, data)
        channel.send(EXITED, json.dumps(process.wait()).encode())

    def _obey(self, channel: Channel) -> None:
        """Reports the failures of ranks in this replica, and ends it when the first replica says so."""
        channel.send(READY)
        threading.Thread(target=_report_failure, args=(channel,), daemon=True).start()
        while True:
            kind, data = channel.receive()
            if kind == FAILURES:
                channel.send(FAILURES, json.dumps(read_failures()).encode())
            elif kind == END:
                self.exit_code = int(data)
                break
            elif not kind:
                break
        self.is_over.set()


def _report_failure(channel: Channel) -> None:
    """Reports the failure of a rank to the first replica."""
    wait_for_failure()
    with suppress(OSError):  # the gang has ended
        channel.send(FAILED)


def wait_for_failure() -> None:
    """Returns when a rank has failed in this replica."""
    while not read_failures():
        time.sleep(_POLL_INTERVAL_S)


def _end_with_connection(channel: Channel, process: subprocess.Popen[bytes]) -> None:
    while channel.receive()[0]:
        pass
    if process.poll() is None:
        os.killpg(process.pid, signal.SIGTERM)


def daemon_variables(plan: MpiPlan, name: str) -> dict[str, str]:
    """Returns the variables of a daemon of this replica. name: of its folder for files and shared memory."""
    return dict.fromkeys(_FOLDER_VARIABLES, str(make_folder(Path(plan.memory, name))))


def read_failures() -> list[dict[str, Any]]:
    """Returns the ranks that failed in this replica: rank, code, and the time of their end."""
    failures: list[dict[str, Any]] = []
    folder = os.path.join(replica_folder(), FAILURES_DIR)
    for name in os.listdir(folder) if os.path.isdir(folder) else ():
        if not name.startswith("."):
            with open(os.path.join(folder, name), encoding="utf-8") as file:
                failures.append(json.load(file))
    return failures


def failure_text(failure: dict[str, Any]) -> str:
    """Returns the sentence about a failed rank."""
    code = int(failure["code"])
    if code < 0:
        return f"rank {failure['rank']} was {signal_text(-code)}"
    return f"rank {failure['rank']} exited with code {code}"


def exit_code_of(failure: dict[str, Any]) -> int:
    """Returns the exit code of a shell for a failed rank."""
    code = int(failure["code"])
    return code if code > 0 else 128 - code


def main() -> int:
    agent = MpiAgent(read_plan())

    def end(number: int, _frame: object) -> None:
        agent.close()
        signal.signal(number, signal.SIG_DFL)
        os.kill(os.getpid(), number)

    signal.signal(signal.SIGTERM, end)
    try:
        while not agent.is_over.wait(3600):
            pass
        if agent.exit_code is None:  # the first replica ended, and the gang is about to be stopped
            time.sleep(_STOP_TIMEOUT_S)
            print(f"the connection to {read_plan().peers[0].name} was lost", file=sys.stderr)
            return 1
        if agent.exit_code:
            print(failure_text(min(read_failures(), key=lambda failure: failure["at"])), file=sys.stderr)
        return agent.exit_code
    finally:
        agent.close()


if __name__ == "__main__":
    sys.exit(main())
