"""Tokens: a user's own, and for the owner everybody's. Made, listed, replaced and revoked."""

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

_MAX_TOKENS = 1000  # tokens of one user


class TokensQuery(PageQuery):
    user: (
        Annotated[str, Meta(pattern=NAME, max_length=128, description="of this user; default: the caller")]
        | None
    ) = None
    everybody: Annotated[int, Meta(ge=0, le=1, description="1: the tokens of all users (owner only)")] = 0


class TokenIn(RequestModel):
    """name: unique among the user's tokens. scopes: each includes those before it. expires_at: null is valid
    until it is revoked. user: whose token it is; null the caller's. Only the owner of the server may name
    another user."""

    name: Name
    scopes: Annotated[tuple[Scope, ...], Meta(min_length=1, max_length=8)] = (Scope.SUBMIT,)
    expires_at: Time | None = None
    user: Name | None = None


class RotateIn(RequestModel):
    """expires_at: of the new token; null takes as long a life as the old one was given, counted from now."""

    expires_at: Time | None = None


class TokenOut(Struct, frozen=True):
    """id: names the token in addresses; it tells nothing of the token itself.
    used_at: the last use, to the minute. current: the request came with this one."""

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
    """secret: the token itself, sent this once; the server keeps a hash of it."""

    token: TokenOut
    secret: str


def token_endpoints(services: Services) -> Sequence[Endpoint[Any, Any]]:
    async def list_tokens(ask: ApiRequest[TokensQuery, Empty]) -> TokensOut:
        """List tokens: the caller's own, or for the owner those of another user or of all."""
        if ask.query.everybody:
            _check_server_owner(services, ask.caller)
        user = None if ask.query.everybody else await _requested_user(services, ask.caller, ask.query.user)
        page, after = paginate(
            await services.access.list_tokens(user),
            ask.query,
            key=lambda one: f"{one.user} {one.created_at.isoformat(timespec='microseconds')} {one.id}",
        )
        return TokensOut([_to_out(services, ask.caller, one) for one in page], after)

    async def create(ask: ApiRequest[Empty, TokenIn]) -> NewTokenOut:
        """Make a token and send it, this once. 409 when the user has one of that name, or a thousand."""
        user, secret = await _requested_user(services, ask.caller, ask.body.user), new_user_token()
        if len(await services.access.list_tokens(user)) >= _MAX_TOKENS:
            raise Conflict(
                f"{user} has {_MAX_TOKENS} tokens already", hints=("revoke one: `hop token revoke NAME`",)
            )
        name, expires_at = (
            check_name(ask.body.name, subject="name"),
            _checked_expiry(services, ask.body.expires_at),
        )
        made = await services.access.add_token(
            user,
            hash_token(secret),
            now=services.now(),
            name=name,
            scopes=frozenset(ask.body.scopes),
            expires_at=expires_at,
        )
        return NewTokenOut(_to_out(services, ask.caller, made), secret)

    async def rotate(ask: ApiRequest[Empty, RotateIn]) -> NewTokenOut:
        """Replace a token by a new one of the same name and scopes. The old one is valid no longer."""
        old, now, secret = await _find_token(services, ask), services.now(), new_user_token()
        expires_at = _checked_expiry(services, ask.body.expires_at)
        if expires_at is None and old.expires_at is not None:
            expires_at = now + (old.expires_at - old.created_at)
        made = await services.access.replace_token(old.id, hash_token(secret), now=now, expires_at=expires_at)
        services.tokens.clear_user_cache()
        return NewTokenOut(_to_out(services, ask.caller, made), secret)

    async def revoke(ask: ApiRequest[Empty, Empty]) -> TokenOut:
        """Revoke a token: it is valid no longer. 409 for the last one that its user could make others
        with."""
        token = await _find_token(services, ask)
        others = [one for one in await services.access.list_tokens(token.user) if one.id != token.id]
        if (
            not any(Scope.ADMIN in one.scopes and not one.is_expired(services.now()) for one in others)
            and Scope.ADMIN in token.scopes
        ):
            hints = (
                f"replace it with `hop token rotate {token.name}`",
                f"to remove the user, the owner runs `hop user rm {token.user}`",
            )
            raise Conflict(
                f"`{token.name}` is the last token of {token.user} with the scope `admin`", hints=hints
            )
        gone = await services.access.remove_token(token.id)
        services.tokens.clear_user_cache()
        return _to_out(services, ask.caller, gone)

    at = "/tokens/{token}"
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
            at + "/rotate",
            rotate,
            body=RotateIn,
            returns=NewTokenOut,
            errors=(400, 403, 404),
            scope=Scope.ADMIN,
        ),
        Endpoint(
            "DELETE",
            at,
            revoke,
            returns=TokenOut,
            errors=(403, 404, 409),
            scope=Scope.ADMIN,
            audit="token.revoke",
        ),
    ]


async def _requested_user(services: Services, caller: Caller, user: str | None) -> str:
    """The user whose tokens are meant. Raises Forbidden unless it is the caller or the caller owns the
    server; NotFound."""
    own = caller.require_user()
    if user is None or user == own:
        return own
    _check_server_owner(services, caller)
    known = [one.name for one in await services.access.list_users()]
    if user not in known:
        raise no_such_user_error(user, known)
    return user


async def _find_token(services: Services, request: ApiRequest[Any, Any]) -> Token:
    """The token of an address, of the caller or for the owner of anybody.
    Raises NotFound, also for those of others."""
    caller, asked = request.caller, request.path["token"]
    everybody = caller.require_user() == services.queue_cache.owner
    for token in await services.access.list_tokens(None if everybody else caller.user):
        if token.id == asked:
            return token
    raise NotFound(f"you have no token {asked}", hints=("list the tokens with `hop token list`",))


def _check_server_owner(services: Services, caller: Caller) -> None:
    if caller.require_user() != services.queue_cache.owner:
        raise Forbidden(
            f"only {services.queue_cache.owner}, the owner of this server, manages the tokens of other users",
            hints=("ask them",),
        )


def _checked_expiry(services: Services, expires_at: datetime | None) -> datetime | None:
    """Raises SpecError for a time that is over."""
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
