"""The multi-fidelity table of `benchmarks.searchers`: validation loss after each epoch of 540 real trainings.

    python -m benchmarks.curves [--epochs 27] [--output benchmarks/curves.csv]       creates it again

Each is a perceptron with one hidden layer (ReLU), trained by SGD with momentum on two thirds of the 1,797
digits of scikit-learn and evaluated on the rest: every combination of learning rate, momentum, width, batch
size and weight decay in `SPACE`, once, with one seed. A configuration that does not train at all (an
overflow) has the loss 99.
"""

from __future__ import annotations

import argparse
import csv
from collections.abc import Mapping
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np

FILE = Path(__file__).with_name("curves.csv")
SPACE: Mapping[str, tuple[float, ...]] = {
    "lr": (1e-4, 3e-4, 1e-3, 3e-3, 1e-2, 3e-2, 1e-1, 3e-1, 1.0, 3.0),
    "momentum": (0.0, 0.9, 0.99),
    "width": (8, 24, 72),
    "batch": (16, 64, 256),
    "decay": (0.0, 1e-2),
}
Curves = dict[tuple[float, ...], tuple[float, ...]]
_WORST = 99.0


def read(path: Path = FILE) -> Curves:
    """The losses after epochs 1, 2, … by the values of `SPACE`, in its order."""
    with path.open(newline="") as lines:
        rows = list(csv.reader(lines))
    names = len(SPACE)
    return {
        tuple(float(cell) for cell in row[:names]): tuple(float(cell) for cell in row[names:])
        for row in rows[1:]
    }


def train(epochs: int, width: int, batch: int, others: np.ndarray) -> np.ndarray:
    """Losses [configuration, epoch] of all configurations (lr, momentum, decay) of this width and batch size,
    side by side."""
    from sklearn.datasets import load_digits

    data = load_digits()
    x, y = data.data / 8.0 - 1.0, np.eye(10)[data.target]
    order = np.random.default_rng(0).permutation(len(x))
    x, y = x[order], y[order]
    cut = len(x) * 2 // 3
    (tx, ty), (vx, vy) = (x[:cut], y[:cut]), (x[cut:], y[cut:])
    lr, momentum, decay = (others[:, i, None, None] for i in range(3))
    chance = np.random.default_rng(1)
    first, last = chance.normal(0, 1 / 8, (64, width)), chance.normal(0, width**-0.5, (width, 10))
    weights = [
        np.repeat(each[None], len(others), 0)
        for each in (first, np.zeros((1, width)), last, np.zeros((1, 10)))
    ]
    speeds = [np.zeros_like(each) for each in weights]
    found = []
    for _ in range(epochs):
        shuffled = chance.permutation(cut)
        for at in range(0, cut, batch):
            some = shuffled[at : at + batch]
            hidden, out = _forward(weights, tx[some])
            error = (out - ty[some]) / len(some)
            back = (error @ weights[2].transpose(0, 2, 1)) * (hidden > 0)
            slopes = [
                tx[some].T @ back,
                back.sum(1, keepdims=True),
                hidden.transpose(0, 2, 1) @ error,
                error.sum(1, keepdims=True),
            ]
            speeds = [
                momentum * speed - lr * (slope + decay * weight)
                for weight, speed, slope in zip(weights, speeds, slopes, strict=True)
            ]
            weights = [weight + speed for weight, speed in zip(weights, speeds, strict=True)]
        likely = (_forward(weights, vx)[1] * vy).sum(2)
        found.append(-np.log(np.maximum(likely, 1e-43)).mean(1))
    losses = np.stack(found, 1)
    return np.where(np.isfinite(losses), np.minimum(losses, _WORST), _WORST)


def _forward(weights: list[np.ndarray], x: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    hidden = np.maximum(x @ weights[0] + weights[1], 0)
    scores = hidden @ weights[2] + weights[3]
    powers = np.exp(scores - scores.max(2, keepdims=True))
    return hidden, powers / powers.sum(2, keepdims=True)


def make(epochs: int, path: Path) -> None:
    others = np.array(list(product(SPACE["lr"], SPACE["momentum"], SPACE["decay"])))
    curves: dict[tuple[Any, ...], np.ndarray] = {}
    for width, batch in product(SPACE["width"], SPACE["batch"]):
        with np.errstate(all="ignore"):
            losses = train(epochs, int(width), int(batch), others)
        for (lr, momentum, decay), curve in zip(others.tolist(), losses, strict=True):
            curves[lr, momentum, width, batch, decay] = curve
        print(f"width {width}, batch {batch}: best {losses[:, -1].min():.4f}", flush=True)
    with path.open("w", newline="") as out:
        lines = csv.writer(out, lineterminator="\n")
        lines.writerow([*SPACE, *range(1, epochs + 1)])
        lines.writerows(
            [*(f"{value:g}" for value in key), *(f"{loss:.4f}" for loss in curves[key])]
            for key in product(*SPACE.values())
        )


if __name__ == "__main__":
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--epochs", type=int, default=27)
    parser.add_argument("--output", type=Path, default=FILE)
    given = parser.parse_args()
    make(given.epochs, given.output)
