"""Tokens of users, and their scopes."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum


class Scope(StrEnum):
    """The scope of a token, within the rights of its user. Each scope includes the scopes before it."""

    READ = "read"  # view everything, and download
    SUBMIT = "submit"  # also start, change and delete runs, and push data
    # all that the user may do: also manage tokens, secrets, users, queues, nodes and the server itself
    ADMIN = "admin"


ALL_SCOPES = frozenset(Scope)
_IMPLIED_SCOPES = {
    Scope.READ: frozenset({Scope.READ}),
    Scope.SUBMIT: frozenset({Scope.READ, Scope.SUBMIT}),
    Scope.ADMIN: ALL_SCOPES,
}


def expand_scopes(scopes: Iterable[Scope]) -> frozenset[Scope]:
    """Returns these scopes and all scopes that they include."""
    return frozenset().union(*(_IMPLIED_SCOPES[scope] for scope in scopes))


@dataclass(frozen=True, slots=True)
class Token:
    """A user's token as stored: without the token itself.

    id: the first digits of its hash, public. name: unique among the tokens of its user. expires_at: None
    means valid until revoked. used_at: its last use, to the minute.
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
