"""Commands that do the same with each of several things: what one of them refuses keeps no other back."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import click

from hopyard.cli import console, failures
from hopyard.errors import HopyardError

Thing = dict[str, Any]


def distinct(things: Sequence[Thing], key: str = "id") -> list[Thing]:
    """Each once, in order: a run may be named in several ways."""
    return list({thing[key]: thing for thing in things}.values())


def do_each(
    things: Sequence[Thing],
    act: Callable[[Thing], Any],
    *,
    said: Callable[[Thing, Any], str],
    as_json: bool = False,
) -> None:
    """Do something with each thing, and print of each what came of it: a line, or with `as_json` one list of
    all answers at the end.

    A refusal is an error on stderr, and in the list `{"id", "name", "error": {"code", "message", "hints"}}`;
    the exit code is 1 then. The refusal of a single thing is raised. An answer of None is passed over.
    """
    answers: list[Any] = []
    refused = False
    for thing in things:
        try:
            answer = act(thing)
        except HopyardError as problem:
            if len(things) == 1:
                raise
            refused = True
            about = {"code": problem.code, "message": problem.message, "hints": list(problem.hints)}
            answers.append({**{key: thing[key] for key in ("id", "name") if key in thing}, "error": about})
            failures.tell(f"{thing['name']}: {problem.message}", problem.hints)
            continue
        if answer is None:
            continue
        answers.append(answer)
        if not as_json:
            console.say(said(thing, answer))
    if as_json:
        console.out_json(answers)
    if refused:
        click.get_current_context().exit(failures.FAILED)
