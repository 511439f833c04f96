"""Values of settings by paths of keys, as files of settings and parameters name them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any


def set_nested(values: Any, path: Sequence[str], value: object) -> None:
    """Sets the value at a path of keys. In a list, a key is the index of an entry. A mapping is created where
    none is. Raises ValueError for an entry that a list lacks, and for one that has no keys."""
    *parents, last = path
    for parent in parents:
        key = _key_of(values, parent)
        if isinstance(values, dict) and not isinstance(values.get(key), (dict, list)):
            values[key] = {}
        values = values[key]
        if not isinstance(values, (dict, list)):
            raise ValueError(f"entry `{parent}` of a list has no keys")
    values[_key_of(values, last)] = value


def _key_of(values: dict[str, Any] | list[Any], name: str) -> Any:
    if isinstance(values, dict):
        return name
    return entry_index(name, len(values))


def entry_index(name: str, count: int) -> int:
    """Returns the index of an entry in a list of so many. Raises ValueError for a name that is none."""
    if name.isdecimal() and int(name) < count:
        return int(name)
    raise ValueError(f"`{name}` is not an entry of a list")
