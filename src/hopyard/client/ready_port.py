"""Waits until a run serves a port."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TYPE_CHECKING

from hopyard.api_client.client import Client
from hopyard.client.run_files import is_ended
from hopyard.errors import Conflict, PortUnreachable, ServerUnavailable

if TYPE_CHECKING:
    from hopyard.api_client import types as api

_INTERVAL_S = 0.3


def wait_until_served(
    client: Client, run: api.RunOut, port: str, *, on_change: Callable[[api.RunOut], None]
) -> api.RunOut:
    """Returns the run once a process of it listens on the port, or once it has ended. on_change: receives its
    states. Waits for a server that restarts."""
    path = ""
    while not is_ended(run):
        try:
            if run["phase"] == "running":
                path = path or client.create_run_port(run["id"], {"port": port})["path"]
                client.open_tcp(path).close()
                return run
        except (PortUnreachable, Conflict, ServerUnavailable):
            pass
        time.sleep(_INTERVAL_S)
        try:
            run = client.get_run(run["id"])
        except ServerUnavailable:
            continue
        on_change(run)
    return run
