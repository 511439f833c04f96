"""Tokens of users: create, list, rotate and revoke. The owner manages those of all users."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Annotated, Any

from msgspec import Meta, Struct

from hopyard.config.schemas.fields import NAME, Name, RequestModel, Time
from hopyard.domain.access import Scope, Token
from hopyard.domain.ids import check_name
from hopyard.errors import Conflict, Forbidden, NotFound, SpecError
from hopyard.server.authentication import Caller, hash_token, new_user_token
from hopyard.server.endpoint import ApiRequest, Empty, Endpoint
from hopyard.server.pages import PageQuery, paginate
from hopyard.server.services import Services
from hopyard.server.unknown_users import no_such_user_error

_MAX_TOKENS = 1000  # per user


class TokensQuery(PageQuery):
    user: (
        Annotated[str, Meta(pattern=NAME, max_length=128, description="of this user; default: the caller")]
        | None
    ) = None
    everybody: Annotated[int, Meta(ge=0, le=1, description="1: the tokens of all users (owner only)")] = 0


class TokenIn(RequestModel):
    """name: unique among the user's tokens. scopes: each includes the previous ones. expires_at: null for no
    expiry. user: null for the caller. Only the owner of the server may name another user."""

    name: Name
    scopes: Annotated[tuple[Scope, ...], Meta(min_length=1, max_length=8)] = (Scope.SUBMIT,)
    expires_at: Time | None = None
    user: Name | None = None


class RotateIn(RequestModel):
    """expires_at: of the new token; null for the same lifetime as the old one, counted from now."""

    expires_at: Time | None = None


class TokenOut(Struct, frozen=True):
    """id: identifies the token in paths; it reveals nothing about the token itself. used_at: the last use, to
    the minute. current: the token of this request."""

    id: str
    user: str
    name: str
    scopes: list[Scope]
    created_at: datetime
    expires_at: datetime | None
    used_at: datetime | None
    expired: bool
    current: bool


class TokensOut(Struct, frozen=True):
    """By user and time. next: `after` of the next page; null at the end."""

    tokens: list[TokenOut]
    next: str | None


class NewTokenOut(Struct, frozen=True):
    """secret: the token itself, returned only once; the server stores its hash."""

    token: TokenOut
    secret: str


def token_endpoints(services: Services) -> Sequence[Endpoint[Any, Any]]:
    async def list_tokens(request: ApiRequest[TokensQuery, Empty]) -> TokensOut:
        """List tokens: the caller's own, or for the owner those of another user or of all users."""
        if request.query.everybody:
            _check_server_owner(services, request.caller)
        user = (
            None
            if request.query.everybody
            else await _requested_user(services, request.caller, request.query.user)
        )
        page, after = paginate(
            await services.access.list_tokens(user),
            request.query,
            key=lambda token: (
                f"{token.user} {token.created_at.isoformat(timespec='microseconds')} {token.id}"
            ),
        )
        return TokensOut([_to_out(services, request.caller, token) for token in page], after)

    async def create(request: ApiRequest[Empty, TokenIn]) -> NewTokenOut:
        """Create a token and return it, only once. 409 when the user already has a token of that name, or a
        thousand tokens."""
        user, secret = await _requested_user(services, request.caller, request.body.user), new_user_token()
        if len(await services.access.list_tokens(user)) >= _MAX_TOKENS:
            raise Conflict(
                f"{user} has {_MAX_TOKENS} tokens already", hints=("revoke one: `hop token revoke NAME`",)
            )
        name, expires_at = (
            check_name(request.body.name, subject="name"),
            _checked_expiry(services, request.body.expires_at),
        )
        token = await services.access.add_token(
            user,
            hash_token(secret),
            now=services.now(),
            name=name,
            scopes=frozenset(request.body.scopes),
            expires_at=expires_at,
        )
        return NewTokenOut(_to_out(services, request.caller, token), secret)

    async def rotate(request: ApiRequest[Empty, RotateIn]) -> NewTokenOut:
        """Replace a token by a new one with the same name and scopes. The old one becomes invalid."""
        old_token, now, secret = await _find_token(services, request), services.now(), new_user_token()
        expires_at = _checked_expiry(services, request.body.expires_at)
        if expires_at is None and old_token.expires_at is not None:
            expires_at = now + (old_token.expires_at - old_token.created_at)
        new_token = await services.access.replace_token(
            old_token.id, hash_token(secret), now=now, expires_at=expires_at
        )
        services.tokens.clear_user_cache()
        await services.token_connections.abort_invalid()
        return NewTokenOut(_to_out(services, request.caller, new_token), secret)

    async def revoke(request: ApiRequest[Empty, Empty]) -> TokenOut:
        """Revoke a token. 409 for the user's last token with the scope `admin`, which creates tokens."""
        token = await _find_token(services, request)
        other_tokens = [
            other for other in await services.access.list_tokens(token.user) if other.id != token.id
        ]
        if (
            not any(
                Scope.ADMIN in other.scopes and not other.is_expired(services.now()) for other in other_tokens
            )
            and Scope.ADMIN in token.scopes
        ):
            hints = (
                f"replace it with `hop token rotate {token.name}`",
                f"to remove the user, the owner runs `hop user rm {token.user}`",
            )
            raise Conflict(
                f"`{token.name}` is the last token of {token.user} with the scope `admin`", hints=hints
            )
        revoked = await services.access.remove_token(token.id)
        services.tokens.clear_user_cache()
        await services.token_connections.abort_invalid()
        return _to_out(services, request.caller, revoked)

    path = "/tokens/{token}"
    return [
        Endpoint("GET", "/tokens", list_tokens, TokensQuery, returns=TokensOut, errors=(403, 404)),
        Endpoint(
            "POST",
            "/tokens",
            create,
            body=TokenIn,
            returns=NewTokenOut,
            status=201,
            errors=(400, 403, 404, 409),
            scope=Scope.ADMIN,
        ),
        Endpoint(
            "POST",
            path + "/rotate",
            rotate,
            body=RotateIn,
            returns=NewTokenOut,
            errors=(400, 403, 404),
            scope=Scope.ADMIN,
        ),
        Endpoint(
            "DELETE",
            path,
            revoke,
            returns=TokenOut,
            errors=(403, 404, 409),
            scope=Scope.ADMIN,
            audit="token.revoke",
        ),
    ]


async def _requested_user(services: Services, caller: Caller, user: str | None) -> str:
    """Returns the user whose tokens are requested. Raises Forbidden for another user unless the caller owns
    the server; NotFound."""
    caller_name = caller.require_user()
    if user is None or user == caller_name:
        return caller_name
    _check_server_owner(services, caller)
    user_names = [other_user.name for other_user in await services.access.list_users()]
    if user not in user_names:
        raise no_such_user_error(user, user_names)
    return user


async def _find_token(services: Services, request: ApiRequest[Any, Any]) -> Token:
    """Returns the token of a path: the caller's, or for the owner any. Raises NotFound, also for other users'
    tokens."""
    caller, token_id = request.caller, request.path["token"]
    is_owner = caller.require_user() == services.queue_cache.owner
    for token in await services.access.list_tokens(None if is_owner else caller.user):
        if token.id == token_id:
            return token
    raise NotFound(f"you have no token {token_id}", hints=("list the tokens with `hop token list`",))


def _check_server_owner(services: Services, caller: Caller) -> None:
    if caller.require_user() != services.queue_cache.owner:
        raise Forbidden(
            f"only {services.queue_cache.owner}, the owner of this server, manages the tokens of other users",
            hints=("ask the owner",),
        )


def _checked_expiry(services: Services, expires_at: datetime | None) -> datetime | None:
    """Raises SpecError for a time in the past."""
    if expires_at is None:
        return None
    if expires_at <= services.now():
        raise SpecError("expires_at: the time is in the past", hints=("set a later time",))
    return expires_at.astimezone(UTC)


def _to_out(services: Services, caller: Caller, token: Token) -> TokenOut:
    scopes = [scope for scope in Scope if scope in token.scopes]
    return TokenOut(
        token.id,
        token.user,
        token.name,
        scopes,
        token.created_at,
        token.expires_at,
        token.used_at,
        token.is_expired(services.now()),
        token.id == caller.token,
    )
