"""A worker that connects, stores states and can be killed, but only simulates training.

python -m tests.mop_runtime.driver.fake_worker '{"worker": "w0", "driver": "127.0.0.1:4000",
    "store": …, "disk": …, "unit_s": 0.01, …}'
"""

from __future__ import annotations

import json
import os
import queue
import sys
import threading
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from hopyard.errors import HopyardError
from hopyard.mop_runtime.messages import (
    Acknowledge,
    Cancel,
    DigestComputed,
    DropStates,
    EvaluateUnit,
    EvaluationResult,
    Heartbeat,
    Hello,
    HopResult,
    MeasurementResult,
    MeasureState,
    Message,
    OpenPartitions,
    Ready,
    Shutdown,
    TrainUnit,
    UnitFailure,
    UnitInProgress,
    from_head,
    to_head,
)
from hopyard.mop_runtime.state_transfer import fetch
from hopyard.mop_runtime.transport.driver_connection import DriverConnection
from hopyard.mop_runtime.worker.inbox import UnitCommand
from hopyard.trial_state.decode import decode
from hopyard.trial_state.digest import digest
from hopyard.trial_state.encode import encode
from hopyard.trial_state.shared_memory_store import StateStore
from tests.mop_runtime.driver import fake_training
from tests.mop_runtime.driver.state_listener import serve_states


class FakeWorker:
    def __init__(self, settings: Mapping[str, Any]) -> None:
        self.settings = settings
        self.secret = bytes.fromhex(settings["secret"])
        memory = {"memory": Path(settings["memory"])} if settings.get("memory") else {}
        self.store = StateStore(settings["store"], Path(settings["disk"]), **memory)
        self.server = serve_states(self.secret, self.store, host="127.0.0.1")
        self.lock = threading.Lock()
        self.orders: queue.SimpleQueue[Message] = queue.SimpleQueue()
        self.waiting: list[UnitCommand] = []
        self.cancelled: set[str] = set()
        self.failed_trials: set[str] = set()
        self.openings: list[OpenPartitions] = []
        self.train: tuple[int, ...] = ()
        self.validation: tuple[int, ...] = ()
        self.connection = DriverConnection(
            settings["driver"],
            self.secret,
            self,
            reconnect_timeout_s=settings.get("reconnect_timeout_s", 20.0),
            heartbeat_interval_s=0.1,
        )

    # -- what the line asks ----------------------------------------------------------------------------------

    def make_hello(self, local_host: str) -> Mapping[str, Any]:
        with self.lock:
            units_in_progress = tuple(
                make_unit_in_progress(unit) for unit in self.waiting if unit.unit not in self.cancelled
            )
            opening = self.openings[-1] if self.openings else None
        states = tuple(self.store.list_states())
        address = f"{local_host}:{self.server.port}"
        return to_head(
            Hello(
                self.settings["worker"],
                os.getpid(),
                "here",
                self.store.id,
                address,
                self.train if opening is None else opening.train,
                self.validation if opening is None else opening.validation,
                states,
                units_in_progress,
                supports_data_parallel=self.settings.get("together", True),
                opening="" if opening is None else opening.open_id,
            )
        )

    def make_heartbeat(self) -> Mapping[str, Any]:
        return to_head(Heartbeat())

    def on_message(self, head: Mapping[str, Any]) -> None:
        message = from_head(head)
        match message:
            case TrainUnit() | EvaluateUnit() | MeasureState():
                with self.lock:
                    self.waiting.append(message)
                self.orders.put(message)
            case OpenPartitions() | Shutdown():
                if isinstance(message, OpenPartitions):
                    with self.lock:
                        self.openings.append(message)
                self.orders.put(message)
            case Cancel(unit):
                self.cancelled.add(unit)
            case DropStates(states):
                self.store.drop(states)
            case Acknowledge(units, named):
                self.connection.acknowledge(
                    [*(("unit", unit) for unit in units), *(("named", unit) for unit in named)]
                )

    def on_driver_lost(self, reason: str) -> None:
        os._exit(3)

    # -- what it does ----------------------------------------------------------------------------------------

    def run(self) -> None:
        self.connection.start()
        while True:
            order = self.orders.get()
            if isinstance(order, Shutdown):
                self.connection.close()
                return
            if isinstance(order, OpenPartitions):
                self.open_partitions(order)
                with self.lock:
                    self.openings.remove(order)
            elif isinstance(order, UnitCommand):
                if order.unit not in self.cancelled:
                    self.run_unit(order)
                with self.lock:
                    self.waiting.remove(order)

    def open_partitions(self, order: OpenPartitions) -> None:
        gate = self.settings.get("open_gate")
        if gate and Path(gate).exists():
            time.sleep(self.settings.get("open_s", 0.0))
        while gate and not Path(gate).exists():
            time.sleep(0.005)
        if self.settings.get("cannot_open"):
            self.send(
                UnitFailure(
                    "",
                    "open",
                    "the data is not there",
                    "Traceback\nOSError: the data is not there",
                    order.open_id,
                ),
                None,
            )
            return
        self.train, self.validation = order.train, order.validation
        counts = tuple(map(fake_training.rows, order.train)), tuple(map(fake_training.rows, order.validation))
        self.send(
            Ready(
                self.train,
                self.validation,
                *counts,
                supports_data_parallel=self.settings.get("together", True),
                open_id=order.open_id,
            ),
            None,
        )

    def run_unit(self, order: UnitCommand) -> None:
        try:
            if isinstance(order, MeasureState):
                self.measure(order)
                return
            if order.params.get("fails_in") == order.epoch and isinstance(order, TrainUnit):
                raise ZeroDivisionError("the user's own mistake")
            if order.params.get("fails_once") == order.epoch and order.trial not in self.failed_trials:
                self.failed_trials.add(order.trial)
                raise ZeroDivisionError("a passing fault")
            state = self.load_state(order)
            started_at = time.time()
            time.sleep(self.settings.get("unit_s", 0.0) * float(order.params.get("cost", 1.0)))
            if isinstance(order, TrainUnit):
                self.train_unit(order, state, started_at)
            else:
                assert order.partition in (self.train if order.training else self.validation)
                self.wait_for_gate()
                value = fake_training.evaluate(state, order.partition)
                self.store.put(order.unit, encode({"value": value}))
                message = EvaluationResult(
                    order.unit,
                    order.trial,
                    order.epoch,
                    order.partition,
                    order.state,
                    {"score": value},
                    fake_training.rows(order.partition),
                    started_at,
                    time.time(),
                    gathered=True,
                )
                self.send(message, ("unit", order.unit))
        except HopyardError as error:
            self.send(UnitFailure(order.unit, "state", str(error)), ("unit", order.unit))
        except ZeroDivisionError as own:
            self.send(
                UnitFailure(order.unit, "code", repr(own), "Traceback\n" + repr(own)), ("unit", order.unit)
            )

    def wait_for_gate(self) -> None:
        """Waits for the file `evaluation_gate`. Files beside it show that the wait has begun and ended."""
        if gate := self.settings.get("evaluation_gate"):
            Path(f"{gate}-{self.settings['worker']}").touch()
            while not Path(gate).exists():
                time.sleep(0.005)
            Path(f"{gate}ne-{self.settings['worker']}").touch()

    def measure(self, order: MeasureState) -> None:
        started_at, values = time.time(), []
        for part in order.outputs:
            fetch(part.name, part.sources, self.secret, self.store)
            values.append(decode(self.store.read(part.name))["value"])
        message = MeasurementResult(
            order.unit,
            order.trial,
            order.epoch,
            order.state,
            {"all": fake_training.measure(values)},
            started_at,
            time.time(),
        )
        self.send(message, ("unit", order.unit))

    def load_state(self, order: TrainUnit | EvaluateUnit) -> list[str]:
        if not order.state:
            return fake_training.initial_state(order.trial, dict(order.params), order.seed)
        fetch(order.state, order.sources, self.secret, self.store)
        decoded: dict[str, Any] = decode(self.store.read(order.state))
        return list(decoded["history"])

    def train_unit(self, order: TrainUnit, state: list[str], started_at: float) -> None:
        partitions = [member.partition for member in order.members]
        own = [member.partition for member in order.members if member.worker == self.settings["worker"]]
        assert set(own) <= set(self.train), "it was told to train on what it has not open"
        history = fake_training.train(state, order.trial, order.epoch, partitions)
        encoded = encode({"history": history, "padding": bytes(self.settings.get("size", 0))})
        size = self.store.put(order.unit, encoded)
        message = HopResult(
            order.unit,
            order.trial,
            order.epoch,
            tuple(partitions),
            order.state,
            order.unit,
            size,
            started_at,
            time.time(),
            read=tuple(self.settings.get("read", ())),
        )
        # also after a cancellation: the driver drops the state
        self.send(message, ("unit", order.unit))
        self.send(DigestComputed(order.unit, order.unit, digest(encoded.to_bytes())), ("named", order.unit))

    def send(self, message: Message, key: tuple[str, str] | None) -> None:
        self.connection.send(to_head(message), key=key)


def make_unit_in_progress(order: UnitCommand) -> UnitInProgress:
    if isinstance(order, TrainUnit):
        partitions = tuple(member.partition for member in order.members)
        return UnitInProgress(order.unit, order.trial, order.epoch, partitions, order.state, True)
    partitions = () if isinstance(order, MeasureState) else (order.partition,)
    return UnitInProgress(order.unit, order.trial, order.epoch, partitions, order.state, False)


if __name__ == "__main__":
    FakeWorker(json.loads(sys.argv[1])).run()
