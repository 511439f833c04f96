"""The terminal of the user while a program elsewhere controls it."""

from __future__ import annotations

import os
import signal
import termios
import tty
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress

_FALLBACK = (24, 80)


def terminal_size(descriptor: int) -> tuple[int, int]:
    """Returns the rows and columns of a terminal; the usual ones if it has no size."""
    try:
        size = os.get_terminal_size(descriptor)
    except OSError:
        return _FALLBACK
    return size.lines or _FALLBACK[0], size.columns or _FALLBACK[1]


@contextmanager
def raw_mode(descriptor: int) -> Iterator[None]:
    """Passes each key on unchanged, also Ctrl-C. Does nothing for a descriptor that is no terminal."""
    if not os.isatty(descriptor):
        yield
        return
    earlier = termios.tcgetattr(descriptor)
    tty.setraw(descriptor, termios.TCSADRAIN)
    try:
        yield
    finally:
        with suppress(termios.error):  # the terminal is gone
            termios.tcsetattr(descriptor, termios.TCSADRAIN, earlier)


@contextmanager
def signals_to(pipe: int, *numbers: signal.Signals) -> Iterator[None]:
    """While it lasts, each of these signals writes its number to `pipe` and does nothing else."""

    def write(number: int, _frame: object) -> None:
        with suppress(BlockingIOError):
            os.write(pipe, bytes([number]))

    earlier: dict[signal.Signals, Callable[..., object] | int | None] = {
        number: signal.signal(number, write) for number in numbers
    }
    try:
        yield
    finally:
        for number, handler in earlier.items():
            signal.signal(number, handler)


class EscapeKeys:
    """Finds the keys `~.` at the beginning of a line, which end the connection as in ssh."""

    def __init__(self) -> None:
        self._at_line_start, self._held = True, b""

    def feed(self, data: bytes) -> tuple[bytes, bool]:
        """Returns the keys to pass on, and whether the user ends the connection. A tilde is held back until
        the next key."""
        passed = bytearray()
        for key in data:
            character = bytes([key])
            if self._held:
                self._held = b""
                if character == b".":
                    return bytes(passed), True
                if character != b"~":  # `~~` is one tilde
                    passed += b"~"
            elif self._at_line_start and character == b"~":
                self._held = character
                continue
            passed += character
            self._at_line_start = character in b"\r\n"
        return bytes(passed), False
