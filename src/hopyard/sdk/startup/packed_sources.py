"""Imports packages that are installed editable from the packed code, not from the folder of the submitter.

The script's interpreter finds such a package in the submitter's folder: by a line of a `.pth` file, by a link
in the folder of packages, or by a finder that the build tool installed. By the start of the run that folder
may hold other code.
"""

from __future__ import annotations

import os
import sys

from .import_hooks import warn_once

TYPE_CHECKING = False  # the import of `typing` would take milliseconds
if TYPE_CHECKING:
    from collections.abc import Iterable
    from typing import Any


def use_packed_sources(origin: str, code: str) -> None:
    """Puts the packed copies before the originals in all places where Python finds modules.

    origin: the submitter's folder. code: its packed copy. Modules that are not packed, such as compiled
    extensions, still come from `origin`; a line on stderr names the first.
    """
    copies = _CopyLocator(os.path.realpath(origin), code)
    sys.path[:] = copies.extend(sys.path)
    for name, module in list(sys.modules.items()):
        if name.startswith("__editable__"):  # the finder of setuptools, with the folders of namespaces
            for folders in getattr(module, "NAMESPACES", {}).values():
                folders[:] = copies.extend(folders)
    sys.meta_path.insert(0, _CopyFinder(copies))
    sys.meta_path.append(_SourceFinder(copies))


class _CopyLocator:
    """Finds the packed copies of paths in the submitter's folder."""

    def __init__(self, origin: str, code: str) -> None:
        self.origin, self.code = origin, code
        self.real_code = os.path.realpath(code)  # `code` is a link on a node without namespaces

    def find(self, path: Any) -> str | None:
        """Returns the copy of a path, None if there is none."""
        if not isinstance(path, str) or not path:
            return None
        real = os.path.realpath(path)
        if real != self.origin and not real.startswith(self.origin + os.sep):
            return None
        copy = os.path.normpath(os.path.join(self.code, os.path.relpath(real, self.origin)))
        return copy if os.path.exists(copy) else None

    def extend(self, folders: Iterable[str]) -> list[str]:
        """Returns the folders, each after its copy."""
        extended: list[str] = []
        for folder in folders:
            copy = self.find(folder)
            extended += [copy, folder] if copy is not None and copy not in extended else [folder]
        return extended

    def original(self, path: str) -> str | None:
        """Returns the path in the submitter's folder of which `path` is the copy."""
        for code in (self.code, self.real_code):
            if path == code or path.startswith(code + os.sep):
                return os.path.normpath(os.path.join(self.origin, os.path.relpath(path, code)))
        return None


class _CopyFinder:
    """The first finder: replaces what the others find in the submitter's folder by its packed copy.

    Most packages are elsewhere. One look at the package of the top level is enough for their submodules.
    """

    def __init__(self, copies: _CopyLocator) -> None:
        self._copies = copies
        self._unrelated: set[str] = set()
        self._searching: set[str] = set()

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> Any:
        top = name.partition(".")[0]
        if top in self._unrelated or name in self._searching:
            return None
        self._searching.add(name)
        try:
            spec = self._found(name, path, target)
        finally:
            self._searching.discard(name)
        if spec is None or (spec.origin is None and spec.submodule_search_locations is not None):
            return spec  # absent, or a namespace: its parts may be anywhere
        copy = self._copies.find(spec.origin) if spec.has_location else None
        if copy is None:
            if name == top and not self._is_related(spec.origin):
                self._unrelated.add(top)
            return spec
        return spec if copy == spec.origin else _copied_spec(name, spec, copy)

    def _found(self, name: str, path: Any, target: Any) -> Any:
        for finder in list(sys.meta_path):
            find_spec = None if finder is self else getattr(finder, "find_spec", None)
            spec = None if find_spec is None else find_spec(name, path, target)
            if spec is not None:
                return spec
        return None

    def _is_related(self, file: Any) -> bool:
        """Returns whether a file is in the copy, or in the submitter's folder without a copy."""
        real = os.path.realpath(file) if isinstance(file, str) else ""
        return real.startswith((self._copies.origin + os.sep, self._copies.real_code + os.sep))


def _copied_spec(name: str, spec: Any, copy: str) -> Any:
    # loaded already, unlike importlib
    from _frozen_importlib_external import spec_from_file_location

    folders = None if spec.submodule_search_locations is None else [os.path.dirname(copy)]
    return spec_from_file_location(name, copy, submodule_search_locations=folders) or spec


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
