"""The whole API in process: real stores in a folder, a scripted engine, requests passed directly to the
application."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, cast

import httpx
from blake3 import blake3

from hopyard.config.server_limits import LimitSettings
from hopyard.controller.clock import SystemClock
from hopyard.domain.cluster import Node
from hopyard.domain.ids import NodeId
from hopyard.domain.manifest import FileEntry, Manifest
from hopyard.domain.resources import Gpu
from hopyard.domain.stream_limits import NO_LIMITS, StreamLimits
from hopyard.scheduler.cycle.planner import Planner
from hopyard.server.api import create_api
from hopyard.server.authentication import hash_token
from hopyard.server.body_memory import BodyMemory
from hopyard.server.build_services import build_services
from hopyard.server.services import Services
from hopyard.stores.blobs.folder import FolderBlobs
from hopyard.stores.sql.access import SqlAccessStore
from hopyard.stores.sql.audit import SqlAuditStore
from hopyard.stores.sql.change_feed import SqlChangeFeed
from hopyard.stores.sql.cluster import SqlClusterStore
from hopyard.stores.sql.commands import SqlCommandStore
from hopyard.stores.sql.database import Database
from hopyard.stores.sql.datasets import SqlDatasetStore
from hopyard.stores.sql.notifications import SqlNotificationStore
from hopyard.stores.sql.queues import SqlQueueStore
from hopyard.stores.sql.reports import SqlReportStore
from hopyard.stores.sql.reservations import SqlReservationStore
from hopyard.stores.sql.runs import SqlRunStore
from hopyard.stores.sql.saved_views import SqlSavedViewStore
from hopyard.stores.sql.sessions import SqlSessionStore
from hopyard.stores.sql.storage import SqlStorageStore
from hopyard.stores.sql.usage import SqlUsageStore
from hopyard.stores.stream_files import FolderStreams
from hopyard.testing.fake_engine import FakeEngine, ReplicaScript

TOKEN = "hop_" + "t" * 43
NODE = Node(NodeId("box"), "fake", 8000, 32 * 2**30, (Gpu(0, "A100"), Gpu(1, "A100")))
FOREVER = ReplicaScript(prepare_time=timedelta(0), run_time=timedelta(days=1))
# It ignores a stop until its grace is over: before that, it ends only by a status that the test reports.
UNTIL_KILLED = replace(FOREVER, ignores_stop=True)
API = "/api/v1"


@dataclass
class ApiServer:
    app: Any
    services: Services
    engine: FakeEngine
    http: httpx.AsyncClient
    shutdown_requested: asyncio.Event

    @property
    def body_memory(self) -> BodyMemory:
        """The memory for request bodies and responses, below the applications that pass connections on."""
        endpoint = self.app._api._api._api.routes[0].endpoint
        return cast(BodyMemory, endpoint._request_guard.bodies)

    def count_subscribers(self, run: dict[str, Any]) -> int:
        return len(self.services.subscriptions._subscriptions.get(run["id"], ()))

    async def request(
        self,
        method: str,
        path: str,
        body: Any = None,
        *,
        token: str | None = TOKEN,
        status: int | None = None,
        **query: Any,
    ) -> Any:
        """Returns the JSON of a response. Its status must be `status` (without it, any below 300)."""
        response = await self.send(method, path, body, token=token, **query)
        is_expected = response.status_code == status if status is not None else response.status_code < 300
        assert is_expected, f"{method} {path}: {response.status_code} {response.text}"
        return (
            response.json()
            if response.headers.get("content-type") == "application/json"
            else response.content
        )

    async def send(
        self, method: str, path: str, body: Any = None, *, token: str | None = TOKEN, **query: Any
    ) -> httpx.Response:
        headers = {"Authorization": f"Bearer {token}"} if token else {}
        content = body if isinstance(body, bytes) or body is None else json.dumps(body).encode()
        return await self.http.request(method, API + path, content=content, headers=headers, params=query)

    async def submit(self, *, plan: int = 1, status: int | None = None, **spec: Any) -> Any:
        return await self.request(
            "POST", "/runs", {"spec": {"project": "p", "roles": [role()], **spec}}, plan=plan, status=status
        )

    async def start_run(self, **spec: Any) -> Any:
        """Submits a run and waits until the engine has its first attempt."""
        run = await self.submit(**spec)
        await self.wait_until(lambda: f"{run['id']}.1" in self.engine.launches)
        return run

    def run_token(self, run: Any) -> str:
        return self.engine.launches[f"{run['id']}.1"].replicas[0].token

    async def sync(
        self,
        run: Any,
        segments: list[tuple[str, int, bytes]],
        *,
        token: str = TOKEN,
        rank: int = 0,
        attempt: int = 1,
        **options: Any,
    ) -> Any:
        """Ships segments as a running replica does.

        Options: `phase`, `exit`, `final`, `commands`, and the expected `status` of the response.
        """
        head = {
            "status": {"rank": rank, "phase": options.get("phase", "running"), "exit": options.get("exit")},
            "segments": [
                {"stream": stream, "offset": offset, "size": len(data)} for stream, offset, data in segments
            ],
            "final": options.get("final", False),
            "commands": options.get("commands", 0),
        }
        body = json.dumps(head).encode() + b"\n" + b"".join(data for _, _, data in segments)
        return await self.request(
            "POST",
            f"/attempts/{run['id']}.{attempt}/replicas/{rank}/sync",
            body,
            token=token,
            status=options.get("status"),
        )

    async def finish(
        self, run: Any, *, code: int = 0, segments: list[tuple[str, int, bytes]] | None = None
    ) -> Any:
        exit = {"kind": "exit-code", "code": code, "reason": "finished" if not code else f"exit code {code}"}
        await self.sync(run, segments or [], phase="exited", exit=exit, final=True)
        return await self.request("GET", f"/runs/{run['id']}")

    async def put_tree(self, files: dict[str, bytes], *, token: str = TOKEN) -> str:
        """Uploads a tree with this token and returns the digest of its manifest."""
        entries = []
        for path, data in files.items():
            digest = blake3(data).hexdigest()
            await self.request("PUT", f"/blobs/{digest}", data, token=token)
            entries.append(FileEntry(path, len(data), (digest,) if data else ()))  # type: ignore[arg-type]
        encoded = Manifest.build(entries).encode()
        manifest = blake3(encoded).hexdigest()
        await self.request("PUT", f"/blobs/{manifest}", encoded, token=token)
        return manifest

    async def push_dataset(self, name: str, files: dict[str, bytes] | None = None) -> Any:
        manifest = await self.put_tree(files or {"a.txt": name.encode()})
        return (await self.request("POST", f"/datasets/{name}/versions", {"manifest": manifest}))["version"]

    async def wait_until(
        self, condition: Callable[[], Any | Awaitable[Any]], *, within_s: float = 30
    ) -> None:
        deadline = asyncio.get_running_loop().time() + within_s
        while True:
            result = condition()
            if await result if isinstance(result, Awaitable) else result:
                return
            assert asyncio.get_running_loop().time() < deadline, "the condition was not met in time"
            await asyncio.sleep(0.005)


def role(**resources: Any) -> dict[str, Any]:
    return {"command": ["python", "main.py"], "resources": resources}


@asynccontextmanager
async def api_server(
    folder: Path,
    *,
    loops: bool = True,
    keep_checkpoints: int = 3,
    limits: LimitSettings | None = None,
    quota_bytes: int = 0,
    stream_limits: StreamLimits = NO_LIMITS,
    script: ReplicaScript = FOREVER,
    web_folder: Path | None = None,
) -> AsyncIterator[ApiServer]:
    """Without `loops` no controller runs, so that a submitted run stays queued.

    `script` is that of all replicas.
    """
    database = Database.open(folder / "hopyard.db")
    blobs, streams = FolderBlobs(folder / "blobs"), FolderStreams(folder / "streams")
    clock, shutdown_requested = SystemClock(), asyncio.Event()
    engine = FakeEngine(clock, [NODE], script_of=lambda _attempt, _rank: script)
    access = SqlAccessStore(database)
    if await access.find_token(hash_token(TOKEN)) is None:
        await access.add_token("alice", hash_token(TOKEN), now=datetime.now(UTC), name="home")
    services = await build_services(
        runs=SqlRunStore(database),
        cluster=SqlClusterStore(database),
        commands=SqlCommandStore(database),
        notifications=SqlNotificationStore(database),
        datasets=SqlDatasetStore(database),
        queues=SqlQueueStore(database),
        reservations=SqlReservationStore(database),
        usage=SqlUsageStore(database),
        saved_views=SqlSavedViewStore(database),
        reports=SqlReportStore(database),
        audit=SqlAuditStore(database),
        changes=SqlChangeFeed(database),
        storage=SqlStorageStore(database),
        storage_quota_bytes=quota_bytes,
        stream_limits=stream_limits,
        access=access,
        sessions=SqlSessionStore(database),
        blobs=blobs,
        streams=streams,
        engine=engine,
        policy=Planner(),
        clock=clock,
        url="http://127.0.0.1:1",
        home=str(folder),
        owner="alice",
        version="0",
        request_shutdown=shutdown_requested.set,
        keep_checkpoints=keep_checkpoints,
    )
    app = create_api(services, limits, web_folder=web_folder)
    loop = asyncio.get_running_loop()
    running = [loop.create_task(services.events.run())]
    if loops:
        running.append(loop.create_task(services.controller.run()))
    try:
        async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://server") as http:
            api = ApiServer(app, services, engine, http, shutdown_requested)
            if loops:
                await api.wait_until(services.cluster.nodes)
            yield api
    finally:
        for task in running:
            task.cancel()
            with suppress(asyncio.CancelledError):
                await task
        await services.tokens.close()
        await services.ingest.flush_all()
        await blobs.close()
        await streams.close()
        await database.close()


def run_scenario(folder: Path, scenario: Callable[[ApiServer], Awaitable[None]], **options: Any) -> None:
    """Runs a scenario against a server of its own."""

    async def run() -> None:
        async with api_server(folder, **options) as api:
            await scenario(api)

    asyncio.run(run())
