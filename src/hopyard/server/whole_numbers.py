"""JSON knows one kind of number: `3.0` is the integer 3. Looked at only where a body was refused for that."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import msgspec

_FLOAT = re.compile(r"^Expected `int[^`]*`.*, got `float` - at `\$(?P<path>[^`]*)`")
_STEP = re.compile(r"\.(?P<name>[^.\[]+)|\[(?P<at>\d+|\.\.\.)\]")
_TRIES = 64  # numbers that are looked at in one body


def convert(data: bytes, shape: Any, refused: msgspec.ValidationError) -> Any:
    """`data` as `shape`, with floats that are whole taken as integers where an integer is wanted.

    Raises ValidationError where that does not help: `refused`, or what is wrong next.
    """
    body: Any = None
    for _ in range(_TRIES):
        found = _FLOAT.search(str(refused))
        if found is None:
            break
        body = msgspec.json.decode(data) if body is None else body
        if not _mend(body, found["path"]):
            break
        try:
            return msgspec.convert(body, shape)
        except msgspec.ValidationError as next_one:
            refused = next_one
    raise refused


def _mend(body: Any, path: str) -> bool:
    """Make the float at `path` an int; whether there was a whole one."""
    places = [body]
    *steps, last = [found["name"] or found["at"] for found in _STEP.finditer(path)] or [""]
    for step in steps:
        places = [inner for place in places for inner in _inside(place, step)]
    mended = False
    for place in places:
        for key in list(_keys(place, last)):
            value = place[key]
            if isinstance(value, float) and value.is_integer():
                place[key] = int(value)
                mended = True
    return mended


def _inside(place: Any, step: str) -> Iterator[Any]:
    for key in _keys(place, step):
        yield place[key]


def _keys(place: Any, step: str) -> Iterator[Any]:
    if step == "...":
        yield from place if isinstance(place, dict) else range(len(place)) if isinstance(place, list) else ()
    elif isinstance(place, list) and step.isdecimal() and int(step) < len(place):
        yield int(step)
    elif isinstance(place, dict) and step in place:
        yield step
