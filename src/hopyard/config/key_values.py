"""`K=V` pairs of the command line."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from hopyard.domain.run_environment import check_settable
from hopyard.domain.text import check_line
from hopyard.errors import SpecError

Value = str | int | float | bool | None

_INT = re.compile(r"[+-]?(?:0|[1-9]\d*)", re.ASCII)
_FLOAT = re.compile(r"[+-]?(?:(?:0|[1-9]\d*)(?:\.\d*)?|\.\d+)(?:[eE][+-]?\d+)?", re.ASCII)
_KEY = re.compile(r"[A-Za-z_][A-Za-z0-9_.-]{0,127}")
NEW_KEY_MARKS = ("++", "+")  # `-p +lr=0.1`: Hydra adds the key
VARIABLE_PATTERN = r"[A-Za-z_][A-Za-z0-9_]*"
_VARIABLE = re.compile(VARIABLE_PATTERN)
_WORD_VALUES: dict[str, Value] = {
    "true": True,
    "True": True,
    "false": False,
    "False": False,
    "null": None,
    "None": None,
}


def parse_value(text: str) -> Value:
    """Returns the value of `-p k=TEXT`: a bool, null, an integer, a float, else the text itself. Quotes make
    it text: `"1"`. Quotes around what is text without them remain."""
    if _is_quoted(text):
        inner = text
        while _is_quoted(inner):
            inner = inner[1:-1]
        return text if isinstance(_plain_value(inner), str) else text[1:-1]
    return _plain_value(text)


def _is_quoted(text: str) -> bool:
    return len(text) >= 2 and text[0] == text[-1] and text[0] in "\"'"


def _plain_value(text: str) -> Value:
    if text in _WORD_VALUES:
        return _WORD_VALUES[text]
    if _INT.fullmatch(text):
        return int(text) if len(text) <= 20 and abs(int(text)) < 2**63 else text
    if _FLOAT.fullmatch(text):
        real = float(text)
        return real if abs(real) != float("inf") else text  # JSON knows no infinity
    return text


def format_value(value: Value) -> str:
    """Returns the text that `parse_value` reads as the same value."""
    if value is None:
        return "null"
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, str):
        return value if parse_value(value) == value else f'"{value}"'
    return repr(value)


def split_pair(text: str, *, what: str, example: str) -> tuple[str, str]:
    """Returns the two sides of `K=V`. Raises SpecError naming `what` (the option)."""
    key, equals, value = text.partition("=")
    if not equals or not key:
        raise SpecError(f"{what}: `{text}` is not of the form K=V", hints=(f"for example {what} {example}",))
    return key, value


def parse_params(pairs: Iterable[str], *, what: str = "-p", prefixes: Sequence[str] = ()) -> dict[str, Value]:
    """Raises SpecError for a pair without `=`, or for an invalid key. prefixes: marks that may begin a key,
    such as the `+` of Hydra; the key of the result has it, too."""
    params: dict[str, Value] = {}
    for pair in pairs:
        key, value = split_pair(pair, what=what, example="lr=0.1")
        check_key(split_key_mark(key, prefixes)[1], what=what)
        params[_check_unique(key, params, what)] = parse_value(value)
    return params


def param_texts(pairs: Iterable[str]) -> dict[str, str]:
    """Returns the text of each value of `parse_params` that is not a text itself."""
    texts = dict(pair.split("=", 1) for pair in pairs)
    return {key: text for key, text in texts.items() if not isinstance(parse_value(text), str)}


def split_key_mark(key: str, marks: Sequence[str] = NEW_KEY_MARKS) -> tuple[str, str]:
    """Returns the mark that begins a key, "" for none, and the key without it."""
    mark = next((each for each in marks if key.startswith(each)), "")
    return mark, key[len(mark) :]


def _check_unique(key: str, pairs: Mapping[str, Any], what: str) -> str:
    """Returns the key unless it is given twice. Raises SpecError, since the intended value is unknown."""
    if key in pairs:
        raise SpecError(f"{what}: `{key}` is given twice", hints=("give it once",))
    return key


def check_key(key: str, *, what: str) -> str:
    if not _KEY.fullmatch(key):
        raise SpecError(
            f"{what}: `{key}` is not the name of a parameter",
            hints=("use letters, digits, `_`, `.` and `-`, beginning with a letter or `_`",),
        )
    return key


def parse_env(pairs: Iterable[str], environ: Mapping[str, str], *, what: str = "-e") -> dict[str, str]:
    """Parses pairs: `K=V` sets a variable, `K` alone copies it from `environ` (the caller's environment).
    Raises SpecError."""
    variables: dict[str, str] = {}
    for pair in pairs:
        key, equals, value = pair.partition("=")
        check_variable(key, what=what)
        if not equals:
            if key not in environ:
                raise SpecError(
                    f"{what}: `{key}` is not set here, so it cannot be passed on",
                    hints=(f"give it a value: {what} {key}=…",),
                )
            value = environ[key]
        variables[_check_unique(key, variables, what)] = value
    return variables


def check_variable(key: str, *, what: str, in_gang: bool = False) -> str:
    if not _VARIABLE.fullmatch(key):
        raise SpecError(
            f"{what}: `{key}` is not the name of an environment variable",
            hints=("use letters, digits and `_`, not beginning with a digit",),
        )
    return check_settable(key, subject=what, in_gang=in_gang)


def parse_secrets(names: Iterable[str], *, what: str = "--secret") -> tuple[str, ...]:
    """Names of secrets, each once. Raises SpecError, for a value too: on a command line all users of the
    machine could read it."""
    secrets: dict[str, None] = {}
    for name in names:
        if "=" in name:
            key = name.partition("=")[0]
            raise SpecError(
                f"{what}: takes only the name of a secret, not its value",
                hints=(f"run `hop secret set {key}`, which reads the value; then use {what} {key}",),
            )
        secrets[check_variable(name, what=what, in_gang=True)] = None
    return tuple(secrets)


def parse_tags(pairs: Iterable[str], *, what: str = "--tag") -> dict[str, str]:
    tags: dict[str, str] = {}
    for pair in pairs:
        key, value = split_pair(pair, what=what, example="team=vision")
        tags[_check_unique(check_key(key, what=what), tags, what)] = check_line(value, subject=what)
    return tags
