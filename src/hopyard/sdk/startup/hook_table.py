"""The hooks by the module that they wait for. A hook is imported only when its library is."""

from __future__ import annotations

import os

from .import_hooks import call_guarded, run_after_import

TYPE_CHECKING = False  # the import of `typing` would take milliseconds
if TYPE_CHECKING:
    from types import ModuleType

# By the name of a library's module, the modules of this package; each has `install(module)`.
HOOKS: dict[str, tuple[str, ...]] = {}


def activate_hooks() -> None:
    """Registers all hooks. It costs no import of a library."""
    origin, copy = os.environ.get("HOPYARD_CODE_ORIGIN"), os.environ.get("HOPYARD_CODE_COPY")
    if origin and copy:
        from .packed_sources import use_packed_sources

        call_guarded("editable packages", use_packed_sources, origin, copy)
    for library, hooks in HOOKS.items():
        for hook in hooks:
            run_after_import(library, _Installer(hook))


class _Installer:
    def __init__(self, hook: str) -> None:
        self._hook = hook

    def __call__(self, module: ModuleType) -> None:
        from importlib import import_module

        import_module(f"{__package__}.{self._hook}").install(module)
