"""Reports the paths of TensorBoard event files that a process opens, also outside of the run's folder."""

from __future__ import annotations

import json
import os

from .import_hooks import call_guarded
from .reports import append_line, is_first_process

TYPE_CHECKING = False  # the import of `typing` would take milliseconds
if TYPE_CHECKING:
    from types import ModuleType
    from typing import Any

_FILE = "event_files"  # `hopyard.replica.tensorboard_tail` reads it


def install(module: ModuleType) -> None:
    """Extends the writers of `tensorboard` and `tensorboardX`."""
    for name in ("EventFileWriter", "EventsWriter"):
        writer = getattr(module, name, None)
        if writer is not None:
            _extend(writer)


def _extend(writer: Any) -> None:
    create = writer.__init__

    def __init__(self: Any, *arguments: Any, **options: Any) -> None:
        create(self, *arguments, **options)
        call_guarded("tensorboard", _report, getattr(self, "_file_name", None))

    writer.__init__ = __init__


def _report(path: Any) -> None:
    if isinstance(path, str) and "://" not in path:
        own = os.path.abspath(path)
        append_line(_FILE, json.dumps(own if is_first_process() else {"ignored": own}))
