"""A worker that really connects, keeps states on a real shelf and may be killed, but only pretends to train.

python -m tests.mop_runtime.driver.fake_worker '{"worker": "w0", "driver": "127.0.0.1:4000",
    "shelf": …, "disk": …, "unit_s": 0.01, …}'
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
from hopyard.trial_state.decode import decode
from hopyard.trial_state.digest import digest
from hopyard.trial_state.encode import encode
from hopyard.trial_state.shared_memory_store import StateStore
from tests.mop_runtime.driver import fake_training
from tests.mop_runtime.driver.state_listener import serve_states


class FakeWorker:
    def __init__(self, said: Mapping[str, Any]) -> None:
        self.said = said
        self.secret = bytes.fromhex(said["secret"])
        memory = {"memory": Path(said["memory"])} if said.get("memory") else {}
        self.shelf = StateStore(said["shelf"], Path(said["disk"]), **memory)
        self.server = serve_states(self.secret, self.shelf, host="127.0.0.1")
        self.lock = threading.Lock()
        self.orders: queue.SimpleQueue[Message] = queue.SimpleQueue()
        self.waiting: list[TrainUnit | EvaluateUnit] = []
        self.cancelled: set[str] = set()
        self.train: tuple[int, ...] = ()
        self.validation: tuple[int, ...] = ()
        self.line = DriverConnection(
            said["driver"],
            self.secret,
            self,
            reconnect_timeout_s=said.get("patience_s", 20.0),
            heartbeat_interval_s=0.1,
        )

    # -- what the line asks ----------------------------------------------------------------------------------

    def make_hello(self, local_host: str) -> Mapping[str, Any]:
        with self.lock:
            doing = tuple(_doing(one) for one in self.waiting if one.unit not in self.cancelled)
        states = tuple(self.shelf.list_states())
        address = f"{local_host}:{self.server.port}"
        return to_head(
            Hello(
                self.said["worker"],
                os.getpid(),
                "here",
                self.shelf.id,
                address,
                self.train,
                self.validation,
                states,
                doing,
                supports_data_parallel=self.said.get("together", True),
            )
        )

    def make_heartbeat(self) -> Mapping[str, Any]:
        return to_head(Heartbeat())

    def on_message(self, head: Mapping[str, Any]) -> None:
        message = from_head(head)
        match message:
            case TrainUnit() | EvaluateUnit():
                with self.lock:
                    self.waiting.append(message)
                self.orders.put(message)
            case OpenPartitions() | Shutdown():
                self.orders.put(message)
            case Cancel(unit):
                self.cancelled.add(unit)
            case DropStates(states):
                self.shelf.drop(states)
            case Acknowledge(units, named):
                self.line.acknowledge([*(("unit", one) for one in units), *(("named", one) for one in named)])

    def on_driver_lost(self, reason: str) -> None:
        os._exit(3)

    # -- what it does ----------------------------------------------------------------------------------------

    def run(self) -> None:
        self.line.start()
        while True:
            order = self.orders.get()
            if isinstance(order, Shutdown):
                self.line.close()
                return
            if isinstance(order, OpenPartitions):
                self.open(order)
            elif isinstance(order, (TrainUnit, EvaluateUnit)):
                if order.unit not in self.cancelled:
                    self.do(order)
                with self.lock:
                    self.waiting.remove(order)

    def open(self, order: OpenPartitions) -> None:
        if self.said.get("cannot_open"):
            self.tell(
                UnitFailure("", "open", "the data is not there", "Traceback\nOSError: the data is not there"),
                None,
            )
            return
        self.train, self.validation = order.train, order.validation
        counts = tuple(map(fake_training.rows, order.train)), tuple(map(fake_training.rows, order.validation))
        self.tell(
            Ready(
                self.train, self.validation, *counts, supports_data_parallel=self.said.get("together", True)
            ),
            None,
        )

    def do(self, order: TrainUnit | EvaluateUnit) -> None:
        try:
            if order.params.get("fails_in") == order.epoch and isinstance(order, TrainUnit):
                raise ZeroDivisionError("the user's own mistake")
            state = self.state_of(order)
            began = time.time()
            time.sleep(self.said.get("unit_s", 0.0) * float(order.params.get("cost", 1.0)))
            if isinstance(order, TrainUnit):
                self.trained(order, state, began)
            else:
                assert order.partition in (self.train if order.training else self.validation)
                value = fake_training.measured(state, order.partition)
                news = EvaluationResult(
                    order.unit,
                    order.trial,
                    order.epoch,
                    order.partition,
                    order.state,
                    {"score": value},
                    fake_training.rows(order.partition),
                    began,
                    time.time(),
                )
                self.tell(news, ("unit", order.unit))
        except HopyardError as lost:
            self.tell(UnitFailure(order.unit, "state", str(lost)), ("unit", order.unit))
        except ZeroDivisionError as own:
            self.tell(
                UnitFailure(order.unit, "code", repr(own), "Traceback\n" + repr(own)), ("unit", order.unit)
            )

    def state_of(self, order: TrainUnit | EvaluateUnit) -> list[str]:
        if not order.state:
            return fake_training.fresh(order.trial, dict(order.params), order.seed)
        fetch(order.state, order.sources, self.secret, self.shelf)
        held: dict[str, Any] = decode(self.shelf.read(order.state))
        return list(held["did"])

    def trained(self, order: TrainUnit, state: list[str], began: float) -> None:
        partitions = [member.partition for member in order.members]
        own = [member.partition for member in order.members if member.worker == self.said["worker"]]
        assert set(own) <= set(self.train), "it was told to train on what it has not open"
        after = fake_training.trained(state, order.trial, order.epoch, partitions)
        encoded = encode({"did": after, "padding": bytes(self.said.get("size", 0))})
        size = self.shelf.put(order.unit, encoded)
        news = HopResult(
            order.unit,
            order.trial,
            order.epoch,
            tuple(partitions),
            order.state,
            order.unit,
            size,
            began,
            time.time(),
        )
        # also if it was cancelled meanwhile: the driver drops the state
        self.tell(news, ("unit", order.unit))
        self.tell(DigestComputed(order.unit, order.unit, digest(encoded.to_bytes())), ("named", order.unit))

    def tell(self, message: Message, key: tuple[str, str] | None) -> None:
        self.line.send(to_head(message), key=key)


def _doing(order: TrainUnit | EvaluateUnit) -> UnitInProgress:
    if isinstance(order, TrainUnit):
        partitions = tuple(member.partition for member in order.members)
        return UnitInProgress(order.unit, order.trial, order.epoch, partitions, order.state, True)
    return UnitInProgress(order.unit, order.trial, order.epoch, (order.partition,), order.state, False)


if __name__ == "__main__":
    FakeWorker(json.loads(sys.argv[1])).run()
