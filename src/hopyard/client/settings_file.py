"""The settings of a script's own file, into which `--params-as file:PATH` writes parameters."""

from __future__ import annotations

import json
import tomllib
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from hopyard.client.feedback import Notify
from hopyard.config.yaml_loader import load_yaml
from hopyard.domain.suggest import close_names
from hopyard.errors import SpecError

_MAX_BYTES = 1 << 20
_MAX_NAMES = 1000  # among which a close one is looked for


def check_settings(
    names: Sequence[str], searched: Sequence[str], path: str, folder: Path, notify: Notify
) -> None:
    """Warns of parameters that the file of the code lacks, because its script may never read them.

    searched: those among the names that a study varies. Raises SpecError for such a one: its values may have
    no effect. Does nothing if the file is missing, or is not readable here.
    """
    settings = _read_settings(folder / path)
    if settings is None:
        return
    for name in names:
        if _contains(settings, name):
            continue
        close = close_names(name, dict.fromkeys(_names(settings)), limit=1)
        suggestion = f"did you mean `{close[0]}`?" if close else ""
        if name in searched:
            hint = f"if the script reads it, add `{name}` with its usual value to {path}"
            raise SpecError(
                f"the search over {name}: {path} has no such setting",
                hints=(*((suggestion,) if suggestion else ()), hint),
            )
        notify(f"warning: {path} has no setting `{name}`; it is added in the run")
        if suggestion:
            notify(f"hint: {suggestion}")


def _read_settings(file: Path) -> dict[str, Any] | None:
    """Returns the content of a YAML, TOML or JSON file; None if there is none."""
    try:
        with file.open("rb") as stream:
            data = stream.read(_MAX_BYTES + 1)
        if len(data) > _MAX_BYTES:
            return None
        match file.suffix.lower():
            case ".yaml" | ".yml":
                values = load_yaml(data, file.name)
            case ".toml":
                values = tomllib.loads(data.decode("utf-8-sig"))
            case _:
                values = json.loads(data)
    except (OSError, ValueError, RecursionError, SpecError):
        return None
    return values if isinstance(values, dict) and values else None


def _contains(settings: dict[str, Any], name: str) -> bool:
    """Returns whether a parameter with this name changes a setting: of a key, or of nested ones."""
    if name in settings:
        return True
    values: Any = settings
    for key in name.split("."):
        if isinstance(values, list) and key.isdecimal() and int(key) < len(values):
            values = values[int(key)]
        elif isinstance(values, dict) and key in values:
            values = values[key]
        else:
            return False
    return True


def _names(settings: dict[str, Any]) -> list[str]:
    def walk(values: dict[str, Any], prefix: str) -> Iterator[str]:
        for key, value in values.items():
            if isinstance(value, dict):
                yield from walk(value, f"{prefix}{key}.")
            else:
                yield f"{prefix}{key}"

    names = walk(settings, "")
    return [name for name, _ in zip(names, range(_MAX_NAMES), strict=False)]
