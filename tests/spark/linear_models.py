"""A trainable without a framework: linear regression by gradient descent.
Executors do not have this file."""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np


class LinearModel:
    """state: {"w": a weight per feature}."""

    def init(self, config: Any) -> dict[str, Any]:
        return {"w": np.zeros(2)}

    def train(self, state: dict[str, Any], partition: Any, config: Any) -> dict[str, Any]:
        if config.lr > 5:
            raise ValueError("lr is too large")
        for batch in partition.batches(32, seed=config.epoch):
            x, y = batch["x"].astype(float), batch["y"].astype(float)
            state["w"] = state["w"] - config.lr * 2 * x.T @ (x @ state["w"] - y) / len(y)
        return state

    def evaluate(self, state: dict[str, Any], partition: Any, config: Any) -> dict[str, float]:
        x, y = partition["x"].astype(float), partition["y"].astype(float)
        return {"mse": float(np.mean((x @ state["w"] - y) ** 2))}

    def gather(self, state: dict[str, Any], partition: Any, config: Any) -> tuple[dict[str, float], Any]:
        errors = self.predict(state, partition, config) - partition["y"].astype(float)
        return self.evaluate(state, partition, config), {"errors": errors}

    def measure(self, gathered: list[dict[str, Any]], config: Any) -> dict[str, float]:
        errors = np.concatenate([part["errors"] for part in gathered])
        return {"rmse": float(np.sqrt(np.mean(errors**2))), "rows": len(errors)}

    def predict(self, state: dict[str, Any], partition: Any, config: Any) -> Any:
        return partition["x"].astype(float) @ state["w"]


class GatedModel(LinearModel):
    """Waits after its first epoch until the file `go` exists."""

    def __init__(self, go: Path) -> None:
        self.go = go

    def train(self, state: dict[str, Any], partition: Any, config: Any) -> dict[str, Any]:
        while config.epoch and not self.go.exists():
            time.sleep(0.01)
        return super().train(state, partition, config)


class GpuRecordingModel(LinearModel):
    """state["seen"]: the GPUs of each visited worker, and whether PyTorch was already imported."""

    def init(self, config: Any) -> dict[str, Any]:
        return {**super().init(config), "seen": []}

    def train(self, state: dict[str, Any], partition: Any, config: Any) -> dict[str, Any]:
        state["seen"] = [*state["seen"], f"{os.environ['CUDA_VISIBLE_DEVICES']} {'torch' in sys.modules}"]
        return super().train(state, partition, config)
