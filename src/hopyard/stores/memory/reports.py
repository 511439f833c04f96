"""Reports, in memory."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import fields, replace

from hopyard.domain.report import (
    MAX_REPORTS,
    MAX_REVISIONS,
    MAX_USER_BYTES,
    Report,
    ReportFilter,
    ReportRevision,
    ReportSummary,
    changed_error,
    is_revision_kept,
    too_large_error,
    too_many_error,
    unknown_error,
    unknown_revision_error,
)
from hopyard.errors import Conflict


class MemoryReportStore:
    """Implements `hopyard.interfaces.report_store.ReportStore`."""

    def __init__(self, *, max_reports: int = MAX_REPORTS, max_user_bytes: int = MAX_USER_BYTES) -> None:
        self._max_reports, self._max_user_bytes = max_reports, max_user_bytes
        self._reports: dict[str, Report] = {}
        self._kept: dict[str, list[Report]] = {}  # earlier states, oldest first

    async def create(self, report: Report, /) -> None:
        if report.id in self._reports:
            raise Conflict(f"there is a report {report.id} already")
        own = [each for each in self._reports.values() if each.user == report.user]
        if len(own) >= self._max_reports:
            raise too_many_error(report.user, self._max_reports)
        self._check_size(report.user, report.size_bytes)
        self._reports[report.id], self._kept[report.id] = report, []

    async def update(self, report: Report, /, *, base: int) -> Report:
        current = await self.get(report.id)
        if current.has_content_of(report):
            return current
        if current.revision != base:
            raise changed_error(current, base)
        kept = self._kept[report.id]
        keeps = is_revision_kept(current, kept[-1].updated_at if kept else None, report.updated_by)
        self._check_size(current.user, report.size_bytes - (0 if keeps else current.size_bytes))
        if keeps:
            kept.append(current)
            del kept[:-MAX_REVISIONS]
        changed = replace(
            report, user=current.user, created_at=current.created_at, revision=current.revision + 1
        )
        self._reports[report.id] = changed
        return changed

    async def get(self, report: str, /) -> Report:
        if report not in self._reports:
            raise unknown_error(report)
        return self._reports[report]

    async def list(self, where: ReportFilter, /) -> Sequence[ReportSummary]:
        found = [
            report
            for report in self._reports.values()
            if report.may_read(where.user)
            and where.owner in (None, report.user)
            and where.text.lower() in report.title.lower()
            and (where.before is None or (report.updated_at, report.id) < where.before)
        ]
        found.sort(key=lambda report: (report.updated_at, report.id), reverse=True)
        names = [field.name for field in fields(ReportSummary)]
        return [ReportSummary(*(getattr(report, name) for name in names)) for report in found[: where.limit]]

    async def revisions(self, report: str, /) -> Sequence[ReportRevision]:
        states = [await self.get(report), *reversed(self._kept[report])]
        return [
            ReportRevision(state.revision, state.title, state.updated_at, state.updated_by, state.size_bytes)
            for state in states
        ]

    async def get_revision(self, report: str, revision: int, /) -> Report:
        current = await self.get(report)
        for state in (current, *self._kept[report]):
            if state.revision == revision:
                return replace(state, access=current.access)
        raise unknown_revision_error(report, revision)

    async def remove(self, report: str, /) -> None:
        await self.get(report)
        del self._reports[report], self._kept[report]

    def _check_size(self, user: str, added: int) -> None:
        used = sum(
            state.size_bytes
            for report in self._reports.values()
            if report.user == user
            for state in (report, *self._kept[report.id])
        )
        if used + added > self._max_user_bytes:
            raise too_large_error(user, self._max_user_bytes)
