"""A progress bar for packing and transfer, with rate and time left.
Costs nothing while the work takes no time."""

from __future__ import annotations

import sys
import threading
import time
from types import TracebackType
from typing import TYPE_CHECKING, Self

from hopyard.cli import console

if TYPE_CHECKING:
    from rich.progress import Progress, TaskID

_WAIT_S = 0.3  # what is over before this shows nothing, and rich is not even imported
_REDRAW_S = 0.1
_LINE_S = 10.0  # without a terminal: one line in so many seconds


class TransferBar:
    """`hopyard.datasets.progress.Progress` on stderr, used with `with`.
    Safe to advance from several threads."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._what, self._total, self._done = "", 0, 0
        self._began = self._drawn_at = time.monotonic()
        self._drawing = console.can_draw(sys.stderr)
        self._rich: Progress | None = None
        self._row: TaskID | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, bad: BaseException | None, trace: TracebackType | None
    ) -> None:
        with self._lock:
            if self._rich is not None:
                if self._row is not None:
                    self._rich.update(self._row, completed=self._done)
                self._rich.stop()
                self._rich = None
            self._drawing, self._total = False, 0

    def begin(self, what: str, total_bytes: int, /) -> None:
        with self._lock:
            if self._rich is not None and self._row is not None:
                self._rich.update(self._row, completed=self._total, visible=False)
                self._row = None
            self._what, self._total, self._done = what, total_bytes, 0
            self._began = self._drawn_at = time.monotonic()

    def advance(self, size_bytes: int, /) -> None:
        with self._lock:
            self._done += size_bytes
            now = time.monotonic()
            if not self._total or now - self._drawn_at < (_REDRAW_S if self._row is not None else _WAIT_S):
                return
            if self._drawing:
                self._drawn_at = now
                self._draw()
            elif now - self._drawn_at >= _LINE_S:
                self._drawn_at = now
                rate = console.bytes_text(self._done / (now - self._began))
                console.say(
                    f"{self._what}: {console.bytes_text(self._done)} of "
                    f"{console.bytes_text(self._total)}, {rate}/s"
                )

    def _draw(self) -> None:
        if self._rich is None:
            self._rich = _make()
            self._rich.start()
        if self._row is None:
            self._row = self._rich.add_task(self._what, total=self._total)
        self._rich.update(self._row, completed=self._done)


def _make() -> Progress:
    from rich.console import Console
    from rich.progress import (
        BarColumn,
        DownloadColumn,
        Progress,
        TextColumn,
        TimeRemainingColumn,
        TransferSpeedColumn,
    )

    return Progress(
        TextColumn("{task.description:<11}"),
        BarColumn(bar_width=None),
        TextColumn("{task.percentage:>3.0f}%"),
        DownloadColumn(binary_units=True),
        TransferSpeedColumn(),
        TimeRemainingColumn(compact=True),
        console=Console(stderr=True),
        transient=True,
    )
