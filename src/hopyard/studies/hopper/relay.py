"""States that come by way of the driver, over connections that workers make: to each other they may have
none.

A worker that asks the driver for a state waits until that lies on the driver's shelf: who holds it is told to
lend it, connects, and is asked for it over that connection. Served on the port where workers meet the driver,
which all of them reach.
"""

from __future__ import annotations

import logging
import threading
from collections import Counter
from collections.abc import Callable, Mapping
from typing import Any

from hopyard.errors import HopyardError, IntegrityError, NotFound
from hopyard.studies.link.hub import HubEvent, Lent, Wanted
from hopyard.studies.link.wire import PAYLOAD_BYTES, Broken, Wire
from hopyard.studies.states.serve import SILENCE_S, Server, ask
from hopyard.studies.states.shelf import Shelf

log = logging.getLogger("hopyard.studies.states")

_AGAIN_S = 0.5  # what is waited for is wanted again so often: who was to lend it may be gone


class Relay:
    """shelf: the driver's. tell: gives the driver's own thread its events.
    All else may be called from any thread."""

    def __init__(self, shelf: Shelf, tell: Callable[[HubEvent], None]) -> None:
        self._shelf, self._tell, self._server = shelf, tell, Server(shelf)
        self._changed = threading.Condition()
        self._refusals: Counter[str] = Counter()

    def serve(self, wire: Wire, head: Mapping[str, Any]) -> None:
        """A connection that begins with this head, until it ends."""
        if head.get("kind") == "lend":
            self._take(wire, str(head.get("state")))
            return
        while True:
            try:
                self._wait_for(str(head.get("state")), lambda: wire.send({"kind": "wait"}))
            except NotFound as bad:  # no name of a state; the answer says so
                log.warning("%s asks for a state: %s", wire.peer, bad)
            self._server.answer(wire, head)
            head, size = wire.receive_head()
            if head.get("kind") != "fetch" or size:
                raise Broken(f"{str(head.get('kind'))[:40]!r} is not served here")

    def obtain(self, state: str) -> None:
        """Have it on the shelf, whoever has it now. Raises NotFound."""
        self._wait_for(state, lambda: None)
        if not self._shelf.has(state):
            raise NotFound(f"nobody has state `{state}`")

    def refuse(self, state: str) -> None:
        """Nobody has it: who waits for it waits no longer."""
        with self._changed:
            self._refusals[state] += 1
            self._changed.notify_all()

    def _wait_for(self, state: str, meanwhile: Callable[[], None]) -> None:
        before = self._refusals[state]
        while not self._shelf.has(state) and self._refusals[state] == before:
            self._tell(Wanted(state))
            with self._changed:
                self._changed.wait_for(
                    lambda: self._shelf.has(state) or self._refusals[state] != before, _AGAIN_S
                )
            meanwhile()

    def _take(self, wire: Wire, state: str) -> None:
        wire.limit_payload(PAYLOAD_BYTES)
        wire.limit_silence(SILENCE_S)
        try:
            ask(wire, state, self._shelf)
        except (OSError, HopyardError) as failed:
            log.warning("state %s from %s: %s", state, wire.peer, failed)
            self._tell(
                Lent(
                    state,
                    error=str(failed),
                    missing=isinstance(failed, NotFound),
                    damaged=isinstance(failed, IntegrityError),
                )
            )
        else:
            self._tell(Lent(state))
            with self._changed:
                self._changed.notify_all()
