from __future__ import annotations

from dataclasses import replace

import pytest
from sqlalchemy import func, select

from hopyard.domain.change import ChangeKind
from hopyard.domain.report import ReportAccess, ReportFilter
from hopyard.interfaces.report_store import ReportStore
from hopyard.stores.sql.change_feed import SqlChangeFeed
from hopyard.stores.sql.database import Database
from hopyard.stores.sql.reports import SqlReportStore
from hopyard.stores.sql.tables import report_revisions
from hopyard.testing.report_store_cases import (
    MAX_TEST_BYTES,
    MAX_TEST_REPORTS,
    ReportStoreContract,
    make_report,
)
from hopyard.testing.stores import time_at
from tests.stores.sql.conftest import stores_over


class TestSqliteReports(ReportStoreContract):
    @pytest.fixture
    def report_store(self, sqlite_database: Database) -> ReportStore:
        return SqlReportStore(sqlite_database, max_reports=MAX_TEST_REPORTS, max_user_bytes=MAX_TEST_BYTES)


class TestPostgresReports(ReportStoreContract):
    @pytest.fixture
    def report_store(self, postgres_database: Database) -> ReportStore:
        return SqlReportStore(postgres_database, max_reports=MAX_TEST_REPORTS, max_user_bytes=MAX_TEST_BYTES)


@pytest.mark.anyio
async def test_private_reports_go_with_their_user(database: Database) -> None:
    stores, store = stores_over(database), SqlReportStore(database)
    await stores.access.add_user("alice", "h" * 64, now=time_at(0))
    await store.create(make_report("1"))
    await store.create(make_report("2", access=ReportAccess.READ))
    await stores.access.remove_user("alice")
    assert [each.id[-1] for each in await store.list(ReportFilter("alice"))] == ["2"]


@pytest.mark.anyio
async def test_each_change_is_recorded_for_readers_of_events(database: Database) -> None:
    store, report = SqlReportStore(database), make_report()
    await store.create(report)
    await store.update(replace(report, blocks="[1]", updated_by="bob"), base=1)
    await store.update(replace(report, blocks="[1]"), base=2)  # the same content
    await store.remove(report.id)
    found = (await SqlChangeFeed(database).read(0, limit=100)).changes
    assert [(each.subject, each.change) for each in found if each.kind is ChangeKind.REPORT] == [
        (report.id, "changed"),
        (report.id, "changed"),
        (report.id, "deleted"),
    ]
    rows = select(func.count()).select_from(report_revisions)
    assert await database.read(lambda conn: conn.execute(rows).scalar_one()) == 0
