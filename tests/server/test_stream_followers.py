"""Followers over a real socket: disconnected and slow ones."""

from __future__ import annotations

import asyncio
import gc
import socket
import tracemalloc
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from hopyard.config.settings import ServerSettings
from hopyard.server.http_server import HttpServer
from tests.server.api_server import TOKEN, ApiServer, run_scenario


@asynccontextmanager
async def listening_port(
    api: ApiServer, settings: ServerSettings | None = None, *, send_buffer: int | None = None
) -> AsyncIterator[int]:
    """send_buffer: bytes that the kernel keeps for a client that does not read."""
    end = asyncio.Event()
    with socket.socket() as result:
        if send_buffer is not None:  # connections inherit it
            result.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, send_buffer)
        result.bind(("127.0.0.1", 0))
        result.listen()
        result.setblocking(False)
        server = HttpServer(
            api.app, api.services, end, settings=settings or ServerSettings(), withdraw=lambda: None
        )
        serving = asyncio.create_task(server.serve(sockets=[result]))
        await server.accepting_requests.wait()
        yield result.getsockname()[1]
        end.set()
        await serving


async def follow(port: int, run: str) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    reader, writer = await asyncio.open_connection("127.0.0.1", port, limit=4096)
    writer.write(
        (
            f"GET /api/v1/runs/{run}/follow HTTP/1.1\r\nHost: localhost\r\n"
            f"Authorization: Bearer {TOKEN}\r\n\r\n"
        ).encode()
    )
    await reader.readuntil(b'"kind"')
    return reader, writer


def test_disconnected_follower_is_unsubscribed(tmp_path: Path) -> None:
    async def scenario(api: ApiServer) -> None:
        run = await api.start_run()
        async with listening_port(api) as port:
            _, writer = await follow(port, run["id"])
            assert api.count_subscribers(run) == 1
            writer.close()
            await api.wait_until(lambda: api.count_subscribers(run) == 0)

    run_scenario(tmp_path, scenario)


def test_slow_follower_uses_no_memory_and_gets_all_bytes(tmp_path: Path) -> None:
    async def scenario(api: ApiServer) -> None:
        run = await api.start_run()
        async with listening_port(api) as port:
            reader, writer = await follow(port, run["id"])
            total, piece = 96 * 2**20, b"x" * 2**22
            tracemalloc.start()
            for offset in range(0, total, len(piece)):  # 96 MiB of unread output
                await api.sync(run, [("stdout", offset, piece)])
            gc.collect()  # of the client in this process
            held, _ = tracemalloc.get_traced_memory()
            tracemalloc.stop()
            assert held < 32 * 2**20
            await api.finish(run)
            count = 0
            while data := await asyncio.wait_for(reader.read(2**20), 30):
                count += data.count(b"x")
                if b'"kind":"end"' in data:
                    break
            assert count >= total
            writer.close()

    run_scenario(tmp_path, scenario)
