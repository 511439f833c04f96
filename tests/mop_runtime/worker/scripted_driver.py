"""A small driver that sends scripted requests, and worker processes."""

from __future__ import annotations

import hashlib
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, TypeVar

import numpy as np

from hopyard.domain.study import PartitionPlan
from hopyard.mop_runtime.messages import (
    Acknowledge,
    DigestComputed,
    EvaluateUnit,
    FromDriver,
    GatheredOutputs,
    Hello,
    MeasureState,
    OpenPartitions,
    Ready,
    TrainUnit,
    UnitAssignment,
    from_head,
    to_head,
)
from hopyard.mop_runtime.transport.driver_server import ConnectionClosed, DriverServer, MessageReceived
from hopyard.trial_state.shared_memory_store import StateStore

SECRET = bytes(range(32))
WAIT_S = 180.0
SUPERVISE = (
    "import sys; from hopyard.study_app.__main__ import supervise; sys.exit(supervise(sys.argv[1:], "
    "role='worker', hang_timeout_s=3))"
)
Kind = TypeVar("Kind")


class ScriptedDriver:
    """Records all messages and sends the requests of a test. acknowledges: whether it acknowledges
    results."""

    def __init__(
        self, plan: PartitionPlan, *, trainable: str = "code.py", port: int = 0, acknowledges: bool = True
    ) -> None:
        self.hub = DriverServer(SECRET, host="127.0.0.1", port=port)
        self.plan, self.trainable, self.acknowledges = plan, trainable, acknowledges
        self.messages: list[tuple[str, Any]] = []
        self.hellos: dict[str, Hello] = {}
        self._connections: dict[str, int] = {}
        self._units = 0

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.hub.port}"

    def poll(self, timeout_s: float) -> None:
        for event in self.hub.wait(timeout_s):
            if isinstance(event, ConnectionClosed):
                for worker in [
                    worker_name
                    for worker_name, number in self._connections.items()
                    if number == event.connection
                ]:
                    del self._connections[worker]
                    self.messages.append((worker, "closed"))
            if isinstance(event, MessageReceived):
                self._record(event)

    def _record(self, event: MessageReceived) -> None:
        message = from_head(event.head)
        if isinstance(message, Hello):
            self._connections[message.worker] = event.connection
            self.hellos[message.worker] = message
        worker = next(
            worker_name for worker_name, number in self._connections.items() if number == event.connection
        )
        self.messages.append((worker, message))
        if self.acknowledges and getattr(message, "unit", ""):
            self.acknowledge(worker, message)

    def acknowledge(self, worker: str, message: Any) -> None:
        named = isinstance(message, DigestComputed)
        self.send(worker, Acknowledge((), (message.unit,)) if named else Acknowledge((message.unit,)))

    def send(self, worker: str, message: FromDriver) -> None:
        self.hub.send(self._connections[worker], to_head(message))

    def expect(
        self,
        kind: type[Kind],
        worker: str = "",
        *,
        unit: str = "",
        where: Callable[[Kind], bool] = lambda _: True,
    ) -> Kind:
        """Waits for the first matching message that was not returned before, and returns it."""
        until = time.monotonic() + WAIT_S
        while True:
            for at, (sender, message) in enumerate(self.messages):
                if (
                    isinstance(message, kind)
                    and worker in ("", sender)
                    and unit in ("", getattr(message, "unit", ""))
                    and where(message)
                ):
                    del self.messages[at]
                    return message
            assert time.monotonic() < until, (
                f"no {kind.__name__} of {worker or 'anybody'}; heard {self.messages}"
            )
            self.poll(0.2)

    def open(
        self, worker: str, train: tuple[int, ...], validation: tuple[int, ...] = (), *, trainable: str = ""
    ) -> Ready:
        self.send(worker, self.open_request(train, validation, trainable=trainable))
        return self.expect(Ready, worker)

    def open_request(
        self, train: tuple[int, ...], validation: tuple[int, ...] = (), *, trainable: str = ""
    ) -> OpenPartitions:
        return OpenPartitions(train, validation, "digits", self.plan, trainable or self.trainable)  # type: ignore[arg-type]

    def unit(self) -> str:
        self._units += 1
        return f"{self.hub.port}.{self._units}"

    def train(
        self,
        *parts: tuple[str, int],
        state: str = "",
        trial: str = "0",
        epoch: int = 0,
        params: Mapping[str, Any] = {},
        sources: tuple[str, ...] = (),
    ) -> str:
        """parts: pairs of worker and partition. Returns the unit."""
        unit = self.unit()
        members = tuple(
            UnitAssignment(worker, partition, self.hellos[worker].address) for worker, partition in parts
        )  # type: ignore[arg-type]
        order = TrainUnit(unit, trial, epoch, params, 10, 7, state, members, sources)  # type: ignore[arg-type]
        for worker, _ in parts:
            self.send(worker, order)
        return unit

    def evaluate(
        self,
        worker: str,
        partition: int,
        state: str,
        *,
        trial: str = "0",
        params: Mapping[str, Any] = {},
        training: bool = False,
    ) -> str:
        unit = self.unit()
        self.send(worker, EvaluateUnit(unit, trial, 0, params, 10, 7, state, partition, training))  # type: ignore[arg-type]
        return unit

    def measure(
        self, worker: str, state: str, *evaluations: str, trial: str = "0", params: Mapping[str, Any] = {}
    ) -> str:
        """evaluations: units of this worker that gathered outputs of the state. Returns the unit."""
        unit, outputs = self.unit(), tuple(map(GatheredOutputs, evaluations))
        self.send(worker, MeasureState(unit, trial, 0, params, 10, 7, state, outputs))  # type: ignore[arg-type]
        return unit

    def close(self) -> None:
        self.hub.close()


class WorkerProcesses:
    """Worker processes that end with the test. folder: holds the user's code, the data and the files of the
    workers."""

    def __init__(self, folder: Path, count: int) -> None:
        self.folder, self.count = folder, count
        self.processes: dict[str, subprocess.Popen[bytes]] = {}
        for name in ("code", "data", "memory", "scratch"):
            (folder / name).mkdir()
        rng = np.random.default_rng(0)
        np.savez(
            folder / "data" / "table.npz",
            x=rng.normal(size=(60, 4)).astype("f4"),
            y=np.arange(60, dtype="f4"),
        )

    def code(self, text: str, name: str = "code.py") -> None:
        (self.folder / "code" / name).write_text(text)

    def start(
        self,
        worker: str,
        address: str,
        *,
        memory: str = "",
        secret: bytes = SECRET,
        reconnect_timeout_s: float = 60.0,
        supervised: bool = False,
    ) -> subprocess.Popen[bytes]:
        """supervised: starts the worker below a parent, as in a study. The parent is returned."""
        settings = {
            "address": address,
            "secret": secret.hex(),
            "folder": str(self.folder),
            "worker": worker,
            "workers": self.count,
            "memory": memory or str(self.folder / "memory"),
            "reconnect_timeout_s": reconnect_timeout_s,
        }
        out = open(self.folder / f"{worker}.log", "ab")  # noqa: SIM115
        command = [sys.executable, "-m", "tests.mop_runtime.worker.worker_process", json.dumps(settings)]
        if supervised:
            command = [sys.executable, "-c", SUPERVISE, *command]
        env = {**os.environ, "OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}
        process = subprocess.Popen(command, stdout=out, stderr=out, cwd=Path(__file__).parents[3], env=env)
        out.close()
        self.processes[worker] = process
        return process

    def log(self, worker: str) -> str:
        return (self.folder / f"{worker}.log").read_text()

    def close(self) -> None:
        for process in self.processes.values():
            if process.poll() is None:
                process.send_signal(signal.SIGCONT)
                process.kill()
            process.wait(10)


def start_and_open(workers: WorkerProcesses, driver: ScriptedDriver, *names: str) -> None:
    """Starts the workers; the i-th has partition i open."""
    for name in names:
        workers.start(name, driver.address)
    for at, name in enumerate(names):
        driver.expect(Hello, name)
        driver.open(name, (at,), (at,))


def state_store_of(workers: WorkerProcesses) -> StateStore:
    return StateStore(
        hashlib.blake2b(SECRET, digest_size=8).hexdigest(),
        workers.folder / "scratch",
        memory=workers.folder / "memory",
    )
