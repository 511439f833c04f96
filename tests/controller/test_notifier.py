"""The notifier over the memory stores: what it sends, and that no target delays another."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from datetime import timedelta

import pytest

from hopyard.controller.notifier import Notifier
from hopyard.domain.ids import RunId
from hopyard.domain.notification import CLAIM, END_DELAY, Alert, Message, NotifyOn, NotifyTarget
from hopyard.errors import DeliveryFailed
from hopyard.stores.memory.cluster import MemoryClusterStore
from hopyard.stores.memory.commands import MemoryCommandStore
from hopyard.stores.memory.notifications import MemoryNotificationStore
from hopyard.stores.memory.queues import MemoryQueueStore, MemoryReservationStore
from hopyard.stores.memory.runs import MemoryRunStore
from hopyard.stores.memory.state import MemoryState
from hopyard.stores.memory.usage import MemoryUsageStore
from hopyard.testing.clock import ManualClock
from hopyard.testing.stores import ClusterStores, exited_status, started_run, time_at

pytestmark = pytest.mark.anyio


class Sender:
    """Records what it sends. A target `dead` answers when it is released, and then fails."""

    def __init__(self) -> None:
        self.sent: list[tuple[str, str]] = []
        self.tried: list[str] = []
        self.released = asyncio.Event()

    async def send(self, to: str, message: Message, /) -> None:
        self.tried.append(to)
        if to == "dead":
            await self.released.wait()
            raise DeliveryFailed("no answer")
        self.sent.append((to, message.title))


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


@pytest.fixture
def stores() -> ClusterStores:
    state = MemoryState()
    return ClusterStores(
        MemoryRunStore(state),
        MemoryClusterStore(state),
        MemoryQueueStore(state),
        MemoryReservationStore(state),
        MemoryUsageStore(state),
        MemoryCommandStore(state),
        MemoryNotificationStore(state),
    )


def make_notifier(stores: ClusterStores, sender: Sender, clock: ManualClock) -> Notifier:
    async def no_metrics(_: RunId) -> Mapping[str, tuple[int, float]]:
        return {}

    return Notifier(stores.notifications, stores.runs, sender, clock, latest_metrics=no_metrics)


async def until_idle() -> None:
    for _ in range(100):
        await asyncio.sleep(0)


async def test_target_that_does_not_answer_delays_no_other(stores: ClusterStores) -> None:
    sender, clock = Sender(), ManualClock(time_at(100))
    notifier = make_notifier(stores, sender, clock)
    run, attempt = await started_run(stores, on_end=(NotifyTarget("dead"), NotifyTarget("lab")))
    for number in range(40):
        alert = Alert(f"alert {number}", time_at(number), title=f"{number:02}")
        await stores.notifications.record_alert(run, alert, attempt=attempt, now=alert.at)
    await notifier.start_due()
    await until_idle()
    assert [title[-2:] for _, title in sender.sent] == [f"{number:02}" for number in range(40)]
    assert sender.tried.count("dead") == 1
    sender.released.set()
    await until_idle()
    assert sender.tried.count("dead") == 1, "the others wait for the end of their claims"
    clock.advance(CLAIM)
    await notifier.start_due()
    await until_idle()
    assert sender.tried.count("dead") == 2


async def test_end_follows_the_alerts_and_events_are_chosen(stores: ClusterStores) -> None:
    sender, clock = Sender(), ManualClock(time_at(0))
    notifier = make_notifier(stores, sender, clock)
    targets = (
        NotifyTarget("all"),
        NotifyTarget("failures", (NotifyOn.FAILED,)),
        NotifyTarget("alerts", (NotifyOn.ALERT,)),
    )
    run, attempt = await started_run(stores, on_end=targets)
    await stores.cluster.record_status(exited_status(attempt), now=time_at(1))
    alert = Alert("look", time_at(1), title="late")
    await stores.notifications.record_alert(run, alert, attempt=attempt, now=time_at(1))
    clock.advance(timedelta(seconds=1) + END_DELAY)
    await notifier.start_due()
    await until_idle()
    by_target: dict[str, list[str]] = {}
    for to, title in sender.sent:
        by_target.setdefault(to, []).append(title.split()[-1])
    assert by_target == {"all": ["late", "succeeded"], "alerts": ["late"]}
