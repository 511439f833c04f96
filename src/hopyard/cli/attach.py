"""Announces a submitted run, follows it, and reports how it ended."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, TypedDict

from hopyard.api_client.client import Client
from hopyard.cli.run_text import address, end_text, exit_code, metrics_line, start_line
from hopyard.cli.submit_notices import print_notices
from hopyard.cli.terminal import console

if TYPE_CHECKING:
    from hopyard.api_client import types as api


def attach_to_run(
    client: Client, run: api.RunOut, *, detach: bool, as_json: bool, folder: Path | None = None
) -> int:
    """Announces a submitted run and, unless `detach`, follows it to its end. folder: its code, if that was
    packed on this machine. Returns the exit code of the command."""
    print_notices(run)
    console.print_message(f"run {run['name']}  {address(client, run)}  {start_line(run)}")
    if detach:
        if as_json:
            console.print_json(result_json(client, run))
        elif not console.is_terminal(sys.stdout):
            console.print_line(run["name"])  # so that a script can keep it: RUN=$(hop run --detach …)
        return 0
    return _follow_run(client, run, as_json=as_json, folder=folder)


class RunResult(TypedDict):
    """What `--json` prints of a run."""

    id: str
    name: str
    url: str
    phase: api.RunPhase
    run: api.RunOut


def result_json(client: Client, run: api.RunOut) -> RunResult:
    """Returns the object that `--json` prints."""
    return {
        "id": run["id"],
        "name": run["name"],
        "url": address(client, run),
        "phase": run["phase"],
        "run": run,
    }


def _follow_run(client: Client, run: api.RunOut, *, as_json: bool, folder: Path | None) -> int:
    from hopyard.cli.follow_interrupt import EXIT_DETACHED, follow_or_detach
    from hopyard.cli.run_output import OutputClosed, RunOutput
    from hopyard.cli.status_line import StatusLine
    from hopyard.cli.terminal_listener import TerminalListener
    from hopyard.client.follow import RunFollower
    from hopyard.client.ignore_check import missing_file_hint

    line = StatusLine()
    size = sum(role["replicas"] for role in run["spec"]["roles"])
    output = RunOutput(line, replicas=size, all_to_stderr=as_json)
    follower = RunFollower(client, run, TerminalListener(output, line))
    try:
        ended = follow_or_detach(follower, line)
    except OutputClosed:
        raise BrokenPipeError from None
    finally:
        line.close()
    if as_json:
        console.print_json(result_json(follower.client, ended or follower.run))
    if ended is None:
        return EXIT_DETACHED
    print_end(follower.client, ended)
    if folder is not None and ended["phase"] == "failed":
        exit_ = ended.get("exit")
        hint = missing_file_hint(folder, exit_["reason"]) if exit_ else None
        if hint is not None:
            console.print_message(hint)
    return exit_code(ended)


def print_end(client: Client, run: api.RunOut) -> None:
    """Prints how a run ended, its results, the files that it wrote, and what could not be stored."""
    from hopyard.client.run_files import describe_stored_files

    values = metrics_line(run.get("summary") or {})
    phase = console.paint_phase(run["phase"], sys.stderr)
    console.print_message(
        f"{run['name']} {end_text(run).replace(run['phase'], phase, 1)}" + (f"  {values}" if values else "")
    )
    if stored_files := describe_stored_files(client, run):
        console.print_message(f"{stored_files} kept: hop files {run['name']}")
    for sentence in run.get("unstored") or ():
        console.print_message(f"warning: {sentence}")
