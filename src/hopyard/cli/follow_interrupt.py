"""Ctrl-C while a run is followed: detaches from the run, or stops it when the user confirms."""

from __future__ import annotations

import sys
import time
from typing import TYPE_CHECKING

from hopyard.api_client.client import Client
from hopyard.cli.run_text import is_final
from hopyard.cli.status_line import StatusLine
from hopyard.cli.terminal import console
from hopyard.client.follow import RunFollower
from hopyard.errors import HopyardError

if TYPE_CHECKING:
    from hopyard.api_client import types as api

EXIT_DETACHED = 130  # the exit code of a command that Ctrl-C ended, by the convention of shells
_SECOND_INTERRUPT_S = 2.0


def follow_or_detach(follower: RunFollower, line: StatusLine) -> api.RunOut | None:
    """Returns the run as it ended; None after Ctrl-C."""
    stop_requested = False
    line.start()
    while True:
        try:
            ended = follower.follow()
            line.end_line()
            return ended
        except KeyboardInterrupt:
            if is_final(follower.run):
                line.end_line()
                return follower.run
            with line.suspended():
                if stop_requested or not _confirm_stop(follower.run):
                    return None
            stop_requested = True
            _stop_run(follower.client, follower.run)


def follow_or_leave(follower: RunFollower, line: StatusLine) -> api.RunOut | None:
    """Returns the run as it ended; None after Ctrl-C, without a question."""
    line.start()
    try:
        ended = follower.follow()
        line.end_line()
        return ended
    except KeyboardInterrupt:
        line.end_line()
        console.print_message(f"{follower.run['name']} continues")
        return None


def _confirm_stop(run: api.RunOut) -> bool:
    """Prints how to reattach; a second Ctrl-C asks whether to stop the run."""
    name = run["name"]
    trials_hint = "" if run["spec"].get("study") is None else f"Its trials: hop search show {name}   "
    console.print_message(
        f"{name} continues.  {trials_hint}Follow it: hop logs -f {name}   Stop it: hop stop {name}"
    )
    if not (console.is_terminal(sys.stdin) and console.is_terminal(sys.stderr)):
        return False
    try:
        sys.stderr.write("(Ctrl-C again to stop the run) ")
        sys.stderr.flush()
        time.sleep(_SECOND_INTERRUPT_S)
        if console.supports_cursor(sys.stderr):
            sys.stderr.write("\r\x1b[2K")  # the offer has lapsed
        else:
            console.print_message()
        return False
    except KeyboardInterrupt:
        sys.stderr.write(f"\nstop {name}? [y/N] ")
        sys.stderr.flush()
    try:
        return sys.stdin.readline().strip().lower() in ("y", "yes")
    except KeyboardInterrupt:
        console.print_message()
        return False


def _stop_run(client: Client, run: api.RunOut) -> None:
    try:
        client.stop_run(run["id"], {"grace_s": 10})
    except HopyardError as error:
        console.print_message(f"error: {error.message}")
