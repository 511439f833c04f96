"""Secrets of users: set, list names, remove. No endpoint returns a value."""

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

_MAX_SECRETS = 1000  # per user


class SecretIn(RequestModel):
    """value: the value of the environment variable in the processes of runs that name the secret. It is never
    returned."""

    value: Annotated[LongText, Meta(min_length=1)]


class SecretOut(Struct, frozen=True):
    name: str
    set_at: datetime


class SecretsOut(Struct, frozen=True):
    secrets: list[SecretOut]


def secret_endpoints(services: Services) -> Sequence[Endpoint[Any, Any]]:
    async def list_secrets(request: ApiRequest[Empty, Empty]) -> SecretsOut:
        """List the names of the caller's secrets, and when each was last set."""
        set_times = await services.access.secret_names(request.caller.require_user())
        return SecretsOut([SecretOut(name, set_at) for name, set_at in set_times.items()])

    async def set_secret(request: ApiRequest[Empty, SecretIn]) -> SecretOut:
        """Store a secret of the caller, replacing an earlier one of this name. It applies to runs that start
        from now on."""
        user, name, now = request.caller.require_user(), request.path["secret"], services.now()
        check_settable(name, subject="secret", in_gang=True)
        set_times = await services.access.secret_names(user)
        if name not in set_times and len(set_times) >= _MAX_SECRETS:
            raise Conflict(
                f"{user} has {_MAX_SECRETS} secrets already", hints=("remove one: `hop secret rm NAME`",)
            )
        await services.access.put_secret(user, name, request.body.value, now=now)
        return SecretOut(name, now)

    async def remove(request: ApiRequest[Empty, Empty]) -> Empty:
        """Remove a secret of the caller. Started runs keep the value; waiting runs that need it will fail."""
        await services.access.remove_secret(request.caller.require_user(), request.path["secret"])
        return Empty()

    path = "/secrets/{secret}"
    return [
        Endpoint("GET", "/secrets", list_secrets, returns=SecretsOut),
        Endpoint(
            "PUT",
            path,
            set_secret,
            body=SecretIn,
            returns=SecretOut,
            audit="secret.set",
            errors=(400, 409),
            scope=Scope.ADMIN,
        ),
        Endpoint("DELETE", path, remove, errors=(404,), scope=Scope.ADMIN),
    ]
