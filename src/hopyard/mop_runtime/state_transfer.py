"""Transfers states between hosts: each worker and the driver serve the states in their stores by name. The
receiver checks the digest.

    fetch {state} -> state {} with the state's bytes as payload, then digest {digest}; or refused {error};
    before either, any number of: wait {}

If two workers cannot reach each other, the state goes through the driver, which requests it from a worker
that has it (`driver/state_relay.py`). That worker opens a connection and sends lend {state}; then the driver
fetches as above.
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
RECEIVE_TIMEOUT_S = 20.0  # for a source, before another one is tried
_CONNECT_TIMEOUT_S = 2.0  # for a source to answer, if there is another one: packets are sent again after 1 s
_AVOID_SOURCE_S = 600.0
_avoided_until: dict[
    str, float
] = {}  # by address or host, until when it is tried last, because it could not be reached


class StateServer:
    """Serves `fetch` requests from a store, on connections that were accepted elsewhere. Thread-safe."""

    def __init__(self, store: StateStore) -> None:
        self._store = store
        self._lock = threading.Lock()
        self._digests: dict[str, str] = {}

    def add_digest(self, name: str, digest: str) -> None:
        """Registers a known digest, so that it is not computed again."""
        with self._lock:
            self._digests[name] = digest

    def discard(self, names: Sequence[str]) -> None:
        with self._lock:
            for name in names:
                self._digests.pop(name, None)

    def send_state(self, connection: FramedConnection, request: Mapping[str, Any]) -> None:
        """Answers one `fetch`. Raises OSError if the connection breaks."""
        name = str(request.get("state"))
        try:
            with self._store.view(name) as view:
                connection.send({"kind": "state"}, view)
                with self._lock:
                    known_digest = self._digests.get(name)
                state_digest = known_digest or digest(view)
            connection.send({"kind": "digest", "digest": state_digest})
        except HopyardError as error:
            connection.send({"kind": "refused", "error": error.message})


def fetch(
    name: str,
    sources: Sequence[str],
    secret: bytes,
    store: StateStore,
    *,
    receive_timeout_s: float = RECEIVE_TIMEOUT_S,
) -> int:
    """Fetches a state into the store from the first address that has it completely.

    Returns the number of bytes received over the network, 0 if the state is already stored. Raises NotFound
    with the error of each source, and StorageFull.
    """
    if store.has(name):
        return 0
    errors, remaining = [], list(sources)
    while remaining:
        source = min(remaining, key=_is_avoided)
        remaining.remove(source)
        try:
            return _fetch_from(
                name,
                source,
                secret,
                store,
                receive_timeout_s,
                connect_timeout_s=_CONNECT_TIMEOUT_S if remaining else HANDSHAKE_TIMEOUT_S,
            )
        except (OSError, ValueError, AuthError, NotFound, IntegrityError) as error:
            log.warning("state %s from %s: %s", name, source, error)
            errors.append(f"{source}: {error}")
    raise NotFound(f"no worker has state `{name}`" + (f" ({'; '.join(errors)})" if errors else ""))


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
        connection = connect(source, secret, connect_timeout_s=connect_timeout_s)
    except OSError as error:
        # Another attempt may take long. If the host does not answer, its other addresses are avoided too.
        _avoided_until[_host_of(source) if isinstance(error, HostUnreachable) else source] = (
            time.monotonic() + _AVOID_SOURCE_S
        )
        raise
    try:
        connection.set_receive_timeout(receive_timeout_s)
        return download(connection, name, store)
    finally:
        connection.close()


def download(connection: FramedConnection, name: str, store: StateStore) -> int:
    """Fetches a state into the store from the other side; returns its size. Raises NotFound, IntegrityError,
    StorageFull, OSError."""
    connection.send({"kind": "fetch", "state": name})
    head, size = connection.receive_head()
    while head.get("kind") == "wait" and not size:
        head, size = connection.receive_head()
    if head.get("kind") != "state":
        raise NotFound(str(head.get("error")))
    with store.allocate(name, size) as view:
        hasher = new_digest()
        for start in range(0, size, _CHUNK_BYTES):
            with view[start : start + _CHUNK_BYTES] as part:
                connection.receive_into(part)
                hasher.update(part)
        trailer, _ = connection.receive_head()
        if trailer.get("kind") != "digest":
            raise NotFound(str(trailer.get("error")))
        if trailer.get("digest") != hasher.hexdigest():
            raise IntegrityError(
                f"its bytes have the digest {hasher.hexdigest()}, not {trailer.get('digest')}"
            )
    return size


def send_to_driver(name: str, address: str, secret: bytes, server: StateServer) -> None:
    """Sends a state to the driver at `address`, which requested it. Raises AuthError, OSError."""
    connection = connect(address, secret)
    try:
        connection.send({"kind": "lend", "state": name})
        head, _ = connection.receive_head()
        server.send_state(connection, head)
        with suppress(ConnectionBroken):
            connection.receive_head()  # waits until the driver has all of it
    finally:
        connection.close()
