"""Users: list, add and remove."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from datetime import datetime
from typing import Annotated, Any

from msgspec import Meta, Struct

from hopyard.config.schemas.fields import Name, RequestModel
from hopyard.domain.access import Scope
from hopyard.domain.ids import check_name
from hopyard.domain.run import Run, RunPhase
from hopyard.errors import Forbidden, NotFound
from hopyard.interfaces.run_store import RunFilter
from hopyard.server.audit import record_stops
from hopyard.server.authentication import Caller, hash_token, new_user_token
from hopyard.server.authorization import check_owner
from hopyard.server.endpoint import ApiRequest, Empty, Endpoint
from hopyard.server.pages import PageQuery, paginate
from hopyard.server.services import Services
from hopyard.server.unknown_users import no_such_user_error


class UserIn(RequestModel):
    name: Name
    returning: Annotated[
        bool,
        Meta(
            description=(
                "1: the removed user of this name returns, with the runs, datasets and rights of the name"
            )
        ),
    ] = False


class UserOut(Struct, frozen=True):
    """owner: may do everything on this server. tokens: the number of valid tokens."""

    name: str
    created_at: datetime
    tokens: int
    owner: bool


class RemovedUserOut(Struct, frozen=True):
    """tokens: the number of revoked tokens. live_runs: names of runs that continue, or with `stop_runs` are
    being stopped."""

    name: str
    tokens: int
    live_runs: list[str]


class RemoveQuery(RequestModel):
    stop_runs: Annotated[int, Meta(ge=0, le=1, description="1: also stops the live runs of the user")] = 0


class UsersOut(Struct, frozen=True):
    """By name. next: `after` of the next page; null at the end."""

    users: list[UserOut]
    next: str | None


class NewUserOut(Struct, frozen=True):
    """token: returned only once; the server stores its hash."""

    name: str
    token: str


def user_endpoints(services: Services) -> Sequence[Endpoint[Any, Any]]:
    async def list_users(request: ApiRequest[PageQuery, Empty]) -> UsersOut:
        """List the users. Only for the owner of the server."""
        _check_owner(request.caller)
        page, after = paginate(await services.access.list_users(), request.query, key=lambda user: user.name)
        return UsersOut([_to_user_out(user.name, user.created_at, user.tokens) for user in page], after)

    async def add(request: ApiRequest[Empty, UserIn]) -> NewUserOut:
        """Add a user and return a token, only once. 409 if the user exists, or was removed and `returning` is
        not set. Only for the owner of the server."""
        _check_owner(request.caller)
        name, token = check_name(request.body.name, subject="name"), new_user_token()
        await services.access.add_user(
            name, hash_token(token), now=services.now(), restored=request.body.returning
        )
        return NewUserOut(name, token)

    async def remove(request: ApiRequest[RemoveQuery, Empty]) -> RemovedUserOut:
        """Revoke all tokens of a user, and delete their secrets. No other user can get the name. Only for the
        owner of the server; 403 for the removal of the owner. Runs of the user remain. Live runs continue,
        each with its own token; `stop_runs=1` stops them."""
        _check_owner(request.caller)
        name, users = request.path["user"], {user.name: user for user in await services.access.list_users()}
        if name == services.queue_cache.owner:
            raise Forbidden(
                f"{name} owns this server and cannot be removed",
                hints=("keep the owner: a server without an owner cannot be administered",),
            )
        # runs of a removed user can still be stopped
        if name not in users and not (request.query.stop_runs and await _list_live_runs(services, name)):
            raise no_such_user_error(name, users)
        tokens = await services.access.remove_user(name) if name in users else 0
        services.tokens.clear_user_cache()
        await services.token_connections.abort_invalid()
        live = await _list_live_runs(services, name)
        if request.query.stop_runs:
            for run in live:
                with suppress(NotFound):  # deleted meanwhile
                    await services.controller.stop(run.id)
            await record_stops(
                services.audit,
                request.request,
                request.caller,
                live,
                cause_action="user.remove",
                now=services.now(),
            )
        return RemovedUserOut(name, tokens, [str(run.name) for run in live])

    def _check_owner(caller: Caller) -> None:
        check_owner(caller, services.queue_cache.owner, "lists, adds and removes users")

    def _to_user_out(name: str, created_at: datetime, tokens: int) -> UserOut:
        return UserOut(name, created_at, tokens, name == services.queue_cache.owner)

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


async def _list_live_runs(services: Services, user: str) -> list[Run]:
    """Returns all live runs of a user, newest first, except offline runs that are being synced, since nothing
    of them can be stopped."""
    runs: list[Run] = []
    phases = frozenset(phase for phase in RunPhase if not phase.is_final)
    while True:
        page = await services.runs.list(
            RunFilter(
                user=user,
                phases=phases,
                offline=False,
                limit=_PAGE_SIZE,
                before=runs[-1].id if runs else None,
                brief=True,
            )
        )
        runs += page
        if len(page) < _PAGE_SIZE:
            return runs


_PAGE_SIZE = 500
