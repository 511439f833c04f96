"""Reports: pages of text, curves, tables and media of chosen runs."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta
from enum import StrEnum

from hopyard.errors import Conflict, NotFound, QuotaExceeded

REPORT_ID_PATTERN = r"[0-9a-f]{16}"
MAX_REPORT_BYTES = 256 * 1024  # of the JSON of its blocks
MAX_REPORTS = 1000  # per user
MAX_USER_BYTES = 256 * 1024 * 1024  # of all reports of a user, with their earlier revisions
MAX_REVISIONS = 50  # earlier ones that are kept per report
# An editor saves every few seconds. Of the revisions of one user, one in this time is kept.
REVISION_INTERVAL = timedelta(minutes=10)


class ReportAccess(StrEnum):
    """What users other than its own may do with a report."""

    PRIVATE = "private"
    READ = "read"
    WRITE = "write"


@dataclass(frozen=True, slots=True)
class ReportSummary:
    """A report without its blocks. revision: counts the changes, from 1. updated_by: the user of the last
    one."""

    id: str
    user: str
    title: str
    access: ReportAccess
    revision: int
    created_at: datetime
    updated_at: datetime
    updated_by: str

    def may_read(self, user: str) -> bool:
        return self.access is not ReportAccess.PRIVATE or user == self.user

    def may_write(self, user: str) -> bool:
        return self.access is ReportAccess.WRITE or user == self.user


@dataclass(frozen=True, slots=True)
class Report(ReportSummary):
    """blocks: a JSON array."""

    blocks: str

    @property
    def size_bytes(self) -> int:
        return len(self.blocks.encode())

    def has_content_of(self, other: Report) -> bool:
        """Returns whether a change from one to the other changes nothing."""
        return (self.title, self.access, self.blocks) == (other.title, other.access, other.blocks)


@dataclass(frozen=True, slots=True)
class ReportRevision:
    """A state of a report: the current one, or an earlier one that is kept."""

    revision: int
    title: str
    updated_at: datetime
    updated_by: str
    size_bytes: int


@dataclass(frozen=True, slots=True)
class ReportFilter:
    """Reports that `user` may read, the last changed first. owner: only those of this user. text: a part of
    the title, in any case of letters. before: time and id of the last report of the previous page."""

    user: str
    owner: str | None = None
    text: str = ""
    before: tuple[datetime, str] | None = None
    limit: int = 100


def is_revision_kept(current: Report, newest_kept_at: datetime | None, next_user: str) -> bool:
    """Returns whether the current state is kept when `next_user` changes the report: always when it is the
    work of another user, else once in REVISION_INTERVAL. newest_kept_at: when the newest kept state was
    made."""
    return (
        current.updated_by != next_user
        or newest_kept_at is None
        or current.updated_at - newest_kept_at >= REVISION_INTERVAL
    )


def unknown_error(report: str) -> NotFound:
    return NotFound(f"there is no report {report}", hints=("list the reports with `hop report ls`",))


def unknown_revision_error(report: str, revision: int) -> NotFound:
    return NotFound(
        f"report {report} has no revision {revision}",
        hints=("list those that are kept with GET /api/v1/reports/ID/revisions",),
    )


def changed_error(current: Report, base: int) -> Conflict:
    return Conflict(
        f"report {current.id} is at revision {current.revision} by {current.updated_by}, not {base}",
        hints=("read it again, and repeat the change",),
    )


def too_many_error(user: str, limit: int) -> Conflict:
    return Conflict(f"{user} has {limit} reports already", hints=("remove one with `hop report rm ID`",))


def too_large_error(user: str, limit: int) -> QuotaExceeded:
    return QuotaExceeded(
        f"the reports of {user} would exceed {limit} bytes", hints=("remove one with `hop report rm ID`",)
    )
