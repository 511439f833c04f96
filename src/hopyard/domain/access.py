"""Tokens of users, and what each may be used for."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum


class Scope(StrEnum):
    """What a token may be used for, within the rights of its user. Each scope includes those before it."""

    READ = "read"  # look at everything, and fetch
    SUBMIT = "submit"  # also start, change and delete runs, and push data
    ADMIN = "admin"  # all that the user may do: also tokens, secrets, users, queues, nodes, the server itself


ALL_SCOPES = frozenset(Scope)
_IMPLIED_SCOPES = {
    Scope.READ: frozenset({Scope.READ}),
    Scope.SUBMIT: frozenset({Scope.READ, Scope.SUBMIT}),
    Scope.ADMIN: ALL_SCOPES,
}


def expand_scopes(scopes: Iterable[Scope]) -> frozenset[Scope]:
    """The scopes and all that they include."""
    return frozenset().union(*(_IMPLIED_SCOPES[scope] for scope in scopes))


@dataclass(frozen=True, slots=True)
class Token:
    """A user's token as the store knows it: the token itself is not kept.
    id: the first digits of its hash, public.

    name: unique among the tokens of its user. expires_at: None is valid until it is revoked. used_at: its
    last use, to the minute.
    """

    id: str
    user: str
    name: str
    scopes: frozenset[Scope]
    created_at: datetime
    expires_at: datetime | None = None
    used_at: datetime | None = None

    def is_expired(self, now: datetime) -> bool:
        return self.expires_at is not None and self.expires_at <= now
