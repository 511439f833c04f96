"""Aggregates a metric over a whole validation set: from all its outputs, or as a mean over its rows."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from hopyard.errors import SpecError

Metric = Callable[[Any, Any], Any]
"""Takes outputs and targets; returns one number."""

MAX_GATHERED_BYTES = 512 << 20  # of one state, over all validation partitions
_HINT = "for a mean over rows use `hop.row_mean(function)`: it is computed per batch, and gathers nothing"


@dataclass(frozen=True, slots=True)
class RowMean:
    """A metric that is a mean over rows, so its value for a set is the mean over the batches of the set."""

    metric: Metric

    def __call__(self, outputs: Any, targets: Any) -> Any:
        return self.metric(outputs, targets)


def row_mean(metric: Metric) -> RowMean:
    """Marks a metric as a mean over rows. Any other function gets the outputs and targets of the whole
    validation set at once. A mean over rows needs no such set, which may be too large."""
    return RowMean(metric)


def check_gathered_size(size: int, rows: int, all_rows: int) -> None:
    """size: bytes that were gathered from `rows` of `all_rows`. Raises SpecError if all of them would be too
    large for one process."""
    total = size * all_rows // max(rows, 1)
    if total > MAX_GATHERED_BYTES:
        raise SpecError(
            f"the metrics need the outputs of the whole validation set: {total >> 20:,} MiB, and at most "
            f"{MAX_GATHERED_BYTES >> 20} MiB are gathered",
            hints=(_HINT, "or make the validation set smaller: `partitions: {validation: 0.05}`"),
        )


def concatenate(values: Sequence[Any]) -> Any:
    """Joins tensors along their rows, also in tuples and dictionaries. Raises SpecError for values without
    rows, or with rows of different shapes."""
    import torch

    first = values[0]
    if isinstance(first, dict):
        return {name: concatenate([value[name] for value in values]) for name in first}
    if isinstance(first, (tuple, list)):
        return tuple(concatenate(elements) for elements in zip(*values, strict=True))
    try:
        return torch.cat(list(values))
    except (TypeError, RuntimeError) as error:
        raise SpecError(
            f"the outputs of two batches cannot be joined for a metric of the whole validation set: {error}",
            hints=(_HINT,),
        ) from error


def detach(value: Any) -> Any:
    """Returns a nested value of tensors in the memory of the process, without their gradients."""
    if isinstance(value, dict):
        return {name: detach(element) for name, element in value.items()}
    if isinstance(value, (tuple, list)):
        return tuple(detach(element) for element in value)
    return value.detach().cpu() if hasattr(value, "detach") else value
