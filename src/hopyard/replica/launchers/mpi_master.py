"""The first replica of an MPI gang: starts `mpirun` when all replicas are ready, and ends them with it."""

from __future__ import annotations

import json
import os
import queue
import re
import signal
import socket
import subprocess
import sys
import threading
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

from hopyard.private_files import write_atomically
from hopyard.replica.launchers.mpi_agent import (
    CONTROL,
    END,
    FAILED,
    FAILURES,
    MpiAgent,
    daemon_variables,
    exit_code_of,
    failure_text,
    read_failures,
    wait_for_failure,
)
from hopyard.replica.launchers.mpi_channel import Channel, ChannelRefused, connect
from hopyard.replica.launchers.mpi_plan import MpiPeer, MpiPlan, read_plan, replica_folder

HOST_FILE, SHELL_FILE = "mpi-hosts", "mpi-shell"
_RETRY_INTERVAL_S = 0.1
_STOP_TIMEOUT_S = 60.0
_FAILURE_TIMEOUT_S = 5.0
_LOOPBACK = "127."
_RULE = re.compile(r"-{20,}\s*")
_ABORT = re.compile(r"MPI_ABORT was invoked on rank (\d+)")
_FATAL = re.compile(r"MPI_ABORT was invoked|MPI_ERRORS_ARE_FATAL")
_LOST_DAEMON = "lost communication with a remote daemon"
_ABORT_CODE = re.compile(r"(?:with errorcode|Errorcode:) (-?\d+)")


class MpiMaster:
    """Runs `mpirun` once. Its own replica also has an agent, because `mpirun` starts a daemon there, too."""

    def __init__(self, plan: MpiPlan) -> None:
        self._plan = plan
        self._agent = MpiAgent(plan)
        self._channels: dict[str, Channel] = {}
        self._process: subprocess.Popen[bytes] | None = None
        self._lost: list[str] = []
        self._messages: list[str] = []
        self._is_over = False
        self._reports: queue.SimpleQueue[tuple[str, list[dict[str, Any]]]] = queue.SimpleQueue()
        self._ends = threading.Lock()  # held from the first sign of a failure on

    def run(self) -> int:
        """Returns the exit code of this replica."""
        signal.signal(signal.SIGTERM, self._stop)
        try:
            for peer in self._plan.peers:
                if peer.name != self._plan.name:
                    self._channels[peer.name] = self._connect(peer)
            code = self._run_mpirun()
            self._is_over = True
            if not code and any(_LOST_DAEMON in line for line in self._messages):
                code = 1  # that of Open MPI 5 ends with 0
            return self._end_gang(code)
        finally:
            self._agent.close()

    def _connect(self, peer: MpiPeer) -> Channel:
        """Returns a channel to the agent of a replica once it is ready, however long that takes: if the
        replica fails, the whole gang is stopped."""
        while True:
            try:
                channel = connect(peer.address, peer.port, self._plan.secret, {"kind": CONTROL})
                channel.receive()
                return channel
            except ChannelRefused:
                raise
            except OSError:
                time.sleep(_RETRY_INTERVAL_S)

    def _run_mpirun(self) -> int:
        folder = replica_folder()
        hosts, shell = os.path.join(folder, HOST_FILE), os.path.join(folder, SHELL_FILE)
        write_atomically(Path(hosts), host_lines(self._plan).encode())
        program = " ".join(_quote(word) for word in self._plan.program("mpi_shell"))
        write_atomically(Path(shell), f'#!/bin/sh\nexec {program} "$@"\n'.encode())
        os.chmod(shell, 0o700)
        count = sum(peer.processes for peer in self._plan.peers)
        words = ["mpirun", "--hostfile", hosts, "-np", str(count), "--bind-to", "none"]
        variables = {**mpirun_variables(self._plan, shell), **daemon_variables(self._plan, "mpirun")}
        self._process = process = subprocess.Popen(
            [*words, *self._plan.program("mpi_rank"), *self._plan.command],
            env={**variables, **os.environ},
            stdin=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
        )
        for name, channel in self._channels.items():
            threading.Thread(target=self._watch, args=(name, channel), daemon=True).start()
        threading.Thread(target=self._watch_own_ranks, daemon=True).start()
        assert process.stderr is not None
        for line in process.stderr:
            sys.stderr.buffer.write(line)
            sys.stderr.buffer.flush()
            self._messages = [*self._messages[-50:], line.decode(errors="replace").strip("\0\n ")]
            if _FATAL.search(self._messages[-1]):
                self._end_mpirun_soon()
        return process.wait()

    def _watch(self, name: str, channel: Channel) -> None:
        """Reads the reports of a replica. Ends `mpirun` when the replica is lost."""
        while True:
            kind, data = channel.receive()
            if kind == FAILED:
                self._end_mpirun_soon()
            elif kind == FAILURES:
                self._reports.put((name, json.loads(data)))
            elif not kind:
                break
        self._reports.put((name, []))
        if not self._is_over and self._process is not None:
            self._lost.append(name)
            self._end_mpirun_soon()

    def _watch_own_ranks(self) -> None:
        wait_for_failure()
        self._end_mpirun_soon()

    def _end_mpirun_soon(self) -> None:
        """Ends `mpirun` after the failure of a rank or the loss of a replica, if it does not end itself: that
        of Open MPI 5 may wait for its daemons without end."""
        if self._process is not None and self._ends.acquire(blocking=False):
            threading.Thread(target=_end_failed, args=(self._process,), daemon=True).start()

    def _stop(self, _number: int, _frame: object) -> None:
        """Ends `mpirun`, which ends the ranks. That of Open MPI 5 does not end without its daemons."""
        if self._process is None or self._process.poll() is not None:
            self._agent.close()
            os._exit(128 + signal.SIGTERM)
        if self._lost:
            self._process.kill()
        else:
            self._process.terminate()

    def _end_gang(self, code: int) -> int:
        """Ends the other replicas. The one on which a rank failed first fails with its reason; this one then
        waits for its end by the gang, so that its own exit is not taken for the cause."""
        failures = [(failure, self._plan.name) for failure in read_failures()]
        asked = {name: channel for name, channel in self._channels.items() if name not in self._lost}
        for channel in asked.values():
            with suppress(OSError):
                channel.send(FAILURES)
        missing = set(asked)
        while missing:
            name, reported = self._reports.get()
            failures += [(failure, name) for failure in reported]
            missing.discard(name)
        first, place = min(failures, key=lambda pair: pair[0]["at"], default=({}, ""))
        for name, channel in self._channels.items():
            with suppress(OSError):
                channel.send(END, str(exit_code_of(first) if name == place else 0).encode())
        if not code:
            return 0
        if place not in ("", self._plan.name) or self._lost:
            time.sleep(_STOP_TIMEOUT_S)
        if self._lost:
            print(f"the connection to {self._lost[0]} was lost", file=sys.stderr)
        elif place == self._plan.name:
            print(failure_text(first), file=sys.stderr)
            return exit_code_of(first)
        else:
            print(message_of(self._messages), file=sys.stderr)
        abort = _ABORT_CODE.search("\n".join(self._messages))
        if abort and int(abort[1]) in range(1, 256):
            return int(abort[1])
        return code if code > 0 else 128 - code


def _end_failed(process: subprocess.Popen[bytes]) -> None:
    for end in (process.terminate, process.kill):
        try:
            process.wait(_FAILURE_TIMEOUT_S)
            return
        except subprocess.TimeoutExpired:
            end()


def host_lines(plan: MpiPlan) -> str:
    """Returns the host file: names where they resolve to the addresses of the replicas, else addresses."""
    lines = []
    for peer in plan.peers:
        try:
            resolves = socket.gethostbyname(peer.name) == peer.address
        except OSError:
            resolves = False
        lines.append(f"{peer.name if resolves else peer.address} slots={peer.processes}\n")
    return "".join(lines)


def mpirun_variables(plan: MpiPlan, shell: str) -> dict[str, str]:
    """Returns the settings of Open MPI 4 (`OMPI_MCA_…`) and of Open MPI 5 (`PRTE_MCA_…`)."""
    variables = {
        "OMPI_ALLOW_RUN_AS_ROOT": "1",
        "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1",
        "PRTE_ALLOW_RUN_AS_ROOT": "1",
        "PRTE_ALLOW_RUN_AS_ROOT_CONFIRM": "1",
        "OMPI_MCA_plm": "rsh",
        "OMPI_MCA_plm_rsh_agent": shell,
        "OMPI_MCA_plm_rsh_no_tree_spawn": "1",
        "PRTE_MCA_plm": "ssh",
        "PRTE_MCA_plm_ssh_agent": shell,
        "PRTE_MCA_plm_ssh_no_tree_spawn": "1",
        # the replica requests a save by SIGUSR1, which ends scripts that do not handle it: see
        # `replica.checkpoint_signal`
        "OMPI_MCA_ess_base_forward_signals": "none",
        "PRTE_MCA_ess_base_forward_signals": "none",
    }
    is_one_machine = all(peer.address.startswith(_LOOPBACK) for peer in plan.peers)
    if is_one_machine:  # other interfaces, such as those of containers, may disappear meanwhile
        variables |= {"OMPI_MCA_btl_tcp_if_include": "lo", "OMPI_MCA_oob_tcp_if_include": "lo"}
    largest = (sum if is_one_machine else max)(peer.processes for peer in plan.peers)
    if largest > len(os.sched_getaffinity(0)):  # a waiting process must not take the core of another
        variables["OMPI_MCA_mpi_yield_when_idle"] = "1"
    return variables


def message_of(lines: list[str]) -> str:
    """Returns the reason in the messages of `mpirun`, in one line."""
    text = "\n".join(lines)
    if abort := _ABORT.search(text):
        code = _ABORT_CODE.search(text)
        return f"rank {abort[1]} called MPI_Abort" + (f" with error code {code[1]}" if code else "")
    blocks = [block.strip() for block in _RULE.split(text) if block.strip()]
    return " ".join(blocks[-1].split()) if blocks else "mpirun failed without a message"


def _quote(word: str) -> str:
    return "'" + word.replace("'", "'\\''") + "'"


if __name__ == "__main__":
    sys.exit(MpiMaster(read_plan()).run())
