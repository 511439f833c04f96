"""Events of what changes, over a real socket and in process."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

from tests.server.api_server import TOKEN, ApiServer, run_scenario
from tests.server.test_stream_followers import listening_port

TIMEOUT_S = 60.0


class EventReader:
    """Reads the events of one connection."""

    def __init__(self, reader: asyncio.StreamReader) -> None:
        self._reader = reader
        self.cursor = ""

    async def next(self) -> dict[str, Any]:
        """Returns the next event, without heartbeats."""
        async with asyncio.timeout(TIMEOUT_S):
            while True:
                line = await self._reader.readline()
                if not line:
                    raise EOFError
                if line.startswith(b"id: "):
                    self.cursor = line[4:].decode().strip()
                if line.startswith(b"data: "):
                    event: dict[str, Any] = json.loads(line[6:])
                    return event

    async def until(self, **fields: Any) -> list[dict[str, Any]]:
        """Returns the events up to one with these fields."""
        events = [await self.next()]
        while any(events[-1].get(name) != value for name, value in fields.items()):
            events.append(await self.next())
        return events


@asynccontextmanager
async def connected(
    port: int, *, cursor: str = "", token: str = TOKEN, **query: Any
) -> AsyncIterator[EventReader]:
    """Yields a reader after the `open` event, which it checks; after `reset` for a cursor of nowhere."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    head = f"GET /api/v1/events?{urlencode(query, doseq=True)} HTTP/1.0\r\nHost: localhost\r\n"
    if cursor:
        head += f"Last-Event-ID: {cursor}\r\n"
    writer.write((head + f"Authorization: Bearer {token}\r\n\r\n").encode())
    try:
        async with asyncio.timeout(TIMEOUT_S):
            assert b" 200 " in await reader.readline()
            while (await reader.readline()).strip():
                pass
        yield EventReader(reader)
    finally:
        writer.close()


def test_changes_of_a_run_arrive_with_its_state(tmp_path: Path) -> None:
    async def scenario(api: ApiServer) -> None:
        async with listening_port(api) as port, connected(port) as events:
            assert (await events.next())["kind"] == "open"
            run = await api.start_run(label="first")
            seen = await events.until(change="phase", detail="starting")
            submitted = next(event for event in seen if event["change"] == "submitted")
            assert (submitted["kind"], submitted["subject"]) == ("run", run["id"])
            assert submitted["run"]["name"] == run["name"]
            await api.request("PATCH", f"/runs/{run['id']}", {"note": "look", "tags": {"a": "b"}})
            (note,) = [event for event in await events.until(change="tags") if event["change"] == "note"]
            assert (note["run"]["note"], note["run"]["tags"], note["run"]["label"]) == (
                "look",
                {"a": "b"},
                "first",
            )
            await api.finish(run)
            last = (await events.until(change="phase", detail="succeeded"))[-1]
            assert last["run"]["phase"] == "succeeded"
            await api.request("DELETE", f"/runs/{run['id']}")
            deleted = (await events.until(change="deleted"))[-1]
            assert (deleted["detail"], "run" in deleted) == (run["name"], False)

    run_scenario(tmp_path, scenario)


def test_filters_select_runs_and_kinds(tmp_path: Path) -> None:
    async def scenario(api: ApiServer) -> None:
        async with listening_port(api) as port:
            first = await api.submit(plan=0)
            async with (
                connected(port, run=first["id"]) as of_run,
                connected(port, kind="queues") as of_queues,
                connected(port, where="label = wanted", change="submitted") as of_query,
                connected(port, user="bob") as of_other,
            ):
                for events in (of_run, of_queues, of_query, of_other):
                    assert (await events.next())["kind"] == "open"
                other = await api.submit(plan=0, label="unwanted")
                wanted = await api.submit(plan=0, label="wanted")
                await api.request("PATCH", f"/runs/{other['id']}", {"note": "x"})
                await api.request("PATCH", f"/runs/{first['id']}", {"note": "x"})
                assert {(await of_run.next())["subject"] for _ in range(2)} == {first["id"]}
                assert (await of_query.next())["subject"] == wanted["id"]
                await api.request("PUT", "/queues", {"tree": {"queues": {"a": {}}}})
                assert (await of_queues.next())["kind"] == "queues"
                await api.services.access.add_token("bob", "h" * 64, now=api.services.now(), name="x")
            for text, word in (("where", "label ="), ("after", "7"), ("kind", "dog")):
                response = await api.send("GET", "/events", **{text: word})
                assert response.status_code == 400, text

    run_scenario(tmp_path, scenario, loops=False)
