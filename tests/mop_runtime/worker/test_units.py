"""A worker process trains, evaluates, restores random numbers and reports errors."""

from __future__ import annotations

import json
import random
import subprocess
import sys
from collections.abc import Callable
from typing import Any

import numpy as np

from hopyard.datasets.partitions.split import split_dataset
from hopyard.domain.study import PartitionPlan
from hopyard.mop_runtime.messages import (
    Cancel,
    DigestComputed,
    DropStates,
    EvaluationResult,
    Hello,
    HopResult,
    PrefetchState,
    Shutdown,
    UnitFailure,
    UnitProgress,
)
from hopyard.trainables.config import Config
from hopyard.trainables.load import load
from hopyard.trial_state import rng_seed
from hopyard.trial_state.decode import decode
from hopyard.trial_state.digest import digest
from tests.mop_runtime.worker.scripted_driver import (
    ScriptedDriver,
    WorkerProcesses,
    start_and_open,
    state_store_of,
)

StartDriver = Callable[..., ScriptedDriver]


def test_state_hops_between_two_workers_and_is_evaluated(
    workers: WorkerProcesses, start_driver: StartDriver
) -> None:
    driver = start_driver()
    for name in ("a", "b"):
        workers.start(name, driver.address)
        driver.expect(Hello, name)
    a, b = driver.open("a", (0,), (0,)), driver.open("b", (1,), (1,))
    assert sum(a.train_rows + b.train_rows) == 48 and sum(a.validation_rows + b.validation_rows) == 12
    assert driver.hellos["a"].store_id == driver.hellos["b"].store_id and not a.supports_data_parallel

    first = driver.train(("a", 0))
    finished = driver.expect(HopResult, "a")
    assert (finished.unit, finished.state, finished.start_from, finished.partitions) == (
        first,
        first,
        "",
        (0,),
    )
    assert finished.began_at <= finished.ended_at and finished.bytes > 0
    driver.send("b", PrefetchState(first))
    driver.train(("b", 1), state=first)
    second = driver.expect(HopResult, "b")
    assert second.start_from == first and second.fetched_bytes == 0
    names = {driver.expect(DigestComputed).state for _ in range(2)}
    assert names == {first, second.state}

    driver.evaluate("a", 0, second.state)
    measured = driver.expect(EvaluationResult, "a")
    assert (
        measured.metrics["seen"] == 2
        and measured.metrics["loss"] > 0
        and measured.rows == a.validation_rows[0]
    )
    driver.evaluate("b", 1, first, training=True)
    assert driver.expect(EvaluationResult, "b").rows == b.train_rows[0]
    for name in ("a", "b"):
        driver.send(name, Shutdown("all done"))
        assert workers.processes[name].wait(20) == 0, workers.log(name)
        assert "left: all done" in workers.log(name)
    assert not list((workers.folder / "memory").iterdir())  # the last process to exit removes the store


RESTORED = """
import random

class Drawn:
    def __init__(self, weight, restored):
        self.weight, self.restored = weight, restored

class Draws:
    def init(self, config):
        return Drawn(0.0, 0)

    def train(self, state, partition, config):
        state.weight, state.restored = state.weight + random.random(), 0

    def evaluate(self, state, partition, config):
        return {"restored": state.restored, "weight": state.weight, "drawn": random.random()}

    def capture(self, state):
        return {"weight": state.weight}

    def restore(self, captured, config):
        return Drawn(captured["weight"], 1)

trainable = Draws()
"""


def test_state_just_trained_is_evaluated_without_decoding(
    workers: WorkerProcesses, start_driver: StartDriver
) -> None:
    """Once, and only with equal parameters; every other state is decoded. The results are equal, including
    random numbers."""
    workers.code(RESTORED)
    driver = start_driver(trainable="code.py:trainable")
    start_and_open(workers, driver, "a")

    def trained(state: str = "") -> str:
        driver.train(("a", 0), state=state)
        return driver.expect(HopResult, "a").state

    def evaluated(state: str, **params: float) -> dict[str, float]:
        driver.evaluate("a", 0, state, params=params)
        return dict(driver.expect(EvaluationResult, "a").metrics)

    first = trained()
    at_once, repeated = evaluated(first), evaluated(first)
    assert (at_once.pop("restored"), repeated.pop("restored")) == (0, 1)
    assert at_once == repeated
    second = trained(first)
    assert evaluated(first) == {**repeated, "restored": 1}
    assert evaluated(second)["restored"] == 1  # another was looked at in between
    assert evaluated(trained(second), lr=0.5)["restored"] == 1


REPLAYS = """
import json, sys
from pathlib import Path
from hopyard.mop_runtime.replay import replay_trial
from hopyard.trainables.load import load

trainable = load("code.py:trainable", Path(sys.argv[1]))
replayed = replay_trial(json.load(sys.stdin), "0", trainable, lambda *_: None, partition_count=2, seed=7)
found = list(replayed)
differing = [str(one) for one in found if not one.matches]
assert not differing, differing
hops = sum(isinstance(one.actual, str) for one in found)
print((hops, len(found) - hops))
"""


def test_capture_random_numbers_are_isolated(workers: WorkerProcesses, start_driver: StartDriver) -> None:
    """A state in memory continues exactly like a decoded one, so that a replay gives equal results."""
    workers.code(
        RESTORED.replace("def capture(self, state):", "def capture(self, state):\n        random.random()")
    )
    driver = start_driver(trainable="code.py:trainable")
    start_and_open(workers, driver, "a")
    records: list[dict[str, Any]] = [
        {"kind": "begun", "trial": "0", "state": "", "epoch": 0, "budget": 10, "params": {}}
    ]
    state = ""
    for _ in range(2):
        driver.train(("a", 0), state=state)
        driver.evaluate("a", 0, driver.expect(HopResult, "a").state)
        named, measured = driver.expect(DigestComputed, "a"), driver.expect(EvaluationResult, "a")
        assert measured.metrics["restored"] == 0
        metrics = {**measured.metrics, "restored": 1}  # a replay reads it
        records.append(
            {
                "kind": "hop",
                "trial": "0",
                "epoch": 0,
                "partitions": [0],
                "start_from": state,
                "state": named.state,
            }
        )
        records.append({"kind": "named", "state": named.state, "digest": named.digest})
        records.append(
            {
                "kind": "evaluated",
                "state": named.state,
                "partition": 0,
                "metrics": metrics,
                "rows": 6,
                "of": "validation",
            }
        )
        state = named.state
    # a separate process: a state includes the generators of imported modules
    command = [sys.executable, "-c", REPLAYS, str(workers.folder / "code")]
    result = subprocess.run(command, input=json.dumps(records), capture_output=True, text=True, check=False)
    assert result.stdout == "(2, 2)\n", result.stderr


def test_hops_are_bit_identical_to_single_process(
    workers: WorkerProcesses, start_driver: StartDriver
) -> None:
    """Weights, and random numbers, whose generators hop with the state. Evaluations in between change
    nothing."""
    driver = start_driver()
    start_and_open(workers, driver, "a", "b")
    state, order = "", [("a", 0), ("b", 1), ("b", 1), ("a", 0)]
    for epoch, hop in enumerate(order):
        driver.train(hop, state=state, epoch=epoch, params={"lr": 0.02}, trial="5")
        driver.train((hop[0], hop[1]), epoch=epoch, trial="6")  # another trial runs in between
        done = [driver.expect(HopResult, hop[0]), driver.expect(HopResult, hop[0])]
        state = next(result.state for result in done if result.trial == "5")
        driver.evaluate(hop[0], hop[1], state, trial="5")
        driver.expect(EvaluationResult)
    with_shelf = state_store_of(workers)
    hopped = decode(with_shelf.read(state))["state"]
    with_shelf.close()

    plan = PartitionPlan(2, validation=0.2)
    partitions = split_dataset(workers.folder / "data", plan, "x", workers.folder / "cache")
    trainable = load("code.py", workers.folder / "code")
    config = Config({"lr": 0.02}, "5", 7, 0, 10)
    before = random.getstate(), np.random.get_state()
    rng_seed.seed_all(7, "5")
    alone = trainable.init(config)
    for epoch, (_, partition) in enumerate(order):
        trainable.train(alone, partitions.open(partition), config.at(epoch))
    random.setstate(before[0])
    np.random.set_state(before[1])
    assert hopped["seen"] == alone["seen"] == [0, 1, 1, 0] and hopped["drawn"] == alone["drawn"]
    assert hopped["w"].tobytes() == alone["w"].tobytes()


def test_repeated_unit_gives_equal_bytes(workers: WorkerProcesses, start_driver: StartDriver) -> None:
    driver = start_driver()
    start_and_open(workers, driver, "a", "b")
    driver.train(("a", 0))
    first = driver.expect(HopResult).state
    driver.expect(DigestComputed)
    said = set()
    driver.send("b", driver.open_request((0, 1)))
    for worker in ("a", "b", "a"):
        unit = driver.train((worker, 0), state=first, epoch=1)
        said.add(driver.expect(DigestComputed, unit=unit).digest)
    assert len(said) == 1
    with_shelf = state_store_of(workers)
    with with_shelf.view(unit) as view:
        assert said == {digest(view)}
    with_shelf.close()


FAILS = """
import os, sys, threading
import numpy as np

def deep(n):
    return deep(n - 1) if n else 1 / 0

def init(config):
    return {"w": np.zeros(3), "lock": threading.Lock()} if config.how == "lock" else {"w": np.zeros(3)}

def train(state, partition, config):
    match config.how:
        case "raises": deep(2)
        case "exits": sys.exit("enough")
        case "memory": np.zeros(1 << 60, dtype="u1")
        case "lambda": state["deep"] = [{"f": lambda: 0}]
        case "column": partition["nothing"]

def evaluate(state, partition, config):
    fine = {"loss": float("nan"), "n": np.int64(3)}
    return {"none": None, "list": [1], "word": {"loss": "much"}, "fine": fine}[config.how]
"""


HOWS = {
    "raises": ("code", "ZeroDivisionError: division by zero"),
    "exits": ("code", "SystemExit: enough"),
    "memory": ("memory", "Unable to allocate"),
    "lambda": ("code", "state['deep'][0]['f']: a lambda"),
    "lock": ("code", "state['lock']: a `_thread.lock` cannot be serialized"),
    "column": ("code", "has no column `nothing`"),
}


def test_training_error_is_reported_and_worker_continues(
    workers: WorkerProcesses, start_driver: StartDriver
) -> None:
    workers.code(FAILS)
    driver = start_driver()
    start_and_open(workers, driver, "a")
    for how, (kind, says) in HOWS.items():
        unit = driver.train(("a", 0), params={"how": how})
        failed = driver.expect(UnitFailure, "a")
        assert (failed.unit, failed.kind) == (unit, kind) and says in failed.error
        if how == "raises":
            lines = failed.traceback.splitlines()
            assert "code.py" in lines[0] and "hopyard" not in failed.traceback
            assert lines[-1] == "ZeroDivisionError: division by zero"
    driver.train(("a", 0), params={"how": "nothing"})
    state = driver.expect(HopResult, "a").state

    driver.train(("a", 0), state="never.made")
    assert driver.expect(UnitFailure).kind == "state"
    driver.train(("a", 1), state=state)
    not_open = driver.expect(UnitFailure)
    assert (not_open.kind, not_open.error) == ("partition", "train partition 1 is not open on this worker")
    for how, expected in (("none", "returned nothing"), ("list", "a `list`"), ("word", "`str` as `loss`")):
        driver.evaluate("a", 0, state, params={"how": how})
        assert expected in driver.expect(UnitFailure).error
    driver.evaluate("a", 0, state, params={"how": "fine"})
    metrics = driver.expect(EvaluationResult).metrics
    assert metrics["n"] == 3.0 and metrics["loss"] != metrics["loss"]


def test_code_and_data_errors_are_reported(workers: WorkerProcesses, start_driver: StartDriver) -> None:
    driver = start_driver()
    workers.start("a", driver.address)
    driver.expect(Hello)
    workers.code("import nothing_of_the_sort\n", "bad.py")
    for wrong, expected in (
        ("bad.py", "nothing_of_the_sort"),
        ("code.py:Missing", "has no `Missing`"),
        ("none.py", "no file `none.py`"),
    ):
        driver.send("a", driver.open_request((0,), trainable=wrong))
        failed = driver.expect(UnitFailure, "a")
        assert (failed.unit, failed.kind) == ("", "open") and expected in failed.error
    driver.send("a", driver.open_request((9,)))
    assert "no train partition 9" in driver.expect(UnitFailure).error
    driver.open("a", (0,))
    driver.train(("a", 0))
    driver.expect(HopResult)


SLOW = """
import time
import numpy as np
from pathlib import Path

def init(config):
    return {"w": np.zeros(3)}

def train(state, partition, config):
    Path(config.folder, "began").touch()
    if config.how == "batches":
        while True:
            for batch in partition.batches(4):
                time.sleep(0.01)
    while not Path(config.folder, "go").exists():
        time.sleep(0.005)
    state["w"] += 1

def evaluate(state, partition, config):
    return {"w": state["w"][0]}
"""


def test_unit_is_cancelled_between_batches_and_before_start(
    workers: WorkerProcesses, start_driver: StartDriver
) -> None:
    workers.code(SLOW)
    driver = start_driver()
    start_and_open(workers, driver, "a")
    params = {"folder": str(workers.folder), "how": "batches"}
    endless = driver.train(("a", 0), params=params)
    never = driver.train(("a", 0), params=params)
    progress = driver.expect(UnitProgress, "a")
    assert (
        progress.unit == endless
        and progress.completed_share is not None
        and 0 <= progress.completed_share <= 1
    )
    driver.send("a", Cancel(never))
    driver.send("a", Cancel(endless))
    (workers.folder / "go").touch()
    quick = driver.train(("a", 0), params={**params, "how": "file"})
    assert driver.expect(HopResult).unit == quick
    assert not [
        message
        for _, message in driver.messages
        if getattr(message, "unit", "") in (endless, never) and not isinstance(message, UnitProgress)
    ]


def test_result_of_cancelled_unit_is_discarded(workers: WorkerProcesses, start_driver: StartDriver) -> None:
    workers.code(SLOW)
    driver = start_driver()
    start_and_open(workers, driver, "a")
    params = {"folder": str(workers.folder), "how": "file"}
    began, go = workers.folder / "began", workers.folder / "go"
    go.touch()
    earlier = driver.train(("a", 0), params=params)
    assert driver.expect(HopResult).unit == earlier
    with_shelf = state_store_of(workers)
    assert with_shelf.list_states() == [earlier]
    for file in (began, go):
        file.unlink()
    unit = driver.train(("a", 0), params=params)
    while not began.exists():
        driver.poll(0.01)
    driver.send("a", Cancel(unit))
    driver.send("a", DropStates((earlier,)))
    while with_shelf.list_states():  # messages are read in order: the worker has the cancellation too
        driver.poll(0.01)
    next_one = driver.train(("a", 0), params=params)
    go.touch()
    assert driver.expect(HopResult).unit == next_one
    assert with_shelf.list_states() == [next_one]
    driver.send("a", DropStates((next_one,)))
    while with_shelf.list_states():
        driver.poll(0.01)
    with_shelf.close()


def test_state_in_another_store_is_fetched(workers: WorkerProcesses, start_driver: StartDriver) -> None:
    (workers.folder / "elsewhere").mkdir()
    driver = start_driver()
    workers.start("a", driver.address)
    workers.start("b", driver.address, memory=str(workers.folder / "elsewhere"))
    for at, name in enumerate(("a", "b")):
        driver.expect(Hello, name)
        driver.open(name, (at,), (at,))
    assert driver.hellos["a"].store_id != driver.hellos["b"].store_id
    driver.train(("a", 0))
    first = driver.expect(HopResult)
    driver.train(("b", 1), state=first.state, sources=("127.0.0.1:1", driver.hellos["a"].address))
    second = driver.expect(HopResult, "b")
    assert second.fetched_bytes == first.bytes and second.start_from == first.state


FORKS = """
import os
import threading
import numpy as np

def init(config):
    return {"rows": 0}

def train(state, partition, config):
    def read():
        state["rows"] += sum(len(batch["x"]) for batch in partition.batches(4))
    thread = threading.Thread(target=read)
    thread.start()
    thread.join()
    child = os.fork()
    if not child:
        list(partition.batches(4))
        os._exit(0)
    os.waitpid(child, 0)

def evaluate(state, partition, config):
    return {"rows": state["rows"]}
"""


def test_data_loader_process_does_not_use_worker_connection(
    workers: WorkerProcesses, start_driver: StartDriver
) -> None:
    workers.code(FORKS)
    driver = start_driver()
    start_and_open(workers, driver, "a")
    for _ in range(2):
        driver.train(("a", 0))
        driver.expect(HopResult, "a")
    assert not [
        message for _, message in driver.messages if isinstance(message, UnitProgress) or message == "closed"
    ]


COLLECTS = """
import gc

class Later:
    pass

def init(config):
    return {"n": 0}

def train(state, partition, config):
    kept.append(Later())
    return {"n": len(kept)}

def evaluate(state, partition, config):
    watched = sum(one is kept for one in gc.get_objects())
    later = sum(isinstance(one, Later) for one in gc.get_objects())
    return {"watched": watched, "later": later, "frozen": gc.get_freeze_count()}

kept = []
kept.append(kept)
"""


def test_imported_modules_are_not_scanned_by_garbage_collector(
    workers: WorkerProcesses, start_driver: StartDriver
) -> None:
    workers.code(COLLECTS)
    driver = start_driver()
    start_and_open(workers, driver, "a")
    state = ""
    for _ in range(2):
        driver.train(("a", 0), state=state)
        state = driver.expect(HopResult, "a").state
    driver.evaluate("a", 0, state)
    metrics = driver.expect(EvaluationResult, "a").metrics
    # that of the first unit is kept as well
    assert metrics["frozen"] > 10_000 and (metrics["watched"], metrics["later"]) == (0, 1)
