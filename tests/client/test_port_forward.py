"""The forwarding of a port while no server answers."""

from __future__ import annotations

import asyncio
import socket
import threading
from typing import cast

from hopyard.api_client.client import Client
from hopyard.client.port_forward import LOCAL_HOST, PortForward, listen_locally
from hopyard.errors import ServerUnavailable


class _AbsentServer:
    """A client without a server. calls: the number of attempts to connect."""

    def __init__(self) -> None:
        self.calls = 0
        self.repeated = threading.Event()

    def open_tcp(self, path: str) -> socket.socket:
        self.calls += 1
        if self.calls > 1:
            self.repeated.set()
        raise ServerUnavailable("no server answers")


def test_forwarding_ends_while_a_connection_waits_for_the_server() -> None:
    server = _AbsentServer()
    problems: list[str] = []

    async def forward() -> int:
        loop = asyncio.get_running_loop()
        loop.set_exception_handler(lambda _, context: problems.append(str(context)))
        with listen_locally(0, is_required=True) as listener:
            forwarding = PortForward(cast(Client, server), "/runs/x/ports/1/", notify=print).run(listener)
            task = asyncio.ensure_future(forwarding)
            reader, writer = await asyncio.open_connection(LOCAL_HOST, listener.getsockname()[1])
            assert await asyncio.to_thread(server.repeated.wait, 60)
            task.cancel()  # as Ctrl-C does
            calls = server.calls
            assert await reader.read() == b""  # the connection is closed
            writer.close()
            return calls

    calls = asyncio.run(forward())
    assert server.calls <= calls + 1  # at most the attempt in progress
    assert problems == []
