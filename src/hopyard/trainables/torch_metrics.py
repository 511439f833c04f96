"""Computes means over the rows of a partition from values per batch."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from hopyard.errors import SpecError


class MeanMetrics:
    """Accumulates metrics. Values stay on their device until the end, so that no batch waits for the GPU."""

    def __init__(self) -> None:
        self._batch_values: dict[str, list[Any]] = {}
        self._rows: list[int] = []

    def add(self, rows: int, metrics: Mapping[str, Any]) -> None:
        """metrics: means over the rows of one batch, by name: numbers, or tensors of one element, which may
        be reused afterwards. Raises SpecError for other values."""
        import torch

        self._rows.append(rows)
        for name, value in metrics.items():
            scalar = value if torch.is_tensor(value) else torch.as_tensor(value, dtype=torch.float64)
            if scalar.numel() != 1:
                raise SpecError(
                    f"`{name}` has shape {tuple(scalar.shape)}, not one number",
                    hints=("it must be the mean over the rows of a batch",),
                )
            self._batch_values.setdefault(name, []).append(scalar.detach().clone().reshape(()))

    def compute(self) -> dict[str, float]:
        """Returns the means over the rows of all batches."""
        row_count = max(1, sum(self._rows))
        return {
            name: sum(mean * rows for mean, rows in zip(_to_floats(values), self._rows, strict=True))
            / row_count
            for name, values in self._batch_values.items()
        }


def _to_floats(values: list[Any]) -> list[float]:
    """Converts values in one transfer if they are on one device. They may differ: a metric can be a plain
    number for a batch without matching rows."""
    import torch

    if len({(value.device, value.dtype) for value in values}) > 1:
        values = [value.cpu().double() for value in values]
    numbers: list[float] = torch.stack(values).cpu().double().tolist()
    return numbers
