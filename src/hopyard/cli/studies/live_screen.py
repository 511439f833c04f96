"""Follows a study: on a terminal with a live table, elsewhere with a line for each ended unit."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

from hopyard.cli.run_output import RunOutput
from hopyard.cli.status_line import StatusLine
from hopyard.cli.studies.table import study_heading, trial_table
from hopyard.cli.terminal import console
from hopyard.studies.journal import CONTINUED, read_records
from hopyard.studies.study_state import TrialPhase
from hopyard.studies.view.study_view import StudyView, TrialView

if TYPE_CHECKING:
    from hopyard.api_client import types as api

_FINAL_PHASES = (TrialPhase.COMPLETED, TrialPhase.STOPPED, TrialPhase.FAILED)


class StudyScreen(StatusLine):
    """A live view of several lines at the bottom of the terminal: the state of the study, and as many trials
    as fit.
    """

    def __init__(self, view: StudyView) -> None:
        super().__init__()
        self.view = view
        self._height = 0

    def _erase(self) -> None:
        if self._shown_text:
            sys.stderr.write("\r\x1b[2K" + "\x1b[1A\x1b[2K" * (self._height - 1))
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
        lines = self._lines(self._run)
        self._erase()
        sys.stderr.write("\n".join(map(console.render_styles, lines)))
        sys.stderr.flush()
        self._height, self._shown_text = len(lines), True

    def _lines(self, run: api.RunOut) -> list[str]:
        import shutil

        columns, rows = shutil.get_terminal_size((100, 24))
        if not self.view.trials:
            return [
                console.paint("  ".join(filter(None, self._parts(run)))[: columns - 1], "dim", sys.stderr)
            ]
        head = study_heading(self.view)
        room = max(3, min(20, rows - len(head) - 4))
        table = trial_table(self.view, limit=room, width=columns - 1, stream=sys.stderr)
        return [_truncate_line(line, columns - 1) for line in [*head, *table]]


class StudyOutput(RunOutput):
    """Applies the driver's streams: the journal to `screen.view`, all other streams to stderr.

    continued_run: the run that this study continues; its records in the journal are not printed.
    """

    def __init__(self, screen: StudyScreen, *, prints_events: bool, continued_run: str = "") -> None:
        super().__init__(screen, replicas=1, all_to_stderr=True)
        self._screen, self._prints_events, self._continued_run = screen, prints_events, continued_run
        self._incomplete_record = b""
        self._printed_ends: set[tuple[str, TrialPhase]] = set()

    def write(self, rank: int, stream: str, data: bytes, at: float | None = None) -> None:
        if stream != "journal":
            super().write(rank, stream, data, at)
            return
        whole, _, self._incomplete_record = (self._incomplete_record + data).rpartition(b"\n")
        for record in read_records(whole):
            self._screen.view.apply(record)
            if record.get("kind") == CONTINUED and record["run"] == self._continued_run:
                self._printed_ends.update(
                    (trial.id, trial.state)
                    for trial in self._screen.view.trials.values()
                    if trial.state in _FINAL_PHASES
                )
                self._continued_run = ""
        if self._prints_events and not self._continued_run and not self._screen.is_drawing:
            self._print_events()

    def _print_events(self) -> None:
        view = self._screen.view
        best = view.best()
        for trial in view.trials.values():
            if trial.state in _FINAL_PHASES and (trial.id, trial.state) not in self._printed_ends:
                self._printed_ends.add((trial.id, trial.state))
                console.print_message(_event_line(view, trial, best=best is trial))


def _event_line(view: StudyView, trial: TrialView, *, best: bool) -> str:
    value = "" if trial.best is None else f"  {view.metric} {console.format_number(trial.best)}"
    reason = trial.error or trial.stop_reason
    words = f"  {reason.splitlines()[0]}" if reason else ""
    return (
        f"trial {trial.id} {trial.state.value} after {view.unit} "
        f"{trial.epoch}{value}{'  the best so far' if best else ''}{words}"
    )


def _truncate_line(line: str, columns: int) -> str:
    """Cuts a line that would wrap, because a wrapped line cannot be erased. A cut line loses its colours."""
    return line if console.display_width(line) <= columns else console.truncate(line, columns)
