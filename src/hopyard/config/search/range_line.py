"""The range of a parameter as one word of a command line: `-p lr=log:1e-4..1e-1 -p batch_size=16,32,64`.

| word | range |
|---|---|
| `log:1e-4..1e-1` | real, uniform in the logarithm |
| `0.0..0.5` | real, uniform |
| `1..8`, `int:1..8` | a whole number, both ends included |
| `logint:16..256` | a whole number, uniform in the logarithm |
| `16,32,64` | one of these |
| `[64,64],[128]` | one of these; commas in brackets and quotes separate nothing |
| `loguniform(1e-4, 1e-1)` | as in a search file |
| `0.9` | always this value |
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Any

from hopyard.config.key_values import Value, check_key, parse_value, split_key_mark, split_pair
from hopyard.domain.suggest import closest_name
from hopyard.errors import SpecError

_KINDS = ("log", "logint", "int", "float")
_NUMBER = r"[-+]?(?:\d+\.?\d*|\.\d+)(?:[eE][-+]?\d+)?"
_RANGE = re.compile(rf"(?:([A-Za-z]+):)?({_NUMBER})\.\.({_NUMBER})", re.ASCII)
_KIND_OF_VALUES = re.compile(r"([A-Za-z]+):\S*\.\.\S*", re.ASCII)
_CALL = re.compile(r"[A-Za-z_][A-Za-z0-9_.]*\(.*\)", re.ASCII | re.DOTALL)
_QUOTES = "\"'"
_BRACKETS = {"[": "]", "{": "}", "(": ")", **{quote: quote for quote in _QUOTES}}
_EXAMPLES = "ranges: log:1e-4..1e-1, 0.0..0.5, 1..8, logint:16..256, 16,32,64"


def parse_search_words(pairs: Iterable[str], *, what: str = "-p") -> dict[str, Any]:
    """Returns the ranges of `name=word` pairs, as a search file has them under `space`. Raises SpecError
    naming the option `what`."""
    ranges: dict[str, Any] = {}
    for pair in pairs:
        key, word = split_pair(pair, what=what, example="lr=log:1e-4..1e-1")
        mark, plain = split_key_mark(key)
        name = mark + check_key(plain, what=what)
        if name in ranges:
            raise SpecError(f"{what}: `{name}` is given twice", hints=("keep one of the two",))
        ranges[name] = _parse_word(word, f"{what} {name}")
    return ranges


def value_texts(pairs: Iterable[str]) -> dict[str, list[str]]:
    """Returns the values of `parse_search_words` as typed, by name. A range has none, and neither has a text
    in quotes."""
    texts: dict[str, list[str]] = {}
    for pair in pairs:
        key, _, word = pair.partition("=")
        values = [value.strip() for value in _split_values(word.strip())]
        is_range = _CALL.fullmatch(word.strip()) or _RANGE.fullmatch(word.strip())
        if not is_range and not any(value[:1] in _QUOTES for value in values if value):
            texts[split_key_mark(key)[1]] = values
    return texts


def is_searched(value: Any) -> bool:
    """Returns whether the result of `parse_search_words` for a parameter has several values."""
    return not (isinstance(value, Mapping) and value.keys() == {"value"})


def _parse_word(word: str, path: str) -> Any:
    stripped = word.strip()
    if _CALL.fullmatch(stripped):
        return stripped
    ends = _RANGE.fullmatch(stripped)
    if ends is not None:
        return _range_of(ends[1] or "", ends[2], ends[3], path)
    if (kind := _KIND_OF_VALUES.fullmatch(stripped)) is not None:
        raise SpecError(f"{path}: `{word}` has no two numbers", hints=(f"for example {kind[1]}:1..8",))
    values = _split_values(stripped)
    if len(values) > 1:
        if "" in values:
            raise SpecError(f"{path}: `{word}` has an empty value", hints=(_EXAMPLES,))
        return [_parse_value(value) for value in values]
    return {"value": _parse_value(word)}


def _parse_value(word: str) -> Value:
    stripped = word.strip()
    if len(stripped) >= 2 and stripped[0] == stripped[-1] and stripped[0] in _QUOTES:
        return stripped[1:-1]
    return parse_value(word)


def _split_values(word: str) -> list[str]:
    """Returns the values between the commas of a word, except commas inside of brackets and quotes."""
    values, start, closing = [], 0, ""
    for position, character in enumerate(word):
        if closing:
            if character == closing[-1]:
                closing = closing[:-1]
            elif closing[-1] not in _QUOTES and character in _BRACKETS:
                closing += _BRACKETS[character]
        elif character in _BRACKETS and not word[start:position].strip():
            closing = _BRACKETS[character]
        elif character == ",":
            values.append(word[start:position].strip())
            start = position + 1
    if closing:  # nothing closes the bracket: it is a character as others
        return [value.strip() for value in word.split(",")]
    return [*values, word[start:].strip()]


def _range_of(kind: str, low: str, high: str, path: str) -> Any:
    if kind and kind not in _KINDS:
        near = closest_name(kind, _KINDS)
        hints = (f"did you mean `{near}:{low}..{high}`?",) if near else ()
        raise SpecError(f"{path}: there is no range `{kind}:`", hints=(*hints, _EXAMPLES))
    ends = [_number_of(text) for text in (low, high)]
    is_whole = all(isinstance(end, int) for end in ends)
    if kind in ("int", "logint") and not is_whole:
        raise SpecError(f"{path}: `{low}..{high}` are not whole numbers", hints=(f"log:{low}..{high}",))
    if kind == "log" and is_whole:
        raise SpecError(
            f"{path}: real or whole numbers? Both ends of `log:{low}..{high}` are whole",
            hints=(f"write logint:{low}..{high}, or log:{low}.0..{high}.0",),
        )
    whole = kind in ("int", "logint") or (not kind and is_whole)
    low_end, high_end = ends if whole else map(float, ends)
    return {
        "type": "int" if whole else "float",
        "low": low_end,
        "high": high_end,
        "log": kind in ("log", "logint"),
    }


def _number_of(text: str) -> int | float:
    return float(text) if any(character in text for character in ".eE") else int(text)
