"""Sends the notifications of runs: each at least once, and normally once.

A notification is claimed in the store before it is sent, so that several servers share the work, and one that
dies in between leaves it to the others.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping, Sequence
from datetime import timedelta

from hopyard.controller.background import run_step_logging_errors
from hopyard.domain.ids import RunId
from hopyard.domain.notification import Message, Notification, NotifyOn
from hopyard.domain.notification_text import alert_message, end_message
from hopyard.domain.run import Run
from hopyard.domain.text import escape
from hopyard.errors import HopyardError, NotFound
from hopyard.interfaces.clock import Clock
from hopyard.interfaces.notification_sender import NotificationSender
from hopyard.interfaces.notification_store import NotificationStore
from hopyard.interfaces.run_store import RunStore

POLL_INTERVAL = timedelta(seconds=1)
_BATCH = 16
_MAX_REASON = 300  # characters
log = logging.getLogger("hopyard.controller")


class Notifier:
    """Sends what is due, in batches. latest_metrics: returns the newest points of a run. run_url: returns the
    address of a run for people; "" without one."""

    def __init__(
        self,
        notifications: NotificationStore,
        runs: RunStore,
        sender: NotificationSender,
        clock: Clock,
        *,
        latest_metrics: Callable[[RunId], Awaitable[Mapping[str, tuple[int, float]]]],
        run_url: Callable[[Run], str] = lambda _: "",
    ) -> None:
        self._notifications, self._runs, self._sender, self._clock = notifications, runs, sender, clock
        self._latest_metrics, self._run_url = latest_metrics, run_url

    async def run(self) -> None:
        """Sends notifications until cancelled."""
        while True:
            await run_step_logging_errors(self._send_all_due)
            await self._clock.sleep_until(self._clock.now() + POLL_INTERVAL)

    async def _send_all_due(self) -> None:
        while await self.send_due():
            pass

    async def send_due(self) -> int:
        """Sends the notifications that are due, at most a batch of them. Returns their number."""
        due = await self._notifications.claim_notifications(_BATCH, now=self._clock.now())
        by_target: dict[tuple[RunId, str], list[Notification]] = {}
        for notification in due:
            by_target.setdefault((notification.run, notification.to), []).append(notification)
        await asyncio.gather(*map(self._send_in_order, by_target.values()))
        return len(due)

    async def _send_in_order(self, notifications: Sequence[Notification]) -> None:
        """Sends those of one target: its alerts as they came, then the end."""
        for notification in sorted(
            notifications, key=lambda each: (each.alert is None, each.alert and each.alert.at.timestamp())
        ):
            await self._send(notification)

    async def _send(self, notification: Notification) -> None:
        try:
            run = await self._runs.get(notification.run)
        except NotFound:
            return
        event = NotifyOn(run.phase.value) if notification.alert is None else NotifyOn.ALERT
        target = next((each for each in run.spec.on_end if each.to == notification.to), None)
        if target is None or not target.gets(event):
            await self._notifications.discard_notification(notification)
            return
        try:
            await self._sender.send(notification.to, await self._message(run, notification))
        except Exception as error:  # also of a library that did not accept a text: it must not end the server
            reason = error.message if isinstance(error, HopyardError) else f"{type(error).__name__}: {error}"
            reason = escape(reason)[:_MAX_REASON]
            log.warning("a notification of run %s was not sent: %s", run.name, reason)
            await self._notifications.record_not_sent(notification, reason, now=self._clock.now())
        else:
            await self._notifications.record_sent(notification, now=self._clock.now())

    async def _message(self, run: Run, notification: Notification) -> Message:
        url = self._run_url(run)
        if notification.alert is not None:
            return alert_message(run, notification.alert, url=url)
        latest = await self._latest_metrics(run.id)
        metrics = {**run.summary, **{name: value for name, (_, value) in latest.items()}}
        failure = "" if run.exit is None or run.exit.is_success else run.exit.reason
        return end_message(run, reason=failure, metrics=metrics, url=url)
