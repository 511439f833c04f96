"""Users: who has a token, giving one, and taking it back."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from datetime import datetime
from typing import Annotated, Any

from msgspec import Meta, Struct

from hopyard.domain.access import Scope
from hopyard.domain.ids import check_name
from hopyard.domain.run import Run, RunPhase
from hopyard.errors import Forbidden, NotFound
from hopyard.interfaces.run_store import RunFilter
from hopyard.server.audit import record_stops
from hopyard.server.auth import Caller, hash_token, new_user_token
from hopyard.server.endpoint import Ask, Endpoint, Nothing
from hopyard.server.fields import In, Name
from hopyard.server.known import no_such_user
from hopyard.server.pages import PageQuery, page_of
from hopyard.server.parts import Parts
from hopyard.server.rights import check_owner


class UserIn(In):
    name: Name
    returning: Annotated[
        bool,
        Meta(
            description=(
                "a user of this name was removed, and is the same person: runs, datasets and rights "
                "that bear the name are theirs again"
            )
        ),
    ] = False


class UserOut(Struct, frozen=True):
    """owner: may do everything on this server. tokens: how many are valid."""

    name: str
    created_at: datetime
    tokens: int
    owner: bool


class RemovedUserOut(Struct, frozen=True):
    """tokens: how many were revoked. live_runs: names of runs that go on, or with `stop_runs` were asked to
    end."""

    name: str
    tokens: int
    live_runs: list[str]


class RemoveQuery(In):
    stop_runs: Annotated[int, Meta(ge=0, le=1, description="1: also ends the user's live runs")] = 0


class UsersOut(Struct, frozen=True):
    """By name. next: `after` of the next page; null at the end."""

    users: list[UserOut]
    next: str | None


class NewUserOut(Struct, frozen=True):
    """token: told this once, and kept as a hash only."""

    name: str
    token: str


def user_endpoints(parts: Parts) -> Sequence[Endpoint[Any, Any]]:
    async def list_users(ask: Ask[PageQuery, Nothing]) -> UsersOut:
        """List who has a token. Only the server's owner may."""
        _check(ask.caller)
        page, after = page_of(await parts.access.users(), ask.query, key=lambda user: user.name)
        return UsersOut([_out(user.name, user.created_at, user.tokens) for user in page], after)

    async def add(ask: Ask[Nothing, UserIn]) -> NewUserOut:
        """Make a user and tell their token, this once.
        409 when there is such a user, or was one who is not said to return. Only the server's owner may."""
        _check(ask.caller)
        name, token = check_name(ask.body.name, what="name"), new_user_token()
        await parts.access.add_user(name, hash_token(token), now=parts.now(), returning=ask.body.returning)
        return NewUserOut(name, token)

    async def remove(ask: Ask[RemoveQuery, Nothing]) -> RemovedUserOut:
        """Revoke all tokens of a user, and delete their secrets. Nobody else gets the name.
        Only the server's owner may; 403 for the owner.

        Their runs stay, and live ones go on, each with its own token, until they end; `stop_runs=1` ends
        them.
        """
        _check(ask.caller)
        name, known = ask.path["user"], {user.name: user for user in await parts.access.users()}
        if name == parts.queues.owner:
            raise Forbidden(
                f"{name} owns this server and stays",
                hints=("without its owner nobody could change anything",),
            )
        # runs of a user who was removed are still to be ended
        if name not in known and not (ask.query.stop_runs and await _live_runs(parts, name)):
            raise no_such_user(name, known)
        tokens = await parts.access.remove_user(name) if name in known else 0
        parts.tokens.forget_users()
        live = await _live_runs(parts, name)
        if ask.query.stop_runs:
            for run in live:
                with suppress(NotFound):  # deleted meanwhile
                    await parts.controller.stop(run.id)
            await record_stops(
                parts.audit, ask.request, ask.caller, live, cause="user.remove", now=parts.now()
            )
        return RemovedUserOut(name, tokens, [str(run.name) for run in live])

    def _check(caller: Caller) -> None:
        check_owner(caller, parts.queues.owner, "lists, adds and removes users")

    def _out(name: str, created_at: datetime, tokens: int) -> UserOut:
        return UserOut(name, created_at, tokens, name == parts.queues.owner)

    return [
        Endpoint("GET", "/users", list_users, PageQuery, returns=UsersOut, errors=(403,)),
        Endpoint(
            "POST",
            "/users",
            add,
            body=UserIn,
            returns=NewUserOut,
            status=201,
            errors=(400, 403, 404, 409),
            scope=Scope.ADMIN,
            audit="user.add",
        ),
        Endpoint(
            "DELETE",
            "/users/{user}",
            remove,
            RemoveQuery,
            returns=RemovedUserOut,
            errors=(403, 404),
            scope=Scope.ADMIN,
            audit="user.remove",
        ),
    ]


async def _live_runs(parts: Parts, user: str) -> list[Run]:
    """All runs of a user that have not ended, newest first, without those that are being synced: nothing of
    these is to be ended."""
    found: list[Run] = []
    phases = frozenset(phase for phase in RunPhase if not phase.final)
    while True:
        page = await parts.runs.list(
            RunFilter(
                user=user,
                phases=phases,
                offline=False,
                limit=_PAGE,
                before=found[-1].id if found else None,
                brief=True,
            )
        )
        found += page
        if len(page) < _PAGE:
            return found


_PAGE = 500
