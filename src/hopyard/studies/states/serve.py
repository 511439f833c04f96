"""States between hosts: each worker, and the driver, serves those on its shelf by name; who fetches one
checks its digest.

fetch {state} -> state {} with the state's bytes as payload, then digest {digest}; or refused {error}; before
either, any number of: wait {}

Where two workers cannot reach each other, a state goes by way of the driver, which asks who has it to lend it
(`hopper/relay.py`): lend {state}, from who made the connection, and then the above the other way round.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any

from hopyard.errors import AuthError, HopyardError, IntegrityError, NotFound
from hopyard.studies.link.listener import Listener
from hopyard.studies.link.proof import PROOF_S, Unreachable, connect
from hopyard.studies.link.wire import Broken, Wire
from hopyard.studies.states.digest import digest, new
from hopyard.studies.states.shelf import Shelf

log = logging.getLogger("hopyard.studies.states")

_PART_BYTES = 4 << 20
SILENCE_S = 20.0  # of a source, until another is asked
_REACH_S = 2.0  # for a source to answer, where there is another: packets are sent again after 1 s
_AVOID_S = 600.0
_avoided: dict[str, float] = {}  # by address, or host, until when it is asked last: it could not be reached


class Server:
    """Answers `fetch` on connections that somebody else accepted, with what lies on a shelf.
    May be used from any thread."""

    def __init__(self, shelf: Shelf) -> None:
        self._shelf = shelf
        self._lock = threading.Lock()
        self._digests: dict[str, str] = {}

    def know(self, name: str, digest_of: str) -> None:
        """So that it need not be computed again."""
        with self._lock:
            self._digests[name] = digest_of

    def forget(self, names: Sequence[str]) -> None:
        with self._lock:
            for name in names:
                self._digests.pop(name, None)

    def answer(self, wire: Wire, asked: Mapping[str, Any]) -> None:
        """One `fetch`. Raises OSError where the connection breaks."""
        name = str(asked.get("state"))
        try:
            with self._shelf.view(name) as view:
                wire.send({"kind": "state"}, view)
                with self._lock:
                    known = self._digests.get(name)
                found = known or digest(view)
            wire.send({"kind": "digest", "digest": found})
        except HopyardError as refused:
            wire.send({"kind": "refused", "error": refused.message})


def listen(secret: bytes, shelf: Shelf, *, host: str = "", port: int = 0) -> Listener:
    """Serve states and nothing else."""
    server = Server(shelf)

    def serve(wire: Wire) -> None:
        while True:
            head, size = wire.receive_head()
            if head.get("kind") != "fetch" or size:
                raise Broken(f"{str(head.get('kind'))[:40]!r} is not served here")
            server.answer(wire, head)

    return Listener(secret, serve, host=host, port=port, payload_limit=0)


def fetch(
    name: str, sources: Sequence[str], secret: bytes, shelf: Shelf, *, silence_s: float = SILENCE_S
) -> int:
    """Bring a state onto the shelf from the first of these addresses that has it whole; returns how many
    bytes came over the network, 0 where it is there already. Raises NotFound, with what each said, and
    StorageFull."""
    if shelf.has(name):
        return 0
    said, left = [], list(sources)
    while left:
        source = min(left, key=_is_avoided)
        left.remove(source)
        try:
            return _fetch_from(name, source, secret, shelf, silence_s, reach_s=_REACH_S if left else PROOF_S)
        except (OSError, ValueError, AuthError, NotFound, IntegrityError) as refused:
            log.warning("state %s from %s: %s", name, source, refused)
            said.append(f"{source}: {refused}")
    raise NotFound(f"nobody has state `{name}`" + (f" ({'; '.join(said)})" if said else ""))


def _is_avoided(source: str) -> bool:
    return max(_avoided.get(source, 0.0), _avoided.get(_host_of(source), 0.0)) > time.monotonic()


def _host_of(source: str) -> str:
    return source.rpartition(":")[0]


def _fetch_from(
    name: str, source: str, secret: bytes, shelf: Shelf, silence_s: float, *, reach_s: float
) -> int:
    try:
        wire = connect(source, secret, reach_s=reach_s)
    except OSError as failed:
        # It may take long to find out again. Where the host is silent, so it is to all others on it.
        _avoided[_host_of(source) if isinstance(failed, Unreachable) else source] = (
            time.monotonic() + _AVOID_S
        )
        raise
    try:
        wire.limit_silence(silence_s)
        return ask(wire, name, shelf)
    finally:
        wire.close()


def ask(wire: Wire, name: str, shelf: Shelf) -> int:
    """Bring a state onto the shelf from the other side; its size.
    Raises NotFound, IntegrityError, StorageFull, OSError."""
    wire.send({"kind": "fetch", "state": name})
    head, size = wire.receive_head()
    while head.get("kind") == "wait" and not size:
        head, size = wire.receive_head()
    if head.get("kind") != "state":
        raise NotFound(str(head.get("error")))
    with shelf.filling(name, size) as view:
        running = new()
        for begin in range(0, size, _PART_BYTES):
            with view[begin : begin + _PART_BYTES] as part:
                wire.receive_into(part)
                running.update(part)
        after, _ = wire.receive_head()
        if after.get("kind") != "digest":
            raise NotFound(str(after.get("error")))
        if after.get("digest") != running.hexdigest():
            raise IntegrityError(
                f"its bytes have the digest {running.hexdigest()}, not {after.get('digest')}"
            )
    return size


def lend(name: str, address: str, secret: bytes, server: Server) -> None:
    """Give a state to the driver at `address`, where it is wanted. Raises AuthError, OSError."""
    wire = connect(address, secret)
    try:
        wire.send({"kind": "lend", "state": name})
        head, _ = wire.receive_head()
        server.answer(wire, head)
        with suppress(Broken):
            wire.receive_head()  # until it has all of it
    finally:
        wire.close()
