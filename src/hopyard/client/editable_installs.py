"""Finds packages of an interpreter that are installed editable: Python imports them from their source."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import unquote, urlsplit

from hopyard.client.feedback import Notify
from hopyard.client.git_state import read_commit
from hopyard.client.interpreter import site_packages

_MAX_PTH_BYTES = 64 * 1024
_MAX_NAMED = 3
_MAX_COMMITS = 10  # packages of which the commit is read


@dataclass(frozen=True, slots=True)
class EditableInstall:
    """A package, and the folder of its source, which is absolute and resolved.

    name: "" for a folder on the import path that no package declares (a hand-made `.pth` file).
    """

    name: str
    source: Path


def find_editable_installs(interpreter: str) -> list[EditableInstall]:
    """Returns the editable packages of an interpreter, from its files alone. Links and folders of the import
    path that lead to another place of a virtual environment are a part of it."""
    installs: dict[Path, EditableInstall] = {}
    environment = _virtual_environment(interpreter)
    for folder in site_packages(Path(interpreter)):
        try:
            with os.scandir(folder) as entries:
                found = [install for entry in entries for install in _entry_installs(entry)]
        except OSError:
            continue
        for install in sorted(found, key=lambda each: not each.name):
            if not install.name and environment and install.source.is_relative_to(environment):
                continue
            if not any(install.source.is_relative_to(known) for known in installs) or install.name:
                installs.setdefault(install.source, install)
    return list(installs.values())


def record_editable_installs(folder: Path, interpreter: str, notify: Notify) -> dict[str, str]:
    """Returns the sources of editable packages by their names: below the packed folder as a relative path,
    elsewhere as an absolute one with the commit of its repository. Notifies of the latter: the run imports
    them as they are when it starts. The source that pip has cloned into a virtual environment is one of
    these, because the environment is not packed."""
    root = folder.resolve()
    environment = _virtual_environment(interpreter)
    sources: dict[str, str] = {}
    outside: list[str] = []
    for install in find_editable_installs(interpreter):
        if install.name == "hopyard":
            continue  # each run has the SDK of its node
        is_cloned = environment is not None and install.source.is_relative_to(environment)
        if install.source.is_relative_to(root) and not is_cloned:
            sources[install.name or install.source.name] = os.path.relpath(install.source, root)
        elif install.name:
            commit = read_commit(install.source) if len(outside) < _MAX_COMMITS else ""
            sources[install.name] = f"{install.source}@{commit}" if commit else str(install.source)
            outside.append(f"{install.name} ({install.source})")
    if outside:
        more = f" and {len(outside) - _MAX_NAMED} more" if len(outside) > _MAX_NAMED else ""
        notify(
            f"note: installed editable outside the packed folder: {', '.join(outside[:_MAX_NAMED])}{more}; "
            "the run imports the source that is there when it starts"
        )
    return sources


def _virtual_environment(interpreter: str) -> Path | None:
    """Returns the folder of the interpreter's virtual environment; None for an installation."""
    folder = Path(interpreter).absolute().parent.parent
    return folder.resolve() if (folder / "pyvenv.cfg").is_file() else None


def _entry_installs(entry: os.DirEntry[str]) -> Iterator[EditableInstall]:
    name = entry.name
    try:
        if name.endswith(".dist-info"):
            data = Path(entry.path, "direct_url.json").read_bytes()
            record = json.loads(data)
            if record.get("dir_info", {}).get("editable"):
                source = unquote(urlsplit(record["url"]).path)
                yield EditableInstall(_package_name(name), Path(source).resolve())
        elif entry.is_symlink() and not name.startswith((".", "_")):
            target = Path(os.path.realpath(entry.path))
            if (target.is_dir() and any(target.glob("*.py"))) or target.suffix == ".py":
                yield EditableInstall("", target)  # as `flit install --symlink` makes it
        elif name.endswith(".egg-link"):
            first = Path(entry.path).read_text(errors="replace").partition("\n")[0].strip()
            yield EditableInstall(name.removesuffix(".egg-link").lower(), Path(first).resolve())
        elif name.endswith(".pth") and entry.stat().st_size <= _MAX_PTH_BYTES:
            for line in Path(entry.path).read_text(errors="replace").splitlines():
                if line.startswith("/") and Path(line.rstrip()).is_dir():
                    yield EditableInstall("", Path(line.rstrip()).resolve())
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return  # absent, or not as its specification describes it


def _package_name(folder: str) -> str:
    return folder.removesuffix(".dist-info").partition("-")[0].lower().replace("_", "-")
