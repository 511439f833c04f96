"""How far a simulation is, in one line on stderr that is always true."""

from __future__ import annotations

import sys
import time
from types import TracebackType
from typing import TYPE_CHECKING, Self

from hopyard.cli import console

if TYPE_CHECKING:
    from hopyard.simulator.settings import Progress

_BAR_CELLS = 20
_LINE_S = 10.0  # without a terminal: one line in so many seconds


class SimulationLine:
    """wanted: None draws on a terminal and is silent without one; True tells a line now and then without one
    too."""

    def __init__(self, wanted: bool | None) -> None:
        self._drawing = wanted is not False and console.can_draw(sys.stderr)
        self._telling = wanted is True and not self._drawing
        self._title = ""
        self._shown = False
        self._told_at = time.monotonic()

    @property
    def active(self) -> bool:
        return self._drawing or self._telling

    def of(self, title: str) -> Self:
        """What is played from now on."""
        self._title = title
        return self

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, bad: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._shown:
            sys.stderr.write("\r\x1b[K")
            sys.stderr.flush()
            self._shown = False

    def show(self, progress: Progress) -> None:
        if self._drawing:
            text = self.text(progress, width=console.terminal_width() - 1)
            sys.stderr.write(f"\r\x1b[K{console.rendered(text)}")
            sys.stderr.flush()
            self._shown = True
        elif time.monotonic() - self._told_at >= _LINE_S:
            self._told_at = time.monotonic()
            console.say(self.text(progress, width=200))

    def text(self, progress: Progress, *, width: int) -> str:
        done = progress.ended / max(progress.runs, 1)
        full, empty = ("█", "░") if console.has_unicode(sys.stderr) else ("#", ".")
        cells = round(done * _BAR_CELLS)
        bar = full * cells + empty * (_BAR_CELLS - cells)
        counts = (
            f"{progress.ended} of {progress.runs} ended, {progress.running} run, {progress.waiting} "
            f"wait, {progress.used:.0%} in use"
        )
        return f"{self._title} {bar} {progress.now:%Y-%m-%d %H:%M} {counts}"[:width]
