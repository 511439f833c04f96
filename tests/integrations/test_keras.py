"""The callback for Keras, in real trainings."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.integrations.attempts import Attempts, check_attempts, declare_lr, files_of, set_params

pytest.importorskip("torch", reason="the backend is PyTorch here")
os.environ.setdefault("KERAS_BACKEND", "torch")
keras = pytest.importorskip("keras", minversion="3.3", reason="needs Keras 3")
pytestmark = [
    pytest.mark.keras,
    pytest.mark.torch,
    pytest.mark.filterwarnings("ignore:__array__ implementation:DeprecationWarning"),
]

EPOCHS = 4


def train(on_batch: Callable[[int], None]) -> list[float]:
    """Trains a small model on three batches an epoch."""
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
