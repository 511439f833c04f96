"""Secrets of users: set, listed by name, removed. No address answers a value."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import Annotated, Any

from msgspec import Meta, Struct

from hopyard.config.schemas.fields import LongText, RequestModel
from hopyard.domain.access import Scope
from hopyard.domain.run_environment import check_settable
from hopyard.errors import Conflict
from hopyard.server.endpoint import ApiRequest, Empty, Endpoint
from hopyard.server.services import Services

_MAX_SECRETS = 1000  # secrets of one user


class SecretIn(RequestModel):
    """value: what processes of runs that name the secret get as a variable. It is never answered."""

    value: Annotated[LongText, Meta(min_length=1)]


class SecretOut(Struct, frozen=True):
    name: str
    set_at: datetime


class SecretsOut(Struct, frozen=True):
    secrets: list[SecretOut]


def secret_endpoints(services: Services) -> Sequence[Endpoint[Any, Any]]:
    async def list_secrets(ask: ApiRequest[Empty, Empty]) -> SecretsOut:
        """List the names of the caller's secrets, and when each was set last."""
        found = await services.access.secret_names(ask.caller.require_user())
        return SecretsOut([SecretOut(name, set_at) for name, set_at in found.items()])

    async def put(ask: ApiRequest[Empty, SecretIn]) -> SecretOut:
        """Store a secret of the caller, replacing an earlier secret of this name.
        Runs that start from now on get it."""
        user, name, now = ask.caller.require_user(), ask.path["secret"], services.now()
        check_settable(name, subject="secret")
        known = await services.access.secret_names(user)
        if name not in known and len(known) >= _MAX_SECRETS:
            raise Conflict(
                f"{user} has {_MAX_SECRETS} secrets already", hints=("remove one: `hop secret rm NAME`",)
            )
        await services.access.put_secret(user, name, ask.body.value, now=now)
        return SecretOut(name, now)

    async def remove(ask: ApiRequest[Empty, Empty]) -> Empty:
        """Remove a secret of the caller. Started runs keep the value; waiting runs that need it will fail."""
        await services.access.remove_secret(ask.caller.require_user(), ask.path["secret"])
        return Empty()

    at = "/secrets/{secret}"
    return [
        Endpoint("GET", "/secrets", list_secrets, returns=SecretsOut),
        Endpoint(
            "PUT",
            at,
            put,
            body=SecretIn,
            returns=SecretOut,
            audit="secret.set",
            errors=(400, 409),
            scope=Scope.ADMIN,
        ),
        Endpoint("DELETE", at, remove, errors=(404,), scope=Scope.ADMIN),
    ]
