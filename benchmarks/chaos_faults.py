"""The faults of `benchmarks.chaos`: which process they hit, and how."""

from __future__ import annotations

import ctypes
import itertools
import json
import os
import random
import signal
import socket
import stat
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from itertools import product
from pathlib import Path
from typing import Any

import psutil

from benchmarks.chaos_containers import Containers
from benchmarks.local_server import LocalServer

PHASES = (
    "start",
    "training",
    "checkpoint",
    "pause",
    "preemption",
    "set pending",
    "pause pending",
    "release",
    "evaluation",
)
# how the replicas run, and which faults hit them then
FAULTS = {
    "processes": (
        *product(("kill", "freeze"), ("replica", "script", "helper", "server", "spawner")),
        *product(("disconnect",), ("replica", "server", "spawner")),
    ),
    "containers": (
        *product(("kill", "freeze"), ("service", "conmon", "container", "replica", "script")),
        *product(("disconnect",), ("service", "container", "replica")),
        ("kill", "server"),
    ),
    "torchrun": (
        *product(("kill", "freeze"), ("replica", "script", "worker")),
        ("disconnect", "replica"),
        ("kill", "server"),
    ),
    "restarts": (*product(("kill",), ("replica", "script", "helper", "server")), ("freeze", "script")),
}
COMBINATIONS = tuple(
    (mode, kind, part, phase)
    for mode, faults in FAULTS.items()
    for (kind, part), phase in product(faults, PHASES)
)
_OF_ENGINE = {"service": "spawner", "conmon": "replica", "container": "script"}
_WORDS = {
    "processes": "",
    "containers": " in containers",
    "torchrun": " under torchrun",
    "restarts": " with restarts",
}
LONG_FREEZE_S = 7.0  # longer than the engine waits for a frozen replica
_PIDFD_GETFD = 438  # Linux 5.6, the same number on all architectures


@dataclass(frozen=True, slots=True)
class Fault:
    """One round: how the replicas run (a key of `FAULTS`), the fault, the part that it hits, and the phase of
    the run.

    rank: of the replica, if the part has one. delay_s: from the beginning of the phase. lasting_s: of a
    freeze or a disconnection; until the next server, after a kill of the server.
    """

    number: int
    kind: str
    part: str
    phase: str
    rank: int
    delay_s: float
    lasting_s: float
    mode: str = "processes"
    missing: str = ""  # why the replicas do not run as the schedule has it

    @property
    def hits_script(self) -> bool:
        """Whether the fault hits what runs the script, or its replica."""
        return self.part in ("replica", "script", "worker", "container", "conmon")

    @property
    def text(self) -> str:
        where = f" of rank {self.rank}" if self.hits_script or self.part == "helper" else ""
        lasting = "" if self.kind == "kill" else f" for {self.lasting_s:.1f} s"
        return f"{self.kind} {self.part}{where}{lasting}{_WORDS[self.mode]}"

    def without(self, reason: str) -> Fault:
        """Returns the fault for a machine on which the replicas can run as plain processes only."""
        part = {**_OF_ENGINE, "worker": "script"}.get(self.part, self.part)
        return replace(self, part=part, mode="processes", missing=f"without {self.mode}: {reason}")


def schedule(seed: int, replicas: int) -> Iterator[Fault]:
    """Yields the faults of all rounds, without an end. Each combination of mode, fault and phase comes once
    before any repeats."""
    order, numbers = random.Random(seed), itertools.count()
    while True:
        combinations = list(COMBINATIONS)
        order.shuffle(combinations)
        for mode, kind, part, phase in combinations:
            number = next(numbers)
            one = random.Random(f"{seed}/{number}")
            long = kind == "freeze" and one.random() < 0.2
            yield Fault(
                number,
                kind,
                part,
                phase,
                one.randrange(replicas),
                one.choice((0.0, 0.02, 0.1, 0.3)) * one.random(),
                LONG_FREEZE_S if long else 0.2 + one.random(),
                mode,
            )


def find_process(
    server: LocalServer, fault: Fault, attempt: str, containers: Containers | None = None
) -> psutil.Process | None:
    """Returns the process that the fault hits; None while there is none. containers: where there are any."""
    if containers is not None and fault.part in _OF_ENGINE:
        return _process(containers.find_pid(fault.part, attempt, fault.rank))
    if fault.part == "server":
        return _process(int((server.home.read_server() or {}).get("pid", 0)))
    if fault.part == "spawner":
        parent = _process(int((server.home.read_server() or {}).get("pid", 0)))
        with suppress(psutil.Error):
            return next((p for p in parent.children() if _is_spawner(p)), None) if parent else None
        return None
    state = read_state(server, attempt, fault.rank)
    if fault.part == "script":
        return _process(int(state.get("child_pid", 0)))
    if fault.part == "worker":
        return _find_worker(_process(int(state.get("child_pid", 0))))
    if fault.part == "replica":
        return _process(int(state.get("pid", 0)))
    return _find_helper(server, int(state.get("pid", 0)))


def read_state(server: LocalServer, attempt: str, rank: int) -> dict[str, Any]:
    """Returns the status file of a replica; empty before it exists."""
    try:
        found: dict[str, Any] = json.loads(
            (server.home.attempts / attempt / str(rank) / "status.json").read_bytes()
        )
    except (OSError, ValueError):
        return {}
    return found


def _find_worker(launcher: psutil.Process | None) -> psutil.Process | None:
    """Returns the process that torchrun has started."""
    with suppress(psutil.Error):
        for process in launcher.children() if launcher else ():
            if "train.py" in process.cmdline():
                return process
    return None


def _find_helper(server: LocalServer, replica: int) -> psutil.Process | None:
    """Returns the process that ends the script's processes when the replica is killed: the other end of a
    pipe of the replica, outside of its process tree."""
    pipes = _pipes(replica)
    for process in server.processes():
        with suppress(psutil.Error):
            if process.pid != replica and _is_spawner(process) and process.ppid() != replica:
                parent = (server.home.read_server() or {}).get("pid", 0)
                if process.ppid() != parent and _pipes(process.pid) & pipes:
                    return process
    return None


def _descriptors(pid: int, kind: str) -> dict[int, str]:
    """Returns the open pipes or sockets of a process: number and identity."""
    found = dict[int, str]()
    with suppress(OSError):
        for path in Path(f"/proc/{pid}/fd").iterdir():
            with suppress(OSError):
                target = str(path.readlink())
                if target.startswith(f"{kind}:"):
                    found[int(path.name)] = target
    return found


def _pipes(pid: int) -> set[str]:
    return {*_descriptors(pid, "pipe").values()}


def _is_spawner(process: psutil.Process) -> bool:
    return "hopyard.replica.spawner" in process.cmdline()


def _process(pid: int) -> psutil.Process | None:
    try:
        return psutil.Process(pid) if pid else None
    except psutil.NoSuchProcess:
        return None


def inject(fault: Fault, process: psutil.Process) -> None:
    """Returns at the end of the fault. A killed server or service is not started again here."""
    with suppress(psutil.NoSuchProcess):
        targets = [process, *(process.children(recursive=True) if fault.part == "container" else ())]
        if fault.kind == "kill":
            process.kill()
        elif fault.kind == "freeze":
            _freeze(targets, fault.lasting_s)
        else:
            deadline = time.monotonic() + fault.lasting_s
            while process.is_running() and time.monotonic() < deadline:
                for target in targets:
                    disconnect(target.pid)
                time.sleep(0.02)


def _freeze(processes: Sequence[psutil.Process], lasting_s: float) -> None:
    try:
        for process in processes:
            with suppress(psutil.NoSuchProcess):
                process.suspend()
        time.sleep(lasting_s)
    finally:
        for process in processes:
            with suppress(psutil.NoSuchProcess):
                process.resume()


def disconnect(pid: int) -> int:
    """Shuts down all connected sockets of a process, as a broken network does. Returns how many.

    Raises PermissionError if the kernel or its settings do not allow it.
    """
    count = 0
    with _pidfd(pid) as process:
        for number in _descriptors(pid, "socket"):
            descriptor = ctypes.CDLL(None, use_errno=True).syscall(_PIDFD_GETFD, process, number, 0)
            if descriptor < 0:
                if ctypes.get_errno() == 1:
                    raise PermissionError("sockets of other processes cannot be shut down here")
                continue  # closed meanwhile
            if not stat.S_ISSOCK(os.fstat(descriptor).st_mode):  # the number is used again meanwhile
                os.close(descriptor)
                continue
            with socket.socket(fileno=descriptor) as connection, suppress(OSError):
                connection.getpeername()  # a listening socket stays
                connection.shutdown(socket.SHUT_RDWR)
                count += 1
    return count


@contextmanager
def _pidfd(pid: int) -> Iterator[int]:
    try:
        descriptor = os.pidfd_open(pid)
    except ProcessLookupError:
        yield -1
        return
    try:
        yield descriptor
    finally:
        os.close(descriptor)


def thaw(server: LocalServer) -> None:
    """Continues all stopped processes of the home, after an interrupted round."""
    for process in server.processes():
        with suppress(psutil.Error):
            if process.status() == psutil.STATUS_STOPPED:
                process.send_signal(signal.SIGCONT)
