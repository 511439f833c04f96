"""One prompt of a user in this process: its messages, and the evaluation of its statements."""

from __future__ import annotations

import ctypes
import platform
import queue
import signal
import socket
import sys
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from functools import partial
from typing import Any

from hopyard.domain import console_frames as frames
from hopyard.domain.console_frames import FrameError, FrameReader
from hopyard.sdk.live_params import unknown_param_text
from hopyard.sdk.params import recorded_values, scaled_params
from hopyard.sdk.prompt_scope import PromptScope

_SEND_S = 20.0  # a user that reads nothing for so long loses the prompt, and training continues
_MAX_NAMES = 500


class PromptSession:
    """connection: to the replica. names: returns what it has beside the scope of the script.
    params: returns the declared parameter objects, with the names that each declares."""

    def __init__(
        self,
        connection: socket.socket,
        reader: FrameReader,
        names: Callable[[], Mapping[str, Any]],
        params: Callable[[], list[tuple[Any, list[str]]]],
    ) -> None:
        self._connection, self._reader, self._params = connection, reader, params
        self._scope = PromptScope(names)
        self._requests: queue.SimpleQueue[tuple[int, dict[str, Any]]] = queue.SimpleQueue()
        self._is_over = False
        self._lock = threading.Lock()
        self._evaluating: int | None = None  # the identifier of the thread that evaluates now

    @classmethod
    def accept(
        cls,
        connection: socket.socket,
        names: Callable[[], Mapping[str, Any]],
        params: Callable[[], list[tuple[Any, list[str]]]],
        step: int,
    ) -> PromptSession | None:
        """Returns the prompt that the replica has for this process; None if there is none any more. Raises
        OSError, FrameError."""
        connection.sendall(frames.json_frame(frames.ATTACH, {"kind": "repl"}))
        reader, has_start = FrameReader(), False
        session = cls(connection, reader, names, params)
        while not has_start:
            data = connection.recv(frames.DATA_BYTES)
            if not data:
                return None
            for kind, payload in reader.feed(data):
                has_start = has_start or kind == frames.START
                session._accept(kind, payload)
        connection.settimeout(_SEND_S)
        session._send(frames.json_frame(frames.READY, {"step": step, "python": platform.python_version()}))
        threading.Thread(target=session._receive, name="hop-repl", daemon=True).start()
        return session

    def serve(self, step: int) -> bool:
        """Evaluates the statements that wait. Returns whether more may come."""
        while not self._requests.empty():
            kind, fields = self._requests.get()
            if self._is_over:
                break
            if kind == frames.COMPLETE:
                text = str(fields.get("text", ""))
                found = self._guarded(partial(self._scope.complete, text))
                self._send(frames.json_frame(frames.COMPLETIONS, {"names": (found or [])[:_MAX_NAMES]}))
                continue
            self._send(frames.json_frame(frames.READY, {"step": step}))
            ok, changes = self._evaluate(str(fields.get("source", "")), str(fields.get("mode", "single")))
            self._send(frames.json_frame(frames.RESULT, {"ok": ok, "changes": changes}))
        if self._is_over:
            with suppress(OSError):
                self._connection.close()
        return not self._is_over

    # -- evaluation ------------------------------------------------------------------------------------------

    def _evaluate(self, source: str, mode: str) -> tuple[bool, dict[str, Any]]:
        """Returns whether the statements succeeded, and the parameters that they assigned. Those have their
        old values again: a change applies to all processes, as that of `hop set`."""
        before = [
            (values, each, dict(each), getattr(each, "scaling", None), names)
            for values, names in self._params()
            for each in (*scaled_params(values), values)
        ]
        ok = bool(self._guarded(lambda: self._scope.run(source, mode, self._write_error)))
        changes: dict[str, Any] = {}
        for given, values, old, scaling, names in before:
            unassigned = old
            if scaling is not None and values.scaling is not scaling:  # it followed an item of the given ones
                unassigned = {**given, **values.scaling.values()}
                values.scaling = scaling
            for name in set(values) - set(old):
                self._write_error(
                    f"note: only this process has `{name}`: {unknown_param_text(name, names)}\n"
                )
            for name in names:
                expected = unassigned.get(name, old[name])
                value = values.get(name, expected)
                if value is not expected and not _is_same(value, expected):
                    with suppress(TypeError, ValueError):
                        changes.update(recorded_values({name: value}))
                vars(values)[name] = old[name]
        return ok, changes

    def _guarded(self, action: Callable[[], Any]) -> Any:
        """Returns the result of an action with its output captured; None after an interrupt."""
        with self._interruptible(), self._captured():
            try:
                self._evaluating = threading.get_ident()
                try:
                    return action()
                finally:
                    self._evaluating = None
            except KeyboardInterrupt:
                self._evaluating = None  # it may come just before the line above
                self._write_error("KeyboardInterrupt\n")
                return None

    @contextmanager
    def _interruptible(self) -> Iterator[None]:
        """Lets SIGINT interrupt the evaluation, and nothing else."""
        if threading.current_thread() is not threading.main_thread():
            yield
            return

        def interrupt(_number: int, _frame: object) -> None:
            if self._evaluating is not None:
                raise KeyboardInterrupt

        earlier = signal.signal(signal.SIGINT, interrupt)
        try:
            yield
        finally:
            # a late signal ends in `interrupt`, which is replaced only when none is on its way
            with self._lock:
                self._evaluating = None
            signal.signal(signal.SIGINT, interrupt)
            signal.signal(signal.SIGINT, earlier if earlier is not None else signal.SIG_DFL)

    def _interrupt(self) -> None:
        """Interrupts the evaluation, or drops the statements that wait."""
        with self._lock:
            thread = self._evaluating
            if thread is not None and thread == threading.main_thread().ident:
                signal.pthread_kill(thread, signal.SIGINT)
                return
            if thread is not None:
                ctypes.pythonapi.PyThreadState_SetAsyncExc(
                    ctypes.c_ulong(thread), ctypes.py_object(KeyboardInterrupt)
                )
                return
        dropped = 0
        while not self._requests.empty():
            kind, _ = self._requests.get()
            dropped += kind == frames.STATEMENT
        for _ in range(dropped):
            self._write_error("KeyboardInterrupt\n")
            self._send(frames.json_frame(frames.RESULT, {"ok": False, "changes": {}}))

    @contextmanager
    def _captured(self) -> Iterator[None]:
        earlier = sys.stdout, sys.stderr
        sys.stdout = _Capture(earlier[0], self._write)
        sys.stderr = _Capture(earlier[1], self._write_error)
        try:
            yield
        finally:
            sys.stdout, sys.stderr = earlier

    # -- the connection --------------------------------------------------------------------------------------

    def _receive(self) -> None:
        """Runs in a thread of its own until the user leaves."""
        while not self._is_over:
            try:
                data = self._connection.recv(frames.DATA_BYTES)
                for kind, payload in self._reader.feed(data):
                    self._accept(kind, payload)
            except socket.timeout:  # of Python 3.9
                continue
            except (OSError, FrameError):
                break
            if not data:
                break
        self._is_over = True
        self._interrupt()

    def _accept(self, kind: int, payload: bytes) -> None:
        if kind in (frames.STATEMENT, frames.COMPLETE):
            self._requests.put((kind, frames.fields_of(payload)))
        elif kind == frames.SIGNAL:
            self._interrupt()

    def _write(self, text: str) -> None:
        self._send_text(frames.OUTPUT, text)

    def _write_error(self, text: str) -> None:
        self._send_text(frames.ERROR_OUTPUT, text)

    def _send_text(self, kind: int, text: str) -> None:
        data = text.encode(errors="backslashreplace")
        for start in range(0, len(data), frames.DATA_BYTES):
            self._send(frames.frame(kind, data[start : start + frames.DATA_BYTES]))

    def _send(self, data: bytes) -> None:
        if self._is_over:
            return
        try:
            self._connection.sendall(data)
        except OSError:
            self._is_over = True
            with suppress(OSError):
                self._connection.shutdown(socket.SHUT_RDWR)


class _Capture:
    """A standard stream that gives the text of one thread to the user. Other threads write to the stream."""

    def __init__(self, stream: Any, write: Callable[[str], None]) -> None:
        self._stream, self._write, self._thread = stream, write, threading.get_ident()

    def write(self, text: str) -> int:
        if threading.get_ident() != self._thread:
            return int(self._stream.write(text))
        self._write(text)
        return len(text)

    def flush(self) -> None:
        if threading.get_ident() != self._thread:
            self._stream.flush()

    def isatty(self) -> bool:
        return False

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)


def _is_same(value: object, other: object) -> bool:
    """Returns whether two values are equal and of one type; False for values that cannot be compared."""
    try:
        return type(value) is type(other) and bool(value == other)
    except Exception:
        return False
