"""Commands that act on several objects; a refusal of one object does not stop the others."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar

import click

from hopyard.cli import errors
from hopyard.cli.terminal import console
from hopyard.errors import HopyardError

Resource = TypeVar("Resource", bound=Mapping[str, object])
Result = TypeVar("Result")


def unique(items: Sequence[Resource], key: str = "id") -> list[Resource]:
    """Returns each object once, in order: several names can name one run."""
    return list({thing[key]: thing for thing in items}.values())


def apply_to_each(
    items: Sequence[Resource],
    action: Callable[[Resource], Result | None],
    *,
    format_result: Callable[[Resource, Result], str],
    as_json: bool = False,
) -> None:
    """Acts on each object and prints a line for each; with `as_json` prints one list of all answers at the
    end.

    A refusal is an error on stderr, and in the list `{"id", "name", "error": {"code", "message", "hints"}}`;
    the exit code is then 1. The refusal of a single object is raised. An answer of None is skipped.
    """
    answers: list[Any] = []
    refused = False
    for thing in items:
        try:
            answer = action(thing)
        except HopyardError as problem:
            if len(items) == 1:
                raise
            refused = True
            about = {"code": problem.code, "message": problem.message, "hints": list(problem.hints)}
            answers.append({**{key: thing[key] for key in ("id", "name") if key in thing}, "error": about})
            errors.print_error(f"{thing['name']}: {problem.message}", problem.hints)
            continue
        if answer is None:
            continue
        answers.append(answer)
        if not as_json:
            console.print_message(format_result(thing, answer))
    if as_json:
        console.print_json(answers)
    if refused:
        click.get_current_context().exit(errors.EXIT_FAILED)
