"""Where the prompts of `hop repl` are evaluated: at the safe points of this process. Standard library only.

    prompts/<rank>-<pid>    one eight-byte cell, which the replica increments when a user opens a prompt. The
                            process holds the lock of the file while it lives.

A process looks for a new prompt by reading one cell of shared memory. It then connects to its replica.
"""

from __future__ import annotations

import fcntl
import os
import socket
import sys
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from hopyard.private_files import make_folder, open_file
from hopyard.sdk.bound_objects import BoundObjects, bound_objects
from hopyard.sdk.command_file import map_cells
from hopyard.sdk.live_params import LiveParams

if TYPE_CHECKING:
    from hopyard.sdk.prompt_session import PromptSession

PROMPTS_DIR, TERMINALS_DIR = "prompts", "terminals"
_SOCKET = "console.sock"  # domain.replica.CONSOLE_SOCKET, which would be slow to import
_CONNECT_S = 5.0


class PromptPoint:
    """The prompts of this process. folder: of the replica."""

    def __init__(self, folder: str, bound: BoundObjects, params: LiveParams) -> None:
        self._folder, self._bound, self._params = folder, bound, params
        self._cells: memoryview | None = None
        self._descriptor = -1
        self._seen, self._pid = 0, 0
        self._sessions: list[PromptSession] = []

    def announce(self, rank: int) -> None:
        """From now on this process accepts prompts. If that fails, as on a full disk, there are none, and the
        script continues."""
        if self._pid == os.getpid():
            return
        self._pid, self._sessions, self._cells = os.getpid(), [], None
        folder = os.path.join(self._folder, PROMPTS_DIR)
        with suppress(OSError):
            make_folder(folder, private_parent=self._folder)
            self._descriptor = open_file(os.path.join(folder, f"{rank}-{self._pid}"), os.O_RDWR | os.O_CREAT)
            fcntl.flock(self._descriptor, fcntl.LOCK_EX)
            self._cells = map_cells(self._descriptor, 1)
            self._seen = self._cells[0]

    def reach(self, step: int) -> None:
        """Evaluates the statements that wait, in the thread that calls this. step: the completed
        iterations."""
        cells = self._cells
        if cells is not None and cells[0] != self._seen:
            self._seen = cells[0]
            if self._pid == os.getpid():
                self._attach(step)
        if self._sessions:
            self._sessions = [session for session in self._sessions if session.serve(step)]

    def _attach(self, step: int) -> None:
        from hopyard.sdk.prompt_session import PromptSession

        try:
            sock = connect_to_replica(self._folder)
        except OSError:
            return
        try:
            session = PromptSession.accept(sock, self._names, self._params.declared, step)
        except (OSError, ValueError):  # the user has left meanwhile
            session = None
        if session is None:
            with suppress(OSError):
                sock.close()
        else:
            self._sessions.append(session)

    def _names(self) -> dict[str, Any]:
        """Returns what a prompt has beside the scope of the script: the bound objects, `p`, and `hop`."""
        params = [values for values, _ in self._params.declared()]
        return {
            "hop": sys.modules[__name__.partition(".")[0]],
            "bound": self._bound,
            **({"p": params[0]} if params else {}),
            **bound_objects(self._bound),
        }


def connect_to_replica(folder: str) -> socket.socket:
    """Returns a connection to the consoles of the replica with this folder. Raises OSError."""
    sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            sock.settimeout(_CONNECT_S)
            sock.connect(f"/proc/self/fd/{descriptor}/{_SOCKET}")  # the path itself may be too long
        finally:
            os.close(descriptor)
    except OSError:
        sock.close()
        raise
    return sock
