"""A server without free file descriptors."""

from __future__ import annotations

import asyncio
import os
import resource
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

import pytest
from sqlalchemy import text

from hopyard.api_client.home_socket import HOST, home_client, loopback_port
from hopyard.config.home import Home
from hopyard.config.server_limits import LimitSettings
from hopyard.errors import ServerUnavailable
from hopyard.server.connections import Connections, backlog_for
from hopyard.server.unix_socket import OwnerOnlyProtocol
from hopyard.stores.sql.database import READER_COUNT, Database
from tests.server.api_server import ApiServer, run_scenario


class GreetingProtocol(asyncio.Protocol):
    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.WriteTransport)
        transport.write(b"hello")


@contextmanager
def no_free_descriptors() -> Iterator[None]:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    with ExitStack() as opened:
        opened.callback(resource.setrlimit, resource.RLIMIT_NOFILE, (soft, hard))
        resource.setrlimit(resource.RLIMIT_NOFILE, (min(256, soft), hard))
        try:
            while True:
                opened.callback(os.close, os.dup(0))
        except OSError:
            yield


def test_accepted_connection_is_served_without_free_descriptors() -> None:
    async def scenario() -> bytes:
        ours, theirs = socket.socketpair()
        ours.setblocking(False)
        loop = asyncio.get_running_loop()
        with no_free_descriptors():
            transport, _ = await loop.connect_accepted_socket(
                lambda: OwnerOnlyProtocol(GreetingProtocol), theirs
            )
            try:
                return await asyncio.wait_for(loop.sock_recv(ours, 5), 10)
            finally:
                transport.close()
                ours.close()

    assert asyncio.run(scenario()) == b"hello"


SERVER = (
    "import resource, sys; resource.setrlimit(resource.RLIMIT_NOFILE, (512, 512)); from hopyard.app "
    "import main; sys.exit(main())"
)


def test_flood_of_connections_leaves_free_descriptors(tmp_path: Path) -> None:
    home = Home(tmp_path / "home")
    home.create()
    with open(tmp_path / "log", "wb") as log:
        server = subprocess.Popen([sys.executable, "-c", SERVER, "--home", str(home.root)], stderr=log)
    with ExitStack() as flood:
        flood.callback(server.wait)
        flood.callback(server.terminate)
        wait_within(60, lambda: home.socket_file.exists() and "url" in (home.read_server() or {}))
        url = (home.read_server() or {})["url"]
        client = home_client(home, home.read_token() or "", url=url)
        assert client.wait_ready(timeout_s=30)
        for number in range(300):
            with suppress(OSError):
                sock = flood.enter_context(socket.create_connection((HOST, loopback_port(url)), 0.1))
                sock.sendall(b"GET /api/v1/health HTTP/1.1\r\n")
            if number % 3 == 0:
                sock = flood.enter_context(socket.socket(socket.AF_UNIX))
                sock.settimeout(0.2)
                with suppress(OSError):
                    sock.connect(str(home.socket_file))
        assert len(list(Path(f"/proc/{server.pid}/fd").iterdir())) < 400
        for _ in range(10):
            client.close()  # one connection each
            run = client.post("/runs", {"spec": {"project": "p", "roles": [{"command": ["true"]}]}})
            assert client.get("/runs")["runs"][0]["id"] == run["id"]
        wait_within(60, lambda: client.get(f"/runs/{run['id']}")["phase"] == "succeeded")
        client.close()


def wait_within(seconds: float, met: Callable[[], bool]) -> None:
    deadline = time.monotonic() + seconds
    while not met():
        assert time.monotonic() < deadline, "the condition was not met in time"
        time.sleep(0.02)


def test_unopenable_database_gives_a_retry(tmp_path: Path) -> None:
    async def scenario() -> None:
        database = Database.open(tmp_path / "hopyard.db")
        try:
            with no_free_descriptors(), pytest.raises(ServerUnavailable) as refused:
                await database.read(lambda connection: connection.execute(text("SELECT 1")).scalar())
            assert refused.value.retry_after_s
            assert await database.read(lambda connection: connection.execute(text("SELECT 1")).scalar()) == 1
            database.open_readers()
            with no_free_descriptors():
                for _ in range(READER_COUNT):
                    assert (
                        await database.read(lambda connection: connection.execute(text("SELECT 1")).scalar())
                        == 1
                    )
        finally:
            await database.close()

    asyncio.run(scenario())


def test_connection_limits_leave_free_descriptors() -> None:
    for descriptors in (512, 1024, 4096, 20_000):
        kinds = [
            Connections(LimitSettings(), descriptors=descriptors, local=local).max_connections
            for local in (False, True)
        ]
        assert sum(kinds) + 64 + 2 * (64 + backlog_for(descriptors)) < descriptors - 50, descriptors


def test_request_without_a_free_descriptor_gives_a_retry(tmp_path: Path) -> None:
    async def scenario(api: ApiServer) -> None:
        run = await api.start_run()
        await api.sync(run, [("stdout", 0, b"hello")])
        with no_free_descriptors():
            response = await api.send("GET", f"/runs/{run['id']}/log")
        assert (response.status_code, response.headers["retry-after"]) == (503, "1"), response.text
        assert await api.request("GET", f"/runs/{run['id']}/log") == b"hello"

    run_scenario(tmp_path, scenario)
