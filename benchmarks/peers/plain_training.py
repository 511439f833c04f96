"""Training as one writes it without a platform: PyTorch and NumPy alone, the data in memory.
All peers of benchmarks.mop_study share it.

The order of rows is drawn anew for every epoch; batches are rows of one array; pictures of bytes become
floats a batch at a time.
"""

from __future__ import annotations

import importlib.util
import resource
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import torch

_EVALUATED_ROWS = 512


def load_networks(file: str) -> ModuleType:
    """Loads benchmarks/study_code/networks.py from any location.
    The lazy imports of PyTorch's first optimiser are done here, not during training."""
    torch.optim.Adam([torch.zeros(1, requires_grad=True)])
    spec = importlib.util.spec_from_file_location("networks", file)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def anonymous_bytes() -> int:
    """Returns the anonymous memory of this process: arrays and program data.
    Returns the peak of all memory if the kernel does not report it."""
    try:
        lines = Path("/proc/self/status").read_text().splitlines()
        return next(int(line.split()[1]) * 1024 for line in lines if line.startswith("RssAnon"))
    except (OSError, StopIteration):
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


@dataclass(frozen=True, slots=True)
class Data:
    """Rows of inputs and classes in memory."""

    x: Any
    y: Any
    test_x: Any
    test_y: Any

    @classmethod
    def load(cls, folder: str, *, share: tuple[int, int] = (0, 1)) -> Data:
        """share: (index, count): every count-th row, starting at index, with equal numbers of rows."""
        which, of = share
        return cls(
            *(
                _read(Path(folder, part, f"{name}.npy"), which, of)
                for part in ("train", "test")
                for name in ("x", "y")
            )
        )

    @property
    def nbytes(self) -> int:
        return int(sum(each.nbytes for each in (self.x, self.y, self.test_x, self.test_y)))


def _read(path: Path, which: int, of: int) -> Any:
    if of == 1:
        return np.load(path)
    rows = np.load(path, mmap_mode="r")
    return np.array(rows[which::of][: len(rows) // of])


def inputs_of(x: Any) -> Any:
    made = torch.from_numpy(x)
    return made.unsqueeze(1).float().div_(255) if made.dtype == torch.uint8 else made


def batches(x: Any, y: Any, size: int, order: Any | None) -> Iterator[tuple[Any, Any]]:
    for at in range(0, len(y), size):
        rows = slice(at, at + size) if order is None else order[at : at + size]
        yield inputs_of(x[rows]), torch.from_numpy(y[rows]).long()


def train_epoch(
    networks: ModuleType, model: Any, optimizer: Any, data: Data, size: int, rng: np.random.Generator
) -> None:
    model.train()
    for x, y in batches(data.x, data.y, size, rng.permutation(len(data.y))):
        optimizer.zero_grad(set_to_none=True)
        networks.loss(model(x), y).backward()
        optimizer.step()


@torch.no_grad()
def counts(networks: ModuleType, model: Any, data: Data) -> Any:
    """(right answers, sum of losses, rows) of the test data."""
    model.eval()
    total = torch.zeros(3, dtype=torch.float64)
    for x, y in batches(data.test_x, data.test_y, _EVALUATED_ROWS, None):
        scores = model(x)
        right = (scores.argmax(1) == y).sum().item()
        total += torch.tensor([right, networks.loss(scores, y).item() * len(y), len(y)], dtype=torch.float64)
    return total


def start(networks: ModuleType, model: str, params: Mapping[str, Any], seed: int) -> tuple[Any, Any]:
    """A fresh model and its optimiser."""
    torch.manual_seed(seed)
    made = networks.MODELS[model](params)
    return made, networks.optimizer(made.parameters(), params)
