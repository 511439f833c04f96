"""The Python interpreter of the caller of `hop run`, and its installed packages."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path

from hopyard.sdk.startup.package_versions import find_packages

_MAX_PTH_BYTES = 64 * 1024


def caller_interpreter(environ: Mapping[str, str]) -> str:
    """Returns the interpreter of the active virtual or conda environment, or else the one that runs `hop`."""
    for variable in ("VIRTUAL_ENV", "CONDA_PREFIX"):
        prefix = environ.get(variable)
        if prefix and os.access(candidate := Path(prefix).absolute() / "bin" / "python", os.X_OK):
            return str(candidate)
    return str(Path(sys.executable).absolute())


def installed_packages(interpreter: str, python_path: str = "") -> dict[str, str]:
    """Returns name and version of the packages of an interpreter, from files alone (a few milliseconds). The
    run reports its own list when it starts. python_path: its `PYTHONPATH`."""
    path = Path(interpreter)
    folders = [folder for folder in python_path.split(os.pathsep) if folder.startswith("/")]
    for folder in (*site_packages(path), *_other_site_packages(path)):
        folders += (folder, *map(str, path_file_folders(Path(folder))))
    return find_packages(folders)


def path_file_folders(folder: Path) -> Iterator[Path]:
    """Yields the folders that the `.pth` files in a folder of packages add to the import path."""
    try:
        files = sorted(entry for entry in folder.iterdir() if entry.suffix == ".pth")
    except OSError:
        return
    for file in files:
        try:
            text = file.read_text(errors="replace") if file.stat().st_size <= _MAX_PTH_BYTES else ""
        except OSError:
            continue
        for line in text.splitlines():
            if line.strip() and not line.startswith(("#", "import ", "import\t")):
                yield folder / line.rstrip()  # an absolute path replaces that of the folder


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


def _other_site_packages(interpreter: Path) -> Iterator[str]:
    """Yields the folders beside the interpreter's own: of its user, or of the installation below a virtual
    environment that includes it."""
    settings: dict[str, str] = {}
    try:
        text = (interpreter.parent.parent / "pyvenv.cfg").read_text(errors="replace")
    except OSError:
        version = _version_of(interpreter)
        yield str(Path.home() / ".local" / "lib" / (version or "python3") / "site-packages")
        if str(interpreter.parent) == "/usr/bin":  # Debian
            yield f"/usr/local/lib/{version}/dist-packages"
        return
    for line in text.splitlines():
        key, _, value = line.partition("=")
        settings[key.strip().lower()] = value.strip()
    if settings.get("include-system-site-packages", "").lower() == "true" and settings.get("home"):
        yield from site_packages(Path(settings["home"]) / Path(os.path.realpath(interpreter)).name)


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
