"""Relays states through the driver, over connections that workers open, because workers may be unable to
connect to each other.

A worker that requests a state from the driver waits until the state is in the driver's store. The holder
receives a message, connects, and sends the state over that connection. The relay uses the driver's port,
which all workers can reach.
"""

from __future__ import annotations

import logging
import threading
from collections import Counter
from collections.abc import Callable, Mapping
from typing import Any

from hopyard.errors import HopyardError, IntegrityError, NotFound
from hopyard.mop_runtime.state_transfer import RECEIVE_TIMEOUT_S, StateServer, download
from hopyard.mop_runtime.transport.driver_server import DriverServerEvent, StateReceived, StateRequested
from hopyard.mop_runtime.transport.framing import MAX_PAYLOAD_BYTES, ConnectionBroken, FramedConnection
from hopyard.trial_state.shared_memory_store import StateStore

log = logging.getLogger("hopyard.trial_state")

_REQUEST_INTERVAL_S = 0.5  # interval of repeated requests, because the holder may be lost


class StateRelay:
    """store: the driver's. post_event: queues events for the driver's thread. All other methods are
    thread-safe."""

    def __init__(self, store: StateStore, post_event: Callable[[DriverServerEvent], None]) -> None:
        self._store, self._post_event, self._server = store, post_event, StateServer(store)
        self._condition = threading.Condition()
        self._rejections: Counter[str] = Counter()

    def serve(self, connection: FramedConnection, head: Mapping[str, Any]) -> None:
        """Serves a connection that begins with this head, until it ends."""
        if head.get("kind") == "lend":
            self._receive(connection, str(head.get("state")))
            return
        while True:
            try:
                self._wait_for(str(head.get("state")), lambda: connection.send({"kind": "wait"}))
            except NotFound as error:  # an invalid state name; the answer reports it
                log.warning("%s requests a state: %s", connection.peer, error)
            self._server.send_state(connection, head)
            head, size = connection.receive_head()
            if head.get("kind") != "fetch" or size:
                raise ConnectionBroken(f"{str(head.get('kind'))[:40]!r} is not served here")

    def ensure_local(self, state: str) -> None:
        """Ensures that the state is in the store; fetches it from any holder. Raises NotFound."""
        self._wait_for(state, lambda: None)
        if not self._store.has(state):
            raise NotFound(f"no worker has state `{state}`")

    def reject(self, state: str) -> None:
        """Ends all waits for this state, because no worker has it."""
        with self._condition:
            self._rejections[state] += 1
            self._condition.notify_all()

    def _wait_for(self, state: str, on_poll: Callable[[], None]) -> None:
        old_count = self._rejections[state]
        while not self._store.has(state) and self._rejections[state] == old_count:
            self._post_event(StateRequested(state))
            with self._condition:
                self._condition.wait_for(
                    lambda: self._store.has(state) or self._rejections[state] != old_count,
                    _REQUEST_INTERVAL_S,
                )
            on_poll()

    def _receive(self, connection: FramedConnection, state: str) -> None:
        connection.set_payload_limit(MAX_PAYLOAD_BYTES)
        connection.set_receive_timeout(RECEIVE_TIMEOUT_S)
        try:
            download(connection, state, self._store)
        except (OSError, HopyardError) as error:
            log.warning("state %s from %s: %s", state, connection.peer, error)
            self._post_event(
                StateReceived(
                    state,
                    error=str(error),
                    missing=isinstance(error, NotFound),
                    damaged=isinstance(error, IntegrityError),
                )
            )
        else:
            self._post_event(StateReceived(state))
            with self._condition:
                self._condition.notify_all()
