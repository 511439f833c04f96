"""The server itself: health, status, the end."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from contextlib import suppress
from datetime import datetime, timedelta
from typing import Annotated, Any, Literal

from msgspec import Meta, Struct

from hopyard.config.schemas.fields import RequestModel
from hopyard.domain.access import Scope
from hopyard.domain.ids import RunId
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
_STOP_GRACE = timedelta(seconds=5)
_STOP_TIMEOUT_S = 30.0
_PAGE_SIZE = 1000  # runs that are asked to end together
_MAX_NAMED_RUNS = 5  # in a refusal


class HealthOut(Struct, frozen=True):
    status: Literal["ok"]
    version: str
    pid: int
    started_at: datetime
    url: str


class ProveIn(RequestModel):
    """nonce: 64 hexadecimal digits, drawn anew for each question."""

    nonce: Annotated[str, Meta(pattern=r"\A[0-9a-f]{64}\Z")]


class ProofOut(Struct, frozen=True):
    """proof: a MAC of the nonce, the port that this server listens on and its home, by the home's secret.
    shared: a MAC of the nonce by the key that this server records in a database that several servers share,
    "" where there is none."""

    proof: str
    shared: str


class ReadyOut(Struct, frozen=True):
    status: Literal["ready"]


class BlobsOut(Struct, frozen=True):
    count: int
    bytes: int


class StatusOut(Struct, frozen=True, kw_only=True):
    """runs: how many are in each phase that has any. user: the one who asks.
    warnings: what the owner must know."""

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
    """until: what the earlier key signed is valid no longer from then on."""

    until: datetime


class ShutdownIn(RequestModel):
    """runs: what becomes of runs that are not over. `keep` lets them go on (the next server takes them back),
    `stop` ends them."""

    runs: Literal["refuse", "keep", "stop"] = "refuse"


def server_endpoints(services: Services) -> Sequence[Endpoint[Any, Any]]:
    async def health(_ask: ApiRequest[Empty, Empty]) -> HealthOut:
        """Tell that the server answers."""
        return HealthOut("ok", services.version, services.pid, services.started_at, services.url)

    async def ready(_ask: ApiRequest[Empty, Empty]) -> ReadyOut:
        """Tell that the server can serve: 503 with the reason while its database does not answer."""
        await services.cluster.live_attempts()
        return ReadyOut("ready")

    async def prove(ask: ApiRequest[ProveIn, Empty]) -> ProofOut:
        """Prove to a process of the owner that this is the server of its home, and to another server that it
        is one of the same database, before they send a token."""
        return ProofOut(services.prove(ask.query.nonce), server_proof(services.server_key, ask.query.nonce))

    async def status(ask: ApiRequest[Empty, Empty]) -> StatusOut:
        """Tell what the server has and does."""
        count, size = await services.blobs.usage()
        return StatusOut(
            version=services.version,
            user=ask.caller.user,
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

    async def sweep(ask: ApiRequest[Empty, Empty]) -> SweptOut:
        """Remove blobs that nothing refers to and that are older than an hour.
        Only for the owner of the server."""
        check_owner(ask.caller, services.queue_cache.owner, "sweeps its blobs")
        return SweptOut(await services.blob_collector.collect())

    async def rotate_key(ask: ApiRequest[Empty, Empty]) -> RotatedOut:
        """Sign the tokens of runs with a new key. Live runs go on: theirs count until they expire, and are
        renewed before. Only for the owner of the server."""
        check_owner(ask.caller, services.queue_cache.owner, "rotates its key")
        try:
            await asyncio.to_thread(services.tokens.rotate_key)
        except OSError as failed:
            if not is_disk_full(failed):
                raise
            raise StorageFull(
                "no space left for a new key; the earlier one still signs",
                hints=("free some space on the disk of the home",),
            ) from failed
        return RotatedOut(services.now() + RUN_TOKEN_LIFETIME)

    async def shutdown(ask: ApiRequest[Empty, ShutdownIn]) -> Empty:
        """End the server. 409 while runs are live and `runs` is `refuse`.
        Only for the owner of the server."""
        check_owner(ask.caller, services.queue_cache.owner, "ends it")
        if ask.body.runs == "refuse":
            await _check_no_live_runs(services)
        elif ask.body.runs == "stop":
            await _stop_all_runs(services, ask)
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
            f"{live} runs are still live ({names})",
            hints=("set `keep` to let them continue without the server, or `stop` to end them",),
        )


async def _stop_all_runs(services: Services, request: ApiRequest[Empty, ShutdownIn]) -> None:
    """Returns when no run is live, after half a minute at most: what does not end by then is left to the next
    server.

    A page at a time: those that wait are over at once, so what comes next is what still runs, or waits beyond
    the page.
    """
    asked: set[RunId] = set()
    try:
        async with asyncio.timeout(_STOP_TIMEOUT_S):
            while live := await _list_live_runs(services):
                fresh = [run for run in live if run.id not in asked]
                asked.update(run.id for run in fresh)
                await asyncio.gather(*(_stop_run(services, run.id) for run in fresh))
                await record_stops(
                    services.audit,
                    request.request,
                    request.caller,
                    fresh,
                    cause_action="server.shutdown",
                    now=services.now(),
                )
                if not fresh and not await _wait_until_gone(services, live[-1].id):
                    return
    except TimeoutError:
        return


async def _stop_run(services: Services, run: RunId) -> None:
    with suppress(NotFound):  # deleted meanwhile
        await services.controller.stop(run, grace=_STOP_GRACE)


async def _wait_until_gone(services: Services, run: RunId) -> bool:
    """Wait until a run is final or deleted; False when the server ends meanwhile."""
    with services.subscriptions.subscribe(run) as watch, suppress(NotFound):
        while not (await services.runs.get(run)).phase.is_final:
            if watch.closed:
                return False
            await watch.wait(_STOP_TIMEOUT_S)
    return True
