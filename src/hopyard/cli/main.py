"""The command `hop`: a group that imports each command on first use."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from importlib import import_module
from typing import NoReturn

import click
from click.shell_completion import CompletionItem

from hopyard.cli import errors
from hopyard.cli.command_table import COMMANDS
from hopyard.errors import HopyardError, UsageError

_LOCAL_COMMANDS = ("up", "down", "service", "backup", "restore")
_COMMAND_BY_NAME = {entry.name: entry for entry in COMMANDS}
_HELP_FLAG = "hopyard.for_help"  # in a context's meta: whether only help is requested, which needs no home
_SETTINGS = {"help_option_names": ["-h", "--help"], "max_content_width": 100}


class LazyGroup(click.Group):
    """Lists its commands from the table, and imports a command when it is called."""

    def list_commands(self, ctx: click.Context) -> list[str]:  # noqa: ARG002
        return list(_COMMAND_BY_NAME)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:  # noqa: ARG002
        entry = _COMMAND_BY_NAME.get(cmd_name)
        if entry is None:
            return None
        module, _, attribute = entry.target.partition(":")
        command: click.Command = getattr(import_module(f"hopyard.cli.{module}"), attribute)
        return command

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        if (
            args
            and args[0] not in _COMMAND_BY_NAME
            and not args[0].startswith("-")
            and not ctx.resilient_parsing
        ):
            raise unknown_command(args[0])
        name, command, rest = super().resolve_command(ctx, args)
        ctx.meta[_HELP_FLAG] = command is not None and _is_help_request(ctx, command, rest)
        return name, command, rest

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:  # noqa: ARG002
        sections: dict[str, list[tuple[str, str]]] = {}
        for entry in COMMANDS:
            sections.setdefault(entry.section, []).append((entry.name, entry.summary))
        for title, rows in sections.items():
            with formatter.section(title):
                formatter.write_dl(rows, col_max=12)

    def shell_complete(self, ctx: click.Context, incomplete: str) -> list[CompletionItem]:
        if incomplete.startswith("-"):
            return super().shell_complete(ctx, incomplete)
        return [
            CompletionItem(entry.name, help=entry.summary)
            for entry in COMMANDS
            if entry.name.startswith(incomplete)
        ]


def _is_help_request(parent: click.Context, command: click.Command, arguments: Sequence[str]) -> bool:
    """Whether these arguments of a command, or of its subcommand, only request help."""
    if command.no_args_is_help and not arguments:
        return True
    ctx = click.Context(
        command, parent=parent, info_name=command.name, resilient_parsing=True, **command.context_settings
    )
    try:
        given, left, _ = command.make_parser(ctx).parse_args(list(arguments))
    except click.UsageError:
        return False
    option = command.get_help_option(ctx)
    if option is not None and option.name in given:
        return True
    if not isinstance(command, click.Group) or not left:
        return False
    _, below, rest = command.resolve_command(ctx, left)
    return below is not None and _is_help_request(ctx, below, rest)


def unknown_command(name: str) -> UsageError:
    """Returns the error for an unknown command: its equivalent, the closest name, or how to run a script."""
    from hopyard.cli.aliases import command_hint
    from hopyard.config.suggest import closest_name

    known, near = command_hint(name), closest_name(name, _COMMAND_BY_NAME)
    if name.endswith((".py", ".ipynb", ".yaml", ".yml")):
        hints: tuple[str, ...] = (f"to run a script: hop run {name}",)
    elif known:
        hints = (known,)
    else:
        hints = (f"did you mean `hop {near}`?",) if near else ()
    return UsageError(f"no command `{name}`", hints=(*hints, "`hop --help` lists the commands"))


def _print_version(ctx: click.Context, _parameter: click.Parameter, wanted: bool) -> None:
    if wanted and not ctx.resilient_parsing:
        from hopyard import __version__

        click.echo(f"hop {__version__}")
        ctx.exit()


@click.group(cls=LazyGroup, context_settings=_SETTINGS, no_args_is_help=False, invoke_without_command=True)
@click.option(
    "--version",
    is_flag=True,
    expose_value=False,
    is_eager=True,
    callback=_print_version,
    help="Print the version.",
)
@click.pass_context
def hop(ctx: click.Context) -> None:
    """Hopyard runs, tracks and ranks deep-learning training.

    Begin with `hop run train.py`. The server starts automatically; no setup is needed.
    """
    if ctx.invoked_subcommand is None:
        click.echo(ctx.get_help())
        return
    from hopyard.config.home import REPLICA_VARIABLE, Home

    if ctx.invoked_subcommand in _LOCAL_COMMANDS and os.environ.get(REPLICA_VARIABLE):
        raise UsageError(
            f"`hop {ctx.invoked_subcommand}` starts, stops or copies a server, which is not allowed "
            "inside a run",
            hints=("run it outside of runs",),
        )
    # these look at homes of others
    if ctx.invoked_subcommand not in ("doctor", "help", "service") and not ctx.meta[_HELP_FLAG]:
        Home.default().check()


@click.command("help")
@click.argument("words", nargs=-1, metavar="[COMMAND]...")
@click.pass_context
def help_command(ctx: click.Context, words: tuple[str, ...]) -> None:
    """Show the help of a command: `hop help run`."""
    at = ctx.find_root()
    for word in words:
        group = at.command
        command = group.get_command(at, word) if isinstance(group, click.Group) else None
        if command is None:
            if at.parent is None:
                raise unknown_command(word)
            raise UsageError(
                f"`{at.command_path}` has no command `{word}`",
                hints=(f"`{at.command_path} --help` lists them",),
            )
        at = click.Context(command, info_name=word, parent=at)
    click.echo(at.get_help())


def _open_closed_streams() -> None:
    """Opens /dev/null in place of a closed standard stream (`hop run train.py >&-`).

    The next opened file would otherwise take the descriptor of the stream.
    """
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        if getattr(sys, name) is None:
            setattr(sys, name, open(os.devnull, mode))  # noqa: SIM115


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs `hop` with `arguments` (by default of the process) and returns the exit code."""
    _open_closed_streams()
    try:
        code = hop.main(
            args=None if arguments is None else list(arguments), prog_name="hop", standalone_mode=False
        )
        sys.stdout.flush()
        return code if isinstance(code, int) else 0
    except (HopyardError, click.ClickException) as error:
        return errors.report_error(error)
    except (KeyboardInterrupt, click.Abort):
        errors.print_error("interrupted")
        return errors.EXIT_INTERRUPTED
    except BrokenPipeError:
        # Whoever read our output has gone (`hop logs | head`); the interpreter must not complain while it
        # ends.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 128 + 13
    except OSError as broken:
        # A full disk, a folder that may not be read: trouble of the machine, not of this program.
        where = f"{broken.filename}: " if broken.filename else ""
        errors.print_error(f"{where}{broken.strerror or broken}", errors.os_error_hints(broken))
        return errors.EXIT_FAILED
    except Exception as unexpected:
        return errors.report_unexpected_error(unexpected)


def command() -> NoReturn:
    """The program `hop`: runs `main` and exits.

    The process needs no cleanup, so the interpreter skips its shutdown, which takes as long as its start.
    """
    code = main()
    try:
        sys.stdout.flush()
        sys.stderr.flush()
    except OSError:
        pass  # the reader of the output has ended
    os._exit(code)
