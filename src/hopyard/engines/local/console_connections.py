"""Connects to the consoles of replicas on this machine, and to no other process."""

from __future__ import annotations

import asyncio
import os
import socket
import struct
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from hopyard.domain.attempt import ReplicaPhase
from hopyard.domain.ids import AttemptId
from hopyard.domain.replica import CONSOLE_SOCKET, LOCK_FILE
from hopyard.engines.local.port_connections import PortStream
from hopyard.engines.local.replica_folder import ReplicaFolder, has_open
from hopyard.errors import ConsoleUnreachable
from hopyard.private_files import open_below

_CREDENTIALS = struct.Struct("3i")  # pid, uid, gid
_STREAM_BYTES = 64 * 1024
_CONNECT_S = 10.0


async def connect_console(attempts: Path, attempt: AttemptId, rank: int) -> PortStream:
    """Returns a connection to the replica program. attempts: the folder of all attempts of the home.

    The run's processes may write to the folder of the socket, and replace it by a link to another run's.
    So no link is followed, and the peer must be the replica program, which holds the lock of this folder.
    Raises ConsoleUnreachable.
    """
    sock = await asyncio.to_thread(_connect, ReplicaFolder(attempts / attempt / str(rank)))
    return await asyncio.open_unix_connection(sock=sock, limit=_STREAM_BYTES)


def _connect(folder: ReplicaFolder) -> socket.socket:
    state = folder.read_state()
    if state is None or state.phase is ReplicaPhase.PREPARING:
        detail = "" if state is None else state.detail
        raise ConsoleUnreachable(
            f"its script has not started yet{f': {detail}' if detail else ''}", hints=("retry in a moment",)
        )
    if state.phase is ReplicaPhase.EXITED:
        raise ConsoleUnreachable("its script has ended", hints=("see its output with `hop logs`",))
    sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        with _opened(folder.root) as inside:
            descriptor = os.open(CONSOLE_SOCKET, os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=inside)
            try:
                sock.settimeout(_CONNECT_S)
                sock.connect(f"/proc/self/fd/{descriptor}")
            finally:
                os.close(descriptor)
            lock = os.stat(LOCK_FILE, dir_fd=inside, follow_symlinks=False)
        credentials = sock.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
        if not has_open(_CREDENTIALS.unpack(credentials)[0], lock):
            raise ConsoleUnreachable("another process has replaced the console of the replica")
        sock.setblocking(False)
        return sock
    except OSError as error:
        sock.close()
        raise ConsoleUnreachable(
            "its replica accepts no consoles",
            hints=("a run that an earlier version of Hopyard started has none: start it again",),
        ) from error
    except ConsoleUnreachable:
        sock.close()
        raise


@contextmanager
def _opened(folder: Path) -> Iterator[int]:
    descriptor = open_below(folder.parent, folder.name, os.O_PATH | os.O_DIRECTORY)
    try:
        yield descriptor
    finally:
        os.close(descriptor)
