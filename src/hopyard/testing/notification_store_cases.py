"""Cases of every NotificationStore."""

from __future__ import annotations

from datetime import timedelta

import pytest

from hopyard.domain.ids import RunId
from hopyard.domain.inbox import InboxEntry
from hopyard.domain.notification import CLAIM, END_DELAY, MAX_ALERTS, Alert, NotifyOn, NotifyTarget
from hopyard.domain.run import RunEventKind
from hopyard.errors import NotFound
from hopyard.testing.stores import ClusterStores, exited_status, started_run, time_at

TARGETS = (NotifyTarget("lab"), NotifyTarget("a@b.c", (NotifyOn.ALERT,)))


class NotificationCases:
    async def test_end_is_due_only_after_the_run_has_ended(self, stores: ClusterStores) -> None:
        run, attempt = await started_run(stores, on_end=TARGETS)
        assert not await stores.notifications.claim_notifications(10, now=time_at(100))
        await stores.cluster.record_status(exited_status(attempt), now=time_at(100))
        assert not await stores.notifications.claim_notifications(10, now=time_at(100))
        (due,) = await stores.notifications.claim_notifications(10, now=time_at(100) + END_DELAY)
        assert (due.run, due.to, due.alert, due.tries) == (run, "lab", None, 0)

    async def test_claimed_notification_is_due_again_only_after_the_claim(
        self, stores: ClusterStores
    ) -> None:
        _, attempt = await started_run(stores, on_end=TARGETS[:1])
        await stores.cluster.record_status(exited_status(attempt), now=time_at(1))
        now = time_at(10)
        (due,) = await stores.notifications.claim_notifications(10, now=now)
        assert not await stores.notifications.claim_notifications(10, now=now)
        assert not await stores.notifications.claim_notifications(10, now=now + CLAIM - timedelta(seconds=1))
        (again,) = await stores.notifications.claim_notifications(10, now=now + CLAIM)
        assert (again.run, again.key, again.to) == (due.run, due.key, due.to)
        await stores.notifications.record_sent(again, now=now + CLAIM)
        assert not await stores.notifications.claim_notifications(10, now=now + 10 * CLAIM)
        await stores.notifications.record_sent(again, now=now + CLAIM)  # by a second sender: no second event
        events = await stores.runs.events(due.run)
        assert [event.detail for event in events if event.kind == RunEventKind.NOTIFIED] == [
            "lab was notified of the end"
        ]

    async def test_failed_delivery_is_repeated_and_then_given_up(self, stores: ClusterStores) -> None:
        run, attempt = await started_run(stores, on_end=TARGETS[:1])
        await stores.cluster.record_status(exited_status(attempt), now=time_at(1))
        now, tries = time_at(10), []
        while due := await stores.notifications.claim_notifications(10, now=now):
            tries.append(due[0].tries)
            await stores.notifications.record_not_sent(due[0], "lab answered 500", now=now)
            now += timedelta(hours=1)
        assert tries == [0, 1, 2, 3, 4, 5]
        details = [each.detail for each in await stores.runs.events(run)]
        assert details[-1] == "lab could not be notified of the end: lab answered 500"

    async def test_alert_is_recorded_once_with_its_event_and_its_targets(self, stores: ClusterStores) -> None:
        run, attempt = await started_run(stores, on_end=TARGETS)
        alert = Alert("loss is NaN\nat step 3", time_at(5), "diverged")
        assert await stores.notifications.record_alert(run, alert, attempt=attempt, now=time_at(5))
        assert not await stores.notifications.record_alert(run, alert, attempt=attempt, now=time_at(6))
        due = await stores.notifications.claim_notifications(10, now=time_at(6))
        assert [(each.to, each.alert) for each in due] == [("a@b.c", alert), ("lab", alert)]
        events = await stores.runs.events(run)
        assert [(event.kind, event.detail, event.at) for event in events][-1] == (
            RunEventKind.ALERT,
            "warning: diverged: loss is NaN\nat step 3",
            time_at(5),
        )
        await stores.notifications.discard_notification(due[0])
        assert [each.to for each in await stores.notifications.claim_notifications(9, now=time_at(999))] == [
            "lab"
        ]

    async def test_alerts_of_a_run_are_limited(self, stores: ClusterStores) -> None:
        run, attempt = await started_run(stores)
        recorded = [
            await stores.notifications.record_alert(
                run, Alert(f"alert {index}", time_at(1)), attempt=attempt, now=time_at(1)
            )
            for index in range(MAX_ALERTS + 2)
        ]
        assert recorded == [True] * MAX_ALERTS + [False] * 2
        with pytest.raises(NotFound):
            await stores.notifications.record_alert(
                RunId("r" + "z" * 26), Alert("x", time_at(1)), attempt=None, now=time_at(1)
            )

    async def test_notifications_of_a_deleted_run_are_removed(self, stores: ClusterStores) -> None:
        run, attempt = await started_run(stores, on_end=TARGETS)
        await stores.cluster.record_status(exited_status(attempt), now=time_at(1))
        await stores.runs.delete(run)
        assert not await stores.notifications.claim_notifications(10, now=time_at(100))

    async def test_inbox_lists_alerts_and_ends_of_a_user_in_pages(self, stores: ClusterStores) -> None:
        run, attempt = await started_run(stores)
        alerts = [Alert(f"alert {index}", time_at(0), "diverged") for index in range(3)]
        for alert in alerts:
            await stores.notifications.record_alert(run, alert, attempt=attempt, now=time_at(5))
        user = (await stores.runs.get(run)).name.user
        inbox = stores.notifications.list_inbox
        assert {entry.alert for entry in await inbox(user, limit=9)} == set(alerts)
        await stores.cluster.record_status(exited_status(attempt), now=time_at(9))
        whole = await inbox(user, limit=9)
        assert [entry.alert is None for entry in whole] == [True, False, False, False]
        ended_at = (await stores.runs.get(run)).ended_at
        assert [entry.position.at for entry in whole] == [ended_at, time_at(5), time_at(5), time_at(5)]
        paged: list[InboxEntry] = []
        while page := await inbox(user, limit=1, before=paged[-1].position if paged else None):
            paged += page
        assert paged == list(whole)
        assert [entry.alert for entry in await inbox(user, limit=9, after=time_at(5))] == [None]
        assert not await inbox("another", limit=9)
        await stores.runs.delete(run)
        assert not await inbox(user, limit=9)

    async def test_read_mark_of_an_inbox_is_never_set_back(self, stores: ClusterStores) -> None:
        assert await stores.notifications.inbox_read_until("alice") is None
        for until, stored in ((5, 5), (3, 5), (7, 7)):
            found = await stores.notifications.mark_inbox_read("alice", until=time_at(until))
            assert found == time_at(stored)
        assert await stores.notifications.inbox_read_until("alice") == time_at(7)
        assert await stores.notifications.inbox_read_until("bob") is None
