"""A worker's connection to the driver. It reconnects whenever it breaks, without losing messages.

A message with a key is kept until it is acknowledged, and sent again, in order, after each new `hello`: the
driver may have been killed before it stored the message. Heartbeats come from a separate thread, so they
continue during hours of training and stop if the process is stopped.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Hashable, Iterable, Mapping
from typing import Any, Protocol

from hopyard.errors import AuthError
from hopyard.mop_runtime.transport.framing import FramedConnection
from hopyard.mop_runtime.transport.handshake import connect

log = logging.getLogger("hopyard.mop_runtime.transport")

HEARTBEAT_INTERVAL_S = 1.0
_MIN_RETRY_DELAY_S, _MAX_RETRY_DELAY_S = 0.02, 1.0


class MessageListener(Protocol):
    """The callbacks of a connection, all called from its threads.

    None of them may block, and `make_hello` must not take a lock that its owner holds while it sends.
    """

    def make_hello(self, local_host: str) -> Mapping[str, Any]:
        """Returns the first frame of a new connection. local_host: the address under which the driver reaches
        this host."""
        ...

    def make_heartbeat(self) -> Mapping[str, Any]: ...

    def on_message(self, head: Mapping[str, Any]) -> None: ...

    def on_driver_lost(self, reason: str) -> None:
        """No driver answered within the timeout; the connection is closed."""
        ...


class DriverConnection:
    """address: `host:port` of the driver. reconnect_timeout_s: how long attempts to connect may fail in a
    row."""

    def __init__(
        self,
        address: str,
        secret: bytes,
        listener: MessageListener,
        *,
        reconnect_timeout_s: float,
        heartbeat_interval_s: float = HEARTBEAT_INTERVAL_S,
    ) -> None:
        self._address, self._secret, self._listener = address, secret, listener
        self._reconnect_timeout_s, self._heartbeat_interval_s = reconnect_timeout_s, heartbeat_interval_s
        # held while sending, so that repeated and new messages keep their order
        self._lock = threading.Lock()
        self._unacknowledged: dict[Hashable, Mapping[str, Any]] = {}
        self._condition = threading.Condition()
        self._connection: FramedConnection | None = None
        self._closing = threading.Event()
        self._threads = [
            threading.Thread(target=self._run_reconnect_loop, name="link-line", daemon=True),
            threading.Thread(target=self._run_heartbeat_loop, name="link-beat", daemon=True),
        ]

    def start(self) -> None:
        for thread in self._threads:
            thread.start()

    def send(self, head: Mapping[str, Any], *, key: Hashable | None = None) -> None:
        """key: the message is kept under it until `acknowledge`. Without a key it is sent once, if there is a
        connection."""
        with self._lock:
            if key is not None:
                with self._condition:
                    self._unacknowledged[key] = head
            if self._connection is not None:
                self._send_head(self._connection, head)

    def acknowledge(self, keys: Iterable[Hashable]) -> None:
        with self._condition:
            for key in keys:
                self._unacknowledged.pop(key, None)
            self._condition.notify_all()

    def unacknowledged(self) -> list[Hashable]:
        """Returns the keys of messages that are not acknowledged yet."""
        with self._condition:
            return list(self._unacknowledged)

    def wait_until_acknowledged(self, timeout_s: float) -> bool:
        """Returns whether all messages are acknowledged. Stops waiting if there is no connection."""
        with self._condition:
            self._condition.wait_for(lambda: not self._unacknowledged or self._connection is None, timeout_s)
            return not self._unacknowledged

    def close(self) -> None:
        self._closing.set()
        connection = self._connection
        if connection is not None:
            connection.close()
        with self._condition:
            self._condition.notify_all()
        for thread in self._threads:
            if thread.is_alive() and thread is not threading.current_thread():
                thread.join(5)

    def _send_head(self, connection: FramedConnection, head: Mapping[str, Any]) -> None:
        try:
            connection.send(head)
        except OSError:
            connection.close()  # the reading thread notices and reconnects

    def _run_reconnect_loop(self) -> None:
        delay_s, failing_since = _MIN_RETRY_DELAY_S, time.monotonic()
        while not self._closing.is_set():
            try:
                connection = connect(self._address, self._secret)
            except (OSError, AuthError) as error:
                if time.monotonic() - failing_since > self._reconnect_timeout_s:
                    log.warning("no driver at %s: %s", self._address, error)
                    self._closing.set()
                    self._listener.on_driver_lost(
                        f"no driver answered at {self._address} for {self._reconnect_timeout_s:.0f} s: "
                        f"{error}"
                    )
                    return
                self._closing.wait(delay_s)
                delay_s = min(delay_s * 2, _MAX_RETRY_DELAY_S)
                continue
            connected_at = time.monotonic()
            self._run_connection(connection)
            failing_since = time.monotonic()
            delay_s = (
                _MIN_RETRY_DELAY_S
                if failing_since - connected_at > _MAX_RETRY_DELAY_S
                else min(delay_s * 2, _MAX_RETRY_DELAY_S)
            )
            self._closing.wait(delay_s)

    def _run_connection(self, connection: FramedConnection) -> None:
        """Runs until the connection breaks."""
        try:
            with self._lock:
                connection.send(self._listener.make_hello(connection.local_host))
                with self._condition:
                    repeated = list(self._unacknowledged.values())
                for head in (
                    *repeated,
                    self._listener.make_heartbeat(),
                ):  # the heartbeat marks the end of repeated messages
                    connection.send(head)
                self._connection = connection
            while not self._closing.is_set():
                head, _ = connection.receive()
                self._listener.on_message(head)
        except OSError as error:
            log.info("the connection to the driver at %s: %s", self._address, error)
        except Exception:  # from the listener; without a connection the worker would be lost
            log.exception("connecting to the driver at %s again", self._address)
        finally:
            with self._condition:
                self._connection = None
                self._condition.notify_all()
            connection.close()

    def _run_heartbeat_loop(self) -> None:
        while not self._closing.wait(self._heartbeat_interval_s):
            connection = self._connection
            if connection is not None:
                self._send_head(connection, self._listener.make_heartbeat())
