"""`python container_exec.py SOCKET CONTAINER`: runs a process in a container, and connects its streams to
those of this process, with its terminal if it has one."""

from __future__ import annotations

import fcntl
import json
import os
import signal
import struct
import sys
import termios
import threading
import tty
from contextlib import suppress
from pathlib import Path
from socket import SHUT_WR, socket
from typing import Any

from hopyard.container_engine.engine_api import EngineApi
from hopyard.errors import ContainerError
from hopyard.replica.container.container_console import EXEC_VARIABLE
from hopyard.replica.container.container_process import exit_like

_CHUNK_BYTES = 65536
_FRAME = struct.Struct(">BxxxI")  # stream, bytes: before each part of the output without a terminal
_NOT_FOUND, _NOT_EXECUTABLE, _FAILED = 127, 126, 125


class ContainerExec:
    """request: the body of the request that makes the process."""

    def __init__(self, api: EngineApi, container: str, request: dict[str, Any]) -> None:
        self._api, self._request = api, request
        self._id = str(api.post(f"/containers/{container}/exec", request)["Id"])

    def run(self) -> int:
        """Returns the exit code. Raises ContainerError."""
        has_terminal = bool(self._request["Tty"])
        if has_terminal:
            tty.setraw(0)  # the terminal of the container interprets the keys
        stream, rest = self._api.upgrade(f"/exec/{self._id}/start", {"Detach": False, "Tty": has_terminal})
        if has_terminal:
            signal.signal(signal.SIGWINCH, lambda *_: self._resize())
            self._resize()
        threading.Thread(target=_send_input, args=(stream,), daemon=True).start()
        if has_terminal:
            _copy(stream, rest)
        else:
            _copy_frames(stream, rest)
        code = self._api.get(f"/exec/{self._id}/json").get("ExitCode")
        return _FAILED if code is None else int(code)

    def _resize(self) -> None:
        with suppress(OSError, ContainerError):
            rows, columns, _, _ = struct.unpack("HHHH", fcntl.ioctl(0, termios.TIOCGWINSZ, b"\0" * 8))
            if rows and columns:
                self._api.post(f"/exec/{self._id}/resize", h=rows, w=columns)


def _send_input(stream: socket) -> None:
    with suppress(OSError):
        while data := os.read(0, _CHUNK_BYTES):
            stream.sendall(data)
        stream.shutdown(SHUT_WR)


def _copy(stream: socket, data: bytes) -> None:
    while True:
        _write(1, data)
        data = stream.recv(_CHUNK_BYTES)
        if not data:
            return


def _copy_frames(stream: socket, data: bytes) -> None:
    pending = bytearray(data)
    while True:
        while len(pending) >= _FRAME.size:
            number, size = _FRAME.unpack_from(pending)
            if len(pending) < _FRAME.size + size:
                break
            _write(2 if number == 2 else 1, bytes(pending[_FRAME.size : _FRAME.size + size]))
            del pending[: _FRAME.size + size]
        received = stream.recv(_CHUNK_BYTES)
        if not received:
            return
        pending += received


def _write(descriptor: int, data: bytes) -> None:
    while data:
        data = data[os.write(descriptor, data) :]


def main() -> None:
    request = json.loads(os.environ.pop(EXEC_VARIABLE))
    code = _FAILED
    try:
        code = ContainerExec(EngineApi(Path(sys.argv[1])), sys.argv[2], request).run()
    except (ContainerError, OSError) as error:
        text = str(error)
        missing = "not found" in text or "no such file" in text.lower()
        code = _NOT_FOUND if missing else _NOT_EXECUTABLE
        _write(2, f"hop: {text}\n".encode())
    exit_like(code)


if __name__ == "__main__":
    main()
