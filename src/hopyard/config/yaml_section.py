"""Reads values from a YAML file. An invalid value is refused with its file, its path, the value and what is
allowed."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from hopyard.config.suggest import unknown_name_hints
from hopyard.config.yaml_loader import load_yaml
from hopyard.errors import SpecError, UsageError

T = TypeVar("T")
_FLAG_WORDS = {"yes": True, "on": True, "no": False, "off": False}
_MAX_FILE_BYTES = 1024 * 1024


@dataclass(frozen=True, slots=True)
class YamlSection:
    """One mapping of a file. `path` is its place: `roles.0.resources`, "" for the whole file."""

    file: str
    path: str
    values: Mapping[str, Any]

    def path_of(self, key: str | int) -> str:
        return f"{self.path}.{key}" if self.path else str(key)

    def error(self, key: str | int, problem: str, *hints: str) -> SpecError:
        """Returns the error for the value of `key`."""
        return SpecError(f"{self.file}: {self.path_of(key)}: {problem}", hints=hints)

    def check_keys(self, *allowed: str) -> YamlSection:
        """Returns the same section. Raises SpecError for a key that is not `allowed`."""
        for key in self.values:
            if key not in allowed:
                prefix = f"{self.path}: " if self.path else ""
                raise SpecError(
                    f"{self.file}: {prefix}there is no key `{key}`",
                    hints=unknown_name_hints(str(key), allowed),
                )
        return self

    def source(self, key: str) -> str | None:
        """Returns a scalar as the file has it, without quotes; None for a list, a mapping, and a value that
        comes from no file."""
        sources: Mapping[Any, str] = getattr(self.values, "sources", {})
        return sources.get(key)

    def given(self, key: str) -> str:
        """Returns a value for an error message, as the file has it."""
        source = self.source(key)
        return format_given(source or self.values.get(key))

    def contains(self, key: str) -> bool:
        return self.values.get(key) is not None

    def text(self, key: str, default: str = "") -> str:
        """Returns a text. Numbers are refused so that `3.10` does not become `3.1`."""
        value = self.values.get(key)
        if value is None:
            return default
        if not isinstance(value, str):
            raise self.error(key, f"{self.given(key)} is not a text", self.text_hint(key))
        return value

    def text_hint(self, key: str) -> str:
        """Returns what to write where a text belongs and another value is given."""
        if isinstance(self.values.get(key), (list, dict)):
            return "it is one text"
        return f'write it in quotes: "{self.given(key)[1:-1]}"'

    def flag(self, key: str) -> Any:
        """Returns the value with `yes`, `no`, `on` and `off` as true and false, which YAML 1.2 takes for
        texts."""
        value = self.values.get(key)
        return _FLAG_WORDS.get(value.lower(), value) if isinstance(value, str) else value

    def integer(self, key: str, default: int, *, low: int, high: int, hint: str = "") -> int:
        value = self.values.get(key)
        if value is None:
            return default
        if not isinstance(value, int) or isinstance(value, bool) or not low <= value <= high:
            raise self.error(
                key,
                f"{self.given(key)} is not a whole number from {low} to {high}",
                *((hint,) if hint else ()),
            )
        return value

    def amount(self, key: str, parse: Callable[[str], T]) -> T | None:
        """Returns a value with a unit, given as text or number; None where there is none. `parse` raises
        SpecError."""
        value = self.values.get(key)
        if value is None:
            return None
        plain = isinstance(value, (str, int, float)) and not isinstance(value, bool)
        source = self.source(key)
        # parsers quote what they refuse
        text = source if plain and source is not None else str(value) if plain else self.given(key).strip("`")
        return self.parsed(key, lambda: parse(text))

    def parsed(self, key: str | int, parse: Callable[[], T]) -> T:
        """Returns the result of `parse`. Its error gets the file and the path of `key`."""
        try:
            return parse()
        except UsageError as error:
            _, _, problem = error.message.partition(": ")
            raise self.error(key, problem or error.message, *error.hints) from error

    def section(self, key: str) -> YamlSection:
        """Returns the mapping under `key`, an empty one where there is none."""
        return as_section(self.file, self.path_of(key), self.values.get(key, {}))

    def items(self, key: str) -> Iterator[tuple[int, Any]]:
        """Yields the list under `key` with its indices; nothing where there is none."""
        value = self.values.get(key)
        if value is None:
            return
        if not isinstance(value, list):
            raise self.error(
                key, f"{format_given(value)} is not a list", "a list has one `- …` line per entry"
            )
        yield from enumerate(value)


def as_section(file: str, path: str, value: Any) -> YamlSection:
    """Returns `value` as a section. Raises SpecError unless it is a mapping with texts as keys."""
    if value is None:
        value = {}
    location = f"{file}: {path}" if path else file
    if not isinstance(value, dict):
        raise SpecError(
            f"{location}: {format_given(value)} is not a mapping",
            hints=("a mapping has one `key: value` line per entry",),
        )
    for key in value:
        if not isinstance(key, str):
            raise SpecError(
                f"{location}: the key {format_given(key)} is not a text",
                hints=(f'write it in quotes: "{format_given(key)[1:-1]}"',),
            )
    return YamlSection(file, path, value)


def format_given(value: Any) -> str:
    """Returns a value for an error message, shortened."""
    if value is None:
        return "nothing"
    text = (
        value
        if isinstance(value, str)
        else "true"
        if value is True
        else "false"
        if value is False
        else str(value)
    )
    return f"`{text[:60]}…`" if len(text) > 60 else f"`{text}`"


def read_yaml(file: Path, *, named: str | None = None) -> YamlSection:
    """Returns the file's mapping. Raises SpecError when it cannot be read, is not YAML, has a key twice, or
    is not a mapping.

    YAML 1.2 applies: `1e-4` is a number, `no` and `12:30` are texts.
    """
    name = named or str(file)
    try:
        with file.open("rb") as stream:
            data = stream.read(_MAX_FILE_BYTES + 1)
    except FileNotFoundError:
        raise SpecError(
            f"there is no file {name}", hints=("give a path relative to the current folder",)
        ) from None
    except OSError as error:
        raise SpecError(
            f"{name} cannot be read: {error.strerror}",
            hints=("check that it is a file that you can read",),
        ) from error
    return read_yaml_text(data, name)


def read_yaml_text(data: bytes, name: str) -> YamlSection:
    """Returns the mapping of a text. Errors name the text `name`. Raises SpecError as `read_yaml` does."""
    if len(data) > _MAX_FILE_BYTES:
        raise SpecError(f"{name} is larger than 1 MiB", hints=("a settings file holds settings, not data",))
    return as_section(name, "", load_yaml(data, name))
