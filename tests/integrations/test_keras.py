"""The callback for Keras, in real trainings."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.integrations.attempts import (
    Attempts,
    check_attempts,
    declare_lr,
    files_of,
    resume_with_other_rate,
    set_params,
)

pytest.importorskip("torch", reason="the backend is PyTorch here")
os.environ.setdefault("KERAS_BACKEND", "torch")
keras = pytest.importorskip("keras", minversion="3.3", reason="needs Keras 3")
pytestmark = [
    pytest.mark.keras,
    pytest.mark.torch,
    pytest.mark.filterwarnings("ignore:__array__ implementation:DeprecationWarning"),
]

EPOCHS = 4


def train(on_batch: Callable[[int], None], rates: list[float] | None = None) -> list[float]:
    """Trains a small model on three batches an epoch. rates: gets the rate of the optimizer at the end."""
    from hopyard.integrations.keras import HopCallback

    class Watch(keras.callbacks.Callback):  # type: ignore[misc]
        batches = 0

        def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
            self.batches += 1
            on_batch(self.batches)

    keras.utils.set_random_seed(3)
    inputs = np.random.default_rng(3).normal(size=(12, 4)).astype("float32")
    model = keras.Sequential(
        [keras.Input((4,)), keras.layers.Dense(8), keras.layers.Dropout(0.3), keras.layers.Dense(1)]
    )
    model.compile(keras.optimizers.Adam(declare_lr().lr), "mse")
    callbacks = [Watch(), HopCallback()]
    model.fit(inputs, inputs.sum(1), batch_size=4, epochs=EPOCHS, callbacks=callbacks, verbose=0)
    if rates is not None:
        rates.append(round(float(keras.ops.convert_to_numpy(model.optimizer.learning_rate)), 6))
    return [float(value) for weights in model.get_weights() for value in weights.flatten()]


def test_interrupted_training_ends_as_an_undisturbed_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    broken = check_attempts(tmp_path, monkeypatch, train, "loss")
    assert files_of(broken.run_dir) == ["epoch_3", "epoch_4"]
    assert files_of(broken.run_dir / "epoch_4") == [
        "latest.weights.h5",
        "random-state.pkl",
        "training_metadata.json",
    ]
    (shown,) = [event for event in broken.events if event["kind"] == "params" and "epochs" in event["values"]]
    assert shown["values"]["beta_1"] == pytest.approx(0.9) and "lr" not in shown["values"]


def test_set_changes_the_rate_and_plain_python_begins_at_the_beginning(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    attempts = Attempts(tmp_path / "set", monkeypatch)
    with attempts.attempt() as folder:
        changed = train(lambda batches: set_params(folder, lr=0.5) if batches == 2 else None)
    (answer,) = [event for event in attempts.events if event["kind"] == "command"]
    assert (answer["state"], answer["step"]) == ("applied", 2)
    assert "lr of `optimizer` 0.05 -> 0.5" in answer["answer"]
    offline = Attempts(tmp_path / "plain", monkeypatch, offline=True)
    ends = []
    for _ in range(2):
        with offline.attempt():
            ends.append(train(lambda batches: None))
    assert ends[0] == ends[1] != changed


def test_changed_rate_replaces_that_of_the_checkpoint(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rates: list[float] = []
    resume_with_other_rate(tmp_path, monkeypatch, lambda on_batch: train(on_batch, rates))
    assert rates == [0.5]


def test_second_fit_trains_and_continues_from_its_own_checkpoints(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    attempts = Attempts(tmp_path, monkeypatch)
    with attempts.attempt():
        train(lambda batches: None)
        batches: list[int] = []
        first = train(batches.append)
    assert len(batches) == 3 * EPOCHS
    assert files_of(attempts.run_dir) == ["epoch_3", "epoch_4", "fit-2"]
    with attempts.attempt():
        batches = []
        train(batches.append)
        assert (train(batches.append), batches) == (first, [])
        assert files_of(attempts.run_dir / "fit-2") == ["epoch_3", "epoch_4"]


def test_schedule_without_a_config_does_not_end_the_training(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from hopyard.integrations.keras import HopCallback

    class Schedule(keras.optimizers.schedules.LearningRateSchedule):  # type: ignore[misc]
        def __call__(self, step: Any) -> Any:
            return 0.1

    attempts = Attempts(tmp_path, monkeypatch)
    with attempts.attempt():
        model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(1)])
        model.compile(keras.optimizers.SGD(Schedule()), "mse")
        data = np.zeros((4, 4), "float32"), np.zeros((4, 1), "float32")
        model.fit(*data, epochs=1, callbacks=[HopCallback()], verbose=0)
    assert files_of(attempts.run_dir) == ["epoch_1"]
