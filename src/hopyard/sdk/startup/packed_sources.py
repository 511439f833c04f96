"""Imports packages that are installed editable from the packed code, not from the folder of the submitter.

The script's interpreter finds such a package in the submitter's folder: by a line of a `.pth` file, or by a
finder that the build tool installed. By the start of the run that folder may hold other code.
"""

from __future__ import annotations

import os
import sys

from .import_hooks import warn_once

TYPE_CHECKING = False  # the import of `typing` would take milliseconds
if TYPE_CHECKING:
    from typing import Any

_FINDER_TABLES = (
    "known_source_files",
    "_redirections",
)  # of scikit-build-core, and of hatchling's exact mode


def use_packed_sources(origin: str, code: str) -> None:
    """Puts the packed copies before the originals in all places where Python finds modules.

    origin: the submitter's folder. code: its packed copy. Modules that are not packed, such as compiled
    extensions, still come from `origin`; a line on stderr names the first.
    """
    copies = _CopyLocator(os.path.realpath(origin), code)
    path = []
    for folder in sys.path:
        copy = copies.find(folder)
        path += [copy, folder] if copy is not None and copy not in sys.path else [folder]
    if _redirect_finders(copies) or path != sys.path:
        sys.path[:] = path
        sys.meta_path.append(_SourceFinder(copies))


class _CopyLocator:
    """Finds the packed copies of paths in the submitter's folder."""

    def __init__(self, origin: str, code: str) -> None:
        self.origin, self.code = origin, code

    def find(self, path: Any) -> str | None:
        """Returns the copy of a path, None if there is none."""
        if not isinstance(path, str) or not path:
            return None
        real = os.path.realpath(path)
        if real != self.origin and not real.startswith(self.origin + os.sep):
            return None
        copy = os.path.normpath(os.path.join(self.code, os.path.relpath(real, self.origin)))
        return copy if os.path.exists(copy) else None

    def original(self, path: str) -> str | None:
        """Returns the path in the submitter's folder of which `path` is the copy."""
        if path != self.code and not path.startswith(self.code + os.sep):
            return None
        return os.path.normpath(os.path.join(self.origin, os.path.relpath(path, self.code)))


def _redirect_finders(copies: _CopyLocator) -> bool:
    """Changes the tables of the finders of editable packages. Returns whether it changed one."""
    tables = []
    for name, module in list(sys.modules.items()):
        if name.startswith("__editable__"):  # setuptools
            tables += [getattr(module, "MAPPING", None), getattr(module, "NAMESPACES", None)]
    for finder in sys.meta_path:
        tables += [getattr(finder, table, None) for table in _FINDER_TABLES]
    changed = False
    for table in tables:
        if isinstance(table, dict):
            for key, value in table.items():
                copied = _copied_value(copies, value)
                if copied != value:
                    table[key], changed = copied, True
    return changed


def _copied_value(copies: _CopyLocator, value: Any) -> Any:
    if isinstance(value, str):
        return copies.find(value) or value
    if isinstance(value, list):
        found = [copy for copy in map(copies.find, value) if copy is not None and copy not in value]
        return [*found, *value]
    return value


class _SourceFinder:
    """The last finder: finds submodules that the packed copy of their package lacks in the submitter's
    folder."""

    def __init__(self, copies: _CopyLocator) -> None:
        self._copies = copies

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> Any:
        originals = [self._copies.original(folder) for folder in path or () if isinstance(folder, str)]
        folders = [folder for folder in originals if folder is not None and os.path.isdir(folder)]
        if not folders:
            return None
        # loaded already, unlike importlib
        from _frozen_importlib_external import PathFinder

        spec = PathFinder.find_spec(name, folders, target)
        if spec is not None:
            warn_once(
                "unpacked module",
                f"{name} is not in the packed code: it comes from {spec.origin or folders[0]}",
            )
        return spec
