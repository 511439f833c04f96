"""Puts stores, engine and policy together to what the routes need. Names no concrete one of them."""

from __future__ import annotations

import os
import socket
from collections.abc import Callable, Sequence
from datetime import datetime, timedelta

from hopyard.controller.controller import Controller
from hopyard.controller.endings import PREEMPT_GRACE
from hopyard.controller.launches import Composer
from hopyard.controller.retention import thin_checkpoints
from hopyard.controller.sweep import Sweeper
from hopyard.domain.ids import AttemptId, RunId, split_attempt
from hopyard.domain.run import Run
from hopyard.domain.stream_limits import UNLIMITED, StreamLimits
from hopyard.errors import NotFound
from hopyard.interfaces.access_store import AccessStore
from hopyard.interfaces.audit_store import AuditStore
from hopyard.interfaces.blobs import Blobs
from hopyard.interfaces.clock import Clock
from hopyard.interfaces.cluster_store import ClusterStore
from hopyard.interfaces.dataset_store import DatasetStore
from hopyard.interfaces.engine import Engine
from hopyard.interfaces.policy import SchedulingPolicy
from hopyard.interfaces.queue_store import QueueStore
from hopyard.interfaces.reservation_store import ReservationStore
from hopyard.interfaces.run_store import RunStore
from hopyard.interfaces.storage_store import StorageStore
from hopyard.interfaces.streams import Streams
from hopyard.interfaces.usage_store import UsageStore
from hopyard.scheduler.foreseen import expected_starts
from hopyard.server.auth import Tokens
from hopyard.server.family import Parents
from hopyard.server.nodes import Nodes
from hopyard.server.parts import Parts
from hopyard.server.progress import parts_done
from hopyard.server.queues import Queues
from hopyard.server.reach import Reach
from hopyard.server.remote_blobs import RemoteBlobs
from hopyard.server.signing import Keys
from hopyard.server.storage import StorageQuota
from hopyard.server.trees import Trees
from hopyard.tracking.board import keep_best
from hopyard.tracking.hub import Hub
from hopyard.tracking.ingest import Ingest


async def assemble(
    *,
    runs: RunStore,
    cluster: ClusterStore,
    datasets: DatasetStore,
    queues: QueueStore,
    reservations: ReservationStore,
    usage: UsageStore,
    audit: AuditStore,
    storage: StorageStore,
    access: AccessStore,
    blobs: Blobs,
    streams: Streams,
    engine: Engine,
    policy: SchedulingPolicy,
    clock: Clock,
    url: str,
    home: str,
    owner: str,
    version: str,
    end_server: Callable[[], None],
    started_at: datetime | None = None,
    keep_checkpoints: int = 3,
    storage_quota_bytes: int = 0,
    stream_limits: StreamLimits = UNLIMITED,
    preempt_grace: timedelta = PREEMPT_GRACE,
    holder: str = "server",
    warnings: Sequence[str] = (),
    prove: Callable[[str], str] = lambda _: "",
    keys: Keys | None = None,
    server_key: str = "",
) -> Parts:
    """`owner` is the user who may change everything; `holder` is this server among those on the same
    database. Nothing runs yet: `parts.controller.run()` and `parts.sweeper.run(clock)` are the loops."""

    async def run_ended(run: Run) -> None:
        await ingest.retire(run.id)
        if run.spec.datasets and run.summary:
            await keep_best(runs, datasets, run)
        await thin_checkpoints(runs, run.id, newest=keep_checkpoints)

    async def is_live(attempt: AttemptId) -> bool:
        if attempt in await cluster.live_attempts():
            return True
        try:  # one that was lost may still ship what it wrote, as long as its run goes on with another
            return not (await runs.get(split_attempt(attempt)[0])).phase.final
        except NotFound:
            return False

    def changed(run: RunId) -> None:
        tokens.look_again(run)
        hub.state_changed(run)

    hub = Hub()
    ingest = Ingest(runs, streams, hub, limits=stream_limits)
    tokens = Tokens(
        access,
        keys or Keys(now=clock.now),
        now=clock.now,
        live=is_live,
        belongs=Parents(runs).belongs,
        server_key=server_key,
    )
    remote = RemoteBlobs(cluster, blobs, engine=engine.name, machine=socket.gethostname(), now=clock.now)
    trees = Trees(blobs, storage, remote, now=clock.now)
    sweeper = Sweeper(access, blobs, now=clock.now)
    quota = StorageQuota(storage, storage_quota_bytes, server=engine.name, now=clock.now)
    await quota.load()
    sweeper.after_sweep, sweeper.swept = trees.forget, quota.swept
    controller = Controller(
        cluster=cluster,
        runs=runs,
        engine=engine,
        policy=policy,
        clock=clock,
        composer=Composer(
            runs, server_url=url, sign=tokens.sign, secret=tokens.secret, secrets=access.secret_values
        ),
        changed=changed,
        ended=run_ended,
        preempt_grace=preempt_grace,
        holder=holder,
        shared=bool(server_key),
        forecast=lambda snapshot, plan: expected_starts(snapshot, plan, parts_done(ingest, snapshot)),
    )
    return Parts(
        runs=runs,
        cluster=cluster,
        datasets=datasets,
        access=access,
        blobs=blobs,
        streams=streams,
        tokens=tokens,
        trees=trees,
        reach=Reach(runs, blobs),
        remote=remote,
        nodes=Nodes(cluster, now=clock.now),
        queues=Queues(queues, now=clock.now, owner=owner),
        reservations=reservations,
        usage=usage,
        audit=audit,
        storage=quota,
        controller=controller,
        sweeper=sweeper,
        ingest=ingest,
        hub=hub,
        now=clock.now,
        run_ended=run_ended,
        end_server=end_server,
        url=url,
        home=home,
        engine=engine.name,
        version=version,
        pid=os.getpid(),
        started_at=started_at or clock.now(),
        keep_checkpoints=keep_checkpoints,
        warnings=warnings,
        prove=prove,
        server_key=server_key,
    )
