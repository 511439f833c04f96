"""Connects to the shell of a run of `hop shell`, once that has started."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TYPE_CHECKING

from hopyard.api_client.client import Client
from hopyard.client.console import Console
from hopyard.client.run_files import is_ended
from hopyard.domain import console_frames as frames
from hopyard.errors import Conflict, ConsoleUnreachable, ServerUnavailable

if TYPE_CHECKING:
    from hopyard.api_client import types as api

KEEPER = "hopyard.sdk.terminal_keeper"
_INTERVAL_S = 0.2


def shell_arguments(command: tuple[str, ...], keep_s: float) -> tuple[str, ...]:
    """Returns the arguments of Python for a run that keeps a shell on a terminal. command: of the shell;
    empty for the usual one of the node."""
    return ("-m", KEEPER, "--keep", f"{keep_s:g}", "--", *command)


def is_shell(run: api.RunOut) -> bool:
    """Returns whether the run was submitted by `hop shell`."""
    return KEEPER in run["spec"]["roles"][0]["command"]


def open_shell(
    client: Client, run: api.RunOut, terminal: api.TerminalIn, *, on_change: Callable[[api.RunOut], None]
) -> Console | None:
    """Returns a connection to the shell once the run has started; None if the run has ended. on_change:
    receives its states."""
    while not is_ended(run):
        try:
            if run["phase"] == "running":
                opened = Console.open(client, run["id"], {"kind": "terminal", "terminal": terminal})
                if opened.peek_kind() != frames.EXIT:
                    return opened
                opened.close()
        except (ConsoleUnreachable, Conflict, ServerUnavailable):
            pass
        time.sleep(_INTERVAL_S)
        run = client.get_run(run["id"])
        on_change(run)
    return None
