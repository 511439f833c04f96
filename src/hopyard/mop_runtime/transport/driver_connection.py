"""A worker's end: one connection to the driver, made again whenever it breaks, and nothing that matters lost.

What is told with a key is kept until it is acknowledged, and told again, in order, after each new `hello`:
the driver may have been killed between hearing it and writing it down. Beats come from a thread of their own,
so a worker that trains for hours is heard every second, and one that the system has stopped is not.
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
    """What a line asks and tells its owner, all from threads of the line. None of it may wait for anything,
    and `make_hello` for no lock that its owner holds while it tells something."""

    def make_hello(self, local_host: str) -> Mapping[str, Any]:
        """The first frame of a new connection. local_host: the address of this host as the driver reaches
        it."""
        ...

    def make_heartbeat(self) -> Mapping[str, Any]: ...

    def on_message(self, head: Mapping[str, Any]) -> None: ...

    def on_driver_lost(self, reason: str) -> None:
        """No driver answered for as long as was agreed; the line is closed."""
        ...


class DriverConnection:
    """address: `host:port` of the driver. reconnect_timeout_s: for how long in a row connecting may fail."""

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
        # held while sending, so that what is told again and what is new keep their order
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
        """key: kept under it until `acknowledge`. Without one it is said once, if there is a connection."""
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
        """What was told and not acknowledged yet."""
        with self._condition:
            return list(self._unacknowledged)

    def wait_until_acknowledged(self, timeout_s: float) -> bool:
        """Whether nothing is kept any more. Waits no longer than there is a connection."""
        with self._condition:
            self._condition.wait_for(lambda: not self._unacknowledged or self._connection is None, timeout_s)
            return not self._unacknowledged

    def close(self) -> None:
        self._closing.set()
        wire = self._connection
        if wire is not None:
            wire.close()
        with self._condition:
            self._condition.notify_all()
        for thread in self._threads:
            if thread.is_alive() and thread is not threading.current_thread():
                thread.join(5)

    def _send_head(self, connection: FramedConnection, head: Mapping[str, Any]) -> None:
        try:
            connection.send(head)
        except OSError:
            connection.close()  # the thread that reads notices, and connects again

    def _run_reconnect_loop(self) -> None:
        pause, since = _MIN_RETRY_DELAY_S, time.monotonic()
        while not self._closing.is_set():
            try:
                wire = connect(self._address, self._secret)
            except (OSError, AuthError) as refused:
                if time.monotonic() - since > self._reconnect_timeout_s:
                    log.warning("no driver at %s: %s", self._address, refused)
                    self._closing.set()
                    self._listener.on_driver_lost(
                        f"no driver answered at {self._address} for {self._reconnect_timeout_s:.0f} s: "
                        f"{refused}"
                    )
                    return
                self._closing.wait(pause)
                pause = min(pause * 2, _MAX_RETRY_DELAY_S)
                continue
            began = time.monotonic()
            self._run_connection(wire)
            since = time.monotonic()
            pause = (
                _MIN_RETRY_DELAY_S
                if since - began > _MAX_RETRY_DELAY_S
                else min(pause * 2, _MAX_RETRY_DELAY_S)
            )
            self._closing.wait(pause)

    def _run_connection(self, connection: FramedConnection) -> None:
        """Until the connection breaks."""
        try:
            with self._lock:
                connection.send(self._listener.make_hello(connection.local_host))
                with self._condition:
                    again = list(self._unacknowledged.values())
                for head in (
                    *again,
                    self._listener.make_heartbeat(),
                ):  # the beat says that nothing more is told again
                    connection.send(head)
                self._connection = connection
            while not self._closing.is_set():
                head, _ = connection.receive()
                self._listener.on_message(head)
        except OSError as lost:
            log.info("the connection to the driver at %s: %s", self._address, lost)
        except Exception:  # of the ear; a worker without a line would be lost for good
            log.exception("connecting to the driver at %s again", self._address)
        finally:
            with self._condition:
                self._connection = None
                self._condition.notify_all()
            connection.close()

    def _run_heartbeat_loop(self) -> None:
        while not self._closing.wait(self._heartbeat_interval_s):
            wire = self._connection
            if wire is not None:
                self._send_head(wire, self._listener.make_heartbeat())
