"""Follows the events of a server: what changes, without a gap when the server restarts."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator
from typing import Any, TypedDict, cast

from hopyard.api_client.client import Client
from hopyard.client.follow import FaultTimeout, reconnect_client
from hopyard.domain.metric_values import MetricValue
from hopyard.errors import ServerUnavailable

_IDLE_TIMEOUT_S = 45.0  # the server sends a comment every 15 s
_FIRST_RETRY_S, _MAX_RETRY_S = 0.05, 1.0


class EventRun(TypedDict):
    """The short state of a run after the change."""

    id: str
    name: str
    phase: str
    summary: dict[str, MetricValue]
    latest: dict[str, tuple[int, MetricValue]]


class ReceivedEvent(TypedDict):
    """The data of an event of `GET /events`. run: None for what is no run, or is deleted."""

    kind: str
    change: str
    subject: str
    detail: str
    at: str | None
    run: EventRun | None


class EventFollower:
    """Yields events. cursor: the `id` of the last one; the next connection continues after it.

    query: the filters of `GET /events`. reconnect: returns a new client, or None while the server is away.
    """

    def __init__(
        self,
        client: Client,
        query: dict[str, Any],
        *,
        cursor: str = "",
        reconnect: Callable[[], Client | None] = reconnect_client,
    ) -> None:
        self.client, self.cursor = client, cursor
        self._query, self._reconnect = query, reconnect

    def events(self) -> Iterator[ReceivedEvent]:
        """Yields events for ever. Those of kind `open` are omitted; after one of kind `reset`, changes may be
        missing. Raises what the server answers, such as AuthError."""
        faults = FaultTimeout()
        while True:
            try:
                yield from self._connection()
            except ServerUnavailable as error:
                if faults.has_expired(error):
                    raise
            delay = _FIRST_RETRY_S
            time.sleep(delay)
            while (client := self._reconnect()) is None:
                time.sleep(delay)
                delay = min(delay * 1.5, _MAX_RETRY_S)
            self.client = client

    def _connection(self) -> Iterator[ReceivedEvent]:
        query = {**self._query, "after": self.cursor}
        cursor = ""
        with self.client.open("GET", "/events", query=query, timeout_s=_IDLE_TIMEOUT_S) as response:
            while (line := response.readline()).endswith(b"\n"):
                name, _, value = line.strip().partition(b": ")
                if name == b"id":
                    cursor = value.decode()
                elif name == b"data":
                    event = cast("ReceivedEvent", {"at": None, "run": None, **json.loads(value)})
                    self.cursor = cursor
                    if event["kind"] != "open":
                        yield event
                elif not line.strip() and cursor:  # also of a heartbeat
                    self.cursor = cursor
