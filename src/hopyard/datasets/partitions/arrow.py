"""Columns of Arrow as arrays of NumPy."""

from __future__ import annotations

from typing import Any

from hopyard.datasets.partitions.arrays import Array, np, object_array
from hopyard.errors import SpecError

_FLOATS = {"halffloat": "float16", "float": "float32", "double": "float64"}


def to_array(column: Any, path: str, name: str) -> Array:
    """Numbers, truth values and times one to one; lists of equal length as (rows, length); all else as
    objects. A missing number is NaN where the column can hold it. Raises SpecError that names path and column
    where it cannot."""
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
            hint = (
                f"fill them (`frame['{name}'].fillna(0)`), or make it a column of floats, in which NaN "
                "says so"
            )
            raise SpecError(f"`{path}`: column `{name}` ({kind}) has rows without a value", hints=(hint,))
        return _boolean_array(column, 1) if pa.types.is_boolean(kind) else _numeric_array(column, str(kind))
    return object_array(column.to_pylist())


def rows_to_array(column: Any, positions: Array, path: str, name: str) -> Array:
    """As `as_array`, of these rows only."""
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
    """Straight from Arrow's memory: its own way to NumPy imports pandas, which takes 40 MB of every
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
    """A buffer of truth values, eight in a byte."""
    if not len(column):
        return np.empty(0, dtype=np.bool_)
    packed = np.frombuffer(column.buffers()[number], dtype=np.uint8)
    return np.unpackbits(packed, count=column.offset + len(column), bitorder="little")[
        column.offset :
    ].astype(np.bool_)


def _list_array(column: Any, path: str, name: str) -> Array:
    """Nested lists become more axes; rows of several lengths an array of objects."""
    import pyarrow as pa

    if pa.types.is_fixed_size_list(column.type):
        lengths = np.full(len(column), column.type.list_size)
    else:
        lengths = np.diff(_numeric_array(column.offsets, str(column.offsets.type)))
    if column.null_count:
        lengths = np.where(_boolean_array(column, 0), lengths, 0)
    inner = to_array(column.flatten(), path, name)
    if len(set(lengths.tolist())) == 1:
        return inner.reshape(len(column), int(lengths[0]), *inner.shape[1:])
    ends = np.cumsum(lengths)
    return object_array([inner[end - length : end] for end, length in zip(ends, lengths, strict=True)])
