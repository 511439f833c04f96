"""Reports, in SQL."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, replace
from typing import Any

from sqlalchemy import Connection, and_, delete, func, or_, select, update

from hopyard.domain.report import (
    MAX_REPORTS,
    MAX_REVISIONS,
    MAX_USER_BYTES,
    Report,
    ReportAccess,
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
from hopyard.stores.sql.codec import from_us, to_us
from hopyard.stores.sql.database import Database
from hopyard.stores.sql.tables import report_revisions, reports

_SUMMARY = (
    reports.c.id,
    reports.c.user_name,
    reports.c.title,
    reports.c.access,
    reports.c.revision,
    reports.c.created_at,
    reports.c.updated_at,
    reports.c.updated_by,
)


class SqlReportStore:
    """ReportStore over a Database."""

    def __init__(
        self, database: Database, *, max_reports: int = MAX_REPORTS, max_user_bytes: int = MAX_USER_BYTES
    ) -> None:
        self._database = database
        self._max_reports, self._max_user_bytes = max_reports, max_user_bytes

    async def create(self, report: Report, /) -> None:
        def write(conn: Connection) -> None:
            if conn.execute(select(reports.c.id).where(reports.c.id == report.id)).first() is not None:
                raise Conflict(f"there is a report {report.id} already")
            count = select(func.count()).where(reports.c.user_name == report.user)
            if conn.execute(count).scalar_one() >= self._max_reports:
                raise too_many_error(report.user, self._max_reports)
            self._check_size(conn, report.user, report.size_bytes)
            conn.execute(reports.insert().values(_to_row(report)))

        await self._database.write(write)

    async def update(self, report: Report, /, *, base: int) -> Report:
        def write(conn: Connection) -> Report:
            current = _get(conn, report.id, for_update=True)
            if current.has_content_of(report):
                return current
            if current.revision != base:
                raise changed_error(current, base)
            kept = report_revisions.c.report == report.id
            newest = conn.execute(select(func.max(report_revisions.c.updated_at)).where(kept)).scalar()
            keeps = is_revision_kept(current, None if newest is None else from_us(newest), report.updated_by)
            added = report.size_bytes - (0 if keeps else current.size_bytes)
            self._check_size(conn, current.user, added)
            if keeps:
                conn.execute(
                    report_revisions.insert().values(
                        report=current.id,
                        revision=current.revision,
                        title=current.title,
                        updated_at=to_us(current.updated_at),
                        updated_by=current.updated_by,
                        size_bytes=current.size_bytes,
                        blocks=current.blocks,
                    )
                )
                oldest = (
                    select(report_revisions.c.revision)
                    .where(kept)
                    .order_by(report_revisions.c.revision.desc())
                    .offset(MAX_REVISIONS)
                    .limit(1)
                )
                last = conn.execute(oldest).scalar()
                if last is not None:
                    conn.execute(delete(report_revisions).where(kept, report_revisions.c.revision <= last))
            changed = replace(
                report, user=current.user, created_at=current.created_at, revision=current.revision + 1
            )
            conn.execute(update(reports).where(reports.c.id == report.id).values(_to_row(changed)))
            return changed

        return await self._database.write(write)

    async def get(self, report: str, /) -> Report:
        return await self._database.read(lambda conn: _get(conn, report))

    async def list(self, where: ReportFilter, /) -> Sequence[ReportSummary]:
        conditions = [or_(reports.c.user_name == where.user, reports.c.access != ReportAccess.PRIVATE)]
        if where.owner is not None:
            conditions.append(reports.c.user_name == where.owner)
        if where.text:
            conditions.append(func.lower(reports.c.title).contains(where.text.lower(), autoescape=True))
        if where.before is not None:
            at, report = to_us(where.before[0]), where.before[1]
            conditions.append(
                or_(reports.c.updated_at < at, and_(reports.c.updated_at == at, reports.c.id < report))
            )
        query = (
            select(*_SUMMARY)
            .where(*conditions)
            .order_by(reports.c.updated_at.desc(), reports.c.id.desc())
            .limit(where.limit)
        )
        return await self._database.read(lambda conn: [_summary(tuple(row)) for row in conn.execute(query)])

    async def revisions(self, report: str, /) -> Sequence[ReportRevision]:
        def read(conn: Connection) -> list[ReportRevision]:
            current = _get(conn, report)
            query = (
                select(
                    report_revisions.c.revision,
                    report_revisions.c.title,
                    report_revisions.c.updated_at,
                    report_revisions.c.updated_by,
                    report_revisions.c.size_bytes,
                )
                .where(report_revisions.c.report == report)
                .order_by(report_revisions.c.revision.desc())
            )
            newest = ReportRevision(
                current.revision, current.title, current.updated_at, current.updated_by, current.size_bytes
            )
            return [newest] + [
                ReportRevision(revision, title, from_us(at), user, size)
                for revision, title, at, user, size in conn.execute(query)
            ]

        return await self._database.read(read)

    async def get_revision(self, report: str, revision: int, /) -> Report:
        def read(conn: Connection) -> Report:
            current = _get(conn, report)
            if current.revision == revision:
                return current
            row = conn.execute(
                select(
                    report_revisions.c.title,
                    report_revisions.c.updated_at,
                    report_revisions.c.updated_by,
                    report_revisions.c.blocks,
                ).where(report_revisions.c.report == report, report_revisions.c.revision == revision)
            ).one_or_none()
            if row is None:
                raise unknown_revision_error(report, revision)
            title, at, user, blocks = row
            return replace(
                current,
                revision=revision,
                title=title,
                updated_at=from_us(at),
                updated_by=user,
                blocks=blocks,
            )

        return await self._database.read(read)

    async def remove(self, report: str, /) -> None:
        def write(conn: Connection) -> None:
            if not conn.execute(delete(reports).where(reports.c.id == report)).rowcount:
                raise unknown_error(report)

        await self._database.write(write, vital=True)

    def _check_size(self, conn: Connection, user: str, added: int) -> None:
        own = reports.c.user_name == user
        current = select(func.coalesce(func.sum(reports.c.size_bytes), 0)).where(own)
        earlier = (
            select(func.coalesce(func.sum(report_revisions.c.size_bytes), 0))
            .select_from(report_revisions.join(reports))
            .where(own)
        )
        used = sum(int(conn.execute(query).scalar_one()) for query in (current, earlier))
        if used + added > self._max_user_bytes:
            raise too_large_error(user, self._max_user_bytes)


def _get(conn: Connection, report: str, *, for_update: bool = False) -> Report:
    query = select(*_SUMMARY, reports.c.blocks).where(reports.c.id == report)
    row = conn.execute(query.with_for_update() if for_update else query).one_or_none()
    if row is None:
        raise unknown_error(report)
    *columns, blocks = tuple(row)
    values = asdict(_summary(columns))
    return Report(**values, blocks=blocks)


def _summary(row: Sequence[Any]) -> ReportSummary:
    id_, user, title, access, revision, created_at, updated_at, updated_by = row
    return ReportSummary(
        id_,
        user,
        title,
        ReportAccess(access),
        revision,
        from_us(created_at),
        from_us(updated_at),
        updated_by,
    )


def _to_row(report: Report) -> dict[str, Any]:
    return {
        "id": report.id,
        "user_name": report.user,
        "title": report.title,
        "access": str(report.access),
        "revision": report.revision,
        "created_at": to_us(report.created_at),
        "updated_at": to_us(report.updated_at),
        "updated_by": report.updated_by,
        "size_bytes": report.size_bytes,
        "blocks": report.blocks,
    }
