"""Workers and drivers that end with the test."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from hopyard.domain.study import PartitionPlan
from tests.mop_runtime.worker.scripted_driver import ScriptedDriver, WorkerProcesses

CODE = """
import numpy as np
import random

def init(config):
    return {"w": np.zeros(4), "seen": [], "drawn": []}

def train(state, partition, config):
    for batch in partition.batches(8, seed=config.epoch):
        error = batch["x"] @ state["w"] - batch["y"]
        state["w"] -= config.get("lr", 0.01) * batch["x"].T @ error / len(error)
    state["seen"].append(partition.index)
    state["drawn"].append((random.random(), float(np.random.rand())))

def evaluate(state, partition, config):
    random.random()
    return {"loss": np.mean((partition["x"] @ state["w"] - partition["y"]) ** 2), "seen": len(state["seen"])}
"""


@pytest.fixture
def workers(tmp_path: Path) -> Iterator[WorkerProcesses]:
    processes = WorkerProcesses(tmp_path, 2)
    processes.code(CODE)
    yield processes
    processes.close()


@pytest.fixture
def start_driver() -> Iterator[Callable[..., ScriptedDriver]]:
    drivers: list[ScriptedDriver] = []

    def start(**options: Any) -> ScriptedDriver:
        drivers.append(ScriptedDriver(PartitionPlan(2, validation=0.2), **options))
        return drivers[-1]

    yield start
    for driver in drivers:
        driver.close()
