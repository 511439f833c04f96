"""Users: who has a token, giving one, and taking it back."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import Any

from msgspec import Struct

from hopyard.config.suggest import closest
from hopyard.domain.ids import check_name
from hopyard.errors import Forbidden, NotFound
from hopyard.server.auth import Caller, hash_token, new_user_token
from hopyard.server.endpoint import Ask, Endpoint, Nothing
from hopyard.server.fields import In, Name
from hopyard.server.parts import Parts
from hopyard.server.rights import check_owner


class UserIn(In):
    name: Name


class UserOut(Struct, frozen=True):
    """owner: may do everything on this server. tokens: how many are valid."""

    name: str
    created_at: datetime
    tokens: int
    owner: bool


class UsersOut(Struct, frozen=True):
    users: list[UserOut]


class NewUserOut(Struct, frozen=True):
    """token: told this once, and kept as a hash only."""

    name: str
    token: str


def user_endpoints(parts: Parts) -> Sequence[Endpoint[Any, Any]]:
    async def list_users(ask: Ask[Nothing, Nothing]) -> UsersOut:
        """List who has a token. Only the server's owner may."""
        _check(ask.caller)
        return UsersOut([_out(user.name, user.created_at, user.tokens) for user in await parts.access.users()])

    async def add(ask: Ask[Nothing, UserIn]) -> NewUserOut:
        """Make a user and tell their token, this once. 409 when there is such a user. Only the server's owner may."""
        _check(ask.caller)
        name, token = check_name(ask.body.name, what="name"), new_user_token()
        await parts.access.add_user(name, hash_token(token), now=parts.now())
        return NewUserOut(name, token)

    async def remove(ask: Ask[Nothing, Nothing]) -> UserOut:
        """Take back all tokens of a user; their runs go on and stay. 403 for the owner. Only the server's owner may."""
        _check(ask.caller)
        name, known = ask.path["user"], {user.name: user for user in await parts.access.users()}
        if name == parts.queues.owner:
            raise Forbidden(f"{name} owns this server and stays", hints=("without its owner nobody could change anything",))
        if name not in known:
            near = closest(name, known)
            raise NotFound(
                f"there is no user `{name}`", hints=(f"did you mean `{near}`?" if near else "`hop user ls` lists them",)
            )
        tokens = await parts.access.remove_user(name)
        parts.tokens.forget_users()
        return _out(name, known[name].created_at, tokens)

    def _check(caller: Caller) -> None:
        check_owner(caller, parts.queues.owner, "lists, adds and removes users")

    def _out(name: str, created_at: datetime, tokens: int) -> UserOut:
        return UserOut(name, created_at, tokens, name == parts.queues.owner)

    return [
        Endpoint("GET", "/users", list_users, returns=UsersOut, errors=(403,)),
        Endpoint("POST", "/users", add, body=UserIn, returns=NewUserOut, status=201, errors=(400, 403, 409)),
        Endpoint("DELETE", "/users/{user}", remove, returns=UserOut, errors=(403, 404)),
    ]
