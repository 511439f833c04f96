from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from hopyard.domain.report import Report, ReportFilter, ReportRevision, ReportSummary


class ReportStore(Protocol):
    """Reports and their earlier revisions. Private reports are removed with their user."""

    async def create(self, report: Report, /) -> None:
        """Raises Conflict if its id exists, or if its user has `MAX_REPORTS`, and QuotaExceeded if the
        reports of the user are longer than `MAX_USER_BYTES`."""

    async def update(self, report: Report, /, *, base: int) -> Report:
        """Stores new content in place of revision `base`, and returns the report with its new revision. The
        fields `user` and `created_at` keep their values.

        A report that has this content already stays as it is, so that a repeated request is harmless. Raises
        NotFound, Conflict if the report is at another revision, and QuotaExceeded as `create` does.
        """
        ...

    async def get(self, report: str, /) -> Report:
        """Raises NotFound."""
        ...

    async def list(self, where: ReportFilter, /) -> Sequence[ReportSummary]:
        """Returns the matching reports, the last changed first."""
        ...

    async def revisions(self, report: str, /) -> Sequence[ReportRevision]:
        """Returns the current revision and the earlier ones that are kept, newest first. Raises NotFound."""
        ...

    async def get_revision(self, report: str, revision: int, /) -> Report:
        """Returns the report with title and blocks of this revision. Raises NotFound."""
        ...

    async def remove(self, report: str, /) -> None:
        """Removes a report with its revisions. Raises NotFound."""
