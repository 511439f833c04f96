"""The two models of benchmarks.mop_study, as every side trains them: independent of Hopyard.
A config is a mapping of parameters."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import nn
from torch.nn.functional import cross_entropy

loss = cross_entropy


def digits_model(config: Mapping[str, Any]) -> nn.Module:
    """A small CNN on pictures of (rows, 1, 28, 28), from 0 to 1."""
    wide = config["channels"]
    return nn.Sequential(
        *(nn.Conv2d(1, wide, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2)),
        *(nn.Conv2d(wide, 2 * wide, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2)),
        *(nn.Flatten(), nn.Linear(2 * wide * 7 * 7, 64), nn.ReLU(), nn.Linear(64, 10)),
    )


def table_model(config: Mapping[str, Any]) -> nn.Module:
    """A perceptron on 256 columns, two classes."""
    wide = config["width"]
    return nn.Sequential(
        nn.Linear(256, wide), nn.ReLU(), nn.Linear(wide, wide), nn.ReLU(), nn.Linear(wide, 2)
    )


def optimizer(parameters: Any, config: Mapping[str, Any]) -> torch.optim.Optimizer:
    return torch.optim.Adam(parameters, lr=config["lr"])


MODELS = {"digits": digits_model, "table": table_model}
