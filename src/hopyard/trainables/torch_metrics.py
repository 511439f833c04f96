"""Computes means over the rows of a partition from values per batch."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from hopyard.errors import SpecError


class MeanMetrics:
    """Values stay on their device until the end, so that no batch waits for the GPU."""

    def __init__(self) -> None:
        self._batch_values: dict[str, list[Any]] = {}
        self._rows: list[int] = []

    def add(self, rows: int, metrics: Mapping[str, Any]) -> None:
        """metrics: means over the rows of one batch, by name: numbers, or tensors of one, which may be used
        again. Raises SpecError for what is none."""
        import torch

        self._rows.append(rows)
        for name, value in metrics.items():
            one = value if torch.is_tensor(value) else torch.as_tensor(value, dtype=torch.float64)
            if one.numel() != 1:
                raise SpecError(
                    f"`{name}` has shape {tuple(one.shape)}, not one number",
                    hints=("it must be the mean over the rows of a batch",),
                )
            self._batch_values.setdefault(name, []).append(one.detach().clone().reshape(()))

    def compute(self) -> dict[str, float]:
        """Returns the means over the rows of all batches."""
        whole = max(1, sum(self._rows))
        return {
            name: sum(mean * rows for mean, rows in zip(_to_floats(told), self._rows, strict=True)) / whole
            for name, told in self._batch_values.items()
        }


def _to_floats(values: list[Any]) -> list[float]:
    """At once where they lie together; some may lie elsewhere: a metric that is no tensor for a batch without
    what it looks for."""
    import torch

    if len({(one.device, one.dtype) for one in values}) > 1:
        values = [one.cpu().double() for one in values]
    numbers: list[float] = torch.stack(values).cpu().double().tolist()
    return numbers
