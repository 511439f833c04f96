"""Columns of Arrow as arrays of NumPy."""

from __future__ import annotations

from typing import Any

from hopyard.datasets.partitions.arrays import Array, np, objects
from hopyard.errors import SpecError


def as_array(column: Any, path: str, name: str) -> Array:
    """Numbers, truth values and times one to one; lists of equal length as (rows, length); all else as objects. A missing number
    is NaN where the column can hold it. Raises SpecError that names path and column where it cannot."""
    import pyarrow as pa

    kind = column.type
    if pa.types.is_dictionary(kind):
        return as_array(column.dictionary_decode(), path, name)
    if pa.types.is_decimal(kind):
        return as_array(column.cast(pa.float64()), path, name)
    if pa.types.is_list(kind) or pa.types.is_large_list(kind) or pa.types.is_fixed_size_list(kind):
        return _of_lists(column, path, name)
    if pa.types.is_floating(kind) or pa.types.is_temporal(kind):
        return np.asarray(column.to_numpy(zero_copy_only=False))
    if pa.types.is_integer(kind) or pa.types.is_boolean(kind):
        if column.null_count:
            hint = f"fill them (`frame['{name}'].fillna(0)`), or make it a column of floats, in which NaN says so"
            raise SpecError(f"`{path}`: column `{name}` ({kind}) has rows without a value", hints=(hint,))
        return np.asarray(column.to_numpy(zero_copy_only=False))
    return objects(column.to_pylist())


def _of_lists(column: Any, path: str, name: str) -> Array:
    """Nested lists become more axes; rows of several lengths an array of objects."""
    lengths = {None if value is None else len(value) for value in column}
    if lengths == {None} or len(lengths) != 1:
        return objects([np.asarray([] if value is None else value) for value in column.to_pylist()])
    (length,) = lengths
    inner = as_array(column.flatten(), path, name)
    return inner.reshape(len(column), int(length or 0), *inner.shape[1:])
