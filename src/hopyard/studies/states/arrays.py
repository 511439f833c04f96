"""Arrays and scalars of NumPy in an encoded state. NumPy is never imported here: what is of it can only exist
where it was."""

from __future__ import annotations

import math
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from hopyard.errors import IntegrityError
from hopyard.sdk.plain import is_plain_dtype
from hopyard.studies.states import tags
from hopyard.studies.states.leaf import Leaf, Reader, Writer

_PARTS = 4096  # of a dtype
_SIMPLE = "biufcSUmM"  # kinds of dtypes that their own short text says all of


def write(writer: Writer, value: Any) -> bool:
    """Whether it was one. Subclasses of arrays, and dtypes of other packages, are objects like any other."""
    numpy = sys.modules.get("numpy")
    if numpy is None:
        return False
    if isinstance(value, numpy.generic) and value.dtype.kind in _SIMPLE and type(value).__module__ == "numpy":
        writer.head += tags.SCALAR
        _write_array(writer, numpy.asarray(value))
        return True
    if type(value) is not numpy.ndarray:
        return False
    if value.dtype.kind == "O":
        if not writer.occurs_again(value):
            writer.head += tags.OBJECT_ARRAY
            writer.write(value.shape)
            writer.write(value.ravel().tolist())
        return True
    if not _known(value.dtype):
        return False
    if not writer.occurs_again(value):
        writer.head += tags.ARRAY
        _write_array(writer, value)
    return True


def _known(dtype: Any) -> bool:
    if dtype.names is not None:
        return dtype.subdtype is None and all(_known(part[0]) for part in dtype.fields.values())
    return (dtype.subdtype is None or _known(dtype.base)) and dtype.base.kind in _SIMPLE


def _write_array(writer: Writer, value: Any) -> None:
    """dtype, shape, whether in Fortran's order, bytes in the order of memory."""
    import numpy

    writer.write(value.dtype.str if value.dtype.names is None else value.dtype.descr)
    writer.write(value.shape)
    backwards = bool(value.flags.f_contiguous and not value.flags.c_contiguous)
    writer.write(backwards)
    if not value.flags.f_contiguous and not value.flags.c_contiguous:
        value = numpy.ascontiguousarray(value)
    writer.leaf(Leaf(value.nbytes, value, address=value.__array_interface__["data"][0]))


def read_array(reader: Reader) -> Any:
    import numpy

    said, shape, backwards = reader.read(), _shape(reader.read()), reader.read()
    count = math.prod(shape)
    with _damage_told(f"{said!r}, {shape!r}"):
        left = iter(range(_PARTS))
        dtype = numpy.dtype(said if isinstance(said, str) else [_field(one, left) for one in said])
        if not is_plain_dtype(dtype):
            raise ValueError("its elements are no numbers or texts")
        flat = numpy.frombuffer(reader.leaf(count * dtype.itemsize), dtype=dtype, count=count)
        return flat.reshape(shape, order="F" if backwards else "C")


def _shape(said: Any) -> tuple[int, ...]:
    if not isinstance(said, tuple) or not all(type(size) is int and size >= 0 for size in said):
        raise IntegrityError(f"a state is damaged: {said!r} is no array's shape")
    return said


def _field(said: Any, left: Iterator[int]) -> Any:
    """left: for how many parts there is leave, as a list that occurs again in itself has no end."""
    if next(left, None) is None:
        raise ValueError("it has too many parts")
    return tuple([[_field(one, left) for one in part] if isinstance(part, list) else part for part in said])


def read_scalar(reader: Reader) -> Any:
    return read_array(reader)[()]


def read_objects(reader: Reader) -> Any:
    import numpy

    shape = _shape(reader.read())
    if math.prod(shape) > reader.rest():
        raise IntegrityError(f"a state is damaged: it ends before an array of {shape!r} objects does")
    with _damage_told(f"{shape!r} objects"):
        made = numpy.empty(shape, dtype=object)
    reader.remember(made)
    elements = reader.read()
    if not isinstance(elements, list) or len(elements) != made.size:
        raise IntegrityError(f"a state is damaged: {shape!r} objects are there, and others are given")
    flat = made.reshape(-1)
    for at, one in enumerate(elements):  # all at once, NumPy would look into lists and ranges among them
        flat[at] = one
    return made


@contextmanager
def _damage_told(what: str) -> Iterator[None]:
    try:
        yield
    except (TypeError, ValueError, SyntaxError) as bad:  # SyntaxError: of a dtype's text
        raise IntegrityError(f"a state is damaged: no array of {what}: {bad}") from bad
