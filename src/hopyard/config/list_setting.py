"""The value of a parameter for a setting that is a list in the script's file."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from hopyard.config.key_values import Value, format_value, parse_value
from hopyard.config.nested_settings import entry_index
from hopyard.config.yaml_loader import SourceList, load_yaml
from hopyard.errors import SpecError


def with_lists(params: Mapping[str, Value], settings: Any) -> dict[str, Value | list[Any]]:
    """Returns the parameters, with a list for each that is a list in the settings. Raises ValueError."""
    result: dict[str, Value | list[Any]] = {}
    for name, value in params.items():
        is_key = isinstance(settings, dict) and name in settings
        old = _find(settings, [name] if is_key else name.split("."))
        result[name] = _as_list(name, value, old) if isinstance(old, list) else value
    return result


def _find(settings: Any, path: Sequence[str]) -> Any:
    """Returns the setting at a path of keys; None if there is none."""
    for key in path:
        try:
            settings = settings[entry_index(key, len(settings)) if isinstance(settings, list) else key]
        except (KeyError, TypeError, ValueError):
            return None
    return settings


def _as_list(name: str, value: Value, old: Sequence[Any]) -> list[Any] | None:
    """Returns the entries in `64,32`, `[64, 32]` or `64`; None for no value. Entries of a list of texts stay
    as typed. Raises ValueError for a text with an open bracket."""
    if value is None:
        return None
    has_texts = bool(old) and all(isinstance(entry, str) for entry in old)
    if not isinstance(value, str):
        return [format_value(value) if has_texts else value]
    text = value.strip()
    if text.startswith("["):
        return _parse(name, text, has_texts=has_texts)
    has_numbers = bool(old) and all(isinstance(entry, int | float) for entry in old)
    words = text.split() if has_numbers and "," not in text else text.split(",")
    entries = [word.strip() for word in words]
    if entries == [""]:
        return []
    return [entry if has_texts else parse_value(entry) for entry in entries]


def _parse(name: str, text: str, *, has_texts: bool) -> list[Any]:
    try:
        entries = load_yaml(text.encode(), name)
    except SpecError as error:
        raise ValueError(f"`{name}` is a list, and `{text}` is none") from error
    if not isinstance(entries, SourceList):
        raise ValueError(f"`{name}` is a list, and `{text}` is none")
    if has_texts:
        return [entries.sources.get(index, entry) for index, entry in enumerate(entries)]
    return list(entries)
