"""Accepts the consoles of one replica, on a Unix socket in its folder, while its script runs."""

from __future__ import annotations

import os
import socket
import struct
import threading
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from hopyard.domain import console_frames as frames
from hopyard.domain.console_frames import FrameError, FrameReader
from hopyard.domain.replica import CONSOLE_SOCKET
from hopyard.replica.console.child_exits import ChildExits
from hopyard.replica.console.command_session import CommandSession
from hopyard.replica.console.console_process import ConsoleLauncher
from hopyard.replica.console.prompt_connection import KINDS, PromptConnection, WaitingPrompts
from hopyard.replica.replica_log import log

MAX_CONSOLES = 32
_START_S = 30.0  # until the first message
_CREDENTIALS = struct.Struct("3i")  # pid, uid, gid
_END_S = 10.0  # for the consoles to end with the run
_CLOSE_S = 2.0  # for the user to close the connection
_ENDED = "the run has ended"


class ConsoleAcceptor:
    """folder: of the replica. Only processes of this user may connect. The folder is visible to no other run,
    and a process of this run gains no rights."""

    def __init__(self, folder: Path, process: ConsoleLauncher, exits: ChildExits) -> None:
        self._folder, self._process, self._exits = folder, process, exits
        self._stop_read, self._stop_write = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self._threads: set[threading.Thread] = set()
        self._lock = threading.Lock()
        self._is_closed = False
        self._prompts = WaitingPrompts()

    def start(self) -> None:
        """Begins to listen. Without it, the run has no consoles: a failure is logged."""
        try:
            folder = os.open(self._folder, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
            try:
                with suppress(FileNotFoundError):
                    os.unlink(CONSOLE_SOCKET, dir_fd=folder)
                self._socket.bind(
                    f"/proc/self/fd/{folder}/{CONSOLE_SOCKET}"
                )  # the path itself may be too long
            finally:
                os.close(folder)
            self._socket.listen(MAX_CONSOLES)
        except OSError as error:
            log(f"there are no consoles: {error}")
            return
        threading.Thread(target=self._accept, name="consoles", daemon=True).start()

    def close(self) -> None:
        """Ends all consoles and their processes, because the script has ended."""
        with self._lock:
            if self._is_closed:
                return
            self._is_closed = True
        os.write(self._stop_write, b".")
        with suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)
        self._socket.close()
        for thread in list(self._threads):
            thread.join(_END_S)

    def _accept(self) -> None:
        while True:
            try:
                connection, _ = self._socket.accept()
            except OSError as error:
                if not self._is_closed:
                    log(f"consoles end: {error}")
                return
            with self._lock:
                if self._is_closed or len(self._threads) >= MAX_CONSOLES or not _is_own_user(connection):
                    connection.close()
                    continue
                thread = threading.Thread(
                    target=self._serve_connection, args=(connection,), name="console", daemon=True
                )
                self._threads.add(thread)
                thread.start()

    def _serve_connection(self, connection: socket.socket) -> None:
        try:
            if self._serve(connection):
                close_after_user(connection)
        except (OSError, FrameError) as error:
            log(f"a console ended: {error}")
            connection.close()
        finally:
            with self._lock:
                self._threads.discard(threading.current_thread())

    def _serve(self, connection: socket.socket) -> bool:
        """Returns whether the connection is done; False if a prompt has taken it."""
        connection.settimeout(_START_S)
        reader = FrameReader()
        kind, start = _read_start(connection, reader)
        if kind == frames.ATTACH:
            return not self._prompts.attach(connection, str(start.get("kind", "repl")))
        connection.setblocking(False)
        stop: tuple[int, Callable[[], str]] = self._stop_read, lambda: _ENDED
        if start.get("kind") == "exec":
            CommandSession(connection, reader, start, self._process, self._exits, *stop).run()
        elif start.get("kind") in KINDS:
            PromptConnection(connection, reader, start, self._folder, self._prompts, *stop).run()
        else:
            answer = {"code": None, "reason": "the version of hopyard in the run has no such console"}
            connection.send(frames.json_frame(frames.EXIT, answer))
        return True


def close_after_user(connection: socket.socket, *, limit_s: float = _CLOSE_S) -> None:
    """Closes a connection once its user has, or after `limit_s`. Otherwise unread input breaks the
    connection, and the last messages on their way may be lost."""
    deadline = time.monotonic() + limit_s
    with suppress(OSError):
        connection.shutdown(socket.SHUT_WR)
        while (remaining_s := deadline - time.monotonic()) > 0:
            connection.settimeout(remaining_s)
            if not connection.recv(frames.DATA_BYTES):
                break
    connection.close()


def _read_start(connection: socket.socket, reader: FrameReader) -> tuple[int, Mapping[str, Any]]:
    """Returns the kind and the fields of the first message. Later ones stay in the reader."""
    while data := connection.recv(frames.DATA_BYTES):
        for kind, payload in reader.feed(data):
            if kind not in (frames.START, frames.ATTACH):
                raise FrameError("the first message is not the start")
            return kind, frames.fields_of(payload)
    raise FrameError("the connection ended before its start")


def _is_own_user(connection: socket.socket) -> bool:
    credentials = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
    return bool(_CREDENTIALS.unpack(credentials)[1] == os.geteuid())
