"""`hop exec`: runs a command beside a live run."""

from __future__ import annotations

import os
import sys

import click

from hopyard.cli.options import run_argument
from hopyard.cli.terminal import console
from hopyard.domain.run import MAX_REPLICAS

rank_option = click.option(
    "--rank", type=click.IntRange(0, MAX_REPLICAS - 1), help="The replica, by its rank.  [default: 0]"
)
replica_option = click.option("--replica", metavar="NAME", help="The replica, by its name, such as worker-1.")


@click.command("exec", context_settings={"ignore_unknown_options": False})
@run_argument("ref", metavar="RUN")
@rank_option
@replica_option
@click.option(
    "-t/-T",
    "--terminal/--no-terminal",
    default=None,
    help="Give the command a terminal or none.  [default: one if this is a terminal]",
)
@click.argument("command", metavar="-- COMMAND...", nargs=-1, required=True, type=click.UNPROCESSED)
def exec_command(
    ref: str, rank: int | None, replica: str | None, terminal: bool | None, command: tuple[str, ...]
) -> None:
    """Run COMMAND beside RUN: in its folder, with its variables, environment, data and limits.

    The exit code is that of the command; 255 if the connection breaks or the run ends. Without a terminal,
    standard input is passed on, and standard output and error stay apart. The command ends with the
    connection and with the run. On a terminal, Enter and then `~.` close the connection.
    """
    from hopyard.api_client.local_server import connect
    from hopyard.client.console import Console, choose_rank
    from hopyard.client.exec_session import ExecSession
    from hopyard.client.run_lookup import get_run
    from hopyard.client.terminal_mode import terminal_size

    client = connect()
    run = get_run(client, ref)
    has_terminal = (os.isatty(0) and os.isatty(1)) if terminal is None else terminal
    rows, columns = terminal_size(1)
    opened = Console.open(
        client,
        run["id"],
        {
            "kind": "exec",
            "command": list(command),
            "rank": choose_rank(run, rank, replica),
            "terminal": {"rows": rows, "columns": columns, "type": os.environ.get("TERM", "")}
            if has_terminal
            else None,
        },
    )
    session = ExecSession(
        opened, has_terminal=has_terminal, notify=lambda text: console.print_message(f"hop: {text}")
    )
    sys.exit(session.run())
