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
from hopyard.studies.link.proof import connect
from hopyard.studies.link.wire import Wire

log = logging.getLogger("hopyard.studies.link")

BEAT_S = 1.0
_FIRST_PAUSE_S, _LONGEST_PAUSE_S = 0.02, 1.0


class Ear(Protocol):
    """What a line asks and tells its owner, all from threads of the line. None of it may wait for anything,
    and `hello` for no lock that its owner holds while it tells something."""

    def hello(self, local_host: str) -> Mapping[str, Any]:
        """The first frame of a new connection. local_host: the address of this host as the driver reaches
        it."""
        ...

    def beat(self) -> Mapping[str, Any]: ...

    def hear(self, head: Mapping[str, Any]) -> None: ...

    def lost(self, why: str) -> None:
        """No driver answered for as long as was agreed; the line is closed."""
        ...


class Line:
    """address: `host:port` of the driver. patience_s: for how long in a row connecting may fail."""

    def __init__(
        self, address: str, secret: bytes, ear: Ear, *, patience_s: float, beat_s: float = BEAT_S
    ) -> None:
        self._address, self._secret, self._ear = address, secret, ear
        self._patience_s, self._beat_s = patience_s, beat_s
        # held while sending, so that what is told again and what is new keep their order
        self._lock = threading.Lock()
        self._kept: dict[Hashable, Mapping[str, Any]] = {}
        self._acknowledged = threading.Condition()
        self._wire: Wire | None = None
        self._closing = threading.Event()
        self._threads = [
            threading.Thread(target=self._stay_connected, name="link-line", daemon=True),
            threading.Thread(target=self._beat, name="link-beat", daemon=True),
        ]

    def start(self) -> None:
        for thread in self._threads:
            thread.start()

    def tell(self, head: Mapping[str, Any], *, key: Hashable | None = None) -> None:
        """key: kept under it until `acknowledge`. Without one it is said once, if there is a connection."""
        with self._lock:
            if key is not None:
                with self._acknowledged:
                    self._kept[key] = head
            if self._wire is not None:
                self._send(self._wire, head)

    def acknowledge(self, keys: Iterable[Hashable]) -> None:
        with self._acknowledged:
            for key in keys:
                self._kept.pop(key, None)
            self._acknowledged.notify_all()

    def kept(self) -> list[Hashable]:
        """What was told and not acknowledged yet."""
        with self._acknowledged:
            return list(self._kept)

    def wait_until_acknowledged(self, timeout_s: float) -> bool:
        """Whether nothing is kept any more. Waits no longer than there is a connection."""
        with self._acknowledged:
            self._acknowledged.wait_for(lambda: not self._kept or self._wire is None, timeout_s)
            return not self._kept

    def close(self) -> None:
        self._closing.set()
        wire = self._wire
        if wire is not None:
            wire.close()
        with self._acknowledged:
            self._acknowledged.notify_all()
        for thread in self._threads:
            if thread.is_alive() and thread is not threading.current_thread():
                thread.join(5)

    def _send(self, wire: Wire, head: Mapping[str, Any]) -> None:
        try:
            wire.send(head)
        except OSError:
            wire.close()  # the thread that reads notices, and connects again

    def _stay_connected(self) -> None:
        pause, since = _FIRST_PAUSE_S, time.monotonic()
        while not self._closing.is_set():
            try:
                wire = connect(self._address, self._secret)
            except (OSError, AuthError) as refused:
                if time.monotonic() - since > self._patience_s:
                    log.warning("no driver at %s: %s", self._address, refused)
                    self._closing.set()
                    self._ear.lost(
                        f"no driver answered at {self._address} for {self._patience_s:.0f} s: {refused}"
                    )
                    return
                self._closing.wait(pause)
                pause = min(pause * 2, _LONGEST_PAUSE_S)
                continue
            began = time.monotonic()
            self._converse(wire)
            since = time.monotonic()
            pause = _FIRST_PAUSE_S if since - began > _LONGEST_PAUSE_S else min(pause * 2, _LONGEST_PAUSE_S)
            self._closing.wait(pause)

    def _converse(self, wire: Wire) -> None:
        """Until the connection breaks."""
        try:
            with self._lock:
                wire.send(self._ear.hello(wire.local_host))
                with self._acknowledged:
                    again = list(self._kept.values())
                for head in (*again, self._ear.beat()):  # the beat says that nothing more is told again
                    wire.send(head)
                self._wire = wire
            while not self._closing.is_set():
                head, _ = wire.receive()
                self._ear.hear(head)
        except OSError as lost:
            log.info("the connection to the driver at %s: %s", self._address, lost)
        except Exception:  # of the ear; a worker without a line would be lost for good
            log.exception("the connection to the driver at %s is begun anew", self._address)
        finally:
            with self._acknowledged:
                self._wire = None
                self._acknowledged.notify_all()
            wire.close()

    def _beat(self) -> None:
        while not self._closing.wait(self._beat_s):
            wire = self._wire
            if wire is not None:
                self._send(wire, self._ear.beat())
