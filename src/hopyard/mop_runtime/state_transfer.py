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
from hopyard.mop_runtime.transport.framing import ConnectionBroken, FramedConnection
from hopyard.mop_runtime.transport.handshake import HANDSHAKE_TIMEOUT_S, HostUnreachable, connect
from hopyard.trial_state.digest import digest, new_digest
from hopyard.trial_state.shared_memory_store import StateStore

log = logging.getLogger("hopyard.trial_state")

_CHUNK_BYTES = 4 << 20
RECEIVE_TIMEOUT_S = 20.0  # of a source, until another is asked
_CONNECT_TIMEOUT_S = 2.0  # for a source to answer, where there is another: packets are sent again after 1 s
_AVOID_SOURCE_S = 600.0
_avoided_until: dict[
    str, float
] = {}  # by address, or host, until when it is asked last: it could not be reached


class StateServer:
    """Answers `fetch` on connections that somebody else accepted, with what lies on a shelf.
    May be used from any thread."""

    def __init__(self, store: StateStore) -> None:
        self._store = store
        self._lock = threading.Lock()
        self._digests: dict[str, str] = {}

    def add_digest(self, name: str, digest: str) -> None:
        """So that it need not be computed again."""
        with self._lock:
            self._digests[name] = digest

    def discard(self, names: Sequence[str]) -> None:
        with self._lock:
            for name in names:
                self._digests.pop(name, None)

    def send_state(self, connection: FramedConnection, request: Mapping[str, Any]) -> None:
        """One `fetch`. Raises OSError where the connection breaks."""
        name = str(request.get("state"))
        try:
            with self._store.view(name) as view:
                connection.send({"kind": "state"}, view)
                with self._lock:
                    known = self._digests.get(name)
                found = known or digest(view)
            connection.send({"kind": "digest", "digest": found})
        except HopyardError as refused:
            connection.send({"kind": "refused", "error": refused.message})


def fetch(
    name: str,
    sources: Sequence[str],
    secret: bytes,
    store: StateStore,
    *,
    receive_timeout_s: float = RECEIVE_TIMEOUT_S,
) -> int:
    """Bring a state onto the shelf from the first of these addresses that has it whole; returns how many
    bytes came over the network, 0 where it is there already. Raises NotFound, with what each said, and
    StorageFull."""
    if store.has(name):
        return 0
    said, left = [], list(sources)
    while left:
        source = min(left, key=_is_avoided)
        left.remove(source)
        try:
            return _fetch_from(
                name,
                source,
                secret,
                store,
                receive_timeout_s,
                connect_timeout_s=_CONNECT_TIMEOUT_S if left else HANDSHAKE_TIMEOUT_S,
            )
        except (OSError, ValueError, AuthError, NotFound, IntegrityError) as refused:
            log.warning("state %s from %s: %s", name, source, refused)
            said.append(f"{source}: {refused}")
    raise NotFound(f"no worker has state `{name}`" + (f" ({'; '.join(said)})" if said else ""))


def _is_avoided(source: str) -> bool:
    return max(_avoided_until.get(source, 0.0), _avoided_until.get(_host_of(source), 0.0)) > time.monotonic()


def _host_of(source: str) -> str:
    return source.rpartition(":")[0]


def _fetch_from(
    name: str,
    source: str,
    secret: bytes,
    store: StateStore,
    receive_timeout_s: float,
    *,
    connect_timeout_s: float,
) -> int:
    try:
        wire = connect(source, secret, connect_timeout_s=connect_timeout_s)
    except OSError as failed:
        # It may take long to find out again. Where the host is silent, so it is to all others on it.
        _avoided_until[_host_of(source) if isinstance(failed, HostUnreachable) else source] = (
            time.monotonic() + _AVOID_SOURCE_S
        )
        raise
    try:
        wire.set_receive_timeout(receive_timeout_s)
        return download(wire, name, store)
    finally:
        wire.close()


def download(connection: FramedConnection, name: str, store: StateStore) -> int:
    """Bring a state onto the shelf from the other side; its size.
    Raises NotFound, IntegrityError, StorageFull, OSError."""
    connection.send({"kind": "fetch", "state": name})
    head, size = connection.receive_head()
    while head.get("kind") == "wait" and not size:
        head, size = connection.receive_head()
    if head.get("kind") != "state":
        raise NotFound(str(head.get("error")))
    with store.allocate(name, size) as view:
        running = new_digest()
        for begin in range(0, size, _CHUNK_BYTES):
            with view[begin : begin + _CHUNK_BYTES] as part:
                connection.receive_into(part)
                running.update(part)
        after, _ = connection.receive_head()
        if after.get("kind") != "digest":
            raise NotFound(str(after.get("error")))
        if after.get("digest") != running.hexdigest():
            raise IntegrityError(
                f"its bytes have the digest {running.hexdigest()}, not {after.get('digest')}"
            )
    return size


def send_to_driver(name: str, address: str, secret: bytes, server: StateServer) -> None:
    """Give a state to the driver at `address`, where it is wanted. Raises AuthError, OSError."""
    wire = connect(address, secret)
    try:
        wire.send({"kind": "lend", "state": name})
        head, _ = wire.receive_head()
        server.send_state(wire, head)
        with suppress(ConnectionBroken):
            wire.receive_head()  # until it has all of it
    finally:
        wire.close()
