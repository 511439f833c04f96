"""How errors are told: `error:` and `hint:` lines on stderr, and an exit code."""

from __future__ import annotations

import errno
import sys
from collections.abc import Sequence
from pathlib import Path

import click

from hopyard.errors import HopyardError, UsageError

USAGE, FAILED, INTERRUPTED = 2, 1, 130


def tell(message: str, hints: Sequence[str] = ()) -> None:
    """Write an error to stderr."""
    from hopyard.domain.text import shown_lines

    text = "".join([f"error: {shown_lines(message)}\n", *(f"hint: {shown_lines(hint)}\n" for hint in hints)])
    sys.stderr.write(text)
    sys.stderr.flush()


def report(problem: Exception) -> int:
    """Tell `problem`, which must be a HopyardError or a ClickException, and return the exit code."""
    if isinstance(problem, HopyardError):
        from hopyard.cli.times import localised

        tell(localised(problem.message), problem.hints)
        return USAGE if isinstance(problem, UsageError) else FAILED
    assert isinstance(problem, click.ClickException)
    if isinstance(problem, click.NoSuchOption):
        tell(f"no option {problem.option_name}", _hints(problem))
    else:
        tell(_first_small(problem.format_message()), _hints(problem))
    return USAGE


def hints_of(broken: OSError) -> list[str]:
    """What helps where the machine refused something."""
    try:
        Path.cwd()
    except OSError:
        return ["the folder in which you are was deleted: go to another one with `cd`"]
    if broken.errno in (errno.EACCES, errno.EPERM, errno.EROFS):
        return ["this user may not read or write there: name another place, or ask its owner for access"]
    if broken.errno in (errno.ENOSPC, errno.EDQUOT):
        return ["free some space, or name a place on another disk"]
    if broken.errno in (errno.ENOENT, errno.ENOTDIR):
        return ["check that the path and its folder exist and can be written: `ls -ld`"]
    if broken.errno == errno.ENAMETOOLONG:
        return ["shorten the name: no part of a path has more than 255 bytes"]
    return ["run `hop doctor`, which checks this machine"]


def report_fault(fault: Exception) -> int:
    """Tell of an exception that nothing expected, in one line; where it was raised is written to a file.
    Return the exit code."""
    import traceback

    details = "".join(traceback.format_exception(fault))
    try:
        place = _write_private(details)
    except OSError:
        sys.stderr.write(details)
        place = "above"
    said = "".join(traceback.format_exception_only(fault)).strip().partition("\n")[0]
    tell(
        f"a fault of hop itself: {said}",
        hints=(f"the details are {place}: attach them to a report of the fault",),
    )
    return FAILED


def _write_private(details: str) -> str:
    """Where it was written: to a file of its own that only this user can read, since a fault may quote what a
    command was given."""
    import tempfile

    with tempfile.NamedTemporaryFile(
        "w", prefix="hop-fault-", suffix=".txt", delete=False, encoding="utf-8", errors="backslashreplace"
    ) as file:
        file.write(details)
    return f"in {file.name}"


def _first_small(message: str) -> str:
    message = message.strip().rstrip(".")
    return message[:1].lower() + message[1:] if message[1:2].islower() else message


def _hints(problem: click.ClickException) -> list[str]:
    context = getattr(problem, "ctx", None)
    if not isinstance(context, click.Context):
        return []
    hints: list[str] = []
    if isinstance(problem, click.NoSuchOption):
        meant = meant_by(problem.option_name, context.command)
        hints += [meant] if meant else []
    hints.append(f"`{context.command_path} --help` lists what it takes")
    return hints


def meant_by(option: str, command: click.Command) -> str | None:
    """The hint for an option that the command has not, where something is known of it or near."""
    from hopyard.cli.familiar import option_hint

    return option_hint(
        option,
        [name for parameter in command.params for name in (*parameter.opts, *parameter.secondary_opts)],
    )
