"""Connects this process's standard streams to a command that runs beside a run."""

from __future__ import annotations

import os
import selectors
import signal
from collections.abc import Callable
from contextlib import ExitStack

from hopyard.client.console import Console
from hopyard.client.terminal_mode import EscapeKeys, raw_mode, signals_to, terminal_size
from hopyard.domain import console_frames as frames

EXIT_BROKEN = 255  # as of ssh: the command did not end by itself
_MAX_INTERRUPTS = 3  # without a terminal, the last one of these ends the connection
_STDIN, _STDOUT, _STDERR = 0, 1, 2


class ExecSession:
    """has_terminal: whether the command runs on a terminal of its own, of which this one is the window.
    notify: shows a message to the user."""

    def __init__(self, console: Console, *, has_terminal: bool, notify: Callable[[str], None]) -> None:
        self._console, self._has_terminal, self._notify = console, has_terminal, notify
        self._window = frames.INPUT_WINDOW
        self._reads_input = True
        self._interrupts = 0
        self._keys = EscapeKeys()
        self._exit_code: int | None = None
        self._reason = ""  # why the command did not end by itself

    def run(self) -> int:
        """Returns the exit code. Raises ServerUnavailable when the connection breaks."""
        wake_read, wake_write = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        wanted = [signal.SIGWINCH] if self._has_terminal else [signal.SIGINT]
        with ExitStack() as stack:
            stack.callback(os.close, wake_write)
            stack.callback(os.close, wake_read)
            stack.callback(self._console.close)
            stack.enter_context(signals_to(wake_write, *wanted, signal.SIGTERM, signal.SIGHUP))
            if self._has_terminal:
                stack.enter_context(raw_mode(_STDIN))
            selector = stack.enter_context(selectors.DefaultSelector())
            selector.register(self._console, selectors.EVENT_READ)
            selector.register(wake_read, selectors.EVENT_READ)
            self._select_input(selector)
            for kind, payload in self._console.take_ahead():
                self._handle(kind, payload)
            while self._exit_code is None:
                for key, _ in selector.select():
                    if key.fd == wake_read:
                        for number in os.read(wake_read, 64):
                            self._handle_signal(signal.Signals(number))
                    elif key.fd == _STDIN:
                        self._read_input()
                    else:
                        for kind, payload in self._console.receive():
                            self._handle(kind, payload)
                self._select_input(selector)
        if self._reason:
            self._notify(self._reason)
        return self._exit_code

    def _select_input(self, selector: selectors.BaseSelector) -> None:
        """Reads input while the command takes it."""
        wants_input = self._reads_input and self._window > 0
        is_registered = _STDIN in selector.get_map()
        if wants_input == is_registered:
            return
        if not wants_input:
            selector.unregister(_STDIN)
            return
        try:
            selector.register(_STDIN, selectors.EVENT_READ)
        except PermissionError:  # a file, which is always readable
            while self._reads_input and self._window > 0:
                self._read_input()

    def _read_input(self) -> None:
        try:
            data = os.read(_STDIN, min(self._window, frames.DATA_BYTES))
        except OSError:  # closed, or the terminal is gone
            data = b""
        is_end = not data
        if data and self._has_terminal:
            data, ends_connection = self._keys.feed(data)
            if ends_connection:
                self._exit_code, self._reason = EXIT_BROKEN, "the connection was closed"
                return
        if is_end:
            self._reads_input = False
        if data or is_end:
            self._window -= len(data)
            self._console.send(frames.INPUT, data)

    def _handle_signal(self, number: signal.Signals) -> None:
        if number is signal.SIGWINCH:
            rows, columns = terminal_size(_STDOUT)
            self._console.send_fields(frames.RESIZE, {"rows": rows, "columns": columns})
        elif number is signal.SIGINT:
            self._interrupts += 1
            if self._interrupts >= _MAX_INTERRUPTS:
                self._exit_code, self._reason = 130, "the connection was closed"
            else:
                self._console.send_fields(frames.SIGNAL, {"name": "INT"})
        else:  # this process ends, and with its connection the command
            self._exit_code = 128 + number

    def _handle(self, kind: int, payload: bytes) -> None:
        if kind in (frames.OUTPUT, frames.ERROR_OUTPUT):
            target = _STDOUT if kind == frames.OUTPUT else _STDERR
            view = memoryview(payload)
            while view:
                view = view[os.write(target, view) :]
        elif kind == frames.TAKEN:
            self._window += int(frames.fields_of(payload).get("bytes", 0))
        elif kind == frames.EXIT and self._exit_code is None:
            fields = frames.fields_of(payload)
            code, self._reason = fields.get("code"), str(fields.get("reason") or "")
            self._exit_code = code if isinstance(code, int) else EXIT_BROKEN
