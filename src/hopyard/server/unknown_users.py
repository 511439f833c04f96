"""Names of users that no user of this server has, with the nearest name there is."""

from __future__ import annotations

from collections.abc import Iterable

from hopyard.config.suggest import closest_name
from hopyard.domain.queue import QueueTree
from hopyard.errors import NotFound
from hopyard.interfaces.access_store import AccessStore


async def unknown_users(access: AccessStore, names: Iterable[str]) -> list[str]:
    """A sentence for each name in queues and reservations that no user has: allowed, since users may come
    later, but probably mistyped."""
    wanted = sorted(set(names))
    if not wanted:
        return []
    known = {user.name for user in await access.list_users()}
    return [_unknown_user_warning(name, closest_name(name, known)) for name in wanted if name not in known]


def no_such_user_error(name: str, users: Iterable[str]) -> NotFound:
    near = closest_name(name, users)
    return NotFound(
        f"there is no user `{name}`",
        hints=(f"did you mean `{near}`?" if near else "list the users with `hop user ls`",),
    )


def users_named_in(tree: QueueTree) -> set[str]:
    """Users that a queue lets submit, administer, or ask for a higher priority."""
    return {
        user
        for queue in tree.queues.values()
        for user in (*queue.submitters, *queue.admins, *queue.user_priorities)
    }


def _unknown_user_warning(name: str, suggestion: str | None) -> str:
    return f"there is no user `{name}` yet" + (
        f"; did you mean `{suggestion}`?" if suggestion else f"; add it with `hop user add {name}`"
    )
