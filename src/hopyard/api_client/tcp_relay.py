"""Copies bytes between two connections, for ports of runs: in the server, and in `hop port`."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from typing import Protocol

STREAM_BYTES = 64 * 1024  # read ahead of a connection
_CLOSING_S = 60.0


class ByteReader(Protocol):
    """What a relay uses of a `StreamReader`."""

    async def read(self, n: int, /) -> bytes: ...


class ByteWriter(Protocol):
    """What a relay uses of a `StreamWriter`."""

    @property
    def transport(self) -> asyncio.WriteTransport: ...

    def write(self, data: bytes, /) -> None: ...

    async def drain(self) -> None: ...

    def can_write_eof(self) -> bool: ...

    def write_eof(self) -> None: ...

    def close(self) -> None: ...


Stream = tuple[ByteReader, ByteWriter]


async def relay(client: Stream, port: Stream, *, idle_s: float) -> None:
    """Copies bytes in both directions until both have ended, one connection breaks, or nothing arrives for
    `idle_s` seconds. Closes both connections. A client has a minute left when the script has closed its
    connection."""
    loop = asyncio.get_running_loop()
    span_s = idle_s

    async def copy(reader: ByteReader, writer: ByteWriter) -> None:
        nonlocal span_s
        try:
            while data := await reader.read(STREAM_BYTES):
                idle.reschedule(loop.time() + span_s)
                writer.write(data)
                await writer.drain()
            if writer.can_write_eof():
                writer.write_eof()
            if reader is port[0]:
                span_s = min(idle_s, _CLOSING_S)
                idle.reschedule(loop.time() + span_s)
        except (OSError, RuntimeError):  # one connection broke: uvloop raises RuntimeError after its end
            client[1].transport.abort()
            port[1].transport.abort()

    try:
        with suppress(TimeoutError):
            async with asyncio.timeout(idle_s) as idle, asyncio.TaskGroup() as copies:
                copies.create_task(copy(client[0], port[1]))
                copies.create_task(copy(port[0], client[1]))
    finally:
        client[1].close()
        port[1].close()
