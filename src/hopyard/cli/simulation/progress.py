"""Progress of a simulation, in one line on stderr."""

from __future__ import annotations

import sys
import time
from types import TracebackType
from typing import TYPE_CHECKING, Self

from hopyard.cli.terminal import console

if TYPE_CHECKING:
    from hopyard.simulator.settings import SimulationProgress

_BAR_CELLS = 20
_LINE_INTERVAL_S = 10.0  # between two lines, without a terminal


class SimulationProgressLine:
    """enabled: None draws only on a terminal; True also prints lines without one."""

    def __init__(self, enabled: bool | None) -> None:
        self._drawing = enabled is not False and console.supports_cursor(sys.stderr)
        self._prints_lines = enabled is True and not self._drawing
        self._title = ""
        self._is_shown = False
        self._printed_at = time.monotonic()

    @property
    def is_active(self) -> bool:
        return self._drawing or self._prints_lines

    def set_title(self, title: str) -> Self:
        """Starts the next simulation."""
        self._title = title
        return self

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._is_shown:
            sys.stderr.write("\r\x1b[K")
            sys.stderr.flush()
            self._is_shown = False

    def show(self, progress: SimulationProgress) -> None:
        if self._drawing:
            text = self.format_line(progress, width=console.terminal_width() - 1)
            sys.stderr.write(f"\r\x1b[K{console.render_styles(text)}")
            sys.stderr.flush()
            self._is_shown = True
        elif time.monotonic() - self._printed_at >= _LINE_INTERVAL_S:
            self._printed_at = time.monotonic()
            console.print_message(self.format_line(progress, width=200))

    def format_line(self, progress: SimulationProgress, *, width: int) -> str:
        ended_share = progress.ended / max(progress.runs, 1)
        full, empty = ("█", "░") if console.supports_unicode(sys.stderr) else ("#", ".")
        cells = round(ended_share * _BAR_CELLS)
        bar = full * cells + empty * (_BAR_CELLS - cells)
        counts = (
            f"{progress.ended} of {progress.runs} ended, {progress.running} run, {progress.waiting} "
            f"wait, {progress.used:.0%} in use"
        )
        return f"{self._title} {bar} {progress.now:%Y-%m-%d %H:%M} {counts}"[:width]
