"""A progress bar for packing and transfer, with rate and time left.
Costs nothing while the work takes no time."""

from __future__ import annotations

import sys
import threading
import time
from types import TracebackType
from typing import TYPE_CHECKING, Self

from hopyard.cli.terminal import console

if TYPE_CHECKING:
    from rich.progress import Progress, TaskID

_SHOW_AFTER_S = 0.3  # a shorter transfer shows nothing, and does not import rich
_REDRAW_INTERVAL_S = 0.1
_LINE_INTERVAL_S = 10.0  # without a terminal: one line in so many seconds


class TransferBar:
    """`hopyard.datasets.progress.ProgressListener` on stderr, used with `with`.
    Safe to advance from several threads."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._label, self._total, self._done_bytes = "", 0, 0
        self._began = self._drawn_at = time.monotonic()
        self._draws = console.supports_cursor(sys.stderr)
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
                    self._rich.update(self._row, completed=self._done_bytes)
                self._rich.stop()
                self._rich = None
            self._draws, self._total = False, 0

    def begin(self, what: str, total_bytes: int, /) -> None:
        with self._lock:
            if self._rich is not None and self._row is not None:
                self._rich.update(self._row, completed=self._total, visible=False)
                self._row = None
            self._label, self._total, self._done_bytes = what, total_bytes, 0
            self._began = self._drawn_at = time.monotonic()

    def advance(self, size_bytes: int, /) -> None:
        with self._lock:
            self._done_bytes += size_bytes
            now = time.monotonic()
            if not self._total or now - self._drawn_at < (
                _REDRAW_INTERVAL_S if self._row is not None else _SHOW_AFTER_S
            ):
                return
            if self._draws:
                self._drawn_at = now
                self._draw()
            elif now - self._drawn_at >= _LINE_INTERVAL_S:
                self._drawn_at = now
                rate = console.format_bytes(self._done_bytes / (now - self._began))
                console.print_message(
                    f"{self._label}: {console.format_bytes(self._done_bytes)} of "
                    f"{console.format_bytes(self._total)}, {rate}/s"
                )

    def _draw(self) -> None:
        if self._rich is None:
            self._rich = _make_progress()
            self._rich.start()
        if self._row is None:
            self._row = self._rich.add_task(self._label, total=self._total)
        self._rich.update(self._row, completed=self._done_bytes)


def _make_progress() -> Progress:
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
