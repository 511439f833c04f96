"""Warnings and errors for unknown user names, with the most similar existing name."""

from __future__ import annotations

from collections.abc import Iterable

from hopyard.config.suggest import closest_name
from hopyard.domain.queue import QueueTree
from hopyard.errors import NotFound
from hopyard.interfaces.access_store import AccessStore


async def unknown_users(access: AccessStore, names: Iterable[str]) -> list[str]:
    """Returns a warning for each user name in queues and reservations that does not exist. Such names are
    allowed, since users may be added later, but are probably mistyped."""
    requested = sorted(set(names))
    if not requested:
        return []
    existing = {user.name for user in await access.list_users()}
    return [
        _unknown_user_warning(name, closest_name(name, existing))
        for name in requested
        if name not in existing
    ]


def no_such_user_error(name: str, users: Iterable[str]) -> NotFound:
    suggestion = closest_name(name, users)
    return NotFound(
        f"there is no user `{name}`",
        hints=(f"did you mean `{suggestion}`?" if suggestion else "list the users with `hop user ls`",),
    )


def users_named_in(tree: QueueTree) -> set[str]:
    """Returns the users that a queue names as submitters, administrators, or in `user_priorities`."""
    return {
        user
        for queue in tree.queues.values()
        for user in (*queue.submitters, *queue.admins, *queue.user_priorities)
    }


def _unknown_user_warning(name: str, suggestion: str | None) -> str:
    return f"there is no user `{name}` yet" + (
        f"; did you mean `{suggestion}`?" if suggestion else f"; add it with `hop user add {name}`"
    )
