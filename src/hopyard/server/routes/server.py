"""The server itself: health, status, shutdown."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from contextlib import suppress
from datetime import datetime
from typing import Annotated, Any, Literal

from msgspec import Meta, Struct

from hopyard.config.schemas.fields import RequestModel
from hopyard.domain.access import Scope
from hopyard.domain.ids import RunId
from hopyard.domain.replica import StopOrder
from hopyard.domain.run import Run, RunPhase
from hopyard.errors import Conflict, NotFound, StorageFull, is_disk_full
from hopyard.interfaces.run_store import RunFilter
from hopyard.server.audit import record_stops
from hopyard.server.authorization import check_owner
from hopyard.server.endpoint import ApiRequest, Empty, Endpoint
from hopyard.server.routes.nodes import NodeOut, all_node_outs
from hopyard.server.server_directory import ServerDirectory
from hopyard.server.server_tokens import server_proof
from hopyard.server.services import Services
from hopyard.server.signing_keys import RUN_TOKEN_LIFETIME

_LIVE_PHASES = frozenset(phase for phase in RunPhase if not phase.is_final)
_STOP_ORDER = StopOrder(5.0)
_STOP_TIMEOUT_S = 30.0
_PAGE_SIZE = 1000  # runs that are stopped together
_MAX_NAMED_RUNS = 5  # in an error message


class HealthOut(Struct, frozen=True):
    status: Literal["ok"]
    version: str
    pid: int
    started_at: datetime
    url: str


class ProveIn(RequestModel):
    """nonce: 64 hexadecimal digits, random for each request."""

    nonce: Annotated[str, Meta(pattern=r"\A[0-9a-f]{64}\Z")]


class ProofOut(Struct, frozen=True):
    """proof: a MAC of the nonce, this server's port and its home, by the home's secret. shared: a MAC of the
    nonce by the key that this server records in a shared database, "" if there is none."""

    proof: str
    shared: str


class ReadyOut(Struct, frozen=True):
    status: Literal["ready"]


class BlobsOut(Struct, frozen=True):
    count: int
    bytes: int


class StatusOut(Struct, frozen=True, kw_only=True):
    """runs: the number of runs by phase, without empty phases. user: the caller. warnings: for the owner."""

    version: str
    user: str
    url: str
    home: str
    pid: int
    uptime_s: float
    nodes: list[NodeOut]
    runs: Mapping[str, int]
    engine: str
    blobs: BlobsOut
    warnings: list[str]


class SweptOut(Struct, frozen=True):
    freed_bytes: int


class RotatedOut(Struct, frozen=True):
    """until: when tokens of the previous key expire."""

    until: datetime


class ShutdownIn(RequestModel):
    """runs: how to treat live runs. `keep` lets them continue (the next server takes them over), `stop` stops
    them."""

    runs: Literal["refuse", "keep", "stop"] = "refuse"


def server_endpoints(services: Services) -> Sequence[Endpoint[Any, Any]]:
    async def health(_request: ApiRequest[Empty, Empty]) -> HealthOut:
        """Return that the server is up."""
        return HealthOut("ok", services.version, services.pid, services.started_at, services.url)

    async def ready(_request: ApiRequest[Empty, Empty]) -> ReadyOut:
        """Return that the server can serve requests: 503 with the reason while its database does not
        respond."""
        await services.cluster.live_attempts()
        return ReadyOut("ready")

    async def prove(request: ApiRequest[ProveIn, Empty]) -> ProofOut:
        """Prove the identity of the server before the client sends a token. A process of the owner learns
        that this is the server of its home, and another server that this server shares its database."""
        return ProofOut(
            services.prove(request.query.nonce), server_proof(services.server_key, request.query.nonce)
        )

    async def status(request: ApiRequest[Empty, Empty]) -> StatusOut:
        """Get the state of the server."""
        count, size = await services.blobs.usage()
        return StatusOut(
            version=services.version,
            user=request.caller.user,
            url=services.url,
            home=services.home,
            pid=services.pid,
            uptime_s=(services.now() - services.started_at).total_seconds(),
            nodes=all_node_outs(
                await services.cluster.snapshot(now=services.now()),
                await ServerDirectory.load(services.cluster, now=services.now()),
            ),
            runs={
                phase.value: count for phase, count in sorted((await services.runs.count_by_phase()).items())
            },
            engine=services.engine,
            blobs=BlobsOut(count, size),
            warnings=list(services.warnings),
        )

    async def sweep(request: ApiRequest[Empty, Empty]) -> SweptOut:
        """Remove unreferenced blobs that are older than an hour. Only for the owner of the server."""
        check_owner(request.caller, services.queue_cache.owner, "sweeps its blobs")
        return SweptOut(await services.blob_collector.collect())

    async def rotate_key(request: ApiRequest[Empty, Empty]) -> RotatedOut:
        """Sign the tokens of runs with a new key. Live runs continue: their tokens are valid until they
        expire, and are renewed before. Only for the owner of the server."""
        check_owner(request.caller, services.queue_cache.owner, "rotates its key")
        try:
            await asyncio.to_thread(services.tokens.rotate_key)
        except OSError as error:
            if not is_disk_full(error):
                raise
            raise StorageFull(
                "no space left for a new key; the earlier one still signs",
                hints=("free some space on the disk of the home",),
            ) from error
        return RotatedOut(services.now() + RUN_TOKEN_LIFETIME)

    async def shutdown(request: ApiRequest[Empty, ShutdownIn]) -> Empty:
        """Stop the server. 409 while runs are live and `runs` is `refuse`. Only for the owner of the
        server."""
        check_owner(request.caller, services.queue_cache.owner, "ends it")
        if request.body.runs == "refuse":
            await _check_no_live_runs(services)
        elif request.body.runs == "stop":
            await _stop_all_runs(services, request)
        services.request_shutdown()
        return Empty()

    return [
        Endpoint("GET", "/health", health, returns=HealthOut, auth="anyone"),
        Endpoint("GET", "/ready", ready, returns=ReadyOut, auth="anyone", errors=(503,)),
        Endpoint("GET", "/proof", prove, query=ProveIn, returns=ProofOut, auth="anyone"),
        Endpoint("GET", "/status", status, audit="server.status", returns=StatusOut),
        Endpoint("POST", "/sweep", sweep, returns=SweptOut, scope=Scope.ADMIN, audit="server.sweep"),
        Endpoint(
            "POST",
            "/key/rotate",
            rotate_key,
            returns=RotatedOut,
            scope=Scope.ADMIN,
            audit="server.rotate_key",
        ),
        Endpoint(
            "POST",
            "/shutdown",
            shutdown,
            body=ShutdownIn,
            errors=(409,),
            scope=Scope.ADMIN,
            audit="server.shutdown",
        ),
    ]


async def _list_live_runs(services: Services, *, limit: int = _PAGE_SIZE) -> Sequence[Run]:
    return await services.runs.list(RunFilter(phases=_LIVE_PHASES, offline=False, limit=limit, brief=True))


async def _check_no_live_runs(services: Services) -> None:
    live = sum(count for phase, count in (await services.runs.count_by_phase()).items() if not phase.is_final)
    if live:
        names = ", ".join(str(run.name) for run in await _list_live_runs(services, limit=_MAX_NAMED_RUNS))
        raise Conflict(
            f"{live} {'run is' if live == 1 else 'runs are'} still live ({names})",
            hints=("set `keep` to let them continue without the server, or `stop` to end them",),
        )


async def _stop_all_runs(services: Services, request: ApiRequest[Empty, ShutdownIn]) -> None:
    """Stops all live runs and waits until they have ended, at most half a minute. Runs that need longer are
    left to the next server.

    Runs are stopped one page at a time. Waiting runs end at once, so that the next page has runs that are
    still live, or waiting runs beyond the previous page.
    """
    stopped: set[RunId] = set()
    try:
        async with asyncio.timeout(_STOP_TIMEOUT_S):
            while live := await _list_live_runs(services):
                new_runs = [run for run in live if run.id not in stopped]
                stopped.update(run.id for run in new_runs)
                await asyncio.gather(*(_stop_run(services, run.id) for run in new_runs))
                await record_stops(
                    services.audit,
                    request.request,
                    request.caller,
                    new_runs,
                    cause_action="server.shutdown",
                    now=services.now(),
                )
                if not new_runs and not await _wait_until_ended(services, live[-1].id):
                    return
    except TimeoutError:
        return


async def _stop_run(services: Services, run: RunId) -> None:
    with suppress(NotFound):  # deleted meanwhile
        await services.controller.stop(run, _STOP_ORDER)


async def _wait_until_ended(services: Services, run: RunId) -> bool:
    """Waits until a run is final or deleted. Returns False when the server ends meanwhile."""
    with services.subscriptions.subscribe(run) as subscription, suppress(NotFound):
        while not (await services.runs.get(run)).phase.is_final:
            if subscription.closed:
                return False
            await subscription.wait(_STOP_TIMEOUT_S)
    return True
