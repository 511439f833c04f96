"""The Unix socket at which a run serves a port for its server only, out of reach of other users."""

from __future__ import annotations

import os
from pathlib import Path

from hopyard.domain.run_port import SOCKET_VARIABLE


def short_socket_path(port: str) -> str:
    """Returns the path of the socket of a port, in a short form, since addresses of sockets have at most 107
    bytes. It is valid in this process only. port: its name.

    A socket of an earlier process is removed, since its file keeps the address in use.
    """
    path = Path(os.environ[f"{SOCKET_VARIABLE}{port.upper()}"])
    path.unlink(missing_ok=True)
    folder = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    return f"/proc/self/fd/{folder}/{path.name}"
