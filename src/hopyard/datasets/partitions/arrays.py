"""NumPy, which everything here stands on, and the arrays that move between the parts."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from hopyard.errors import SpecError

try:
    import numpy as np
    from numpy.typing import NDArray
except ImportError as lacking:
    raise SpecError("numpy is not installed in this interpreter", hints=("pip install numpy",)) from lacking

__all__ = ["Array", "Columns", "array_bytes", "concatenate", "np", "object_array", "scatter"]

Array = NDArray[Any]
Columns = Mapping[str, Array]


def object_array(values: list[Any]) -> Array:
    """A one-dimensional array of these, whatever they are."""
    made = np.empty(len(values), dtype=object)
    for at, value in enumerate(values):  # one by one: NumPy would look into those that are sequences
        made[at] = value
    return made


def concatenate(parts: list[Array]) -> Array:
    """One after the other along the first axis; an array of objects where their rows differ in shape."""
    if len({(part.shape[1:], part.dtype == object) for part in parts}) <= 1:
        return np.concatenate(parts)
    return object_array([row for part in parts for row in part])


def scatter(whole: dict[str, Array], rows: int, positions: Array, parts: Columns) -> None:
    """Put rows where they belong, in arrays of so many rows that are made when the first of them come; arrays
    of objects where rows differ in shape."""
    for name, part in parts.items():
        if name not in whole:
            whole[name] = np.empty((rows, *part.shape[1:]), dtype=part.dtype)
        elif whole[name].shape[1:] != part.shape[1:] and whole[name].dtype != object:
            whole[name] = object_array(list(whole[name]))
        if whole[name].dtype == object:
            for at, row in zip(positions, part, strict=True):
                whole[name][at] = row
        else:
            whole[name][positions] = part


def array_bytes(array: Array) -> int:
    """What it holds in memory, objects with what they hold."""
    if array.dtype != object:
        return int(array.nbytes)
    return int(array.nbytes) + sum(
        int(getattr(value, "nbytes", 0)) or len(value) if hasattr(value, "__len__") else 32 for value in array
    )
