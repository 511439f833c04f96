"""Shows a followed run on the terminal."""

from __future__ import annotations

from typing import TYPE_CHECKING

from hopyard.cli.run_output import RunOutput
from hopyard.cli.status_line import StatusLine

if TYPE_CHECKING:
    from hopyard.api_client import types as api
    from hopyard.client.follow import ProgressFrame


class TerminalListener:
    """A `FollowListener`: the output goes to `output`, states and messages to the status line."""

    def __init__(self, output: RunOutput, line: StatusLine) -> None:
        self._output, self._line = output, line

    def write(self, rank: int, stream: str, data: bytes, at: float | None = None, /) -> None:
        self._output.write(rank, stream, data, at)

    def flush(self) -> None:
        self._output.flush()

    def show_run(self, run: api.RunOut, /) -> None:
        self._line.show_run(run)

    def show_progress(self, frame: ProgressFrame, /) -> None:
        self._line.show_progress(frame)

    def notify(self, text: str, /) -> None:
        self._line.print_above(text)
