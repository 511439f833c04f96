"""Notices about a run that was submitted."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from hopyard.cli.terminal.console import format_age, print_message, seconds_since

if TYPE_CHECKING:
    from hopyard.api_client import types as api


def print_notices(run: api.RunOut) -> None:
    """Prints data that other users pushed, and values that a fork of another user's run lacks."""
    for line in submit_notices(run):
        print_message(line)


def submit_notices(run: api.RunOut) -> Iterator[str]:
    for version in run.get("pinned") or ():
        yield (
            f"note: {version['dataset']} version {version['version']}, pushed by {version['created_by']} "
            f"{format_age(seconds_since(version['created_at']))} ago"
        )
    if run.get("queue_gone"):
        yield (
            f"note: queue {run['queue_gone']} of the forked run was removed: this one waits in "
            f"{run['spec']['queue']}, the default; `-q QUEUE` names another"
        )
    names = run.get("not_inherited") or ()
    if names:
        yield f"note: not copied from the other user's run: {', '.join(names)}"
        yield (
            f"hint: give them yourself: -e {names[0]}=…, or `hop secret set {names[0]}` and --secret "
            f"{names[0]}"
        )
