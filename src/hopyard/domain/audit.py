"""Audit records: a change or a refused change, with its user and origin."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from enum import StrEnum
from typing import Any


class Outcome(StrEnum):
    DONE = "done"
    REFUSED = "refused"  # the caller may not do this
    FAILED = "failed"  # the server failed at it: it may be done in part


@dataclass(frozen=True, slots=True)
class AuditRecord:
    """One change, or one that was refused. Never changed, and kept when what it is about is deleted.

    user: who asked; `run ID` for a run's own token, "" where no valid token came. action: a noun and a verb,
    `run.stop`. target: the name of what was changed, target_id: its id where it has one. origin: the address
    or Unix user that the request came from. token: the id of the user's token. detail: what was asked for,
    without secrets. id: in the order in which they came; 0 before it is stored.
    """

    at: datetime
    user: str
    action: str
    target: str = ""
    target_id: str = ""
    outcome: Outcome = Outcome.DONE
    origin: str = ""
    token: str = ""
    detail: Mapping[str, Any] = field(default_factory=dict)
    id: int = 0


@dataclass(frozen=True, slots=True)
class AuditFilter:
    """All that are given must hold. action: also a noun alone, which means all of its verbs.
    target: a name or an id. before: only records older than the record with this id, for the next page."""

    user: str | None = None
    action: str | None = None
    target: str | None = None
    since: datetime | None = None
    until: datetime | None = None
    outcome: Outcome | None = None
    before: int | None = None
    limit: int = 100
