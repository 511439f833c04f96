"""`python -m hopyard.sdk.terminal_keeper --keep SECONDS -- SHELL`: the process of a run of `hop shell`.

It runs the shell on a terminal of its own, which stays when the user's connection ends. Users connect through
the replica, as to a prompt of `prompt_point.py`: it rings the cell of the file `terminals/0-PID`. The shell
starts with the first connection. Standard library only.
"""

from __future__ import annotations

import errno
import fcntl
import os
import pty
import select
import shutil
import signal
import socket
import struct
import sys
import termios
import time
from contextlib import suppress

from hopyard.domain import console_frames as frames
from hopyard.domain.console_frames import FrameError, FrameReader
from hopyard.private_files import make_folder, open_file
from hopyard.sdk.command_file import map_cells
from hopyard.sdk.prompt_point import TERMINALS_DIR, connect_to_replica

_SHOWN_BYTES = 64 * 1024  # of output, which a new connection is shown
_WINDOW_BYTES = 256 * 1024  # of output that wait for the user before no more is read
_RING_POLL_S, _HANGUP_S = 0.1, 2.0
_SEND_S = 5.0
_FIRST_S = 300.0  # the least time for the first connection


class TerminalKeeper:
    """command: the shell. keep_s: how long the shell is kept without a connection."""

    def __init__(self, folder: str, command: list[str], keep_s: float) -> None:
        self._folder, self._command, self._keep_s = folder, command, keep_s
        make_folder(os.path.join(folder, TERMINALS_DIR), private_parent=folder)
        path = os.path.join(folder, TERMINALS_DIR, f"0-{os.getpid()}")
        self._cell_file = open_file(path, os.O_RDWR | os.O_CREAT)
        fcntl.flock(self._cell_file, fcntl.LOCK_EX)  # shows that this process lives
        self._cells = map_cells(self._cell_file, 1)
        self._seen = self._cells[0]
        self._pid, self._master = 0, -1
        self._user: socket.socket | None = None
        self._reader = FrameReader()
        self._to_user, self._to_shell, self._shown = bytearray(), bytearray(), bytearray()
        self._has_ended = False
        self._alone_since = time.monotonic()

    def run(self) -> int:
        """Returns the exit code of the shell, once it has ended."""
        for number in (signal.SIGTERM, signal.SIGHUP, signal.SIGINT):
            signal.signal(number, self._end_shell)
        while not self._has_ended:
            if self._cells[0] != self._seen:
                self._seen = self._cells[0]
                self._accept()
            self._relay()
            # the shell starts with the first connection, for which a busy machine may take long
            keep_s = self._keep_s if self._pid else max(self._keep_s, _FIRST_S)
            if self._user is None and time.monotonic() - self._alone_since > keep_s:
                print(f"no terminal was connected for {keep_s:.0f} s: the shell ends", flush=True)
                self._end_shell()
        code = self._wait() if self._pid else 0
        self._leave(code, "")
        return code

    def _end_shell(self, *_: object) -> None:
        if not self._pid:
            self._has_ended = True
            return
        self._alone_since = time.monotonic()
        with suppress(OSError):
            os.killpg(self._pid, signal.SIGHUP)
            os.killpg(self._pid, signal.SIGCONT)
        deadline = time.monotonic() + _HANGUP_S
        while time.monotonic() < deadline and os.waitid(os.P_PID, self._pid, _ENDED) is None:
            time.sleep(0.02)
        with suppress(OSError):
            os.killpg(self._pid, signal.SIGKILL)
        self._has_ended = True

    def _wait(self) -> int:
        status = os.waitpid(self._pid, 0)[1]
        code = os.waitstatus_to_exitcode(status)
        return code if code >= 0 else 128 - code

    # -- connections -----------------------------------------------------------------------------------------

    def _accept(self) -> None:
        """Takes the connection of a user. It replaces an earlier one."""
        try:
            user = connect_to_replica(self._folder)
            user.sendall(frames.json_frame(frames.ATTACH, {"kind": "terminal"}))
            reader, terminal = FrameReader(), None
            while terminal is None:
                data = user.recv(frames.DATA_BYTES)
                if not data:
                    user.close()
                    return
                for kind, payload in reader.feed(data):
                    if kind == frames.START:
                        terminal = frames.fields_of(payload).get("terminal") or {}
                        break
        except (OSError, FrameError):
            return
        if self._user is not None:
            self._leave(None, "another terminal was connected")
        self._user, self._reader = user, reader
        user.setblocking(False)
        shown = frames.frame(frames.OUTPUT, bytes(self._shown))
        self._to_user[:] = frames.json_frame(frames.READY, {}) + shown
        if not self._pid:
            self._start(str(terminal.get("type") or "xterm"))
        self._resize(terminal)

    def _start(self, kind: str) -> None:
        self._pid, self._master = pty.fork()
        if self._pid == 0:
            os.environ["TERM"] = kind
            for number in (signal.SIGTERM, signal.SIGHUP, signal.SIGINT):
                signal.signal(number, signal.SIG_DFL)
            try:
                os.execvp(self._command[0], self._command)
            except OSError as error:
                os.write(2, f"{self._command[0]}: {error.strerror}\r\n".encode())
            finally:
                os._exit(127)
        os.set_blocking(self._master, False)

    def _leave(self, code: int | None, reason: str) -> None:
        user, self._user = self._user, None
        if user is None:
            return
        self._alone_since = time.monotonic()
        with suppress(OSError):
            user.settimeout(_SEND_S)
            last = frames.json_frame(frames.EXIT, {"code": code, "reason": reason})
            user.sendall(bytes(self._to_user) + last)
        user.close()
        self._to_user.clear()

    # -- while it runs ---------------------------------------------------------------------------------------

    def _relay(self) -> None:
        """Passes bytes on until some have passed, or a moment is over."""
        poller = select.poll()
        if self._user is not None:
            poller.register(self._user, select.POLLIN | (select.POLLOUT if self._to_user else 0))
        if self._master >= 0:
            reads = self._user is None or len(self._to_user) < _WINDOW_BYTES
            events = (select.POLLIN if reads else 0) | (select.POLLOUT if self._to_shell else 0)
            poller.register(self._master, events)
        ready = dict(poller.poll(_RING_POLL_S * 1000))
        # a process in the background may keep the terminal open after the shell
        is_silent = not ready and not self._to_user
        if self._pid and is_silent and os.waitid(os.P_PID, self._pid, _ENDED) is not None:
            self._has_ended = True
        if self._user is not None and self._user.fileno() in ready:
            self._serve_user(self._user, ready[self._user.fileno()])
        if self._master in ready:
            self._serve_shell(ready[self._master])

    def _serve_user(self, user: socket.socket, events: int) -> None:
        try:
            if events & select.POLLOUT:
                del self._to_user[: user.send(self._to_user[: frames.DATA_BYTES])]
            if events & ~select.POLLOUT:
                data = user.recv(frames.DATA_BYTES)
                if not data:
                    raise ConnectionResetError
                for kind, payload in self._reader.feed(data):
                    self._handle(kind, payload)
        except BlockingIOError:
            return
        except (OSError, FrameError):
            self._leave(None, "")

    def _handle(self, kind: int, payload: bytes) -> None:
        if kind == frames.INPUT:
            self._to_shell += payload or b"\x04"  # the end of the input is Ctrl-D
            self._to_user += frames.json_frame(frames.TAKEN, {"bytes": len(payload)})
        elif kind == frames.RESIZE:
            self._resize(frames.fields_of(payload))

    def _serve_shell(self, events: int) -> None:
        try:
            if events & select.POLLOUT:
                del self._to_shell[: os.write(self._master, self._to_shell[:4096])]
            if events & ~select.POLLOUT:
                data = os.read(self._master, frames.DATA_BYTES)
                if not data:
                    raise OSError(errno.EIO, "the terminal is closed")
                self._shown += data
                del self._shown[:-_SHOWN_BYTES]
                if self._user is not None:
                    self._to_user += frames.frame(frames.OUTPUT, data)
        except BlockingIOError:
            return
        except OSError:  # no process has the terminal any more
            self._has_ended = True

    def _resize(self, fields: dict[str, object]) -> None:
        rows, columns = fields.get("rows"), fields.get("columns")
        if self._master >= 0 and isinstance(rows, int) and isinstance(columns, int):
            with suppress(OSError, struct.error):
                fcntl.ioctl(self._master, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))


_ENDED = os.WEXITED | os.WNOHANG | os.WNOWAIT


def main(arguments: list[str]) -> int:
    """Returns the exit code of the shell. arguments: `--keep SECONDS -- SHELL…`; without a shell, that of the
    user on this machine."""
    keep_s, command = float(arguments[1]), arguments[3:]
    usual = os.environ.get("SHELL") or "bash"
    command = command or [usual if shutil.which(usual) else "sh"]
    return TerminalKeeper(os.environ["HOPYARD_REPLICA_DIR"], command, keep_s).run()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
