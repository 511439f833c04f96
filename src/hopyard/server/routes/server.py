"""The server itself: health, status, the end."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from contextlib import suppress
from datetime import datetime, timedelta
from typing import Annotated, Any, Literal

from msgspec import Meta, Struct

from hopyard.domain.access import Scope
from hopyard.domain.ids import RunId
from hopyard.domain.run import Run, RunPhase
from hopyard.errors import Conflict, NotFound, StorageFull, is_disk_full
from hopyard.interfaces.run_store import RunFilter
from hopyard.server.audit import record_stops
from hopyard.server.endpoint import Ask, Endpoint, Nothing
from hopyard.server.fields import In
from hopyard.server.parts import Parts
from hopyard.server.rights import check_owner
from hopyard.server.routes.nodes import NodeOut, nodes_of
from hopyard.server.server_tokens import server_proof
from hopyard.server.servers import Servers
from hopyard.server.signing import RUN_TOKEN_LIFE

_LIVE = frozenset(phase for phase in RunPhase if not phase.final)
_STOP_GRACE = timedelta(seconds=5)
_STOP_WAIT_S = 30.0
_PAGE = 1000  # runs that are asked to end together
_NAMED = 5  # in a refusal


class HealthOut(Struct, frozen=True):
    status: Literal["ok"]
    version: str
    pid: int
    started_at: datetime
    url: str


class ProveIn(In):
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


class ShutdownIn(In):
    """runs: what becomes of runs that are not over. `keep` lets them go on (the next server takes them back),
    `stop` ends them."""

    runs: Literal["refuse", "keep", "stop"] = "refuse"


def server_endpoints(parts: Parts) -> Sequence[Endpoint[Any, Any]]:
    async def health(_ask: Ask[Nothing, Nothing]) -> HealthOut:
        """Tell that the server answers."""
        return HealthOut("ok", parts.version, parts.pid, parts.started_at, parts.url)

    async def ready(_ask: Ask[Nothing, Nothing]) -> ReadyOut:
        """Tell that the server can serve: 503 with the reason while its database does not answer."""
        await parts.cluster.live_attempts()
        return ReadyOut("ready")

    async def prove(ask: Ask[ProveIn, Nothing]) -> ProofOut:
        """Prove to a process of the owner that this is the server of its home, and to another server that it
        is one of the same database, before they send a token."""
        return ProofOut(parts.prove(ask.query.nonce), server_proof(parts.server_key, ask.query.nonce))

    async def status(ask: Ask[Nothing, Nothing]) -> StatusOut:
        """Tell what the server has and does."""
        count, size = await parts.blobs.usage()
        return StatusOut(
            version=parts.version,
            user=ask.caller.user,
            url=parts.url,
            home=parts.home,
            pid=parts.pid,
            uptime_s=(parts.now() - parts.started_at).total_seconds(),
            nodes=nodes_of(
                await parts.cluster.snapshot(now=parts.now()),
                await Servers.get(parts.cluster, now=parts.now()),
            ),
            runs={phase.value: count for phase, count in sorted((await parts.runs.count()).items())},
            engine=parts.engine,
            blobs=BlobsOut(count, size),
            warnings=list(parts.warnings),
        )

    async def sweep(ask: Ask[Nothing, Nothing]) -> SweptOut:
        """Remove blobs that nothing refers to and that are older than an hour.
        Only the server's owner may."""
        check_owner(ask.caller, parts.queues.owner, "sweeps its blobs")
        return SweptOut(await parts.sweeper.sweep())

    async def rotate_key(ask: Ask[Nothing, Nothing]) -> RotatedOut:
        """Sign the tokens of runs with a new key. Live runs go on: theirs count until they expire, and are
        renewed before. Only the server's owner may."""
        check_owner(ask.caller, parts.queues.owner, "rotates its key")
        try:
            await asyncio.to_thread(parts.tokens.rotate_key)
        except OSError as failed:
            if not is_disk_full(failed):
                raise
            raise StorageFull(
                "no space left for a new key; the earlier one still signs",
                hints=("free some space on the disk of the home",),
            ) from failed
        return RotatedOut(parts.now() + RUN_TOKEN_LIFE)

    async def shutdown(ask: Ask[Nothing, ShutdownIn]) -> Nothing:
        """End the server. 409 while runs are live and `runs` is `refuse`. Only the server's owner may."""
        check_owner(ask.caller, parts.queues.owner, "ends it")
        if ask.body.runs == "refuse":
            await _refuse_while_live(parts)
        elif ask.body.runs == "stop":
            await _stop_all(parts, ask)
        parts.end_server()
        return Nothing()

    return [
        Endpoint("GET", "/health", health, returns=HealthOut, who="anyone"),
        Endpoint("GET", "/ready", ready, returns=ReadyOut, who="anyone", errors=(503,)),
        Endpoint("GET", "/proof", prove, query=ProveIn, returns=ProofOut, who="anyone"),
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


async def _live(parts: Parts, *, limit: int = _PAGE) -> Sequence[Run]:
    return await parts.runs.list(RunFilter(phases=_LIVE, offline=False, limit=limit, brief=True))


async def _refuse_while_live(parts: Parts) -> None:
    live = sum(count for phase, count in (await parts.runs.count()).items() if not phase.final)
    if live:
        names = ", ".join(str(run.name) for run in await _live(parts, limit=_NAMED))
        raise Conflict(
            f"{live} runs are not over ({names})",
            hints=("`keep` lets them go on without the server, `stop` ends them",),
        )


async def _stop_all(parts: Parts, ask: Ask[Nothing, ShutdownIn]) -> None:
    """Returns when no run is live, after half a minute at most: what does not end by then is left to the next
    server.

    A page at a time: those that wait are over at once, so what comes next is what still runs, or waits beyond
    the page.
    """
    asked: set[RunId] = set()
    try:
        async with asyncio.timeout(_STOP_WAIT_S):
            while live := await _live(parts):
                fresh = [run for run in live if run.id not in asked]
                asked.update(run.id for run in fresh)
                await asyncio.gather(*(_stop(parts, run.id) for run in fresh))
                await record_stops(
                    parts.audit, ask.request, ask.caller, fresh, cause="server.shutdown", now=parts.now()
                )
                if not fresh and not await _over(parts, live[-1].id):
                    return
    except TimeoutError:
        return


async def _stop(parts: Parts, run: RunId) -> None:
    with suppress(NotFound):  # deleted meanwhile
        await parts.controller.stop(run, grace=_STOP_GRACE)


async def _over(parts: Parts, run: RunId) -> bool:
    """Wait until a run is final or deleted; False when the server ends meanwhile."""
    with parts.hub.watch(run) as watch, suppress(NotFound):
        while not (await parts.runs.get(run)).phase.final:
            if watch.closed:
                return False
            await watch.wait(_STOP_WAIT_S)
    return True
