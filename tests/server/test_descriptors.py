"""A server that has no descriptor left."""

from __future__ import annotations

import asyncio
import os
import resource
import socket
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

from hopyard.server.local import OwnersOnly
from tests.server.stage import Stage, play


class Greets(asyncio.Protocol):
    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.WriteTransport)
        transport.write(b"hello")


@contextmanager
def no_descriptor_left() -> Iterator[None]:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    with ExitStack() as opened:
        opened.callback(resource.setrlimit, resource.RLIMIT_NOFILE, (soft, hard))
        resource.setrlimit(resource.RLIMIT_NOFILE, (min(256, soft), hard))
        try:
            while True:
                opened.callback(os.close, os.dup(0))
        except OSError:
            yield


def test_a_connection_that_was_accepted_is_served() -> None:
    async def scene() -> bytes:
        ours, theirs = socket.socketpair()
        ours.setblocking(False)
        loop = asyncio.get_running_loop()
        with no_descriptor_left():
            transport, _ = await loop.connect_accepted_socket(lambda: OwnersOnly(Greets), theirs)
            try:
                return await asyncio.wait_for(loop.sock_recv(ours, 5), 10)
            finally:
                transport.close()
                ours.close()

    assert asyncio.run(scene()) == b"hello"


def test_a_request_that_needs_one_is_put_off(tmp_path: Path) -> None:
    async def scene(stage: Stage) -> None:
        run = await stage.started()
        await stage.sync(run, [("stdout", 0, b"hello")])
        with no_descriptor_left():
            answered = await stage.send("GET", f"/runs/{run['id']}/log")
        assert (answered.status_code, answered.headers["retry-after"]) == (503, "1"), answered.text
        assert await stage.ask("GET", f"/runs/{run['id']}/log") == b"hello"

    play(tmp_path, scene)
