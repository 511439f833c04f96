"""Connects a process of this machine to the server of a home, and to no other program.

The home has a Unix socket, `server.sock`. The kernel names its peer, which must be a process of the owner of
the home. Some network file systems have no sockets: there the port of `server.json` is used, and the server
proves that it knows the secret of the home. No token and no output of a run is sent before that. Every new
connection begins here, so a client finds its server after a restart, and never another program on its old
port.
"""

from __future__ import annotations

import os
import socket
import struct
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from functools import partial
from typing import NamedTuple
from urllib.parse import urlsplit

from hopyard.api_client.client import Client
from hopyard.api_client.http11 import HttpConnection
from hopyard.api_client.http_client import API
from hopyard.config.home import Home, user_name
from hopyard.config.home_identity import NONCE_BYTES, folder_identity, identity_proof, read_identity
from hopyard.private_files import GROUP_AND_OTHERS_BITS

HOST = "127.0.0.1"
_CREDENTIALS = struct.Struct("3i")  # struct ucred: pid, uid, gid
_PATH_BYTES = 100  # the kernel takes at most 108 in the address of a socket
_BACKLOG_FULL_RETRY_S = 0.02  # interval of attempts to connect
_RESPONSE_BYTES = 4096


class SocketPeer(NamedTuple):
    """The process at the other end. pid: 0 for a process of another process namespace."""

    pid: int
    uid: int


class HomeServerNotRunning(ConnectionRefusedError):
    """No server of this home answers: none runs, or another program took the port of one that has ended."""


class ForeignServer(PermissionError):
    """A process of another user serves the socket in the home."""


def socket_peer(sock: socket.socket) -> SocketPeer:
    """Returns the process at the other end of a connected Unix socket; for a client, the process that
    listens."""
    pid, uid, _ = _CREDENTIALS.unpack(
        sock.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
    )
    return SocketPeer(pid, uid)


def listen(home: Home, *, backlog: int = 128) -> socket.socket | None:
    """Returns a listening, non-blocking socket in the home; None if the file system has no sockets.

    It replaces the socket of an earlier server. Only the process that holds `server.lock` may call this.
    """
    sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        home.socket_file.unlink(missing_ok=True)
        with _short_socket_path(home) as address:
            sock.bind(address)
        home.socket_file.chmod(0o777 & ~GROUP_AND_OTHERS_BITS)
        sock.listen(backlog)
        sock.setblocking(False)
    except OSError:
        sock.close()
        return None
    return sock


def dial(home: Home, timeout_s: float) -> socket.socket:
    """Returns a connection to the server of the home.

    Raises HomeServerNotRunning, ForeignServer and other OSErrors.
    """
    owner = home.root.stat().st_uid
    try:
        sock = _dial_socket(home, timeout_s)
    except (FileNotFoundError, ConnectionRefusedError):
        return _dial_port(home, timeout_s)
    peer = socket_peer(sock)
    if peer.uid != owner:
        sock.close()
        raise ForeignServer(
            f"{home.socket_file} is served by {user_name(peer.uid)} (uid {peer.uid}), not by the owner "
            "of the home"
        )
    return sock


def home_client(home: Home, token: str, *, url: str, timeout_s: float = 60.0) -> Client:
    """Returns a client of the server of this home. url: its address in messages; other machines use it."""
    return Client(url, token, timeout_s=timeout_s, dial=partial(dial, home))


def loopback_port(url: object) -> int:
    """Returns the port of an address on this machine's loopback interface; 0 for other addresses."""
    with suppress(ValueError):
        split = urlsplit(str(url))
        if split.scheme == "http" and split.hostname == HOST and split.port:
            return split.port
    return 0


def _dial_socket(home: Home, timeout_s: float) -> socket.socket:
    sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    give_up_at = time.monotonic() + timeout_s
    try:
        sock.settimeout(timeout_s)
        with _short_socket_path(home) as address:
            while True:
                try:
                    sock.connect(address)
                    break
                except BlockingIOError:
                    # the backlog of the server is full; the kernel does not queue Unix connections
                    if time.monotonic() > give_up_at:
                        raise
                    time.sleep(_BACKLOG_FULL_RETRY_S)
    except BaseException:
        sock.close()
        raise
    return sock


@contextmanager
def _short_socket_path(home: Home) -> Iterator[str]:
    """Yields an address of the home's socket that the kernel takes: a long path is replaced by a
    descriptor of the folder."""
    path = str(home.socket_file)
    if len(os.fsencode(path)) <= _PATH_BYTES:
        yield path
        return
    folder = os.open(home.root, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        yield f"/proc/self/fd/{folder}/{home.socket_file.name}"
    finally:
        os.close(folder)


def _dial_port(home: Home, timeout_s: float) -> socket.socket:
    """Connects to the port of `server.json`, and checks that the server there is the one of this home."""
    record = home.read_server() or {}
    pid, port = record.get("pid"), loopback_port(record.get("url"))
    if not isinstance(pid, int) or pid <= 0 or not port or record.get("place") != folder_identity(home):
        raise HomeServerNotRunning(f"no server runs for {home.root}")
    sock = socket.create_connection((HOST, port), timeout_s)
    try:
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        if not _proves_identity(sock, home, port, timeout_s):
            raise HomeServerNotRunning(
                f"another program listens on port {port}, where the server of {home.root} was"
            )
    except BaseException:
        sock.close()
        raise
    return sock


def _proves_identity(sock: socket.socket, home: Home, port: int, timeout_s: float) -> bool:
    """Returns whether the other end knows the secret of this home. The request has no token."""
    import hmac
    import json

    identity = read_identity(home)
    if identity is None:
        return False
    nonce = os.urandom(NONCE_BYTES).hex()
    connection = HttpConnection(lambda _: sock, HOST, timeout=timeout_s)
    try:
        connection.request("GET", f"{API}/proof?nonce={nonce}", body=None, headers={})
        response = connection.getresponse()
        proof = json.loads(response.read(_RESPONSE_BYTES))["proof"]
        expected = identity_proof(identity, nonce=nonce, port=port, folder_identity=folder_identity(home))
        return (
            response.isclosed()
            and connection.sock is sock
            and hmac.compare_digest(str(proof).encode(), expected.encode())
        )
    except (ValueError, KeyError, TypeError):
        return False
    finally:
        connection.detach()
