"""Chooses the version of Python for an environment: `requires-python`, `.python-version`."""

from __future__ import annotations

import re
import sys
from pathlib import Path

from hopyard.errors import SpecError

_CLAUSE = re.compile(r"\s*(>=|<=|==|!=|~=|>|<)\s*([0-9]+(?:\.[0-9]+)*)(\.\*)?\s*")
_PINNED = re.compile(r"(?:cpython-|python)?([0-9]{1,3}(?:\.[0-9]{1,5}){1,2})")
_NEWEST_MINOR = 20  # versions above it do not exist yet

Version = tuple[int, ...]


def is_allowed(version: Version, requirement: str, *, name: str) -> bool:
    """Returns whether a version meets a requirement such as `>=3.10,<3.13`. name: of the file, for an error.

    Raises SpecError for a requirement that is not one.
    """
    for clause in filter(None, (part.strip() for part in requirement.split(","))):
        found = _CLAUSE.fullmatch(clause)
        if found is None:
            raise SpecError(
                f"{name}: `{requirement}` is not a range of versions", hints=("for example `>=3.10,<3.13`",)
            )
        operator, text, wildcard = found.groups()
        bound = tuple(map(int, text.split(".")))
        if not _meets(version, operator, bound, is_prefix=bool(wildcard)):
            return False
    return True


def is_too_old(version: Version, requirement: str) -> bool:
    """Returns whether a requirement allows no version up to this one, as far as it can be read. version:
    major and minor."""
    bounds = [found for part in requirement.split(",") if (found := _CLAUSE.fullmatch(part)) is not None]
    return any(
        tuple(map(int, bound[2].split(".")))[:2] > version
        for bound in bounds
        if bound[1] in (">=", ">", "~=", "==")
    )


def choose_version(requirement: str, *, name: str) -> str:
    """Returns the version next to this program's own that meets the requirement, an older one first.

    Returns "" if the own version does, which each node has. Raises SpecError."""
    if is_allowed(sys.version_info[:3], requirement, name=name):
        return ""
    own_minor = sys.version_info[1]
    for minor in (*range(own_minor, -1, -1), *range(own_minor + 1, _NEWEST_MINOR)):
        # the newest patch meets any bound below the next minor version
        if is_allowed((3, minor, 99), requirement, name=name):
            return f"3.{minor}"
    raise SpecError(
        f"{name}: no version of Python meets `{requirement}`", hints=("correct requires-python in the file",)
    )


def pinned_version(folder: Path) -> str:
    """Returns the version in `.python-version` of the folder; "" without one, and for this program's own."""
    try:
        lines = (folder / ".python-version").read_text(errors="replace").split()
    except OSError:
        return ""
    found = _PINNED.fullmatch(lines[0]) if lines else None
    if found is None:
        return ""
    own = ".".join(map(str, sys.version_info[:3]))
    return "" if f"{own}.".startswith(f"{found.group(1)}.") else found.group(1)


def check_version(python: str, requirement: str, *, name: str) -> None:
    """Raises SpecError if the requested version cannot meet the requirement. python: for example "3.12"."""
    version = tuple(map(int, python.split(".")))
    newest = version if len(version) > 2 else (*version, 99)
    if requirement and not is_allowed(newest, requirement, name=name):
        raise SpecError(
            f"--python: {name} requires Python {requirement}, not {python}",
            hints=("leave out --python, or name a version that the file allows",),
        )


def _meets(version: Version, operator: str, bound: Version, *, is_prefix: bool) -> bool:
    if operator == "~=":
        return _padded(version) >= _padded(bound) and version[: len(bound) - 1] == bound[:-1]
    if operator in ("==", "!="):
        length = len(bound) if is_prefix else 3
        equal = _padded(version)[:length] == _padded(bound)[:length]
        return equal == (operator == "==")
    left, right = _padded(version), _padded(bound)
    return {">=": left >= right, ">": left > right, "<=": left <= right, "<": left < right}[operator]


def _padded(version: Version) -> Version:
    return (*version, 0, 0, 0)[:3]
