"""Sends the notifications of runs: each at least once, and normally once.

A notification is claimed in the store before it is sent, so that several servers share the work, and one that
dies in between leaves it to the others.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Awaitable, Callable, Mapping
from datetime import datetime, timedelta

from hopyard.controller.background import (
    BackgroundEffects,
    run_logging_errors,
    run_step_logging_errors,
)
from hopyard.domain.ids import RunId
from hopyard.domain.notification import CLAIM, Message, Notification, NotifyOn
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
        self._tasks = BackgroundEffects()
        # by target: those to send, and until when they are claimed
        self._queues: dict[str, deque[tuple[datetime, Notification]]] = {}

    async def run(self) -> None:
        """Sends notifications until cancelled."""
        try:
            while True:
                await run_step_logging_errors(self.start_due)
                await self._clock.sleep_until(self._clock.now() + POLL_INTERVAL)
        finally:
            await self._tasks.cancel()

    async def start_due(self) -> None:
        """Begins to send what is due. Each target has a task of its own, so that one that does not answer
        delays no other."""
        while due := await self._notifications.claim_notifications(_BATCH, now=self._clock.now()):
            # a claim that is nearly over belongs to the next server
            claimed_until = self._clock.now() + CLAIM / 2
            for notification in sorted(due, key=_sending_order):
                queue = self._queues.get(notification.to)
                if queue is None:
                    queue = self._queues[notification.to] = deque()
                    self._tasks.spawn(run_logging_errors(self._send_queue(notification.to, queue)))
                queue.append((claimed_until, notification))

    async def _send_queue(self, to: str, queue: deque[tuple[datetime, Notification]]) -> None:
        """Sends those of one target in order. After a failure the others wait for the end of their claims."""
        try:
            while queue:
                claimed_until, notification = queue.popleft()
                if self._clock.now() < claimed_until and not await self._send(notification):
                    queue.clear()
        finally:
            del self._queues[to]

    async def _send(self, notification: Notification) -> bool:
        """Sends one, unless its target does not get it. Returns False if that failed."""
        try:
            run = await self._runs.get(notification.run)
        except NotFound:
            return True
        event = NotifyOn(run.phase.value) if notification.alert is None else NotifyOn.ALERT
        target = next((each for each in run.spec.on_end if each.to == notification.to), None)
        if target is None or not target.gets(event):
            await self._notifications.discard_notification(notification)
            return True
        try:
            await self._sender.send(notification.to, await self._message(run, notification))
        except Exception as error:  # also of a library that did not accept a text: it must not end the server
            reason = error.message if isinstance(error, HopyardError) else f"{type(error).__name__}: {error}"
            reason = escape(reason)[:_MAX_REASON]
            log.warning("a notification of run %s was not sent: %s", run.name, reason)
            await self._notifications.record_not_sent(notification, reason, now=self._clock.now())
            return False
        await self._notifications.record_sent(notification, now=self._clock.now())
        return True

    async def _message(self, run: Run, notification: Notification) -> Message:
        url = self._run_url(run)
        if notification.alert is not None:
            return alert_message(run, notification.alert, url=url)
        latest = await self._latest_metrics(run.id)
        metrics = {**run.summary, **{name: value for name, (_, value) in latest.items()}}
        failure = "" if run.exit is None or run.exit.is_success else run.exit.reason
        return end_message(run, reason=failure, metrics=metrics, url=url)


def _sending_order(notification: Notification) -> tuple[bool, float]:
    """Alerts as they came, then the end of the run."""
    alert = notification.alert
    return alert is None, 0.0 if alert is None else alert.at.timestamp()
