"""`hop repl`: a Python prompt in the process of a live run."""

from __future__ import annotations

import os
import sys
from codeop import CommandCompiler
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING

import click

from hopyard.cli.command_result import give_command
from hopyard.cli.exec import rank_option, replica_option
from hopyard.cli.options import run_argument
from hopyard.cli.terminal import console

if TYPE_CHECKING:
    from hopyard.client.prompt import Prompt

_HISTORY_LINES = 2000
_LEAVE = ("exit", "exit()", "quit", "quit()")
_PAUSE_TIMEOUT = "5m"


@click.command("repl")
@run_argument("ref", metavar="RUN")
@rank_option
@replica_option
@click.option(
    "-c", "statements", multiple=True, metavar="CODE", help="Evaluate these statements, and end (repeatable)."
)
@click.option("--hold", is_flag=True, help="Pause the run while the prompt is open.")
def repl(ref: str, rank: int | None, replica: str | None, statements: tuple[str, ...], hold: bool) -> None:
    """Evaluate Python in the process of RUN, at the safe points of its script.

    The prompt sees the variables of the code with hop.loop, the bound objects and `p`. Training waits while a
    statement is evaluated. An assigned parameter, as in `p.lr = 0.01`, is set as by `hop set`. If standard
    input is no terminal, its statements are evaluated, and the exit code is 1 after an error.
    """
    from hopyard.api_client.local_server import connect
    from hopyard.client.console import choose_rank
    from hopyard.client.prompt import Prompt
    from hopyard.client.run_lookup import get_run

    client = connect()
    run = get_run(client, ref)
    source: str | None = "\n".join(statements)
    if not statements:
        source = None if os.isatty(0) else sys.stdin.read()
    chosen = choose_rank(run, rank, replica)
    pauses = hold and run["phase"] != "paused"
    if pauses:
        give_command(client, run, {"kind": "pause"}, timeout=_PAUSE_TIMEOUT, no_wait=False, as_json=False)
    try:
        prompt = Prompt(client, run, chosen, write=_write, notify=console.print_message)
        try:
            started = prompt.wait_until_open()
            if source is not None:
                sys.exit(0 if prompt.evaluate(source, "script") else 1)
            console.print_message(
                f"Python {started.get('python', '')} in {run['name']}, replica {chosen}, at step "
                f"{started.get('step', 0)}. "
                + ("The run is paused." if hold else "Training continues between statements.")
                + " Ctrl-D leaves."
            )
            with _line_editor(prompt):
                _read_statements(prompt)
        finally:
            prompt.close()
    finally:
        if pauses:
            give_command(
                client, run, {"kind": "resume"}, timeout=_PAUSE_TIMEOUT, no_wait=False, as_json=False
            )


def _write(stream: int, data: bytes) -> None:
    target = sys.stdout if stream == 1 else sys.stderr
    target.flush()
    view = memoryview(data)
    while view:
        view = view[os.write(stream, view) :]


def _read_statements(prompt: Prompt) -> None:
    compiler, lines = CommandCompiler(), list[str]()
    while True:
        try:
            line = input("... " if lines else ">>> ")
        except EOFError:
            console.print_line()
            return
        except KeyboardInterrupt:
            console.print_line("\nKeyboardInterrupt")
            lines = []
            continue
        if not lines and line.strip() in _LEAVE:
            return
        lines.append(line)
        source = "\n".join(lines)
        if _is_incomplete(compiler, source):
            continue
        lines = []
        if source.strip():
            prompt.evaluate(source + "\n", "single")


def _is_incomplete(compiler: CommandCompiler, source: str) -> bool:
    try:
        return compiler(source, symbol="single") is None
    except (SyntaxError, ValueError, OverflowError):
        return False  # the process of the run reports the error


@contextmanager
def _line_editor(prompt: Prompt) -> Iterator[None]:
    """Keeps the history, and completes names with Tab, where Python has a line editor."""
    try:
        import readline
    except ImportError:
        yield
        return
    from hopyard.config.home import Home
    from hopyard.private_files import open_file

    names: list[str] = []

    def complete(text: str, index: int) -> str | None:
        if index == 0:
            names[:] = prompt.complete(text) if text.strip() else ["    "]
        return names[index] if index < len(names) else None

    readline.set_completer(complete)
    readline.set_completer_delims(" \t\n`~!@#$%^&*()-=+[{]}\\|;:'\",<>/?")
    readline.parse_and_bind("tab: complete")
    history = Path(Home.default().root, "repl_history")
    with suppress(OSError):
        os.close(open_file(history, os.O_WRONLY | os.O_CREAT))
        readline.read_history_file(history)
    readline.set_history_length(_HISTORY_LINES)
    try:
        yield
    finally:
        with suppress(OSError):
            readline.write_history_file(history)
