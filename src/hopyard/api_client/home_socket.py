"""How a process of this machine reaches the server of a home, and no other program.

A Unix socket in the home, `server.sock`, whose peer the kernel names: it must be a process of the owner of
the home. Where there is no such socket (some network file systems have none), the port that `server.json`
names, on which the server proves that it knows the secret of the home. Nothing is sent before: no token, no
output of a run. Every new connection begins here, so a client follows its server to wherever it is now, and
to no stranger that took its port.
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
_PATH_BYTES = 100  # of the 108 that the kernel takes in the address of a socket
_BACKLOG_FULL_RETRY_S = 0.02  # between two tries to connect
_ANSWER_BYTES = 4096


class SocketPeer(NamedTuple):
    """The process at the other end. pid: 0 where it is in another process namespace."""

    pid: int
    uid: int


class HomeServerNotRunning(ConnectionRefusedError):
    """No server of this home answers: none runs, or another program took the port of one that has ended."""


class ForeignServer(PermissionError):
    """A process of another user serves the socket in the home."""


def socket_peer(sock: socket.socket) -> SocketPeer:
    """Who is at the other end of a connected Unix socket; at a client's end it is the process that
    listens."""
    pid, uid, _ = _CREDENTIALS.unpack(
        sock.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
    )
    return SocketPeer(pid, uid)


def listen(home: Home, *, backlog: int = 128) -> socket.socket | None:
    """A listening, non-blocking socket in the home, in place of an earlier server's; None where the file
    system has no sockets.

    Only for the process that holds `server.lock`.
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
    """A connection to the server of the home. Raises NoServer, Stranger and other OSErrors."""
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
    """A client that reaches the server of this home wherever it is.
    url: where others reach it, for people to read."""
    return Client(url, token, timeout_s=timeout_s, dial=partial(dial, home))


def loopback_port(url: object) -> int:
    """Of an address on this machine's loopback; 0 where it is none."""
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
                    # more connections wait than the server lets wait: the kernel does not queue for us here
                    if time.monotonic() > give_up_at:
                        raise
                    time.sleep(_BACKLOG_FULL_RETRY_S)
    except BaseException:
        sock.close()
        raise
    return sock


@contextmanager
def _short_socket_path(home: Home) -> Iterator[str]:
    """An address of the home's socket that is not too long for the kernel: a long one goes by a descriptor of
    the folder."""
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
    """As the home's own file says, and once the server has proven that it is the one of this home."""
    said = home.read_server() or {}
    pid, port = said.get("pid"), loopback_port(said.get("url"))
    if not isinstance(pid, int) or pid <= 0 or not port or said.get("place") != folder_identity(home):
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
    """Whether the other end knows the secret of this home. It is asked without a token."""
    import hmac
    import json

    identity = read_identity(home)
    if identity is None:
        return False
    nonce = os.urandom(NONCE_BYTES).hex()
    asking = HttpConnection(lambda _: sock, HOST, timeout=timeout_s)
    try:
        asking.request("GET", f"{API}/proof?nonce={nonce}", body=None, headers={})
        answer = asking.getresponse()
        told = json.loads(answer.read(_ANSWER_BYTES))["proof"]
        wanted = identity_proof(identity, nonce=nonce, port=port, folder_identity=folder_identity(home))
        return (
            answer.isclosed()
            and asking.sock is sock
            and hmac.compare_digest(str(told).encode(), wanted.encode())
        )
    except (ValueError, KeyError, TypeError):
        return False
    finally:
        asking.detach()
