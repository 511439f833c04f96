"""Runs a function after the import of a module. A function that fails is named once, and the import goes
through."""

from __future__ import annotations

import sys

TYPE_CHECKING = False  # the import of `typing` would take milliseconds
if TYPE_CHECKING:
    from collections.abc import Callable
    from types import ModuleType
    from typing import Any

_functions: dict[str, list[Callable[[ModuleType], object]]] = {}
_searching: set[str] = set()
_warned: set[str] = set()


def run_after_import(name: str, function: Callable[[ModuleType], object]) -> None:
    """Calls the function with the module `name` once that is imported; at once for an imported module."""
    if not any(isinstance(finder, _HookFinder) for finder in sys.meta_path):
        sys.meta_path.insert(0, _HookFinder())
    _functions.setdefault(name, []).append(function)
    module = sys.modules.get(name)
    if module is not None and not _is_initializing(module):
        call_guarded(name, function, module)


def call_guarded(name: str, function: Callable[..., object], *arguments: object) -> None:
    """Calls the function. An exception becomes one line on stderr for each `name`."""
    try:
        function(*arguments)
    except Exception as error:
        warn_once(name, f"the hook on {name} failed, so it is off: {type(error).__name__}: {error}")


def warn_once(kind: str, text: str) -> None:
    """Prints one line on stderr, once for each kind."""
    if kind not in _warned:
        _warned.add(kind)
        try:
            sys.stderr.write(f"hopyard: {text}\n")
        except Exception:
            return  # a script without stderr


def _is_initializing(module: ModuleType) -> bool:
    return bool(getattr(getattr(module, "__spec__", None), "_initializing", False))


class _HookFinder:
    """Finds a hooked module by the other finders, and lets its loader call the functions after the import."""

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> Any:
        if name not in _functions or name in _searching:
            return None
        _searching.add(name)
        try:
            for finder in list(sys.meta_path):
                find_spec = None if finder is self else getattr(finder, "find_spec", None)
                spec = None if find_spec is None else find_spec(name, path, target)
                if spec is not None:
                    _extend_loader(name, spec.loader)
                    return spec
            return None
        finally:
            _searching.discard(name)


def _extend_loader(name: str, loader: Any) -> None:
    """Replaces `exec_module` of this loader alone: a loader of another class would hide the methods that
    `inspect` and `importlib.resources` use."""
    execute = getattr(loader, "exec_module", None)
    if execute is None or isinstance(loader, type):
        return  # built-in and frozen modules

    def exec_module(module: ModuleType) -> None:
        execute(module)
        if module.__name__ == name:
            for function in _functions.get(name, ()):
                call_guarded(name, function, module)

    try:
        loader.exec_module = exec_module
    except AttributeError:
        return
