"""Accepts whole floats such as `3.0` as integers, since JSON has only one kind of number. It runs only after
a body was refused for this reason."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import msgspec

_FLOAT_REFUSED = re.compile(r"^Expected `int[^`]*`.*, got `float` - at `\$(?P<path>[^`]*)`")
_PATH_STEP = re.compile(r"\.(?P<name>[^.\[]+)|\[(?P<at>\d+|\.\.\.)\]")
_MAX_CONVERSIONS = 64  # attempts to convert a number per body


def convert_json(data: bytes, shape: Any, error: msgspec.ValidationError) -> Any:
    """Returns `data` as `shape`, with whole floats converted to integers where an integer is required.

    Raises ValidationError if that does not help: `error`, or the next error.
    """
    body: Any = None
    for _ in range(_MAX_CONVERSIONS):
        match = _FLOAT_REFUSED.search(str(error))
        if match is None:
            break
        body = msgspec.json.decode(data) if body is None else body
        if not _convert_float_at(body, match["path"]):
            break
        try:
            return msgspec.convert(body, shape)
        except msgspec.ValidationError as next_error:
            error = next_error
    raise error


def _convert_float_at(body: Any, path: str) -> bool:
    """Converts whole floats at `path` to int. Returns whether there were any."""
    containers = [body]
    *steps, last = [match["name"] or match["at"] for match in _PATH_STEP.finditer(path)] or [""]
    for step in steps:
        containers = [inner for container in containers for inner in _children(container, step)]
    converted = False
    for container in containers:
        for key in list(_matching_keys(container, last)):
            value = container[key]
            if isinstance(value, float) and value.is_integer():
                container[key] = int(value)
                converted = True
    return converted


def _children(container: Any, step: str) -> Iterator[Any]:
    for key in _matching_keys(container, step):
        yield container[key]


def _matching_keys(container: Any, step: str) -> Iterator[Any]:
    if step == "...":
        yield from (
            container
            if isinstance(container, dict)
            else range(len(container))
            if isinstance(container, list)
            else ()
        )
    elif isinstance(container, list) and step.isdecimal() and int(step) < len(container):
        yield int(step)
    elif isinstance(container, dict) and step in container:
        yield step
