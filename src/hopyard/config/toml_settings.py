"""Changes single settings in a TOML text. Comments, order and everything else remain."""

from __future__ import annotations

import datetime
import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from hopyard.config.key_values import Value
from hopyard.config.nested_settings import set_nested

_WORD = r"""(?:[A-Za-z0-9_-]+|"(?:[^"\\\n]|\\.)*"|'[^'\n]*')"""
_KEY = rf"{_WORD}(?:[ \t]*\.[ \t]*{_WORD})*"
_ENTRY = re.compile(rf"^[ \t]*({_KEY})[ \t]*=[ \t]*", re.ASCII)
_HEADER = re.compile(rf"^[ \t]*(\[\[?)[ \t]*({_KEY})[ \t]*\]\]?[ \t]*(?:#.*)?\r?\n?", re.ASCII)
_BARE = re.compile(r"[A-Za-z0-9_-]+", re.ASCII)
# what a value may contain: texts, which may hold all others, comments, brackets, and the end of a line
_TOKEN = re.compile(
    r"""\"{3}(?:\\.|[^\\])*?"{3,5}|'{3}.*?'{3,5}|"(?:\\.|[^"\\\n])*"|'[^'\n]*'|#[^\n]*|[][{}]|\r?\n""",
    re.DOTALL,
)


@dataclass(frozen=True, slots=True)
class TomlEntry:
    """One `key = value`, or a header of a table. path: with the tables around it."""

    path: tuple[str, ...]
    start: int
    end: int
    is_header: bool = False


def change_toml(text: str, params: Mapping[str, Value | Sequence[Any]]) -> str:
    """Returns the text with these settings. A name with dots is a path of nested keys, unless the text has
    such a key. Raises ValueError."""
    import tomllib

    for name, value in params.items():
        if value is None:
            raise ValueError(f"`{name}` is null, which TOML cannot contain")
        expected = tomllib.loads(text)
        path = (name,) if name in expected else tuple(name.split("."))
        set_nested(expected, path, value)
        text = _set(text, path, value)
        if repr(tomllib.loads(text)) != repr(expected) and tomllib.loads(text) != expected:
            raise ValueError(f"`{name}` cannot be changed in place")
    return text


def _set(text: str, path: tuple[str, ...], value: Value | Sequence[Any]) -> str:
    import tomllib

    entries = list(_entries(text))
    for entry in entries:
        inner = path[len(entry.path) :]
        if entry.is_header or path[: len(entry.path)] != entry.path:
            continue
        new: Any = value
        if inner:  # an inline table is written as a whole
            old = tomllib.loads(f"x = {text[entry.start : entry.end]}")["x"]
            new = old if isinstance(old, (dict, list)) else {}
            set_nested(new, inner, value)
        return text[: entry.start] + _format(new) + text[entry.end :]
    headers = [each for each in entries if each.is_header and each.path == path[: len(each.path)]]
    outer = [each for each in headers if len(each.path) < len(path)]
    table = max(outer, key=lambda each: len(each.path), default=None)
    first = next((each.start for each in entries if each.is_header), len(text))
    if table is not None:
        position, inner = table.end, path[len(table.path) :]
    else:
        own = [each.end for each in entries if not each.is_header and each.end <= first]
        position, inner = (text.find("\n", own[-1]) + 1 or len(text)) if own else 0, path
    line = f"{'.'.join(map(_format_key, inner))} = {_format(value)}\n"
    before = text[:position]
    if before and not before.endswith("\n"):
        before += "\n"
    return before + line + text[position:]


def _entries(text: str) -> Iterator[TomlEntry]:
    table: tuple[str, ...] = ()
    arrays: dict[tuple[str, ...], int] = {}
    position = 0
    while position < len(text):
        rest = text[position:]
        if (header := _HEADER.search(rest)) is not None:
            path: tuple[str, ...] = ()
            words = _words(header[2])
            for index, word in enumerate(words):
                path += (word,)
                if index == len(words) - 1 and header[1] == "[[":
                    arrays[path] = arrays.get(path, -1) + 1
                if path in arrays:
                    path += (str(arrays[path]),)
            table = path
            yield TomlEntry(table, position, position + header.end(), is_header=True)
            position += header.end()
        elif (entry := _ENTRY.search(rest)) is not None:
            start = position + entry.end()
            end = _value_end(text, start)
            yield TomlEntry((*table, *_words(entry[1])), start, end)
            position = text.find("\n", end) + 1 or len(text)
        else:  # a comment, or an empty line
            position = text.find("\n", position) + 1 or len(text)


def _value_end(text: str, start: int) -> int:
    """Returns the end of a value, before a comment."""
    depth, end = 0, len(text)
    for token in _TOKEN.finditer(text, start):
        first = token[0][0]
        if first in "[{":
            depth += 1
        elif first in "]}":
            depth -= 1
        elif first in "#\r\n" and depth <= 0:
            end = token.start()
            break
    return start + len(text[start:end].rstrip())


def _words(key: str) -> tuple[str, ...]:
    return tuple(
        json.loads(word) if word.startswith('"') else word.strip("'") for word in re.findall(_WORD, key)
    )


def _format(value: Any) -> str:
    if isinstance(value, dict):
        inner = ", ".join(f"{_format_key(key)} = {_format(each)}" for key, each in value.items())
        return f"{{ {inner} }}" if inner else "{}"
    if isinstance(value, list):
        return f"[{', '.join(map(_format, value))}]"
    if isinstance(value, (datetime.datetime, datetime.date, datetime.time)):
        return value.isoformat()
    if isinstance(value, str):
        return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")
    if isinstance(value, float):
        return repr(value)  # with `inf` and `nan`, as TOML writes them
    return json.dumps(value)


def _format_key(key: str) -> str:
    return key if _BARE.fullmatch(key) else _format(key)
