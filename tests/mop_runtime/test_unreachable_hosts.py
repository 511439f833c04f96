"""Hosts that drop packets are detected soon if there is another way, and remembered."""

from __future__ import annotations

import socket
import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from hopyard.errors import NotFound
from hopyard.mop_runtime.state_transfer import fetch
from hopyard.mop_runtime.transport.handshake import HANDSHAKE_TIMEOUT_S, HostUnreachable, connect
from hopyard.mop_runtime.transport.listener import ConnectionListener
from hopyard.mop_runtime.worker.allreduce_group import RENDEZVOUS_TIMEOUT_S, GroupMember
from hopyard.mop_runtime.worker.unit_failure import GroupBroken
from hopyard.trial_state.encode import encode
from hopyard.trial_state.shared_memory_store import StateStore
from tests.mop_runtime.driver.state_listener import serve_states

SECRET = b"s" * 32
HOST = "127.0.0.77"  # a loopback address on which nothing else in these tests listens


@pytest.fixture
def silent_address() -> Iterator[str]:
    """Yields an address with a full accept queue, where the system drops the packets of new connections."""
    with ExitStack() as opened:
        full = opened.enter_context(socket.socket())
        full.bind((HOST, 0))
        full.listen(0)
        for _ in range(4):
            waits = opened.enter_context(socket.socket())
            waits.setblocking(False)
            waits.connect_ex(full.getsockname())
        yield f"{HOST}:{full.getsockname()[1]}"


def test_unresponsive_host_is_distinguished_from_busy_host(silent_address: str) -> None:
    with pytest.raises(HostUnreachable, match="nothing answers at"):
        connect(silent_address, SECRET, connect_timeout_s=0.2)
    with socket.socket() as busy:  # its process does not look, but the system takes the connection
        busy.bind(("127.0.0.1", 0))
        busy.listen()
        with pytest.raises(TimeoutError) as slow:
            connect(f"127.0.0.1:{busy.getsockname()[1]}", SECRET, timeout_s=0.2)
    assert not isinstance(slow.value, HostUnreachable)


def test_state_is_fetched_from_another_host_and_unreachable_host_is_remembered(
    silent_address: str, tmp_path: Path
) -> None:
    for name in ("memory", "disk"):
        (tmp_path / name).mkdir()
    local_store, remote_store = (
        StateStore(name, tmp_path / "disk", memory=tmp_path / "memory") for name in "12"
    )
    for name in "ab":
        remote_store.put(name, encode({"w": name}))
    listener = serve_states(SECRET, remote_store, host="127.0.0.1")
    source = f"127.0.0.1:{listener.port}"
    started_at = time.monotonic()
    assert fetch("a", [silent_address, source], SECRET, local_store) > 0
    assert time.monotonic() - started_at < HANDSHAKE_TIMEOUT_S / 2
    requests: list[object] = []
    beside = ConnectionListener(SECRET, requests.append, host=HOST)
    sources = [f"{HOST}:{beside.port}", source]
    assert fetch("b", sources, SECRET, local_store) > 0
    assert not requests, "another port of the same host"
    with pytest.raises(NotFound):
        fetch("c", sources, SECRET, local_store)
    assert requests, "where nobody else has it"
    for resource in (beside, listener, local_store, remote_store):
        resource.close()


def test_group_with_unreachable_first_member_fails_soon(silent_address: str) -> None:
    """It waited as long as for a member that has yet to finish something."""
    started_at = time.monotonic()
    with pytest.raises(GroupBroken, match="nothing answers at"):
        GroupMember(silent_address, SECRET, "1.1", 1, lambda: None)
    assert time.monotonic() - started_at < RENDEZVOUS_TIMEOUT_S / 10
