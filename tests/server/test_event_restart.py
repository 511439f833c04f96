"""A server that is killed between two events: the client continues on the next one."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

from hopyard.api_client.client import Client
from hopyard.client.events import EventFollower
from hopyard.config.home import Home
from tests.server.test_server_process import client_of, server, start


def test_client_misses_nothing_when_the_server_is_killed(tmp_path: Path) -> None:
    home = Home(tmp_path / "home")
    process = start(home)
    try:
        _check_resume(home, process, client_of(home, process))
    finally:
        process.kill()
        process.wait()


def _check_resume(home: Home, process: subprocess.Popen[bytes], client: Client) -> None:
    next_clients: list[Client] = []
    follower = EventFollower(
        Client(client.url, home.read_token() or ""),  # a client has one connection
        {"change": ["submitted", "note"]},
        cursor=current_cursor(client),
        reconnect=lambda: next_clients.pop() if next_clients else None,
    )
    events = follower.events()
    spec = {"spec": {"project": "p", "roles": [{"command": ["true"]}]}, "id": "a" * 20}
    run = client.post("/runs", spec)
    event = next(events)
    assert (event["change"], event["subject"]) == ("submitted", run["id"])
    client.call("PATCH", f"/runs/{run['id']}", json_body={"note": "stored, perhaps not sent"})
    process.kill()
    process.wait()
    with server(home) as (_, other):
        other.call("PATCH", f"/runs/{run['id']}", json_body={"note": "of the next server"})
        next_clients.append(Client(other.url, home.read_token() or ""))
        notes = [next(events)]
        marker = other.post("/runs", {**spec, "id": "b" * 20})
        while (event := next(events))["subject"] != marker["id"]:
            assert event["change"] == "note"
            notes.append(event)
        assert 1 <= len(notes) <= 2, "both notes may be one event"
        assert {each["subject"] for each in notes} == {run["id"]}
        assert follower.cursor


def current_cursor(client: Client) -> str:
    with client.open("GET", "/events", timeout_s=60) as response:
        cursor = response.readline().decode().strip().removeprefix("id: ")
        assert json.loads(response.readline().removeprefix(b"data: "))["kind"] == "open"
    return cursor
