"""Markers of a `pylock.toml` (PEP 751), which may depend on the extras and dependency groups of a run."""

from __future__ import annotations

import re
from collections.abc import Collection

from hopyard.errors import SpecError

_TOKEN = re.compile(r"""\s*("[^"]*"|'[^']*'|[()]|[<>=!~]++|[\w.]++)""")
_TOKENS = re.compile(rf"(?:{_TOKEN.pattern})*+\s*+")
_NAMES = ("extras", "dependency_groups")


def choose_marker(marker: str, extras: Collection[str], groups: Collection[str], *, name: str) -> str | None:
    """Returns the marker without its conditions on extras and groups: "" if it always holds, None if it never
    does. name: of the package, for an error. Raises SpecError."""
    tokens = _TOKEN.findall(marker) if _TOKENS.fullmatch(marker) else ["…"]
    chosen = {kind: set(map(plain_name, given)) for kind, given in zip(_NAMES, (extras, groups), strict=True)}
    try:
        value, rest = _read_any(tokens, chosen)
    except IndexError:
        value, rest = False, ["…"]
    if rest:
        raise SpecError(f"{name}: `{marker}` is not a marker", hints=("write the lock file again",))
    return "" if value is True else None if value is False else value


def plain_name(name: str) -> str:
    """Returns the normal form of the name of an extra or group."""
    return re.sub(r"[-_.]+", "-", name).lower()


_Value = bool | str  # a condition that is decided, or its text


def _read_any(tokens: list[str], chosen: dict[str, set[str]]) -> tuple[_Value, list[str]]:
    values, rest = _read_list(tokens, "or", chosen)
    if True in values:
        return True, rest
    texts = [each for each in values if each is not False]
    return (" or ".join(map(str, texts)) or False), rest


def _read_all(tokens: list[str], chosen: dict[str, set[str]]) -> tuple[_Value, list[str]]:
    values, rest = _read_list(tokens, "and", chosen)
    if False in values:
        return False, rest
    texts = [f"({each})" if " or " in str(each) else str(each) for each in values if each is not True]
    return (" and ".join(texts) or True), rest


def _read_list(tokens: list[str], word: str, chosen: dict[str, set[str]]) -> tuple[list[_Value], list[str]]:
    read = _read_all if word == "or" else _read_one
    value, rest = read(tokens, chosen)
    values = [value]
    while rest[:1] == [word]:
        value, rest = read(rest[1:], chosen)
        values.append(value)
    return values, rest


def _read_one(tokens: list[str], chosen: dict[str, set[str]]) -> tuple[_Value, list[str]]:
    if tokens[0] == "(":
        value, rest = _read_any(tokens[1:], chosen)
        return value, rest[1:] if rest[0] == ")" else ["…"]
    operator = ["not", "in"] if tokens[1:3] == ["not", "in"] else tokens[1:2]
    left, right = tokens[0], tokens[1 + len(operator)]
    rest = tokens[2 + len(operator) :]
    if right in chosen and operator[-1] == "in":
        return (plain_name(left.strip("'\"")) in chosen[right]) == (len(operator) == 1), rest
    return f"{left} {' '.join(operator)} {right}", rest
