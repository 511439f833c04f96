"""PyTorch's settings while a unit runs."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any


@contextmanager
def settled(deterministic: bool) -> Iterator[None]:
    """As they must be for equal bits; afterwards as they were."""
    import torch

    if not deterministic:
        yield
        return
    os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")  # without it cuBLAS refuses; read when it begins
    filling: Any = torch.utils.deterministic
    before = torch.are_deterministic_algorithms_enabled(), torch.backends.cudnn.benchmark, filling.fill_uninitialized_memory
    torch.use_deterministic_algorithms(True)
    torch.backends.cudnn.benchmark = False
    filling.fill_uninitialized_memory = False  # costs time, and nobody should read such memory
    try:
        yield
    finally:
        torch.use_deterministic_algorithms(before[0])
        torch.backends.cudnn.benchmark, filling.fill_uninitialized_memory = before[1:]
