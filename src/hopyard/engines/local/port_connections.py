"""Connects to the ports at which the processes of a replica listen, and to no other process."""

from __future__ import annotations

import asyncio
import os
import socket
import struct
from asyncio import StreamReader, StreamWriter
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from hopyard.domain.ids import AttemptId
from hopyard.domain.replica import ReplicaState
from hopyard.domain.run_port import SOCKET_FOLDER, socket_path
from hopyard.engines.local.container_ports import ContainerPorts
from hopyard.engines.local.port_listener import Listener, SocketOwners, find_listeners, is_descendant
from hopyard.engines.local.replica_folder import ReplicaFolder
from hopyard.errors import PortUnreachable
from hopyard.private_files import open_below

PortStream = tuple[StreamReader, StreamWriter]
_STREAM_BYTES = 64 * 1024  # read ahead of a connection


class PortConnector:
    """Connects to ports of replicas. attempts: the folder of all attempts of the home."""

    def __init__(self, attempts: Path, home: Path) -> None:
        self._attempts, self._owners, self._published = attempts, SocketOwners(), ContainerPorts(home)

    async def connect(self, attempt: AttemptId, rank: int, port: int) -> PortStream:
        """Returns a connection. Raises PortUnreachable.

        The listeners are read again after the connection is made. Otherwise another process could take the
        port between the check and the connection.
        """
        folder = ReplicaFolder(self._attempts / attempt / str(rank))
        spec = folder.read_spec()
        if await asyncio.to_thread(_has_socket, folder, port):
            stream = await _connect_socket(folder, port)
            if stream is not None:
                return stream
        if spec is not None and spec.launch.image:
            real = spec.node.ports.get(port, 0)
            is_published = await asyncio.to_thread(self._published.has, attempt, rank, real)
            return await _connect_published(real if is_published else 0, port)
        real, listeners = await asyncio.to_thread(self._own_listeners, folder, port)
        for host in dict.fromkeys(listener.loopback for listener in listeners):
            with suppress(OSError):
                stream = await asyncio.open_connection(host, real, limit=_STREAM_BYTES)
                if set(await asyncio.to_thread(find_listeners, real)) == set(listeners):
                    return stream
                stream[1].transport.abort()
        raise PortUnreachable(
            f"the process that listens on port {port} refuses connections",
            hints=("see its output with `hop logs`",),
        )

    def _own_listeners(self, folder: ReplicaFolder, port: int) -> tuple[int, Sequence[Listener]]:
        """Returns the real port, and all sockets that listen there. Raises PortUnreachable unless processes
        of the replica have all of them."""
        spec, state = folder.read_spec(), folder.read_state()
        real = 0 if spec is None else spec.node.ports.get(port, 0)
        listeners = find_listeners(real) if real else []
        if not listeners or state is None or not folder.is_replica(state.pid):
            raise PortUnreachable(
                f"nothing listens on port {port} yet",
                hints=(
                    f"make the script listen on the port in $HOPYARD_PORT_{port}"
                    + (f", which is {real}" if real not in (0, port) else ""),
                ),
            )
        if self._owners.own_all([listener.inode for listener in listeners], state.pid):
            return real, listeners
        raise PortUnreachable(
            f"a process that is not part of the run listens on port {port}",
            hints=(f"make the script listen on the port in $HOPYARD_PORT_{port}, which is {real}",),
        )


def _has_socket(folder: ReplicaFolder, port: int) -> bool:
    return os.path.lexists(socket_path(str(folder.root), port))


async def _connect_socket(folder: ReplicaFolder, port: int) -> PortStream | None:
    """Connects to the Unix socket of a port. Returns None unless a process of the replica listens there.

    The socket is opened before it is connected, and never by a link: a script may not make the server connect
    to a socket that only the server can reach.
    """
    try:
        sockets = open_below(folder.root, SOCKET_FOLDER, os.O_RDONLY | os.O_DIRECTORY)
    except OSError:
        return None
    client = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    path = -1
    try:
        path = os.open(f"{port}.sock", os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=sockets)
        client.setblocking(False)
        # a path of any length, which no script can replace meanwhile
        await asyncio.get_running_loop().sock_connect(client, f"/proc/self/fd/{path}")
        pid = struct.unpack("3i", client.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12))[0]
        state = folder.read_state()
        if state is not None and _is_of_replica(pid, state):
            return await asyncio.open_unix_connection(sock=client, limit=_STREAM_BYTES)
        client.close()
    except OSError:
        client.close()
    finally:
        os.close(sockets)
        if path >= 0:
            os.close(path)
    return None


async def _connect_published(real: int, port: int) -> PortStream:
    """Connects to a port of a container. The container engine listens there from the start of the container
    to its end, and the start fails where another process has the port. real: 0 if the container publishes no
    such port. Raises PortUnreachable."""
    if real:
        with suppress(OSError):
            return await asyncio.open_connection("127.0.0.1", real, limit=_STREAM_BYTES)
    raise PortUnreachable(
        f"nothing listens on port {port} of the container yet",
        hints=(f"make the script listen on 0.0.0.0 and the port in $HOPYARD_PORT_{port}",),
    )


def _is_of_replica(pid: int, state: ReplicaState) -> bool:
    """Returns whether a process is one of the replica, also in its container."""
    container = state.container_pid
    return is_descendant(pid, state.pid) or (
        container > 0 and (pid == container or is_descendant(pid, container))
    )
