"""Killed or frozen workers and restarted drivers: completed work is not lost, and no process waits for a dead
one."""

from __future__ import annotations

import signal
import subprocess
import sys
from collections.abc import Callable

import psutil

from hopyard.mop_runtime.messages import (
    Acknowledge,
    Cancel,
    DigestComputed,
    Heartbeat,
    Hello,
    HopResult,
    Shutdown,
    UnitFailure,
)
from tests.mop_runtime.worker.scripted_driver import ScriptedDriver, WorkerProcesses, start_and_open

StartDriver = Callable[..., ScriptedDriver]

WAITS = """
import time
import numpy as np
from pathlib import Path

def init(config):
    return {"w": np.zeros(1000), "seen": 0}

def train(state, partition, config):
    here = Path(config.folder)
    (here / f"began-{config.trial}").touch()
    while config.get("waits") and not (here / "go").exists():
        time.sleep(0.005)
    state["w"] += partition.index + 1
    state["seen"] += 1

def evaluate(state, partition, config):
    return {"w": state["w"][0], "seen": state["seen"]}
"""


def wait_for_start(driver: ScriptedDriver, workers: WorkerProcesses, trial: str) -> None:
    while not (workers.folder / f"began-{trial}").exists():
        driver.poll(0.01)


def test_new_driver_receives_messages_missed_by_killed_driver(
    workers: WorkerProcesses, start_driver: StartDriver
) -> None:
    """The driver had not recorded the messages of the workers, and one worker was busy."""
    workers.code(WAITS)
    driver = start_driver(acknowledges=False)
    start_and_open(workers, driver, "a", "b")
    folder = str(workers.folder)
    done = driver.train(("a", 0), params={"folder": folder}, trial="1")
    driver.expect(HopResult, unit=done)
    driver.expect(DigestComputed, unit=done)
    at_work = driver.train(("b", 1), params={"folder": folder, "waits": True}, trial="2")
    wait_for_start(driver, workers, "2")
    port = driver.hub.port
    driver.close()
    (workers.folder / "go").touch()

    heir = start_driver(port=port, acknowledges=False)
    hello = heir.expect(Hello, "a")
    assert hello.train == (0,) and done in hello.states and not hello.units_in_progress
    resent = heir.expect(HopResult, "a")
    assert (resent.unit, resent.trial) == (done, "1") and heir.expect(DigestComputed, "a").unit == done
    heir.expect(Heartbeat, "a")
    assert heir.expect(HopResult, "b").unit == at_work
    heir.send("a", Acknowledge((done,)))
    heir.send("a", Acknowledge((), (done,)))
    heir.expect(Heartbeat, "a")
    heir.close()

    last = start_driver(port=port)
    assert last.expect(HopResult, "b").unit == last.expect(DigestComputed, "b").unit == at_work
    last.expect(Hello, "a")
    last.expect(Heartbeat, "a")
    assert not [
        message
        for worker, message in last.messages
        if worker == "a" and isinstance(message, (HopResult, DigestComputed))
    ]
    for name in ("a", "b"):
        last.send(name, Shutdown())
        assert workers.processes[name].wait(20) == 0


def test_unit_that_outlasts_drivers_is_reported_in_progress(
    workers: WorkerProcesses, start_driver: StartDriver
) -> None:
    workers.code(WAITS)
    driver = start_driver()
    start_and_open(workers, driver, "a")
    unit = driver.train(("a", 0), params={"folder": str(workers.folder), "waits": True}, trial="1", epoch=3)
    wait_for_start(driver, workers, "1")
    for _ in range(3):
        port = driver.hub.port
        driver.close()
        driver = start_driver(port=port)
        (in_progress,) = driver.expect(Hello, "a").units_in_progress
        assert (
            in_progress.unit,
            in_progress.trial,
            in_progress.epoch,
            in_progress.partitions,
            in_progress.is_training,
        ) == (
            unit,
            "1",
            3,
            (0,),
            True,
        )
    (workers.folder / "go").touch()
    assert driver.expect(HopResult).unit == unit


def test_states_of_killed_worker_are_readable_by_other_workers(
    workers: WorkerProcesses, start_driver: StartDriver
) -> None:
    workers.code(WAITS)
    driver = start_driver()
    start_and_open(workers, driver, "a", "b")
    params = {"folder": str(workers.folder)}
    driver.train(("a", 0), params=params)
    first = driver.expect(HopResult)
    driver.train(("a", 0), state=first.state, params={**params, "waits": True}, trial="2")
    wait_for_start(driver, workers, "2")
    workers.processes["a"].kill()
    while ("a", "closed") not in driver.messages:
        driver.poll(0.1)
    # its partition is read elsewhere, and only the unit in flight is repeated
    driver.open("b", (0, 1), (0, 1))
    driver.train(("b", 0), state=first.state, params=params)
    assert driver.expect(HopResult, "b").start_from == first.state
    workers.start("a", driver.address)  # and a worker that rejoins finds all states
    assert first.state in driver.expect(Hello, "a").states


def test_frozen_worker_sends_no_heartbeat_and_busy_worker_does(
    workers: WorkerProcesses, start_driver: StartDriver
) -> None:
    workers.code(WAITS)
    driver = start_driver()
    start_and_open(workers, driver, "a", "b")
    busy = driver.train(("b", 1), params={"folder": str(workers.folder), "waits": True}, trial="1")
    wait_for_start(driver, workers, "1")
    workers.processes["a"].send_signal(signal.SIGSTOP)
    numbers = driver._connections
    while driver.hub.seconds_since_message(numbers["a"]) < 3.0:
        driver.poll(0.1)
    assert (
        driver.hub.seconds_since_message(numbers["b"]) < driver.hub.seconds_since_message(numbers["a"]) - 0.5
    )
    workers.processes["a"].send_signal(signal.SIGCONT)
    while driver.hub.seconds_since_message(numbers["a"]) > 2.0:
        driver.poll(0.1)
    (workers.folder / "go").touch()
    assert driver.expect(HopResult).unit == busy


def test_worker_without_secret_is_refused(workers: WorkerProcesses, start_driver: StartDriver) -> None:
    driver = start_driver()
    process = workers.start("a", driver.address, secret=b"another", reconnect_timeout_s=0.5)
    assert process.wait(20) != 0 and not driver.messages
    assert "does not know the secret" in workers.log("a")


def test_shutdown_worker_frees_its_memory(workers: WorkerProcesses, start_driver: StartDriver) -> None:
    workers.code(WAITS)
    driver = start_driver()
    start_and_open(workers, driver, "a")
    driver.train(("a", 0), params={"folder": str(workers.folder)})
    driver.expect(HopResult)
    driver.train(("a", 0), params={"folder": str(workers.folder), "waits": True}, trial="2")
    wait_for_start(driver, workers, "2")
    workers.processes["a"].terminate()
    assert workers.processes["a"].wait(20) == 128 + signal.SIGTERM
    assert not list((workers.folder / "memory").iterdir())


# -- groups --------------------------------------------------------------------------------------------------

TOGETHER = """
import os, time
import numpy as np
import random
from pathlib import Path

def init(config):
    return {"w": np.zeros(5000), "steps": 0}

def train(state, partition, config):
    state["steps"] += 1

def train_together(state, partitions, config, reduce):
    rng = np.random.default_rng(partitions[0].index)
    for step in range(config.get("steps", 5)):
        gradient, loss = rng.normal(size=5000), np.float32(partitions[0].index)
        means = reduce([gradient.astype("f4"), loss])
        state["w"] -= 0.1 * means[0]
        state["steps"] += 1
        Path(config.folder, f"step-{partitions[0].index}").touch()
        if config.get("dies") == partitions[0].index and step == 2:
            os.kill(os.getpid(), 9)
        if config.get("raises") == partitions[0].index and step == 2:
            raise ValueError("one of us")
        if config.get("odd") == partitions[0].index:
            reduce([np.zeros(3)])
        random.random()

def evaluate(state, partition, config):
    return {"w": state["w"][0], "steps": state["steps"]}
"""


def test_group_state_is_bit_identical_to_single_process(
    workers: WorkerProcesses, start_driver: StartDriver
) -> None:
    import numpy as np

    from hopyard.trainables.protocol import average
    from hopyard.trial_state.decode import decode
    from tests.mop_runtime.worker.scripted_driver import state_store_of

    workers.code(TOGETHER)
    driver = start_driver()
    start_and_open(workers, driver, "a", "b")
    params = {"folder": str(workers.folder)}
    unit = driver.train(("a", 0), ("b", 1), params=params)
    results = [driver.expect(HopResult, name, unit=unit) for name in ("a", "b")]
    assert {result.state for result in results} == {unit} and results[0].partitions == (0, 1)
    assert {driver.expect(DigestComputed, unit=unit).digest} == {
        driver.expect(DigestComputed, unit=unit).digest
    }
    with_shelf = state_store_of(workers)
    found = decode(with_shelf.read(unit))["state"]
    with_shelf.close()
    alone, streams = np.zeros(5000), [np.random.default_rng(index) for index in (0, 1)]
    for _ in range(5):
        alone -= 0.1 * average([[stream.normal(size=5000).astype("f4")] for stream in streams])[0]
    assert found["steps"] == 5 and found["w"].tobytes() == alone.tobytes()
    driver.train(("b", 1), state=unit, params=params)
    assert driver.expect(HopResult).start_from == unit


def test_lost_or_failed_member_ends_unit_for_group(
    workers: WorkerProcesses, start_driver: StartDriver
) -> None:
    workers.code(TOGETHER)
    driver = start_driver()
    start_and_open(workers, driver, "a", "b")
    params = {"folder": str(workers.folder)}
    for index, raising, other in ((0, "a", "b"), (1, "b", "a")):
        unit = driver.train(("a", 0), ("b", 1), params={**params, "raises": index})
        assert driver.expect(UnitFailure, raising, unit=unit).error == "ValueError: one of us"
        assert driver.expect(UnitFailure, other, unit=unit).kind == "group"
    unit = driver.train(("a", 0), ("b", 1), params={**params, "odd": 1})
    assert {driver.expect(UnitFailure, name, unit=unit).kind for name in ("a", "b")} == {"group"}
    unit = driver.train(("a", 0), ("b", 1), params={**params, "dies": 1})
    failure = driver.expect(UnitFailure, "a", unit=unit)
    assert failure.kind == "group" and "disconnected" in failure.error
    driver.train(("a", 0), params=params)  # and the worker can continue
    driver.expect(HopResult, "a")


def test_group_waiting_for_member_can_be_cancelled(
    workers: WorkerProcesses, start_driver: StartDriver
) -> None:
    workers.code(TOGETHER)
    driver = start_driver()
    start_and_open(workers, driver, "a", "b")
    params = {"folder": str(workers.folder)}
    for waits, missing in (("a", "b"), ("b", "a")):
        workers.processes[missing].send_signal(signal.SIGSTOP)
        unit = driver.train(("a", 0), ("b", 1), params=params)
        driver.messages.clear()
        for _ in range(2):
            driver.expect(Heartbeat, waits)  # it has started by then, and waits for the missing worker
        driver.send(waits, Cancel(unit))
        alone = driver.train((waits, 0 if waits == "a" else 1), params=params)
        assert driver.expect(HopResult, waits).unit == alone
        driver.send(missing, Cancel(unit))
        workers.processes[missing].send_signal(signal.SIGCONT)
        alone = driver.train((missing, 0 if missing == "a" else 1), params=params)
        assert driver.expect(HopResult, missing).unit == alone


def test_code_without_data_parallel_support_is_reported(
    workers: WorkerProcesses, start_driver: StartDriver
) -> None:
    driver = start_driver()
    start_and_open(workers, driver, "a", "b")
    unit = driver.train(("a", 0), ("b", 1))
    errors = [driver.expect(UnitFailure, name, unit=unit) for name in ("a", "b")]
    assert any(failure.kind == "code" and "has no `train_together`" in failure.error for failure in errors)


def test_hanging_worker_is_ended_with_replaced_standard_streams() -> None:
    hangs = (
        "import io, sys\nfrom hopyard.mop_runtime.worker import process_setup\n"
        "def here(): process_setup.kill_process('601 s on one unit')\nsys.stderr = io.StringIO()\nhere()"
    )
    result = subprocess.run(
        [sys.executable, "-c", hangs], capture_output=True, text=True, timeout=60, check=False
    )
    assert result.returncode == -signal.SIGKILL
    assert "this worker exits: 601 s on one unit" in result.stderr and "in here" in result.stderr


HANGS = (
    WAITS.replace(
        "def train(state, partition, config):",
        """
def train(state, partition, config):
    hang(Path(config.folder) / "hung")""",
    )
    + """
def hang(mark):
    import ctypes, multiprocessing
    if not mark.exists():
        multiprocessing.get_context("fork").Process(target=time.sleep, args=(3600,)).start()
        mark.touch()
        ctypes.PyDLL(None).sleep(3600)  # with the interpreter's lock
"""
)


def test_worker_hanging_with_gil_is_ended_by_its_parent(
    workers: WorkerProcesses, start_driver: StartDriver
) -> None:
    """Its child processes end as well, and another worker replaces it."""
    workers.code(HANGS)
    driver = start_driver()
    parent = workers.start("a", driver.address, supervised=True)
    first = driver.expect(Hello, "a").pid
    driver.open("a", (0,))
    driver.train(("a", 0), params={"folder": str(workers.folder)})
    while not (workers.folder / "hung").exists():
        driver.poll(0.1)
    hanging = psutil.Process(first)
    started = hanging.children()
    assert started
    second = driver.expect(Hello, "a", where=lambda hello: hello.pid != first).pid
    assert psutil.Process(second).ppid() == parent.pid
    assert not hanging.is_running()
    psutil.wait_procs(started, timeout=30)
    assert not any(process.is_running() for process in started)
    assert "hangs: no message from its process for 3 s" in workers.log("a")
    assert "in hang" in workers.log("a"), "where it was"
    driver.open("a", (0,))
    driver.train(("a", 0), params={"folder": str(workers.folder)})
    driver.expect(HopResult, "a")
    driver.send("a", Shutdown())
    assert parent.wait(20) == 0


def test_worker_ends_with_its_killed_parent(workers: WorkerProcesses, start_driver: StartDriver) -> None:
    workers.code(WAITS)
    driver = start_driver()
    parent = workers.start("a", driver.address, supervised=True)
    worker = psutil.Process(driver.expect(Hello, "a").pid)
    parent.kill()
    parent.wait(20)
    psutil.wait_procs([worker], timeout=30)
    assert not worker.is_running()
