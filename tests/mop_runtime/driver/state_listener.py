"""A host that only serves states."""

from __future__ import annotations

from hopyard.mop_runtime.state_transfer import StateServer
from hopyard.mop_runtime.transport.framing import ConnectionBroken, FramedConnection
from hopyard.mop_runtime.transport.listener import ConnectionListener
from hopyard.trial_state.shared_memory_store import StateStore


def serve_states(secret: bytes, store: StateStore, *, host: str = "", port: int = 0) -> ConnectionListener:
    server = StateServer(store)

    def serve(connection: FramedConnection) -> None:
        while True:
            head, size = connection.receive_head()
            if head.get("kind") != "fetch" or size:
                raise ConnectionBroken(f"{str(head.get('kind'))[:40]!r} is not served here")
            server.send_state(connection, head)

    return ConnectionListener(secret, serve, host=host, port=port, payload_limit=0)
