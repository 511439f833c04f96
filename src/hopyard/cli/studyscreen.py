"""A study as it is followed: on a terminal a table that is always true, elsewhere a line for everything that
ends."""

from __future__ import annotations

import sys
from typing import Any

from hopyard.cli import console
from hopyard.cli.output import Output
from hopyard.cli.statusline import StatusLine
from hopyard.cli.studytable import heading, table_of
from hopyard.studies.journal import CONTINUED, read_records
from hopyard.studies.standing import Phase
from hopyard.studies.view.standing import StudyView, TrialView

_ENDED = (Phase.COMPLETED, Phase.STOPPED, Phase.FAILED)


class StudyScreen(StatusLine):
    """Several lines at the bottom of the terminal instead of one: what the study does, and as many trials as
    there is room for."""

    def __init__(self, view: StudyView) -> None:
        super().__init__()
        self.view = view
        self._height = 0

    def _erase(self) -> None:
        if self._shown:
            sys.stderr.write("\r\x1b[2K" + "\x1b[1A\x1b[2K" * (self._height - 1))
            sys.stderr.flush()
            self._shown = False

    def _redraw(self) -> None:
        if (
            not self.drawing
            or self._hidden
            or self._run is None
            or (not self._column_zero and self._shares_screen)
        ):
            return
        lines = self._lines(self._run)
        self._erase()
        sys.stderr.write("\n".join(map(console.rendered, lines)))
        sys.stderr.flush()
        self._height, self._shown = len(lines), True

    def _lines(self, run: dict[str, Any]) -> list[str]:
        import shutil

        columns, rows = shutil.get_terminal_size((100, 24))
        if not self.view.trials:
            return [
                console.paint("  ".join(filter(None, self._parts(run)))[: columns - 1], "dim", sys.stderr)
            ]
        head = heading(self.view)
        room = max(3, min(20, rows - len(head) - 4))
        table = table_of(self.view, limit=room, width=columns - 1, stream=sys.stderr)
        return [_cut(line, columns - 1) for line in [*head, *table]]


class StudyOutput(Output):
    """Takes the driver's streams: the journal goes into `screen.view`, all else to stderr. continues: the run
    of the study that this one continues, with whose journal its own begins: what ended in that is no news."""

    def __init__(self, screen: StudyScreen, *, tell: bool, continues: str = "") -> None:
        super().__init__(screen, replicas=1, all_to_stderr=True)
        self._screen, self._tell, self._before = screen, tell, continues
        self._rest = b""
        self._told: set[tuple[str, Phase]] = set()

    def write(self, rank: int, stream: str, data: bytes) -> None:
        if stream != "journal":
            super().write(rank, stream, data)
            return
        whole, _, self._rest = (self._rest + data).rpartition(b"\n")
        for record in read_records(whole):
            self._screen.view.take(record)
            if record.get("kind") == CONTINUED and record["run"] == self._before:
                self._told.update(
                    (trial.id, trial.state)
                    for trial in self._screen.view.trials.values()
                    if trial.state in _ENDED
                )
                self._before = ""
        if self._tell and not self._before and not self._screen.drawing:
            self._tell_news()

    def _tell_news(self) -> None:
        view = self._screen.view
        best = view.best()
        for trial in view.trials.values():
            if trial.state in _ENDED and (trial.id, trial.state) not in self._told:
                self._told.add((trial.id, trial.state))
                console.say(_news(view, trial, best=best is trial))


def _news(view: StudyView, trial: TrialView, *, best: bool) -> str:
    value = "" if trial.best is None else f"  {view.metric} {console.number(trial.best)}"
    words = f"  {trial.error.splitlines()[0]}" if trial.error else ""
    return (
        f"trial {trial.id} {trial.state.value} after epoch "
        f"{trial.epoch}{value}{'  the best so far' if best else ''}{words}"
    )


def _cut(line: str, columns: int) -> str:
    """A line that wraps would be two, and could not be erased. One that is too long loses its colours."""
    return line if console.shown_width(line) <= columns else console.cut(line, columns)
