"""The conformance suite of stores of reports."""

from __future__ import annotations

from dataclasses import replace
from datetime import datetime

import pytest

from hopyard.domain.report import (
    MAX_REVISIONS,
    REVISION_INTERVAL,
    Report,
    ReportAccess,
    ReportFilter,
)
from hopyard.errors import Conflict, NotFound, QuotaExceeded
from hopyard.interfaces.report_store import ReportStore
from hopyard.testing.stores import START, time_at

MAX_TEST_REPORTS, MAX_TEST_BYTES = 6, 2000  # of the store that the fixture gives


def make_report(name: str = "1", *, at: datetime = START, **fields: object) -> Report:
    """Returns a private report of alice. fields: of Report."""
    report = Report(name.rjust(16, "0"), "alice", "Results", ReportAccess.PRIVATE, 1, at, at, "alice", "[]")
    return replace(report, **fields)  # type: ignore[arg-type]


@pytest.mark.anyio
class ReportStoreContract:
    """Subclass it as `class TestX(ReportStoreContract)` and provide a fixture `report_store`: an empty
    ReportStore with the limits MAX_TEST_REPORTS and MAX_TEST_BYTES, new for every test."""

    @pytest.fixture
    def anyio_backend(self) -> str:
        return "asyncio"

    async def test_report_is_stored_changed_and_removed(self, report_store: ReportStore) -> None:
        first = make_report()
        await report_store.create(first)
        assert await report_store.get(first.id) == first
        with pytest.raises(Conflict):
            await report_store.create(first)
        changed = make_report(
            at=time_at(5), title="Ⅱ", blocks='["é"]', access=ReportAccess.READ, updated_by="bob", user="bob"
        )
        stored = await report_store.update(changed, base=1)
        assert stored == replace(changed, user="alice", created_at=first.created_at, revision=2)
        assert await report_store.get(first.id) == stored
        await report_store.remove(first.id)
        for call in (report_store.get, report_store.remove, report_store.revisions):
            with pytest.raises(NotFound):
                await call(first.id)
        with pytest.raises(NotFound):
            await report_store.update(changed, base=2)

    async def test_change_of_another_revision_is_refused(self, report_store: ReportStore) -> None:
        await report_store.create(make_report())
        mine, theirs = make_report(blocks="[1]"), make_report(blocks="[2]", updated_by="bob")
        stored = await report_store.update(mine, base=1)
        with pytest.raises(Conflict):
            await report_store.update(theirs, base=1)
        assert await report_store.get(mine.id) == stored
        # the response to the first request may have been lost
        assert await report_store.update(mine, base=1) == stored

    async def test_work_of_another_user_is_kept(self, report_store: ReportStore) -> None:
        await report_store.create(make_report(blocks="[0]"))
        for number, user in enumerate(("alice", "bob", "bob", "alice"), 1):
            at, blocks = time_at(number), f"[{number}]"
            await report_store.update(make_report(at=at, blocks=blocks, updated_by=user), base=number)
        found = await report_store.revisions(make_report().id)
        # 2 and 4 are the last states of their users; 3 was replaced by its own user at once
        assert [(each.revision, each.updated_by) for each in found] == [
            (5, "alice"),
            (4, "bob"),
            (2, "alice"),
            (1, "alice"),
        ]
        assert (await report_store.get_revision(make_report().id, 4)).blocks == "[3]"
        assert (await report_store.get_revision(make_report().id, 5)).blocks == "[4]"
        for missing in (3, 6):
            with pytest.raises(NotFound):
                await report_store.get_revision(make_report().id, missing)

    async def test_kept_revisions_are_limited(self, report_store: ReportStore) -> None:
        await report_store.create(make_report())
        for number in range(1, MAX_REVISIONS + 4):
            at = START + number * REVISION_INTERVAL
            await report_store.update(make_report(at=at, blocks=f"[{number}]"), base=number)
        found = await report_store.revisions(make_report().id)
        assert [each.revision for each in found] == list(range(MAX_REVISIONS + 4, 3, -1))

    async def test_list_has_what_a_user_may_read(self, report_store: ReportStore) -> None:
        for report in (
            make_report("a", at=time_at(1)),
            make_report("b", at=time_at(3), access=ReportAccess.READ, title="50% of Loss"),
            make_report("c", at=time_at(2), user="bob"),
            make_report("d", at=time_at(3), user="bob", access=ReportAccess.WRITE),
        ):
            await report_store.create(report)

        async def ids(**where: object) -> list[str]:
            found = await report_store.list(ReportFilter(**{"user": "alice", **where}))  # type: ignore[arg-type]
            return [each.id.lstrip("0") for each in found]

        assert await ids() == ["d", "b", "a"]
        assert await ids(user="bob") == ["d", "b", "c"]
        assert await ids(owner="alice") == ["b", "a"]
        assert await ids(text="0% of lo") == ["b"]
        assert await ids(text="_") == []
        first = await report_store.list(ReportFilter("alice", limit=2))
        assert [each.title for each in first] == ["Results", "50% of Loss"]
        assert await ids(before=(first[1].updated_at, first[1].id)) == ["a"]

    async def test_reports_of_a_user_are_limited(self, report_store: ReportStore) -> None:
        half = '["' + "x" * (MAX_TEST_BYTES // 2) + '"]'
        await report_store.create(make_report(blocks=half))
        with pytest.raises(QuotaExceeded):
            await report_store.create(make_report("2", blocks=half))
        # the replaced state counts as long as it is kept
        longer = make_report(blocks=half.replace("x", "y"), at=time_at(1))
        with pytest.raises(QuotaExceeded):
            await report_store.update(longer, base=1)
        await report_store.create(make_report("2", blocks=half, user="bob"))
        for number in range(3, MAX_TEST_REPORTS + 2):
            await report_store.create(make_report(str(number)))
        with pytest.raises(Conflict):
            await report_store.create(make_report("ff"))
