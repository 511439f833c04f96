"""NumPy, which this package needs, and the arrays that its modules exchange."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from hopyard.errors import SpecError

try:
    import numpy as np
    from numpy.typing import NDArray
except ImportError as error:
    raise SpecError("numpy is not installed in this interpreter", hints=("pip install numpy",)) from error

__all__ = ["Array", "Columns", "array_bytes", "concatenate", "np", "object_array", "scatter"]

Array = NDArray[Any]
Columns = Mapping[str, Array]


def object_array(values: list[Any]) -> Array:
    """Returns a one-dimensional array of these objects."""
    array = np.empty(len(values), dtype=object)
    for index, value in enumerate(values):  # one at a time: NumPy would unpack sequences
        array[index] = value
    return array


def concatenate(parts: list[Array]) -> Array:
    """Concatenates along the first axis; returns an array of objects if the shapes of rows differ."""
    if len({(part.shape[1:], part.dtype == object) for part in parts}) <= 1:
        return np.concatenate(parts)
    return object_array([row for part in parts for row in part])


def scatter(arrays: dict[str, Array], rows: int, positions: Array, parts: Columns) -> None:
    """Writes rows to `positions` of the arrays in `whole`, which have `rows` rows and are created on first
    use. Arrays become arrays of objects if the shapes of rows differ."""
    for name, part in parts.items():
        if name not in arrays:
            arrays[name] = np.empty((rows, *part.shape[1:]), dtype=part.dtype)
        elif arrays[name].shape[1:] != part.shape[1:] and arrays[name].dtype != object:
            arrays[name] = object_array(list(arrays[name]))
        if arrays[name].dtype == object:
            for index, row in zip(positions, part, strict=True):
                arrays[name][index] = row
        else:
            arrays[name][positions] = part


def array_bytes(array: Array) -> int:
    """Returns the size in memory in bytes, referenced objects included."""
    if array.dtype != object:
        return int(array.nbytes)
    return int(array.nbytes) + sum(
        int(getattr(value, "nbytes", 0)) or len(value) if hasattr(value, "__len__") else 32 for value in array
    )
