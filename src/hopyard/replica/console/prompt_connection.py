"""Connects a user with a process of the script that evaluates a prompt at its safe points."""

from __future__ import annotations

import fcntl
import os
import select
import socket
import struct
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from hopyard.domain import console_frames as frames
from hopyard.domain.console_frames import FrameReader
from hopyard.private_files import open_below, open_no_follow
from hopyard.sdk.prompt_point import PROMPTS_DIR, TERMINALS_DIR

# by the kind of the console: where processes that take it have their cells, and what is missing without one
KINDS = {
    "repl": (
        PROMPTS_DIR,
        "the script has reached no safe point so far: a prompt needs hop.loop or hop.log",
    ),
    "terminal": (TERMINALS_DIR, "it has no shell that a terminal can connect to"),
}
_RING_INTERVAL_S = 0.5  # another user may have taken the connection that was meant for this one
_BUFFER_BYTES = 256 * 1024
_END_S, _BEGIN_S = 5.0, 60.0
_CELL = struct.Struct("=q")


class WaitingPrompts:
    """The prompts that wait for a process of the script, the oldest first. Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._waiting: deque[PromptConnection] = deque()

    def add(self, session: PromptConnection) -> None:
        with self._lock:
            self._waiting.append(session)

    def discard(self, session: PromptConnection) -> None:
        with self._lock, suppress(ValueError):
            self._waiting.remove(session)

    def attach(self, process: socket.socket, kind: str) -> bool:
        """Gives the oldest one of this kind the connection of a process. Returns False if none waits."""
        with self._lock:
            session = next((each for each in self._waiting if each.kind == kind), None)
            if session is None:
                return False
            self._waiting.remove(session)
            session.attach(process)
            return True


class PromptConnection:
    """connection: of the user, non-blocking. reader: has its bytes so far. start: the fields of `START`.
    folder: of the replica. stop: a descriptor that becomes readable when the script ends; `why_stopped` then
    returns the reason."""

    def __init__(
        self,
        connection: socket.socket,
        reader: FrameReader,
        start: Mapping[str, Any],
        folder: Path,
        waiting: WaitingPrompts,
        stop: int,
        why_stopped: Callable[[], str],
    ) -> None:
        self._connection, self._reader, self._start = connection, reader, start
        self.kind = str(start.get("kind"))
        self._folder, self._waiting, self._stop, self._why_stopped = folder, waiting, stop, why_stopped
        self._wake, self._wake_write = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        self._process: socket.socket | None = None

    def attach(self, process: socket.socket) -> None:
        """Takes the connection of a process. Called in another thread."""
        self._process = process
        os.write(self._wake_write, b".")

    def run(self) -> None:
        """Returns when the user leaves, or the script ends."""
        try:
            self._waiting.add(self)
            try:
                has_process = self._wait_for_process()
            finally:
                self._waiting.discard(self)  # from now on no process takes it
            if has_process and self._process is not None:
                self._relay(self._process)
        finally:
            if self._process is not None:
                self._process.close()
            os.close(self._wake)
            os.close(self._wake_write)

    def _wait_for_process(self) -> bool:
        """Returns whether a process has taken the console. The process of a shell may not have begun yet."""
        place, missing = KINDS[self.kind]
        give_up_at = time.monotonic() + (_BEGIN_S if self.kind == "terminal" else 0.0)
        while self._process is None:
            has_process = ring(self._folder, place)
            if not has_process and time.monotonic() >= give_up_at:
                self._exit(1, missing)
                return False
            poller = select.poll()
            for descriptor in (self._wake, self._stop):
                poller.register(descriptor, select.POLLIN)
            poller.register(self._connection, select.POLLRDHUP)
            interval_s = _RING_INTERVAL_S if has_process else _RING_INTERVAL_S / 5
            ready = dict(poller.poll(interval_s * 1000))
            if self._stop in ready:
                self._exit(None, self._why_stopped())
                return False
            if self._connection.fileno() in ready:
                return False
        return True

    def _relay(self, process: socket.socket) -> None:
        process.setblocking(False)
        to_process = bytearray(frames.json_frame(frames.START, self._start) + self._reader.rest())
        to_user = bytearray()
        ends = {
            self._connection.fileno(): (self._connection, to_process, to_user),
            process.fileno(): (process, to_user, to_process),
        }
        while True:
            poller = select.poll()
            poller.register(self._stop, select.POLLIN)
            for descriptor, (_, received, to_send) in ends.items():
                events = select.POLLIN if len(received) < _BUFFER_BYTES else 0
                poller.register(descriptor, events | (select.POLLOUT if to_send else 0) | select.POLLRDHUP)
            ready = dict(poller.poll())
            try:
                for descriptor, (end, received, to_send) in ends.items():
                    if ready.get(descriptor, 0) & select.POLLOUT:
                        del to_send[: end.send(to_send[: frames.DATA_BYTES])]
                    if ready.get(descriptor, 0) & ~select.POLLOUT:
                        data = end.recv(frames.DATA_BYTES) if len(received) < _BUFFER_BYTES else b""
                        if not data:
                            raise ConnectionResetError
                        received.extend(data)
            except BlockingIOError:
                continue
            except OSError:
                if self._stop not in ready:
                    self._send(bytes(to_user))
                    self._exit(None, "the process of the script left the prompt")
                    return
            if self._stop in ready:
                self._send(bytes(to_user) + _rest(process))
                self._exit(None, self._why_stopped())
                return

    def _exit(self, code: int | None, reason: str) -> None:
        self._send(frames.json_frame(frames.EXIT, {"code": code, "reason": reason}))

    def _send(self, data: bytes) -> None:
        self._connection.settimeout(_END_S)
        with suppress(OSError):
            self._connection.sendall(data)


def ring(folder: Path, place: str) -> bool:
    """Requests the first live process with a cell to take a console. Returns False if there is none. folder:
    of the replica. place: the folder of the cells in it."""
    try:
        prompts = open_below(folder, place, os.O_RDONLY | os.O_DIRECTORY)
    except OSError:
        return False
    try:
        for name in sorted(os.listdir(prompts), key=_rank):
            try:
                cell = open_no_follow(name, os.O_RDWR, folder=prompts)
            except OSError:
                continue
            try:
                if _is_locked(cell):
                    (count,) = _CELL.unpack(os.pread(cell, _CELL.size, 0).ljust(_CELL.size, b"\0"))
                    os.pwrite(cell, _CELL.pack((count + 1) & 0x7FFFFFFF), 0)
                    return True
            finally:
                os.close(cell)
        return False
    finally:
        os.close(prompts)


def _rest(process: socket.socket) -> bytes:
    """Returns what a process that has ended had sent."""
    rest = bytearray()
    with suppress(OSError):
        while len(rest) < _BUFFER_BYTES and (data := process.recv(frames.DATA_BYTES)):
            rest += data
    return bytes(rest)


def _rank(name: str) -> int:
    text = name.partition("-")[0]
    return int(text) if text.isdecimal() else 1 << 30


def _is_locked(descriptor: int) -> bool:
    """Returns whether a live process holds the lock of the file."""
    try:
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    return False
