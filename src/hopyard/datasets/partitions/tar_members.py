"""Decodes a member of a sample by its suffix."""

from __future__ import annotations

import io
import json
from typing import Any

from hopyard.datasets.partitions import image_decode
from hopyard.datasets.partitions.arrays import Array, np, object_array
from hopyard.datasets.partitions.format_files import FORMATS
from hopyard.errors import SpecError

_INTEGER_SUFFIXES = ("cls", "cls2", "index", "id", "count", "inx")
_TEXT_SUFFIXES = ("txt", "text", "transcript", "caption")


def is_image(column: str) -> bool:
    return f".{column.rpartition('.')[2].lower()}" in FORMATS["images"]


def decode_member(data: bytes, column: str, name: str, *, grey: bool) -> Any:
    """Decodes images and .npy to arrays, .cls and similar to integers, .txt to text, .json to its value, and
    all others to bytes. Raises SpecError with `name`."""
    kind = column.rpartition(".")[2].lower()
    try:
        if is_image(column):
            return image_decode.decode_image(data, name, grey=grey)
        if kind in _INTEGER_SUFFIXES:
            return int(data)
        if kind in _TEXT_SUFFIXES:
            return data.decode()
        if kind == "json":
            return json.loads(data)
        if kind == "npy":
            return np.load(io.BytesIO(data), allow_pickle=False)
        return data
    except (ValueError, EOFError) as error:
        raise SpecError(
            f"`{name}` cannot be read: {error}", hints=("write the file again, and push the dataset again",)
        ) from error


def inspect_member(data: bytes, column: str, name: str) -> tuple[bool, int]:
    """Returns whether the member is an image with colours, and its approximate size in memory, in bytes."""
    if is_image(column):
        grey, pixels = image_decode.inspect_image(data, name)
        return not grey, pixels * (1 if grey else 3)
    value = decode_member(data, column, name, grey=True)
    if isinstance(value, np.ndarray):
        return False, value.nbytes
    return False, 8 if isinstance(value, int) else len(data) + 57


def stack_values(values: list[Any]) -> Array:
    """Returns numbers, and arrays of one shape, as one array; all other values as objects."""
    if values and all(type(value) in (int, float, bool) for value in values):
        return np.array(values)
    if (
        values
        and all(isinstance(value, np.ndarray) for value in values)
        and len({(value.shape, value.dtype) for value in values}) == 1
    ):
        return np.stack(values)
    return object_array(values)
