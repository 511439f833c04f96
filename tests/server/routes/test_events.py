"""Events of what changes, over a real socket and in process."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
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

    async def is_silent(self) -> bool:
        """Returns whether no event has arrived after all that the others got."""
        with suppress(TimeoutError):
            async with asyncio.timeout(0.2):
                await self.next()
            return False
        return True

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
            async with connected(port, kind="queues") as of_queues:
                assert (await of_queues.next())["kind"] == "open"
                tree = {"default": "a", "queues": {"a": {}}}
                await api.request("PUT", "/queues", {"tree": tree, "file": "team.yaml"})
                assert (await of_queues.next())["kind"] == "queues"
            async with connected(port, kind="report") as of_reports:
                assert (await of_reports.next())["kind"] == "open"
                report = await api.request("POST", "/reports", {"title": "private"})
                event = await of_reports.next()
                assert (event["subject"], event["change"], event["detail"]) == (report["id"], "changed", "")
            first = await api.submit(plan=0)
            async with (
                connected(port, run=first["id"]) as of_run,
                connected(port, where="label = wanted", change="submitted") as of_query,
                connected(port, user="bob") as of_other,
            ):
                for events in (of_run, of_query, of_other):
                    assert (await events.next())["kind"] == "open"
                other = await api.submit(plan=0, label="unwanted")
                wanted = await api.submit(plan=0, label="wanted")
                await api.request("PATCH", f"/runs/{other['id']}", {"note": "x"})
                await api.request("PATCH", f"/runs/{first['id']}", {"note": "x"})
                assert {(await of_run.next())["subject"] for _ in range(2)} == {first["id"]}
                assert (await of_query.next())["subject"] == wanted["id"]
                assert await of_other.is_silent()
            for text, word in (("where", "label ="), ("after", "7"), ("kind", "dog")):
                response = await api.send("GET", "/events", **{text: word})
                assert response.status_code in (400, 422), text

    run_scenario(tmp_path, scenario, loops=False)


def test_client_resumes_after_its_last_event_without_gap(tmp_path: Path) -> None:
    cursors: list[str] = []
    runs: list[str] = []

    async def first_server(api: ApiServer) -> None:
        async with listening_port(api) as port, connected(port) as events:
            await events.next()
            runs.append((await api.submit(plan=0))["id"])
            await events.until(change="submitted")
            cursors.append(events.cursor)
            # while the client is away
            await api.request("PATCH", f"/runs/{runs[0]}", {"note": "missed"})
            runs.append((await api.submit(plan=0))["id"])

    async def second_server(api: ApiServer) -> None:
        async with listening_port(api) as port:
            async with connected(port, cursor=cursors[0], change=["note", "submitted"]) as events:
                assert (await events.next())["kind"] == "open"
                missed = [await events.next() for _ in range(2)]
                assert [(each["change"], each["subject"]) for each in missed] == [
                    ("note", runs[0]),
                    ("submitted", runs[1]),
                ]
                cursors.append(events.cursor)
            async with connected(port, after=cursors[1], change=["note", "submitted"]) as again:
                assert (await again.next())["kind"] == "open"
                await api.request("PATCH", f"/runs/{runs[1]}", {"note": "new"})
                assert (await again.next())["subject"] == runs[1], "no event comes twice"
            async with connected(port, cursor="5-5-1") as elsewhere:
                assert (await elsewhere.next())["kind"] == "reset"

    run_scenario(tmp_path, first_server, loops=False)
    run_scenario(tmp_path, second_server, loops=False)


def test_values_come_at_most_once_a_second(tmp_path: Path) -> None:
    async def scenario(api: ApiServer) -> None:
        run = await api.submit(plan=0)
        clock = asyncio.get_running_loop().time
        async with listening_port(api) as port, connected(port, change="values") as events:
            await events.next()
            times: list[float] = []
            writes = 0
            while len(times) < 3:
                reading = asyncio.ensure_future(events.next())
                while not reading.done():
                    writes += 1
                    await api.services.runs.record_summary(run["id"], {"acc": float(writes)})
                    await asyncio.sleep(0.01)
                times.append(clock())
                assert reading.result()["run"]["summary"]["acc"] <= writes
            # the first interval may be short, the server had begun to count before the connection
            assert times[2] - times[1] > 0.7
            assert writes > len(times)

    run_scenario(tmp_path, scenario, loops=False)


def test_events_end_with_their_token_and_with_the_server(tmp_path: Path) -> None:
    async def scenario(api: ApiServer) -> None:
        made = await api.request("POST", "/tokens", {"name": "ui", "scopes": ["read"]})
        async with listening_port(api) as port:
            async with (
                connected(port, token=made["secret"]) as of_token,
                connected(port) as of_owner,
            ):
                assert [(await each.next())["kind"] for each in (of_token, of_owner)] == ["open", "open"]
                await api.services.token_connections.abort_invalid()
                await api.submit(plan=0)
                assert (await of_token.next())["change"] == "submitted", "a read token may follow"
                await api.request("DELETE", f"/tokens/{made['token']['id']}")
                try:
                    while True:
                        await of_token.next()
                except EOFError:
                    pass
                assert (await of_owner.until(change="submitted"))[-1]["kind"] == "run"
                api.services.events.close()
                try:
                    while True:
                        await of_owner.next()
                except EOFError:
                    pass
        assert not api.services.events._clients

    run_scenario(tmp_path, scenario, loops=False)


def test_run_token_follows_no_events(tmp_path: Path) -> None:
    async def scenario(api: ApiServer) -> None:
        run = await api.start_run()
        response = await api.send("GET", "/events", token=api.run_token(run))
        assert response.status_code in (401, 403)

    run_scenario(tmp_path, scenario)
