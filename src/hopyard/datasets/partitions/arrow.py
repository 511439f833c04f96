"""Converts columns of Arrow to NumPy arrays."""

from __future__ import annotations

from typing import Any

from hopyard.datasets.partitions.arrays import Array, np, object_array
from hopyard.errors import SpecError

_FLOATS = {"halffloat": "float16", "float": "float32", "double": "float64"}


def to_array(column: Any, path: str, name: str) -> Array:
    """Converts numbers, booleans and times one to one, lists of equal length to (rows, length), and all other
    types to objects.

    A missing number becomes NaN in a column of floats. Raises SpecError with path and column if the column
    cannot hold NaN.
    """
    import pyarrow as pa

    kind = column.type
    if pa.types.is_dictionary(kind):
        return to_array(column.dictionary_decode(), path, name)
    if pa.types.is_decimal(kind):
        return to_array(column.cast(pa.float64()), path, name)
    if pa.types.is_list(kind) or pa.types.is_large_list(kind) or pa.types.is_fixed_size_list(kind):
        return _list_array(column, path, name)
    if pa.types.is_temporal(kind):
        return np.asarray(column.to_numpy(zero_copy_only=False))
    if pa.types.is_floating(kind):
        return _numeric_array(column, _FLOATS[str(kind)])
    if pa.types.is_integer(kind) or pa.types.is_boolean(kind):
        if column.null_count:
            hint = f"fill them (`frame['{name}'].fillna(0)`), or use a column of floats, which can hold NaN"
            raise SpecError(f"`{path}`: column `{name}` ({kind}) has missing values", hints=(hint,))
        return _boolean_array(column, 1) if pa.types.is_boolean(kind) else _numeric_array(column, str(kind))
    return object_array(column.to_pylist())


def rows_to_array(column: Any, positions: Array, path: str, name: str) -> Array:
    """Converts only these rows, as `to_array`."""
    import pyarrow as pa

    if (
        pa.types.is_integer(column.type)
        or pa.types.is_floating(column.type)
        or pa.types.is_boolean(column.type)
    ):
        return to_array(column, path, name)[positions]
    return to_array(
        column.take(pa.Array.from_buffers(pa.int64(), len(positions), [None, pa.py_buffer(positions)])),
        path,
        name,
    )


def _numeric_array(column: Any, dtype: str) -> Array:
    """Reads Arrow's memory directly: its own conversion to NumPy imports pandas, which takes 40 MB in every
    worker."""
    if not len(column):
        return np.empty(0, dtype=np.dtype(dtype))
    values = np.frombuffer(column.buffers()[1], dtype=np.dtype(dtype))[
        column.offset : column.offset + len(column)
    ]
    return (
        np.where(_boolean_array(column, 0), values, values.dtype.type(np.nan))
        if column.null_count
        else values
    )


def _boolean_array(column: Any, number: int) -> Array:
    """Unpacks a buffer of booleans, eight per byte."""
    if not len(column):
        return np.empty(0, dtype=np.bool_)
    packed = np.frombuffer(column.buffers()[number], dtype=np.uint8)
    return np.unpackbits(packed, count=column.offset + len(column), bitorder="little")[
        column.offset :
    ].astype(np.bool_)


def _list_array(column: Any, path: str, name: str) -> Array:
    """Converts nested lists to more axes, and rows of different lengths to an array of objects."""
    import pyarrow as pa

    if pa.types.is_fixed_size_list(column.type):
        lengths = np.full(len(column), column.type.list_size)
    else:
        lengths = np.diff(_numeric_array(column.offsets, str(column.offsets.type)))
    if column.null_count:
        lengths = np.where(_boolean_array(column, 0), lengths, 0)
    values = to_array(column.flatten(), path, name)
    if len(set(lengths.tolist())) == 1:
        return values.reshape(len(column), int(lengths[0]), *values.shape[1:])
    ends = np.cumsum(lengths)
    return object_array([values[end - length : end] for end, length in zip(ends, lengths, strict=True)])
