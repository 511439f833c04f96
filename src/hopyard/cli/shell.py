"""`hop shell`: a terminal on a node, as a run."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
from click.core import ParameterSource

from hopyard.cli.options import complete_run, session_options
from hopyard.cli.terminal import console

if TYPE_CHECKING:
    from hopyard.api_client import types as api
    from hopyard.api_client.client import Client

_COMMAND_KEY = "hopyard.shell_command"


class ShellCommand(click.Command):
    """Keeps the words behind `--` apart from the run."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        index = args.index("--") if "--" in args else len(args)
        ctx.meta[_COMMAND_KEY] = args[index + 1 :]
        return super().parse_args(ctx, args[:index])


@click.command("shell", cls=ShellCommand)
@click.argument("ref", metavar="[RUN] [-- COMMAND...]", required=False, shell_complete=complete_run)
@session_options
@click.option(
    "--keep",
    metavar="TIME",
    default="10m",
    show_default=True,
    help="How long the shell is kept without a connection.",
)
@click.pass_context
def shell(ctx: click.Context, /, ref: str | None, keep: str, **options: Any) -> int:
    """Work in a shell with the resources, data and environment of a run; or connect to that of RUN again.

    The shell begins with the files of the current folder. It waits in the queue and counts in limits as any
    run, and the run ends with the shell. On a terminal, Enter and then `~.` close the connection.
    """
    command: list[str] = ctx.meta[_COMMAND_KEY]
    if ref is not None:
        from hopyard.api_client.local_server import connect
        from hopyard.client.run_lookup import get_run
        from hopyard.client.shell_run import is_shell
        from hopyard.errors import SpecError, UsageError

        given = [name for name in ctx.params if ctx.get_parameter_source(name) is ParameterSource.COMMANDLINE]
        others = [f"--{name.replace('_', '-')}" for name in given if name != "ref"] + ["--"][: len(command)]
        if others:
            raise UsageError(
                f"{others[0]}: the shell of RUN has started already",
                hints=("name RUN alone, or start another shell without RUN",),
            )
        client = connect()
        run = get_run(client, ref)
        if not is_shell(run):
            raise SpecError(
                f"run {run['name']} was not started by `hop shell`",
                hints=(f"open a shell beside its script: `hop exec {run['name']} -- bash`",),
            )
        return _connect(client, run)
    return _connect(*_submit(command, keep, options))


def _submit(command: list[str], keep: str, options: dict[str, Any]) -> tuple[Client, api.RunOut]:
    from dataclasses import replace

    from hopyard.cli.run_text import address, start_line
    from hopyard.cli.submit_notices import print_notices
    from hopyard.cli.terminal.transfer_bar import TransferBar
    from hopyard.client.build_run import build_request, check_code_folder, find_interpreter
    from hopyard.client.shell_run import shell_arguments
    from hopyard.client.submit import submit_run
    from hopyard.config.units import parse_time

    keep_s = parse_time(keep, what="--keep")
    folder = Path.cwd()
    check_code_folder(folder)
    interpreter = find_interpreter(options.get("python"))
    arguments = shell_arguments(tuple(command), keep_s)
    request = build_request("python", arguments, folder, options, notify=console.print_message)
    request = replace(request, label=request.label or "shell", interpreter=interpreter or request.interpreter)
    client, run = submit_run(
        request,
        folder,
        interpreter=request.interpreter or None,
        notify=console.print_message,
        on_progress=TransferBar,
    )
    print_notices(run)
    console.print_message(f"run {run['name']}  {address(client, run)}  {start_line(run)}")
    return client, run


def _connect(client: Client, run: api.RunOut) -> int:
    """Returns the exit code of the shell; 255 if the connection ended before."""
    from hopyard.cli.attach import print_end
    from hopyard.cli.run_text import exit_code
    from hopyard.cli.status_line import StatusLine
    from hopyard.client.exec_session import EXIT_BROKEN, ExecSession
    from hopyard.client.shell_run import open_shell
    from hopyard.client.terminal_mode import terminal_size

    rows, columns = terminal_size(1)
    terminal: api.TerminalIn = {"rows": rows, "columns": columns, "type": os.environ.get("TERM", "")}
    line = StatusLine()
    line.start()
    try:
        opened = open_shell(client, run, terminal, on_change=line.show_run)
    except KeyboardInterrupt:
        line.close()
        name = run["name"]
        console.print_message(f"{name} continues.  Connect: hop shell {name}   Stop it: hop stop {name}")
        return 130
    finally:
        line.close()
    if opened is None:
        ended = client.get_run(run["id"])
        print_end(client, ended)
        return exit_code(ended) or 1
    session = ExecSession(
        opened, has_terminal=True, notify=lambda text: console.print_message(f"hop: {text}")
    )
    code = session.run()
    if code == EXIT_BROKEN:
        console.print_message(f"connect again: hop shell {run['name']}")
    sys.exit(code)
