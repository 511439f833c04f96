"""Reads values from a YAML file. An invalid value is refused with its file, its path, the value and what is
allowed."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from hopyard.config.suggest import unknown_name_hints
from hopyard.errors import SpecError, UsageError

T = TypeVar("T")
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

    def contains(self, key: str) -> bool:
        return self.values.get(key) is not None

    def text(self, key: str, default: str = "") -> str:
        """Returns a text. Numbers are refused so that `3.10` does not become `3.1`."""
        value = self.values.get(key)
        if value is None:
            return default
        if not isinstance(value, str):
            hint = "it is one text" if isinstance(value, (list, dict)) else f'write it in quotes: "{value}"'
            raise self.error(key, f"{format_given(value)} is not a text", hint)
        return value

    def integer(self, key: str, default: int, *, low: int, high: int, hint: str = "") -> int:
        value = self.values.get(key)
        if value is None:
            return default
        if not isinstance(value, int) or isinstance(value, bool) or not low <= value <= high:
            raise self.error(
                key,
                f"{format_given(value)} is not a whole number from {low} to {high}",
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
        text = str(value) if plain else format_given(value).strip("`")  # parsers quote what they refuse
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
            hint = (
                "YAML takes yes, no, on and off for true and false: write it in quotes"
                if isinstance(key, bool)
                else f'write it in quotes: "{key}"'
            )
            raise SpecError(f"{location}: the key {format_given(key)} is not a text", hints=(hint,))
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

    `1e-4` is a number here, as people mean it (YAML 1.1 takes it for a text).
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
    return as_section(name, "", _load_yaml(data, name))


def _load_yaml(data: bytes, name: str) -> Any:
    import re

    import yaml

    class Loader(yaml.SafeLoader):
        def get_single_node(self) -> Any:
            root = super().get_single_node()
            _check_keys(root, name)
            return root

    Loader.add_implicit_resolver(
        "tag:yaml.org,2002:float",
        re.compile(r"[-+]?[0-9]+(?:\.[0-9]*)?[eE][-+]?[0-9]+\Z"),
        list("-+0123456789"),
    )
    try:
        return yaml.load(data, Loader)
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        position = f"line {mark.line + 1}: " if mark is not None else ""
        problem = getattr(error, "problem", None) or str(error).splitlines()[0]
        raise SpecError(
            f"{name}: {position}not YAML: {problem}",
            hints=("check the indentation and the quotes on that line",),
        ) from error
    except RecursionError:
        raise SpecError(
            f"{name}: it is nested too deeply to be read",
            hints=("a settings file has a few levels, not hundreds",),
        ) from None
    except ValueError as error:
        raise SpecError(f"{name}: not YAML that can be read: {error}") from error


def _check_keys(root: Any, name: str) -> None:
    """Raises SpecError if a mapping below this node of YAML holds a key twice: YAML would silently use the
    last."""
    import yaml

    looked_at: set[int] = set()  # the node of an alias has several places, and may contain itself
    pending = [(root, "")]
    while pending:
        node, path = pending.pop()
        if id(node) in looked_at:
            continue
        looked_at.add(id(node))
        lines: dict[str, int] = {}
        for index, entry in enumerate(node.value if isinstance(node, yaml.CollectionNode) else ()):
            key, value = entry if isinstance(node, yaml.MappingNode) else (None, entry)
            text = str(index) if key is None else key.value if isinstance(key, yaml.ScalarNode) else None
            key_path = f"{path}.{text}" if path else str(text)
            if key is not None and text is not None:
                line = key.start_mark.line + 1
                if text in lines:
                    hint = f"remove one of them: the other is in line {lines[text]}"
                    raise SpecError(
                        f"{name}: line {line}: the key `{key_path}` is given twice", hints=(hint,)
                    )
                lines[text] = line
            pending.append((value, key_path))
