"""Cases of the audit store: records are added, listed and pruned."""

from __future__ import annotations

import asyncio
from dataclasses import replace

import pytest

from hopyard.domain.audit import AuditFilter, AuditRecord, Outcome
from hopyard.errors import NotFound
from hopyard.testing.stores import Stores, time_at


class AuditCases:
    """Records are listed in order and never change."""

    async def test_audit_records_are_listed_newest_first(self, stores: Stores) -> None:
        first = AuditRecord(
            time_at(1),
            "alice",
            "run.stop",
            "alice/p/1",
            "r1",
            Outcome.DONE,
            "uid 1000",
            "abc",
            {"grace_s": 1.5, "tags": {"a": "b"}},
        )
        await stores.audit.record(first)
        await asyncio.gather(
            *(
                stores.audit.record(AuditRecord(time_at(2), "bob", "run.submit", f"bob/p/{i}"))
                for i in range(5)
            )
        )
        records = await stores.audit.list(AuditFilter())
        assert [record.id for record in records] == sorted((record.id for record in records), reverse=True)
        assert len(records) == 6
        oldest = records[-1]
        assert (oldest.at, oldest.user, oldest.action, oldest.target, oldest.target_id, oldest.outcome) == (
            time_at(1),
            "alice",
            "run.stop",
            "alice/p/1",
            "r1",
            Outcome.DONE,
        )
        assert (oldest.origin, oldest.token, oldest.detail) == (
            "uid 1000",
            "abc",
            {"grace_s": 1.5, "tags": {"a": "b"}},
        )
        assert [
            record.id for record in await stores.audit.list(AuditFilter(before=records[3].id, limit=1))
        ] == [records[4].id]

    async def test_joined_record_is_stored_with_first_change_or_not_at_all(self, stores: Stores) -> None:
        entry = AuditRecord(time_at(1), "alice", "token.create", "laptop")
        with stores.audit.record_with_change(entry) as unused:
            await stores.access.list_tokens(None)
        with stores.audit.record_with_change(entry) as rejected, pytest.raises(NotFound):
            await stores.access.remove_token("0" * 12)
        assert (unused.stored_id, rejected.stored_id, await stores.audit.list(AuditFilter())) == (
            None,
            None,
            [],
        )
        with stores.audit.record_with_change(entry) as joined:
            with pytest.raises(NotFound):
                await stores.access.remove_token("0" * 12)
            for name in ("one", "two"):
                await stores.access.add_token("alice", name, now=time_at(1), name=name)
        await stores.access.add_token("alice", "three", now=time_at(1), name="three")
        (record,) = await stores.audit.list(AuditFilter())
        assert record == replace(entry, id=joined.stored_id or 0)
        corrected = replace(record, outcome=Outcome.FAILED, detail={"made": "x"})
        await stores.audit.update_record(record.id, corrected)
        assert await stores.audit.list(AuditFilter()) == [corrected]

    async def test_all_conditions_of_audit_filter_hold(self, stores: Stores) -> None:
        for second, (user, action, target, outcome) in enumerate(
            [
                ("a", "run.stop", "a/p/1", Outcome.DONE),
                ("b", "run.stop", "a/p/1", Outcome.REFUSED),
                ("b", "runner.x", "", Outcome.DONE),
                ("b", "node.drain", "n1", Outcome.DONE),
            ]
        ):
            await stores.audit.record(
                AuditRecord(time_at(second), user, action, target, f"id{second}", outcome)
            )

        async def seconds(**where: object) -> list[float]:
            records = await stores.audit.list(AuditFilter(**where))  # type: ignore[arg-type]
            return [(record.at - time_at(0)).total_seconds() for record in records]

        assert await seconds(user="b") == [3, 2, 1]
        assert await seconds(action="run") == [1, 0]
        assert await seconds(action="run.stop", outcome=Outcome.REFUSED) == [1]
        assert await seconds(target="a/p/1") == [1, 0]
        assert await seconds(target="id3") == [3]
        assert await seconds(since=time_at(1), until=time_at(3)) == [2, 1]

    async def test_old_audit_records_are_pruned(self, stores: Stores) -> None:
        for second in range(4):
            await stores.audit.record(AuditRecord(time_at(second), "a", "run.stop"))
        assert await stores.audit.prune(time_at(2)) == 2
        assert [record.at for record in await stores.audit.list(AuditFilter())] == [time_at(3), time_at(2)]
        await stores.audit.record(AuditRecord(time_at(5), "a", "run.stop"))
        ids = [record.id for record in await stores.audit.list(AuditFilter())]
        assert ids == sorted(ids, reverse=True)
