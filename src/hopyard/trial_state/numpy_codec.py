"""Arrays and scalars of NumPy in an encoded state. NumPy is imported only to decode them; to encode one, it
must be imported already."""

from __future__ import annotations

import math
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from hopyard.errors import IntegrityError
from hopyard.sdk.safe_values import is_plain_dtype
from hopyard.trial_state import state_format
from hopyard.trial_state.buffers import Buffer, ValueReader, ValueWriter

_MAX_DTYPE_PARTS = 4096  # of a dtype
_SIMPLE_KINDS = "biufcSUmM"  # kinds of dtypes that their short text describes completely


def write_numpy(writer: ValueWriter, value: Any) -> bool:
    """Writes an array or a scalar and returns True; returns False for other values. Subclasses of arrays and
    dtypes of other packages are written as objects."""
    numpy = sys.modules.get("numpy")
    if numpy is None:
        return False
    if (
        isinstance(value, numpy.generic)
        and value.dtype.kind in _SIMPLE_KINDS
        and type(value).__module__ == "numpy"
    ):
        writer.head += state_format.SCALAR
        _write_array(writer, numpy.asarray(value))
        return True
    if type(value) is not numpy.ndarray:
        return False
    if value.dtype.kind == "O":
        if not writer.write_reference(value):
            writer.head += state_format.OBJECT_ARRAY
            writer.write(value.shape)
            writer.write(value.ravel().tolist())
        return True
    if not _is_supported(value.dtype):
        return False
    if not writer.write_reference(value):
        writer.head += state_format.ARRAY
        _write_array(writer, value)
    return True


def _is_supported(dtype: Any) -> bool:
    if dtype.names is not None:
        return dtype.subdtype is None and all(_is_supported(part[0]) for part in dtype.fields.values())
    return (dtype.subdtype is None or _is_supported(dtype.base)) and dtype.base.kind in _SIMPLE_KINDS


def _write_array(writer: ValueWriter, value: Any) -> None:
    """Writes dtype, shape, whether in Fortran order, and the bytes in memory order."""
    import numpy

    writer.write(value.dtype.str if value.dtype.names is None else value.dtype.descr)
    writer.write(value.shape)
    fortran_order = bool(value.flags.f_contiguous and not value.flags.c_contiguous)
    writer.write(fortran_order)
    if not value.flags.f_contiguous and not value.flags.c_contiguous:
        value = numpy.ascontiguousarray(value)
    writer.write_buffer(Buffer(value.nbytes, value, address=value.__array_interface__["data"][0]))


def read_array(reader: ValueReader) -> Any:
    import numpy

    description, shape, fortran_order = reader.read(), _shape(reader.read()), reader.read()
    count = math.prod(shape)
    with _report_damage(f"{description!r}, {shape!r}"):
        parts_left = iter(range(_MAX_DTYPE_PARTS))
        dtype = numpy.dtype(
            description
            if isinstance(description, str)
            else [_field(field, parts_left) for field in description]
        )
        if not is_plain_dtype(dtype):
            raise ValueError("its elements are not numbers or text")
        flat = numpy.frombuffer(reader.read_buffer(count * dtype.itemsize), dtype=dtype, count=count)
        return flat.reshape(shape, order="F" if fortran_order else "C")


def _shape(value: Any) -> tuple[int, ...]:
    if not isinstance(value, tuple) or not all(type(size) is int and size >= 0 for size in value):
        raise IntegrityError(f"a state is damaged: {value!r} is not an array shape")
    return value


def _field(value: Any, parts_left: Iterator[int]) -> Any:
    """parts_left: limits the number of parts, because a list that contains itself has no end."""
    if next(parts_left, None) is None:
        raise ValueError("it has too many parts")
    return tuple(
        [
            [_field(sub_field, parts_left) for sub_field in part] if isinstance(part, list) else part
            for part in value
        ]
    )


def read_scalar(reader: ValueReader) -> Any:
    return read_array(reader)[()]


def read_objects(reader: ValueReader) -> Any:
    import numpy

    shape = _shape(reader.read())
    if math.prod(shape) > reader.remaining_bytes():
        raise IntegrityError(f"a state is damaged: an array of {shape!r} objects is truncated")
    with _report_damage(f"{shape!r} objects"):
        result = numpy.empty(shape, dtype=object)
    reader.add_reference(result)
    elements = reader.read()
    if not isinstance(elements, list) or len(elements) != result.size:
        raise IntegrityError(f"a state is damaged: the elements do not match {shape!r} objects")
    flat = result.reshape(-1)
    for index, element in enumerate(
        elements
    ):  # one by one, because NumPy would unpack lists and ranges among them
        flat[index] = element
    return result


@contextmanager
def _report_damage(subject: str) -> Iterator[None]:
    try:
        yield
    except (TypeError, ValueError, SyntaxError) as error:  # SyntaxError: from a dtype's text
        raise IntegrityError(f"a state is damaged: invalid array of {subject}: {error}") from error
