"""The path of `--requirements`: a file, with extras or dependency groups of a project."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

_PARTS = re.compile(r"(?P<name>.*?)(?:\[(?P<extras>[^\]]*)\])?(?::(?P<groups>[\w.,-]+))?")


@dataclass(frozen=True, slots=True)
class RequirementsPath:
    """A file, and the extras and dependency groups of its project that are installed too."""

    file: Path
    extras: tuple[str, ...] = ()
    groups: tuple[str, ...] = ()


def parse_requirements_path(path: Path) -> RequirementsPath:
    """Reads `pyproject.toml`, `pyproject.toml[plot]`, `pyproject.toml:dev`, `.[plot]:dev`.

    A folder means its `pyproject.toml`."""
    if path.is_file():
        return RequirementsPath(path)
    parts = _PARTS.fullmatch(path.name)
    if parts is None or path.is_dir() or path.name in ("", "..", "."):
        return RequirementsPath(path / "pyproject.toml" if path.is_dir() else path)
    file = path.with_name(parts["name"]) if parts["name"] not in ("", ".") else path.parent
    names = [
        tuple(name.strip() for name in (parts[kind] or "").split(",") if name.strip())
        for kind in ("extras", "groups")
    ]
    return RequirementsPath(file / "pyproject.toml" if file.is_dir() else file, *names)
