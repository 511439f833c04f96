"""Connects to the ports at which the processes of a replica listen, and to no other process."""

from __future__ import annotations

import asyncio
import os
import socket
import struct
import sys
from asyncio import StreamReader, StreamWriter
from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from ipaddress import IPv4Address, IPv6Address, ip_address
from pathlib import Path

from hopyard.domain.ids import AttemptId
from hopyard.domain.replica import ReplicaState
from hopyard.domain.run_port import SOCKET_FOLDER, socket_path
from hopyard.engines.local.replica_folder import ReplicaFolder
from hopyard.errors import PortUnreachable
from hopyard.private_files import open_below

PortStream = tuple[StreamReader, StreamWriter]
_LISTEN = "0A"  # the state of a socket in /proc/net/tcp
_STREAM_BYTES = 64 * 1024  # read ahead of a connection


@dataclass(frozen=True, slots=True)
class Listener:
    """A socket of this machine that listens. inode: its number, as in the links of `/proc/PID/fd`."""

    address: IPv4Address | IPv6Address
    inode: int

    @property
    def loopback(self) -> str:
        """The address to which a process of this machine connects."""
        if not self.address.is_unspecified:
            return str(self.address)
        return "127.0.0.1" if self.address.version == 4 else "::1"


class PortConnector:
    """Connects to ports of replicas. attempts: the folder of all attempts of the home."""

    def __init__(self, attempts: Path) -> None:
        self._attempts = attempts

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
            return await _connect_published(folder, spec.node.ports.get(port, 0), port)
        real, listeners = await asyncio.to_thread(_own_listeners, folder, port)
        for host in dict.fromkeys(listener.loopback for listener in listeners):
            with suppress(OSError):
                stream = await asyncio.open_connection(host, real, limit=_STREAM_BYTES)
                if set(await asyncio.to_thread(_listeners, real)) == set(listeners):
                    return stream
                stream[1].transport.abort()
        raise PortUnreachable(
            f"the process that listens on port {port} refuses connections",
            hints=("see its output with `hop logs`",),
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
        if state is not None and pid in await asyncio.to_thread(_processes, state):
            return await asyncio.open_unix_connection(sock=client, limit=_STREAM_BYTES)
        client.close()
    except OSError:
        client.close()
    finally:
        os.close(sockets)
        if path >= 0:
            os.close(path)
    return None


async def _connect_published(folder: ReplicaFolder, real: int, port: int) -> PortStream:
    """Connects to a port of a container. The container engine listens there from the start of the container
    to its end, and the start fails where another process has the port. Raises PortUnreachable."""
    state = folder.read_state()
    if state is not None and state.container_pid and state.exit is None and folder.is_alive():
        with suppress(OSError):
            return await asyncio.open_connection("127.0.0.1", real, limit=_STREAM_BYTES)
    raise PortUnreachable(
        f"nothing listens on port {port} of the container yet",
        hints=(f"make the script listen on 0.0.0.0 and the port in $HOPYARD_PORT_{port}, which is {real}",),
    )


def _processes(state: ReplicaState) -> list[int]:
    """Returns the processes of a replica, also those in its container."""
    found = [*_descendants(state.pid)]
    return [*found, state.container_pid, *_descendants(state.container_pid)] if state.container_pid else found


def _own_listeners(folder: ReplicaFolder, port: int) -> tuple[int, list[Listener]]:
    """Returns the real port, and all sockets that listen there. Raises PortUnreachable unless processes of
    the replica have all of them."""
    spec, state = folder.read_spec(), folder.read_state()
    real = 0 if spec is None else spec.node.ports.get(port, 0)
    listeners = list(_listeners(real)) if real else []
    if not listeners or state is None or not folder.is_alive():
        raise PortUnreachable(
            f"nothing listens on port {port} yet",
            hints=(
                f"make the script listen on the port in $HOPYARD_PORT_{port}"
                + (f", which is {real}" if real not in (0, port) else ""),
            ),
        )
    unknown = {listener.inode for listener in listeners}
    for pid in _descendants(state.pid):
        unknown -= set(_socket_inodes(pid, unknown))
        if not unknown:
            return real, listeners
    raise PortUnreachable(
        f"a process that is not part of the run listens on port {port}",
        hints=(f"make the script listen on the port in $HOPYARD_PORT_{port}, which is {real}",),
    )


def _listeners(port: int) -> Iterator[Listener]:
    """Yields the sockets of this machine that listen on a port."""
    for table in ("/proc/net/tcp", "/proc/net/tcp6"):
        with suppress(OSError), open(table) as lines:
            for line in lines:
                fields = line.split()
                if len(fields) > 9 and fields[3] == _LISTEN and fields[1].endswith(f":{port:04X}"):
                    yield Listener(_address(fields[1].partition(":")[0]), int(fields[9]))


def _address(digits: str) -> IPv4Address | IPv6Address:
    """Returns an address in the form of /proc/net/tcp: 32-bit words in the byte order of the machine."""
    words = (int(digits[start : start + 8], 16) for start in range(0, len(digits), 8))
    address = ip_address(b"".join(word.to_bytes(4, sys.byteorder) for word in words))
    return (address.ipv4_mapped or address) if isinstance(address, IPv6Address) else address


def _descendants(pid: int) -> Iterable[int]:
    """Returns the processes below a replica program, which adopts the orphans of its script."""
    children: dict[int, list[int]] = {}
    for process in Path("/proc").iterdir():
        if process.name.isdecimal():
            with suppress(OSError, ValueError, IndexError):
                stat = (process / "stat").read_bytes()
                parent = int(stat[stat.rindex(b")") + 2 :].split()[1])
                children.setdefault(parent, []).append(int(process.name))
    found, waiting = [], list(children.get(pid, ()))
    while waiting:
        found.append(waiting.pop())
        waiting += children.get(found[-1], ())
    return found


def _socket_inodes(pid: int, wanted: set[int]) -> Iterator[int]:
    """Yields those of the wanted sockets that a process has open."""
    links = {f"socket:[{inode}]": inode for inode in wanted}
    with suppress(OSError):
        for descriptor in Path(f"/proc/{pid}/fd").iterdir():
            with suppress(OSError):
                inode = links.get(str(descriptor.readlink()))
                if inode is not None:
                    yield inode
