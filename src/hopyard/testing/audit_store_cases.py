"""Who changed what is added, found and, when it is old, forgotten."""

from __future__ import annotations

import asyncio
from dataclasses import replace

import pytest

from hopyard.domain.audit import AuditFilter, AuditRecord, Outcome
from hopyard.errors import NotFound
from hopyard.testing.stores import Stores, time_at


class AuditCases:
    """Records come in order and stay as they were written."""

    async def test_audit_records_are_listed_newest_first_as_they_were_written(self, stores: Stores) -> None:
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
        found = await stores.audit.list(AuditFilter())
        assert [one.id for one in found] == sorted((one.id for one in found), reverse=True)
        assert len(found) == 6
        oldest = found[-1]
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
        assert [one.id for one in await stores.audit.list(AuditFilter(before=found[3].id, limit=1))] == [
            found[4].id
        ]

    async def test_a_joined_record_is_stored_with_the_first_change_of_its_block_or_not_at_all(
        self, stores: Stores
    ) -> None:
        entry = AuditRecord(time_at(1), "alice", "token.create", "laptop")
        with stores.audit.record_with_change(entry) as unused:
            await stores.access.list_tokens(None)
        with stores.audit.record_with_change(entry) as refused, pytest.raises(NotFound):
            await stores.access.remove_token("0" * 12)
        assert (unused.stored_id, refused.stored_id, await stores.audit.list(AuditFilter())) == (
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
        (found,) = await stores.audit.list(AuditFilter())
        assert found == replace(entry, id=joined.stored_id or 0)
        corrected = replace(found, outcome=Outcome.FAILED, detail={"made": "x"})
        await stores.audit.update_record(found.id, corrected)
        assert await stores.audit.list(AuditFilter()) == [corrected]

    async def test_audit_filters_all_hold(self, stores: Stores) -> None:
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
            found = await stores.audit.list(AuditFilter(**where))  # type: ignore[arg-type]
            return [(record.at - time_at(0)).total_seconds() for record in found]

        assert await seconds(user="b") == [3, 2, 1]
        assert await seconds(action="run") == [1, 0]
        assert await seconds(action="run.stop", outcome=Outcome.REFUSED) == [1]
        assert await seconds(target="a/p/1") == [1, 0]
        assert await seconds(target="id3") == [3]
        assert await seconds(since=time_at(1), until=time_at(3)) == [2, 1]

    async def test_audit_records_older_than_kept_are_forgotten(self, stores: Stores) -> None:
        for second in range(4):
            await stores.audit.record(AuditRecord(time_at(second), "a", "run.stop"))
        assert await stores.audit.prune(time_at(2)) == 2
        assert [one.at for one in await stores.audit.list(AuditFilter())] == [time_at(3), time_at(2)]
        await stores.audit.record(AuditRecord(time_at(5), "a", "run.stop"))
        ids = [one.id for one in await stores.audit.list(AuditFilter())]
        assert ids == sorted(ids, reverse=True)
