from __future__ import annotations

import pytest

from hopyard.interfaces.report_store import ReportStore
from hopyard.stores.memory.reports import MemoryReportStore
from hopyard.testing.report_store_cases import MAX_TEST_BYTES, MAX_TEST_REPORTS, ReportStoreContract


class TestMemoryReports(ReportStoreContract):
    @pytest.fixture
    def report_store(self) -> ReportStore:
        return MemoryReportStore(max_reports=MAX_TEST_REPORTS, max_user_bytes=MAX_TEST_BYTES)
