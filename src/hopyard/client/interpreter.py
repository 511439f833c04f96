"""The Python interpreter of the caller of `hop run`, and its installed packages."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path


def caller_interpreter(environ: Mapping[str, str]) -> str:
    """Returns the interpreter of the active virtual or conda environment, or else the one that runs `hop`."""
    for variable in ("VIRTUAL_ENV", "CONDA_PREFIX"):
        prefix = environ.get(variable)
        if prefix and os.access(candidate := Path(prefix).absolute() / "bin" / "python", os.X_OK):
            return str(candidate)
    return str(Path(sys.executable).absolute())


def installed_packages(interpreter: str) -> dict[str, str]:
    """Returns name and version of the packages of an interpreter, from folder names alone (a few
    milliseconds)."""
    packages: dict[str, str] = {}
    for folder in site_packages(Path(interpreter)):
        try:
            with os.scandir(folder) as entries:
                for entry in entries:
                    if entry.name.endswith(".dist-info"):
                        name, _, version = entry.name[: -len(".dist-info")].partition("-")
                        if version:
                            packages.setdefault(name.lower().replace("_", "-"), version)
        except OSError:
            continue
    return dict(sorted(packages.items()))


def site_packages(interpreter: Path) -> Iterator[str]:
    """Yields the folders of the packages of an interpreter, from its place alone."""
    lib = interpreter.parent.parent / "lib"
    try:
        versions = sorted(path.name for path in lib.iterdir() if path.name.startswith("python3"))
    except OSError:
        return
    version = _version_of(interpreter)
    for name in versions:
        if version in (None, name):
            yield str(lib / name / "site-packages")
    yield str(lib / "python3" / "dist-packages")


def interpreter_version(interpreter: str) -> tuple[int, int] | None:
    """Returns the major and minor version, from the names of files alone; None if they do not show it."""
    path = Path(interpreter)
    names = [_version_of(path)] + [folder.name for folder in path.parent.parent.glob("lib/python3.*")]
    for name in filter(None, names):
        major, _, minor = name.removeprefix("python").partition(".")
        if minor.isdecimal():
            return int(major), int(minor)
    return None


def _version_of(interpreter: Path) -> str | None:
    """Returns `python3.11`, from the interpreter's link if possible: several versions may share one
    prefix."""
    name = interpreter.resolve().name
    return name if name.startswith("python3.") else None
