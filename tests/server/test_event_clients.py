"""Hundreds of clients of the events, half of which do not read: writes and the other clients continue."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Sequence
from contextlib import AsyncExitStack, ExitStack
from pathlib import Path

from hopyard.config.server_limits import LimitSettings
from hopyard.config.settings import ServerSettings
from tests.server.api_server import TOKEN, ApiServer, run_scenario
from tests.server.routes.test_events import TIMEOUT_S, EventReader, connected
from tests.server.test_stream_followers import listening_port

READING, STALLED = 100, 100
SMALL_BUFFER = 4096  # bytes
RUNS, NOTE_LENGTH = 60, 4000


async def connect_stalled(stack: ExitStack, port: int) -> socket.socket:
    """Returns a connection that gets events, and of which only the first byte was looked at."""
    loop = asyncio.get_running_loop()
    client = stack.enter_context(socket.socket())
    client.setblocking(False)
    client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, SMALL_BUFFER)
    await loop.sock_connect(client, ("127.0.0.1", port))
    request = f"GET /api/v1/events HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer {TOKEN}\r\n\r\n"
    await loop.sock_sendall(client, request.encode())
    assert await loop.sock_recv(client, 1) == b"H"
    return client


async def read_rest(client: socket.socket) -> bytes:
    """Returns what arrives until the server closes the connection."""
    loop, parts = asyncio.get_running_loop(), list[bytes]()
    async with asyncio.timeout(TIMEOUT_S):
        try:
            while data := await loop.sock_recv(client, 2**20):
                parts.append(data)
        except ConnectionError:  # the server aborts it
            pass
    return b"".join(parts)


async def notes_until(events: EventReader, last: str) -> list[str]:
    """Returns the notes that a client sees, up to this one."""
    notes: list[str] = []
    while not notes or notes[-1] != last:
        event = await events.next()
        if event.get("change") == "note":
            notes.append(event["run"]["note"])
    return notes


def test_clients_that_do_not_read_delay_neither_writes_nor_others(tmp_path: Path) -> None:
    settings = ServerSettings(limits=LimitSettings(body_timeout_s=5.0))  # also of a client that reads nothing

    async def scenario(api: ApiServer) -> None:
        runs = [(await api.submit(plan=0))["id"] for _ in range(RUNS)]
        async with listening_port(api, settings, send_buffer=SMALL_BUFFER) as port, AsyncExitStack() as stack:
            readers = [await stack.enter_async_context(connected(port)) for _ in range(READING)]
            plain = stack.enter_context(ExitStack())
            stalled = [await connect_stalled(plain, port) for _ in range(STALLED)]
            reading = [asyncio.create_task(notes_until(events, "last")) for events in readers]
            for number, run in enumerate(runs):
                note = f"{number} " + "x" * NOTE_LENGTH
                await api.request("PATCH", f"/runs/{run}", {"note": note})
            await api.request("PATCH", f"/runs/{runs[0]}", {"note": "last"})
            seen: Sequence[list[str]] = await asyncio.gather(*reading)
            assert {notes[-1] for notes in seen} == {"last"}
            assert all(len(notes) == len(set(notes)) for notes in seen), "a note came twice"
            await api.wait_until(lambda: len(api.services.events._clients) <= READING)
            rests = await asyncio.gather(*(read_rest(client) for client in stalled))
            assert not any(b'"note":"last"' in rest for rest in rests), "the stream is cut before"

    run_scenario(tmp_path, scenario, loops=False)
