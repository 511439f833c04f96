"""Audit records: changes and rejected changes, with their user and origin."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from enum import StrEnum
from typing import Any


class Outcome(StrEnum):
    DONE = "done"
    REFUSED = "refused"  # the caller lacks the permission
    FAILED = "failed"  # the server failed; the change may be partly done


@dataclass(frozen=True, slots=True)
class AuditRecord:
    """One change, or one rejected change. Never modified, and kept when its target is deleted.

    user: the requesting user; `run ID` for a run's own token, "" without a valid token. action: a noun and a
    verb, `run.stop`. target: the name of the changed object; target_id: its id, if it has one. origin: the
    address or Unix user of the request. token: the id of the user's token. detail: the request, without
    secrets. id: in the order of arrival; 0 before it is stored.
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
    """A filter; all conditions that are set must hold.

    action: may be a noun alone, which matches all of its verbs. target: a name or an id. before: matches only
    records older than the record with this id, for the next page.
    """

    user: str | None = None
    action: str | None = None
    target: str | None = None
    since: datetime | None = None
    until: datetime | None = None
    outcome: Outcome | None = None
    before: int | None = None
    limit: int = 100
