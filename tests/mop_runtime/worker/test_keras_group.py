"""Two workers train one Keras state."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

import pytest

from hopyard.domain.ids import TrialId
from hopyard.mop_runtime.messages import DigestComputed, EvaluationResult, HopResult, MeasurementResult
from hopyard.mop_runtime.worker import unit as units
from hopyard.mop_runtime.worker.open_partitions import open_dataset_folder
from hopyard.trainables.config import Config
from hopyard.trainables.load import load
from hopyard.trial_state.decode import decode
from tests.mop_runtime.worker.scripted_driver import (
    ScriptedDriver,
    WorkerProcesses,
    start_and_open,
    state_store_of,
)

pytest.importorskip("torch", reason="the backend is PyTorch here")
os.environ.setdefault("KERAS_BACKEND", "torch")
pytest.importorskip("keras", minversion="3.3", reason="needs Keras 3")
pytestmark = [
    pytest.mark.keras,
    pytest.mark.filterwarnings("ignore:__array__ implementation:DeprecationWarning"),
]

CODE = """
import keras
from hopyard.trainables.keras_trainable import KerasTrainable

layers = keras.layers
line = KerasTrainable(
    model=lambda config: keras.Sequential(
        [
            keras.Input((4,)),
            layers.Dense(8),
            layers.BatchNormalization(),
            layers.Dropout(0.3),
            layers.Dense(1),
        ]
    ),
    optimizer=lambda config: keras.optimizers.Adam(config.lr),
    loss="mean_squared_error",
    batch_size=8,
)
"""


def test_group_state_equals_single_process_with_both_partitions(
    workers: WorkerProcesses, start_driver: Callable[..., ScriptedDriver]
) -> None:
    """Bit-identical, with dropout and running means: each partition draws its own random numbers, and
    gradients are averaged in partition order after each batch."""
    workers.code(CODE, "line.py")
    driver = start_driver(trainable="line.py:line")
    start_and_open(workers, driver, "a", "b")
    hop = driver.train(("a", 0), ("b", 1), params={"lr": 0.02})
    digests = {
        driver.expect(DigestComputed, driver.expect(HopResult, name, unit=hop) and name, unit=hop).digest
        for name in ("a", "b")
    }
    assert len(digests) == 1
    store = state_store_of(workers)
    result = decode(store.read(hop))["state"]
    store.close()

    line: Any = load("line.py:line", workers.folder / "code")
    data = open_dataset_folder(workers.folder / "data", workers.folder / "cache")(driver.plan)
    config = Config({"lr": 0.02}, TrialId("0"), seed=7, epoch=0, epochs=10)
    both = [data.open(index) for index in (0, 1)]
    alone = units.train_together(
        line, line.init(config), both, config, lambda arrays: arrays, seed=7, group_partitions=(0, 1)
    )
    assert [array.tobytes() for array in result["weights"]] == [array.tobytes() for array in alone["weights"]]
    assert [array.tobytes() for array in result["optimizer"]] == [
        array.tobytes() for array in alone["optimizer"]
    ]
    evaluated = driver.evaluate("b", 1, hop, params={"lr": 0.02})
    assert driver.expect(EvaluationResult, "b").gathered
    driver.measure("b", hop, evaluated, params={"lr": 0.02})
    assert driver.expect(MeasurementResult, "b").metrics["loss"] > 0
