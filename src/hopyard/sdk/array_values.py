"""Reads arrays, tensors and nested lists of any library as NumPy arrays, or without NumPy as nested lists."""

from __future__ import annotations

import array
import math
from collections.abc import Iterable, Iterator
from numbers import Integral
from typing import Any

from hopyard.errors import SpecError
from hopyard.sdk.warn_once import warn_once


def is_tensor(data: object) -> bool:
    """Returns whether this is a tensor of PyTorch, by its methods."""
    return callable(getattr(data, "detach", None)) and callable(getattr(data, "cpu", None))


def is_array(data: object) -> bool:
    """Returns whether this is an array or a tensor, not a list."""
    return is_tensor(data) or isinstance(getattr(data, "shape", None), tuple)


def to_numpy(data: Any) -> Any:
    """Returns the values as a NumPy array, in the memory of the host. Raises SpecError without NumPy."""
    try:
        import numpy
    except ImportError:
        raise SpecError(
            f"a {type(data).__name__} needs NumPy, which this Python lacks",
            hints=("`pip install numpy`, or pass nested lists, a file or bytes",),
        ) from None
    if is_tensor(data):
        data = data.detach().cpu()
        if "bfloat16" in str(data.dtype):
            data = data.float()
    values = numpy.asarray(data)
    if values.dtype.kind not in "biuf":  # such as bfloat16 of JAX
        values = values.astype("float32")
    return values


def nested_shape(data: Any) -> tuple[int, ...]:
    """Returns the shape of nested lists. Raises SpecError if rows differ in length."""
    if not isinstance(data, (list, tuple)):
        return ()
    shapes = {nested_shape(item) for item in data}
    if len(shapes) != 1:
        raise SpecError(
            "the rows of a nested list differ in length" if data else "an empty list has no values"
        )
    return (len(data), *shapes.pop())


def flatten(data: Any) -> Iterator[Any]:
    """Yields the numbers of nested lists."""
    if isinstance(data, (list, tuple)):
        for item in data:
            yield from flatten(item)
    else:
        yield data


def clip_to_bytes(values: Any) -> Any:
    """Returns a NumPy array as uint8: whole numbers as they are, other numbers from 0 to 1 as 0 to 255."""
    import numpy

    kind = values.dtype.kind
    if kind == "b":
        return values.astype("uint8") * 255
    if kind in "iu":
        if values.dtype != numpy.uint8 and values.size and (values.min() < 0 or values.max() > 255):
            _warn_clipped("0 to 255")
        return numpy.clip(values, 0, 255).astype("uint8")
    values = numpy.nan_to_num(values.astype("float32"), nan=0.0, posinf=1.0, neginf=0.0)
    if values.size and (values.min() < -0.001 or values.max() > 1.001):
        _warn_clipped("0 to 1")
    return (numpy.clip(values, 0.0, 1.0) * 255.0 + 0.5).astype("uint8")


def list_to_bytes(values: Iterable[Any]) -> bytes:
    """Returns numbers of a list as 8-bit samples: all as whole numbers, or all from 0 to 1 if one is not."""
    given = list(values)
    is_whole = all(isinstance(value, Integral) and not isinstance(value, bool) for value in given)
    factor = 1.0 if is_whole else 255.0
    scaled = [0.0 if value != value else float(value) * factor for value in given]
    if any(not -0.5 <= value <= 255.5 for value in scaled):
        _warn_clipped("0 to 255" if is_whole else "0 to 1")
    return bytes(round(min(max(value, 0.0), 255.0)) for value in scaled)


def to_samples(values: Any) -> Any:
    """Returns a NumPy array of audio as 16-bit samples: floats from -1 to 1, or integers of their own
    range."""
    import numpy

    kind, size = values.dtype.kind, values.dtype.itemsize
    if kind == "f":
        values = numpy.nan_to_num(values.astype("float64"), nan=0.0, posinf=1.0, neginf=-1.0)
        if values.size and max(abs(values.min()), abs(values.max())) > 1.001:
            _warn_clipped("-1 to 1")
        return (numpy.clip(values, -1.0, 1.0) * 32767.0).round().astype("<i2")
    if kind == "u" and size == 1:
        return ((values.astype("int32") - 128) * 256).astype("<i2")
    if size > 2:
        return (
            (values >> (8 * (size - 2))).astype("<i2")
            if size == 4
            else numpy.clip(values, -32768, 32767).astype("<i2")
        )
    return values.astype("<i2")


def list_to_samples(values: Iterable[Any]) -> bytes:
    """Returns numbers of a list, from -1 to 1, as 16-bit samples."""
    samples = array.array("h", (_to_sample(float(value)) for value in values))
    if array.array("h", [1]).tobytes() != b"\x01\x00":
        samples.byteswap()
    return samples.tobytes()


def _to_sample(value: float) -> int:
    return 0 if math.isnan(value) else round(min(max(value, -1.0), 1.0) * 32767)


def _warn_clipped(range_text: str) -> None:
    warn_once(f"hop.log: values outside of {range_text} are clipped", kind=f"clipped-{range_text}")
