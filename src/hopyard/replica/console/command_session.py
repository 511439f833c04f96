"""Runs a command beside the script, for one connection of a user."""

from __future__ import annotations

import errno
import fcntl
import os
import select
import signal
import socket
import struct
import termios
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Any

from hopyard.config.home import CONSOLE_VARIABLE
from hopyard.domain import console_frames as frames
from hopyard.domain.console_frames import FrameError, FrameReader
from hopyard.replica import process_tree
from hopyard.replica.console.child_exits import ChildExit, ChildExits
from hopyard.replica.console.console_process import ConsoleLauncher
from hopyard.replica.errors import PrepareFailed
from hopyard.replica.replica_log import log

_OUTPUT_WINDOW = 256 * 1024  # bytes that wait for the connection before no more output is read
_HANGUP_S, _KILL_S = 2.0, 5.0  # between SIGHUP and SIGKILL, and after it
_POLL_INTERVAL_S = 0.01
_RUN_END_S = (
    2.0  # from SIGKILL of all processes of a run, or the end of its container, until the run has ended
)
_KILLED_CODE = 128 + signal.SIGKILL
_END_OF_TERMINAL_INPUT = b"\x04"
_READ = select.POLLIN | select.POLLHUP | select.POLLERR


class CommandSession:
    """connection: of the user, non-blocking. reader: has its bytes so far. start: the fields of `START`.
    stop: a descriptor that becomes readable when the run ends; `why_stopped` then returns the reason."""

    def __init__(
        self,
        connection: socket.socket,
        reader: FrameReader,
        start: Mapping[str, Any],
        process: ConsoleLauncher,
        exits: ChildExits,
        stop: int,
        why_stopped: Callable[[], str],
    ) -> None:
        self._connection, self._reader, self._start = connection, reader, start
        self._process, self._exits, self._stop, self._why_stopped = process, exits, stop, why_stopped
        self._output, self._input, self._taken = bytearray(), bytearray(), 0
        self._sources: dict[int, int] = {}  # the frames of each descriptor that has output of the command
        self._sink: int | None = None  # takes the input of the command
        self._master: int | None = None  # of the terminal
        self._input_ended = self._is_broken = False
        self._child: ChildExit | None = None
        self._hangup_s = _HANGUP_S
        self._marker = os.urandom(8).hex()

    def run(self) -> None:
        """Returns when the command has ended, the connection broke, or the run ends. No process of the
        command is left then. The kernel ends the command with the thread that calls this."""
        try:
            self._begin()
        except (PrepareFailed, OSError, FrameError) as error:
            self._close_descriptors()
            failed = isinstance(error, PrepareFailed)
            code, reason = (error.exit.code, error.exit.reason) if failed else (126, str(error))  # type: ignore[union-attr]
            self._queue(frames.json_frame(frames.EXIT, {"code": code, "reason": reason}))
            self._flush()
            return
        assert self._child is not None
        try:
            self._relay(self._child)
        finally:
            self._end_processes(self._child.pid)
            self._exits.drop(self._child)
            self._close_descriptors()

    # -- start -----------------------------------------------------------------------------------------------

    def _begin(self) -> None:
        words, terminal = self._start.get("command"), self._start.get("terminal")
        if not isinstance(words, list) or not words or not all(isinstance(word, str) for word in words):
            raise FrameError("there is no command")
        env = {CONSOLE_VARIABLE: self._marker}
        if isinstance(terminal, dict):
            env["TERM"] = str(terminal.get("type") or "dumb")
            self._master, slave = os.openpty()
            standard = (slave, slave, slave)
            self._resize(terminal)
            self._sources, self._sink = {self._master: frames.OUTPUT}, self._master
            own = [self._master]
        else:
            (child_input, self._sink), (output, child_output), (errors, child_errors) = (
                os.pipe2(os.O_CLOEXEC) for _ in range(3)
            )
            standard = (child_input, child_output, child_errors)
            self._sources = {output: frames.OUTPUT, errors: frames.ERROR_OUTPUT}
            own = [self._sink, output, errors]
        for descriptor in own:
            os.set_blocking(descriptor, False)
        try:
            self._child = self._exits.start(
                lambda: self._process.start(words, env, standard, has_terminal=self._master is not None)
            )
        finally:
            for descriptor in set(standard):
                os.close(descriptor)
        self._queue(frames.json_frame(frames.READY, {}))

    # -- while it runs ---------------------------------------------------------------------------------------

    def _relay(self, child: ChildExit) -> None:
        give_up_at = float("inf")
        for kind, payload in self._reader.feed(b""):  # what came with the start
            self._handle(kind, payload)
        while not self._is_broken:
            if child.status is not None and not self._sources:
                self._queue(frames.json_frame(frames.EXIT, self._exit_fields(child.status)))
                self._flush()
                return
            ready = self._poll(child, give_up_at)
            if ready.get(self._stop):
                self._hangup_s = 0.0
                self._end_processes(child.pid)  # first: the user may look for them after the last message
                for source in list(self._sources):
                    self._read_output(source)
                self._queue(frames.json_frame(frames.EXIT, {"code": None, "reason": self._why_stopped()}))
                self._flush()
                return
            if ready.get(self._connection.fileno(), 0) & _READ:
                self._receive()
            if ready.get(self._connection.fileno(), 0) & select.POLLOUT:
                self._send()
            if self._sink in ready and ready[self._sink] & (select.POLLOUT | select.POLLERR):
                self._write_input()
            for source in [source for source in self._sources if ready.get(source, 0) & _READ]:
                self._read_output(source)
            if child.status is not None and give_up_at == float("inf"):
                self._end_processes(child.pid)  # what it left behind holds its output open
                give_up_at = time.monotonic() + _KILL_S
            if not ready and time.monotonic() > give_up_at and not self._output:
                self._close_sources()  # a process that escaped holds them open

    def _exit_fields(self, status: int) -> dict[str, object]:
        """Returns the exit of the command; that of the run if it was killed with it."""
        code = os.waitstatus_to_exitcode(status)
        code = code if code >= 0 else 128 - code
        if code == _KILLED_CODE and self._run_ends():
            return {"code": None, "reason": self._why_stopped()}
        return {"code": code, "reason": ""}

    def _run_ends(self) -> bool:
        """Waits briefly, and returns whether the run ends."""
        poller = select.poll()
        poller.register(self._stop, select.POLLIN)
        return bool(poller.poll(_RUN_END_S * 1000))

    def _poll(self, child: ChildExit, give_up_at: float) -> dict[int, int]:
        poller = select.poll()
        poller.register(self._stop, select.POLLIN)
        poller.register(
            self._connection, select.POLLIN | (select.POLLOUT if self._output else 0) | select.POLLRDHUP
        )
        if child.status is None:
            poller.register(child.wake, select.POLLIN)
        wanted: dict[int, int] = {}
        if len(self._output) < _OUTPUT_WINDOW:
            wanted |= dict.fromkeys(self._sources, select.POLLIN)
        if self._sink is not None and self._input:
            wanted[self._sink] = wanted.get(self._sink, 0) | select.POLLOUT
        for descriptor, events in wanted.items():
            poller.register(descriptor, events)
        # a user that reads slowly gets the rest of the output, however long it takes
        waits = self._output or give_up_at == float("inf")
        timeout_s = 3600.0 if waits else max(0.0, give_up_at - time.monotonic())
        return dict(poller.poll(timeout_s * 1000))

    def _receive(self) -> None:
        try:
            data = self._connection.recv(frames.DATA_BYTES)
            for kind, payload in self._reader.feed(data):
                self._handle(kind, payload)
        except BlockingIOError:
            return
        except (OSError, FrameError) as error:
            log(f"a console ended: {error}")
            data = b""
        self._is_broken = self._is_broken or not data

    def _handle(self, kind: int, payload: bytes) -> None:
        if kind == frames.INPUT:
            if not payload:
                self._input_ended = True
                if self._master is not None:
                    self._input += _END_OF_TERMINAL_INPUT
            self._input += payload
            if len(self._input) > 2 * frames.INPUT_WINDOW:
                raise FrameError("more input than the window allows")
            self._write_input()
        elif kind == frames.RESIZE:
            self._resize(frames.fields_of(payload))
        elif kind == frames.SIGNAL:
            name = frames.fields_of(payload).get("name")
            if name in frames.SIGNAL_NAMES and self._child is not None and self._child.status is None:
                with suppress(OSError):
                    os.killpg(self._child.pid, signal.Signals[f"SIG{name}"])

    def _write_input(self) -> None:
        if self._sink is None:  # the command reads no more input
            self._take(len(self._input))
            self._input.clear()
            return
        try:
            while self._input:
                count = os.write(self._sink, self._input[: frames.DATA_BYTES])
                del self._input[:count]
                self._take(count)
        except BlockingIOError:
            return
        except OSError:
            self._close_sink()
            return
        if self._input_ended and self._master is None:
            self._close_sink()

    def _take(self, count: int) -> None:
        self._taken += count
        if self._taken >= frames.INPUT_WINDOW // 4 or (self._taken and not self._input):
            self._queue(frames.json_frame(frames.TAKEN, {"bytes": self._taken}))
            self._taken = 0

    def _read_output(self, source: int) -> None:
        try:
            data = os.read(source, frames.DATA_BYTES)
        except BlockingIOError:
            return
        except OSError as error:
            if error.errno != errno.EIO:  # what a terminal without processes answers
                log(f"the output of a command cannot be read: {error}")
            data = b""
        if data:
            self._queue(frames.frame(self._sources[source], data))
            return
        del self._sources[source]
        if source != self._master:
            os.close(source)

    def _resize(self, fields: Mapping[str, Any]) -> None:
        rows, columns = fields.get("rows"), fields.get("columns")
        if self._master is None or not isinstance(rows, int) or not isinstance(columns, int):
            return
        if 0 < rows < 1 << 16 and 0 < columns < 1 << 16:
            with suppress(OSError):
                fcntl.ioctl(self._master, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))

    # -- the connection --------------------------------------------------------------------------------------

    def _queue(self, data: bytes) -> None:
        self._output += data
        self._send()

    def _send(self) -> None:
        try:
            while self._output:
                del self._output[: self._connection.send(self._output[: frames.DATA_BYTES])]
        except BlockingIOError:
            return
        except OSError:
            self._is_broken = True

    def _flush(self) -> None:
        """Sends the last messages. A user that reads nothing loses them."""
        self._connection.settimeout(_KILL_S)
        with suppress(OSError):
            self._connection.sendall(self._output)

    # -- the end ---------------------------------------------------------------------------------------------

    def _end_processes(self, leader: int) -> None:
        """Ends all processes of the command: SIGHUP as a closed terminal sends it, then SIGKILL. When the run
        ends, SIGKILL follows at once."""
        started_at = time.monotonic()
        is_first = True
        while pids := self._processes(leader):
            elapsed_s = time.monotonic() - started_at
            if elapsed_s > self._hangup_s + _KILL_S:
                log(f"processes of a console remain: {pids}")
                return
            if is_first:
                for pid in pids:
                    for number in (signal.SIGHUP, signal.SIGCONT):
                        with suppress(OSError):
                            os.kill(pid, number)
            elif elapsed_s > self._hangup_s:
                process_tree.kill_processes(pids)
            is_first = False
            time.sleep(_POLL_INTERVAL_S)

    def _processes(self, leader: int) -> list[int]:
        marker = f"{CONSOLE_VARIABLE}={self._marker}".encode()
        return [
            stat.pid
            for stat in process_tree.descendants(os.getpid())
            if stat.session == leader or process_tree.has_variable(stat.pid, marker)
        ]

    def _close_sink(self) -> None:
        if self._sink is not None and self._sink != self._master:
            os.close(self._sink)
        self._sink = None
        self._take(len(self._input))
        self._input.clear()

    def _close_sources(self) -> None:
        for descriptor in self._sources.keys() - {self._master}:
            os.close(descriptor)
        self._sources = {}

    def _close_descriptors(self) -> None:
        self._close_sink()
        self._close_sources()
        if self._master is not None:
            os.close(self._master)
        self._master = None
