"""Connects a replica to the container engine of its node, which may be away for a moment, such as while it is
restarted."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from hopyard.container_engine.engine_discovery import ContainerEngine, open_engine
from hopyard.errors import ContainerEngineUnavailable, ContainerError
from hopyard.private_files import open_file
from hopyard.replica.errors import NodeFault, PrepareFailed

_MARKER = "container-engine"  # in the home: an engine has answered
_INTERVAL_S = 0.5
_WAIT_S = 15.0


def connect_engine(home: Path, report: Callable[[str], None], *, wait_s: float = _WAIT_S) -> ContainerEngine:
    """Returns the engine of this node.

    report: receives what takes long. wait_s: for an engine that has answered a run of this home before.
    Raises NodeFault if one does not answer, and PrepareFailed if the node has none that this user may use.
    """
    marker = home / _MARKER
    give_up_at = time.monotonic() + wait_s
    while True:
        try:
            engine = open_engine()
        except ContainerError as error:
            if not marker.exists():
                reason = error.message + "".join(f" ({hint})" for hint in error.hints)
                is_away = isinstance(error, ContainerEngineUnavailable)
                raise (NodeFault(reason) if is_away else PrepareFailed(reason)) from error
            if time.monotonic() >= give_up_at:
                raise NodeFault(f"the container engine does not answer: {error.message}") from error
            report("waiting for the container engine")
            time.sleep(_INTERVAL_S)
        else:
            with suppress(OSError):  # a full disk
                os.close(open_file(marker, os.O_WRONLY | os.O_CREAT))
            return engine
