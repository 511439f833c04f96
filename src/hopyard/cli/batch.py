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
    return list({item[key]: item for item in items}.values())


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
    any_failed = False
    for item in items:
        try:
            answer = action(item)
        except HopyardError as error:
            if len(items) == 1:
                raise
            any_failed = True
            about = {"code": error.code, "message": error.message, "hints": list(error.hints)}
            answers.append({**{key: item[key] for key in ("id", "name") if key in item}, "error": about})
            errors.print_error(f"{item['name']}: {error.message}", error.hints)
            continue
        if answer is None:
            continue
        answers.append(answer)
        if not as_json:
            console.print_message(format_result(item, answer))
    if as_json:
        console.print_json(answers)
    if any_failed:
        click.get_current_context().exit(errors.EXIT_FAILED)
