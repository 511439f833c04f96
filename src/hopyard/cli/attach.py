"""Announces a submitted run, follows it, detaches on Ctrl-C and reports how it ended."""

from __future__ import annotations

import sys
import time
from typing import TYPE_CHECKING, Any

from hopyard.api_client.client import Client
from hopyard.cli.run_text import Run, address, end_text, exit_code, is_final, metrics_line, start_line
from hopyard.cli.submit_notices import print_notices
from hopyard.cli.terminal import console
from hopyard.errors import HopyardError

if TYPE_CHECKING:
    from hopyard.cli.follow_run import RunFollower
    from hopyard.cli.status_line import StatusLine

EXIT_DETACHED = 130  # as a shell says of a command that Ctrl-C ended
_SECOND_INTERRUPT_S = 2.0


def attach_to_run(client: Client, run: Run, *, detach: bool, as_json: bool) -> int:
    """Announces a submitted run and, unless `detach`, follows it to its end.
    Returns the exit code of the command."""
    print_notices(run)
    console.print_message(f"run {run['name']}  {address(client, run)}  {start_line(run)}")
    if detach:
        if as_json:
            console.print_json(result_json(client, run))
        elif not console.is_terminal(sys.stdout):
            console.print_line(run["name"])  # so that a script can keep it: RUN=$(hop run --detach …)
        return 0
    return _follow_run(client, run, as_json=as_json)


def result_json(client: Client, run: Run) -> dict[str, Any]:
    """Returns the object that `--json` prints."""
    return {
        "id": run["id"],
        "name": run["name"],
        "url": address(client, run),
        "phase": run["phase"],
        "run": run,
    }


def _follow_run(client: Client, run: Run, *, as_json: bool) -> int:
    from hopyard.cli.follow_run import RunFollower
    from hopyard.cli.run_output import OutputClosed, RunOutput
    from hopyard.cli.status_line import StatusLine

    line = StatusLine()
    size = sum(role["replicas"] for role in run["spec"]["roles"])
    follower = RunFollower(
        client, run, output=RunOutput(line, replicas=size, all_to_stderr=as_json), line=line
    )
    try:
        ended = follow_until_end(follower, line)
    except OutputClosed:
        raise BrokenPipeError from None
    finally:
        line.close()
    if as_json:
        console.print_json(result_json(follower.client, ended or follower.run))
    if ended is None:
        return EXIT_DETACHED
    print_end(ended)
    return exit_code(ended)


def follow_until_end(follower: RunFollower, line: StatusLine) -> Run | None:
    """Returns the run as it ended; None after Ctrl-C."""
    asked = False
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
                if asked or not _ask_to_stop(follower.run):
                    return None
            asked = True
            _stop_run(follower.client, follower.run)


def _ask_to_stop(run: Run) -> bool:
    """Prints how to reattach; a second Ctrl-C asks whether to stop the run."""
    name = run["name"]
    look = "" if run["spec"].get("study") is None else f"Its trials: hop search show {name}   "
    console.print_message(
        f"{name} continues.  {look}Follow it: hop logs -f {name}   Stop it: hop stop {name}"
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


def _stop_run(client: Client, run: Run) -> None:
    try:
        client.post(f"/runs/{run['id']}/stop", {"grace_s": 10})
    except HopyardError as refused:
        console.print_message(f"error: {refused.message}")


def print_end(run: Run) -> None:
    """Prints how a run ended, its results, and what could not be stored."""
    values = metrics_line(run.get("summary") or {})
    phase = console.paint_phase(run["phase"], sys.stderr)
    console.print_message(
        f"{run['name']} {end_text(run).replace(run['phase'], phase, 1)}" + (f"  {values}" if values else "")
    )
    for sentence in run.get("unstored") or ():
        console.print_message(f"warning: {sentence}")
