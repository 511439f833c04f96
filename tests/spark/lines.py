"""A trainable without any framework: a line through points, by gradient descent. Executors have no such file."""

from __future__ import annotations

from typing import Any

import numpy as np


class Lines:
    """state: {"w": one weight for each feature}."""

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
