"""The status line at the bottom of the terminal: the present state of the run. Never part of a log."""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from hopyard.cli.run_text import duration_s
from hopyard.cli.terminal import console

if TYPE_CHECKING:
    from hopyard.api_client import types as api
    from hopyard.client.follow import ProgressFrame

_REDRAW_S = 0.5
_BAR_CELLS = 20
_MARGIN = 4  # free columns at the right, where the terminal shows `^C`
_MAX_PARTS = 5


class StatusLine:
    """Redraws itself twice a second on stderr, unless an unfinished line of the script is at the cursor.

    Without a terminal it draws nothing.
    """

    def __init__(self) -> None:
        self.is_drawing = console.supports_cursor(sys.stderr)
        self._shares_terminal = console.is_terminal(sys.stdout)
        self._lock = threading.RLock()
        self._stop = threading.Event()
        self._ticker: threading.Thread | None = None
        self._run: api.RunOut | None = None
        self._progress: ProgressFrame | None = None
        self._shown_text = self._suspend_count = False
        self._at_line_start = True
        self._started_at = time.monotonic()

    def start(self) -> None:
        if self.is_drawing and self._ticker is None:
            self._ticker = threading.Thread(target=self._tick, name="status line", daemon=True)
            self._ticker.start()

    def close(self) -> None:
        """Erases the line for good."""
        self._stop.set()
        with self._lock:
            self._erase()
            self.is_drawing = False

    @contextmanager
    def suspended(self) -> Iterator[None]:
        """Moves the cursor to the start of a line and draws nothing, for a question to the user."""
        with self._lock:
            self.end_line()
            self._suspend_count = True
        yield
        with self._lock:
            self._suspend_count = False

    def show_run(self, run: api.RunOut) -> None:
        with self._lock:
            self._run = run
            self._redraw()

    def show_progress(self, frame: ProgressFrame) -> None:
        with self._lock:
            self._progress = frame
            self._redraw()

    @contextmanager
    def interrupted_by_output(self, last: bytes | None = None) -> Iterator[None]:
        """Hides the line during a write; `last` is the written text, which gives the cursor's position."""
        with self._lock:
            self._erase()
            yield
            if last:
                self._at_line_start = last.endswith(b"\n")
            self._redraw()

    def print_above(self, text: str) -> None:
        """Prints a message above the status line."""
        with self.interrupted_by_output():
            if not self._at_line_start:
                sys.stderr.write("\n")
                self._at_line_start = True
            console.print_message(text)

    def end_line(self) -> None:
        """Moves the cursor to the start of a line if the script left it elsewhere."""
        with self._lock:
            self._erase()
            if not self._at_line_start and self._shares_terminal and console.is_terminal(sys.stderr):
                sys.stderr.write("\n")
            self._at_line_start = True

    def _tick(self) -> None:
        while not self._stop.wait(_REDRAW_S):
            with self._lock:
                self._redraw()

    def _erase(self) -> None:
        if self._shown_text:
            sys.stderr.write("\r\x1b[2K")
            sys.stderr.flush()
            self._shown_text = False

    def _redraw(self) -> None:
        if (
            not self.is_drawing
            or self._suspend_count
            or self._run is None
            or (not self._at_line_start and self._shares_terminal)
        ):
            return
        text = fit_parts(
            [console.strip_styles(part) for part in self._parts(self._run)],
            console.terminal_width() - _MARGIN,
        )
        sys.stderr.write("\r\x1b[2K" + console.render_styles(console.paint(text, "dim", sys.stderr)))
        sys.stderr.flush()
        self._shown_text = True

    def _parts(self, run: api.RunOut) -> list[str]:
        """Returns the parts of the line, the most important first."""
        phase, waited = run["phase"], console.format_duration(time.monotonic() - self._started_at)
        if phase == "queued":
            place = f" at position {run['position']}" if run.get("position") else ""
            return [f"queued{place}", waited, run.get("hold_detail") or ""]
        return [
            phase,
            console.format_duration(duration_s(run)) if run.get("started_at") else waited,
            *(frame_texts(self._progress) if self._progress else []),
        ]


def fit_parts(parts: list[str], width: int) -> str:
    """Returns as many complete parts as fit; the first is cut if necessary."""
    text = parts[0][:width]
    for part in filter(None, parts[1:]):
        if len(text) + 2 + len(part) <= width:
            text += "  " + part
    return text


def progress_text(done: float, total: float | None, unit: str) -> str:
    """`epoch 3/10 [######..............] 30%`, or without a total `epoch 3`."""
    if not total:
        return f"{unit or 'step'} {done:g}"
    part = min(1.0, done / total)
    filled = round(part * _BAR_CELLS)
    bar = "#" * filled + "." * (_BAR_CELLS - filled)
    return f"{unit or 'step'} {done:g}/{total:g} [{bar}] {part:.0%}"


def frame_texts(frame: ProgressFrame) -> list[str]:
    """Returns bar, latest metrics and load, if known."""
    done, latest, system = frame["done"], frame["latest"], frame["system"]
    parts = [] if done is None else [progress_text(done, frame["total"], frame["unit"])]
    parts += [f"{name} {console.format_number(value)}" for name, (_, value) in latest.items()]
    return parts[:_MAX_PARTS] + ([] if system is None else load_texts(system))


def load_texts(sample: api.SampleOut) -> list[str]:
    """`cpu 180%`, `mem 1.2 GiB`, `gpu 97%`."""
    parts = []
    if (cpu_percent := sample["cpu_percent"]) is not None:
        parts.append(f"cpu {cpu_percent:.0f}%")
    if memory_bytes := sample["memory_bytes"]:
        parts.append(f"mem {console.format_bytes(memory_bytes)}")
    loads = [gpu["utilisation_percent"] for gpu in sample["gpus"]]
    if any(load is not None for load in loads):
        parts.append("gpu " + " ".join(f"{load:.0f}%" for load in loads if load is not None))
    return parts
