"""Prints errors: `error:` and `hint:` lines on stderr, and an exit code."""

from __future__ import annotations

import errno
import sys
from collections.abc import Sequence
from pathlib import Path

import click

from hopyard.errors import HopyardError, UsageError

EXIT_USAGE, EXIT_FAILED, EXIT_INTERRUPTED = 2, 1, 130


def print_error(message: str, hints: Sequence[str] = ()) -> None:
    """Prints an error on stderr."""
    from hopyard.domain.text import escape_lines

    text = "".join(
        [f"error: {escape_lines(message)}\n", *(f"hint: {escape_lines(hint)}\n" for hint in hints)]
    )
    sys.stderr.write(text)
    sys.stderr.flush()


def report_error(error: Exception) -> int:
    """Prints `error`, a HopyardError or a ClickException, and returns the exit code."""
    if isinstance(error, HopyardError):
        from hopyard.cli.terminal.times import localise_times

        print_error(localise_times(error.message), error.hints)
        return EXIT_USAGE if isinstance(error, UsageError) else EXIT_FAILED
    assert isinstance(error, click.ClickException)
    if isinstance(error, click.NoSuchOption):
        print_error(f"no option {error.option_name}", _usage_hints(error))
    else:
        print_error(_lower_first(error.format_message()), _usage_hints(error))
    return EXIT_USAGE


def os_error_hints(error: OSError) -> list[str]:
    """Returns the hints for an error of the operating system."""
    try:
        Path.cwd()
    except OSError:
        return ["the folder in which you are was deleted: go to another one with `cd`"]
    if error.errno in (errno.EACCES, errno.EPERM, errno.EROFS):
        return ["this user may not read or write there: name another place, or ask its owner for access"]
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        return ["free some space, or name a place on another disk"]
    if error.errno in (errno.ENOENT, errno.ENOTDIR):
        return ["check that the path and its folder exist and can be written: `ls -ld`"]
    if error.errno == errno.ENAMETOOLONG:
        return ["shorten the name: no part of a path has more than 255 bytes"]
    return ["run `hop doctor`, which checks this machine"]


def report_unexpected_error(error: Exception) -> int:
    """Prints an unexpected exception in one line, writes its traceback to a file, and returns the exit
    code."""
    import traceback

    details = "".join(traceback.format_exception(error))
    try:
        place = _write_traceback(details)
    except OSError:
        sys.stderr.write(details)
        place = "above"
    message = "".join(traceback.format_exception_only(error)).strip().partition("\n")[0]
    print_error(
        f"internal error of hop: {message}",
        hints=(f"the details are {place}; attach them to a bug report",),
    )
    return EXIT_FAILED


def _write_traceback(details: str) -> str:
    """Returns the file with the traceback. Only this user can read it, since a traceback may contain a
    command's arguments."""
    import tempfile

    with tempfile.NamedTemporaryFile(
        "w", prefix="hop-fault-", suffix=".txt", delete=False, encoding="utf-8", errors="backslashreplace"
    ) as file:
        file.write(details)
    return f"in {file.name}"


def _lower_first(message: str) -> str:
    message = message.strip().rstrip(".")
    return message[:1].lower() + message[1:] if message[1:2].islower() else message


def _usage_hints(error: click.ClickException) -> list[str]:
    context = getattr(error, "ctx", None)
    if not isinstance(context, click.Context):
        return []
    hints: list[str] = []
    if isinstance(error, click.NoSuchOption):
        meant = unknown_option_hint(error.option_name, context.command)
        hints += [meant] if meant else []
    hints.append(f"`{context.command_path} --help` lists what it takes")
    return hints


def unknown_option_hint(option: str, command: click.Command) -> str | None:
    """The hint for an option that the command has not, where something is known of it or near."""
    from hopyard.cli.aliases import option_hint

    return option_hint(
        option,
        [name for parameter in command.params for name in (*parameter.opts, *parameter.secondary_opts)],
    )
