"""The server's end of the Unix socket in its home."""

from __future__ import annotations

import asyncio
import os
import resource
import socket
from contextlib import ExitStack

from hopyard.server.local import OwnersOnly


class Greets(asyncio.Protocol):
    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.WriteTransport)
        transport.write(b"hello")


def test_a_connection_that_was_accepted_is_served_without_a_descriptor_to_spare() -> None:
    async def scene() -> bytes:
        ours, theirs = socket.socketpair()
        ours.setblocking(False)
        soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        with ExitStack() as opened:
            opened.callback(resource.setrlimit, resource.RLIMIT_NOFILE, (soft, hard))
            resource.setrlimit(resource.RLIMIT_NOFILE, (min(256, soft), hard))
            try:
                while True:
                    opened.callback(os.close, os.dup(0))
            except OSError:
                pass  # none is left
            transport, _ = await asyncio.get_running_loop().connect_accepted_socket(lambda: OwnersOnly(Greets), theirs)
            try:
                return await asyncio.wait_for(asyncio.get_running_loop().sock_recv(ours, 5), 10)
            finally:
                transport.close()
                ours.close()

    assert asyncio.run(scene()) == b"hello"
