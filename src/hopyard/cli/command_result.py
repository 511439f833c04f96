"""Gives a command to a live run and waits for the answer of its script."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, TypeVar

import click

from hopyard.cli.terminal import console
from hopyard.errors import Conflict

if TYPE_CHECKING:
    from hopyard.api_client import types as api
    from hopyard.api_client.client import Client

F = TypeVar("F", bound=Callable[..., object])
_REQUEST_S = 20.0  # of one request; less than the time-out of a connection


def no_wait_option(function: F) -> F:
    """The option that leaves out the wait for the answer."""
    return click.option(
        "--no-wait", is_flag=True, help="Return at once; `hop info RUN` shows the answer later."
    )(function)


def timeout_option(function: F) -> F:
    """The option for the longest wait."""
    return click.option(
        "--timeout",
        metavar="TIME",
        default="30s",
        show_default=True,
        help="The longest wait for the script's next safe point; the command stays pending after it.",
    )(function)


def give_command(
    client: Client, run: api.RunOut, body: api.CommandIn, *, timeout: str, no_wait: bool, as_json: bool
) -> None:
    """Gives the command, waits, and prints the answer. Raises Conflict for a command that is refused, or not
    applied in time."""
    from hopyard.config.units import parse_time

    timeout_s = parse_time(timeout, what="--timeout")
    command = client.create_run_command(run["id"], body)
    if not no_wait and command["state"] == "pending":
        with _spinner(f"{run['name']}: waits for the next safe point of the script"):
            command = _wait(client, command, timeout_s)
    if command["state"] == "refused":
        raise Conflict(f"{run['name']}: {command['answer']}", hints=_refusal_hints(run, command))
    if command["state"] == "pending" and not no_wait:
        raise _not_applied(client.get_run(run["id"]), timeout)
    if as_json:
        console.print_json(command)
        return
    console.print_message(f"{run['name']}: {_outcome(command)}")
    if command["kind"] == "pause" and command["step"] is not None and run["spec"].get("time_limit_s"):
        console.print_message(
            f"note: its time limit continues to run; `hop pause {run['name']} --release` frees its resources"
        )


def _wait(client: Client, command: api.CommandOut, timeout_s: float) -> api.CommandOut:
    deadline = time.monotonic() + timeout_s
    while command["state"] == "pending" and (remaining_s := deadline - time.monotonic()) > 0:
        command = client.get_run_command(
            command["run"], str(command["number"]), wait=min(remaining_s, _REQUEST_S)
        )
        if command["state"] == "pending":
            run = client.get_run(command["run"])
            if run["ended_at"] is not None or (run["phase"] == "queued" and run["held_by"] is not None):
                break
    return command


def _outcome(command: api.CommandOut) -> str:
    if command["state"] == "pending":
        return f"command {command['number']} is pending"
    at_step = "" if command["step"] is None else f", applied at step {command['step']}"
    if command["kind"] == "set":
        return f"{command['answer']}{at_step}"
    word = "paused" if command["kind"] == "pause" else "resumed"
    return f"{word}{at_step}" if command["step"] is not None else f"{word}: {command['answer']}"


def _not_applied(run: api.RunOut, timeout: str) -> Conflict:
    name = run["name"]
    if run["ended_at"] is not None:
        return Conflict(
            f"{name} has ended before the command was applied",
            hints=(f"see how it ended with `hop info {name}`",),
        )
    if run["phase"] == "queued":
        is_held = run["held_by"] is not None
        return Conflict(
            f"{name} {'is held' if is_held else 'waits'} in the queue; the command stays pending and applies "
            "when it starts again",
            hints=(
                f"continue it with `hop resume {name}`"
                if is_held
                else f"see why it waits with `hop why {name}`",
            ),
        )
    if run["progress"] is None:
        return Conflict(
            f"{name} has reached no safe point so far; the command stays pending",
            hints=(
                "the iterations of `for epoch in hop.loop(range(epochs)):` are safe points, or each hop.log",
                f"`hop info {name}` shows when it is applied",
            ),
        )
    return Conflict(
        f"{name} has reached no safe point within {timeout}; the command stays pending",
        hints=(
            f"an iteration of its loop may take longer: `hop info {name}` shows when it is applied",
            "wait longer with `--timeout`",
        ),
    )


def _refusal_hints(run: api.RunOut, command: api.CommandOut) -> tuple[str, ...]:
    if command["kind"] != "set" or command["step"] is None:  # None: the script did not answer
        return ()
    if "has no parameter" not in (command["answer"] or ""):
        return ()
    return (
        "only parameters of `hop.params` change in a running script; other ones change with "
        f"`hop fork {run['name']} -p NAME=VALUE`",
    )


@contextmanager
def _spinner(text: str) -> Iterator[None]:
    import sys

    if not console.supports_cursor(sys.stderr):
        yield
        return
    from rich.console import Console

    with Console(stderr=True).status(text):
        yield
