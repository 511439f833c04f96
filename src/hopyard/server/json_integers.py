"""JSON knows one kind of number: `3.0` is the integer 3. Looked at only where a body was refused for that."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import msgspec

_FLOAT_REFUSED = re.compile(r"^Expected `int[^`]*`.*, got `float` - at `\$(?P<path>[^`]*)`")
_PATH_STEP = re.compile(r"\.(?P<name>[^.\[]+)|\[(?P<at>\d+|\.\.\.)\]")
_MAX_CONVERSIONS = 64  # numbers that are looked at in one body


def convert_json(data: bytes, shape: Any, error: msgspec.ValidationError) -> Any:
    """`data` as `shape`, with floats that are whole taken as integers where an integer is wanted.

    Raises ValidationError where that does not help: `error`, or what is wrong next.
    """
    body: Any = None
    for _ in range(_MAX_CONVERSIONS):
        found = _FLOAT_REFUSED.search(str(error))
        if found is None:
            break
        body = msgspec.json.decode(data) if body is None else body
        if not _convert_float_at(body, found["path"]):
            break
        try:
            return msgspec.convert(body, shape)
        except msgspec.ValidationError as next_one:
            error = next_one
    raise error


def _convert_float_at(body: Any, path: str) -> bool:
    """Make the float at `path` an int; whether there was a whole one."""
    places = [body]
    *steps, last = [found["name"] or found["at"] for found in _PATH_STEP.finditer(path)] or [""]
    for step in steps:
        places = [inner for place in places for inner in _children(place, step)]
    mended = False
    for place in places:
        for key in list(_matching_keys(place, last)):
            value = place[key]
            if isinstance(value, float) and value.is_integer():
                place[key] = int(value)
                mended = True
    return mended


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
