"""Builds the services that the routes need, from stores, engine and policy. It names no concrete
implementation."""

from __future__ import annotations

import os
import socket
from collections.abc import Callable, Sequence
from datetime import datetime, timedelta

from hopyard.config.git_settings import GitSettings
from hopyard.controller.blob_gc import BlobCollector
from hopyard.controller.checkpoint_retention import delete_expired_checkpoints
from hopyard.controller.controller import Controller
from hopyard.controller.launch_builder import LaunchBuilder
from hopyard.controller.node_failures import NodeFailures
from hopyard.controller.stop_requests import PREEMPT_GRACE
from hopyard.domain.ids import AttemptId, RunId, split_attempt
from hopyard.domain.notification import NotifyTarget
from hopyard.domain.run import Run
from hopyard.domain.stream_limits import NO_LIMITS, StreamLimits
from hopyard.errors import NotFound
from hopyard.interfaces.access_store import AccessStore
from hopyard.interfaces.audit_store import AuditStore
from hopyard.interfaces.blobs import Blobs
from hopyard.interfaces.change_feed import ChangeFeed
from hopyard.interfaces.clock import Clock
from hopyard.interfaces.cluster_store import ClusterStore
from hopyard.interfaces.command_store import CommandStore
from hopyard.interfaces.dataset_store import DatasetStore
from hopyard.interfaces.engine import ConnectsConsoles, ConnectsPorts, Engine, FolderLocator, ReplicaNotifier
from hopyard.interfaces.notification_store import NotificationStore
from hopyard.interfaces.policy import SchedulingPolicy
from hopyard.interfaces.queue_store import QueueStore
from hopyard.interfaces.report_store import ReportStore
from hopyard.interfaces.reservation_store import ReservationStore
from hopyard.interfaces.run_store import RunStore
from hopyard.interfaces.saved_view_store import SavedViewStore
from hopyard.interfaces.session_store import SessionStore
from hopyard.interfaces.storage_store import StorageStore
from hopyard.interfaces.streams import Streams
from hopyard.interfaces.usage_store import UsageStore
from hopyard.scheduler.explain.lookahead import expected_starts
from hopyard.server.authentication import TokenAuthenticator
from hopyard.server.blob_access import BlobAccess
from hopyard.server.load_events import EventLoader
from hopyard.server.manifest_check import ManifestCheck
from hopyard.server.node_cache import NodeCache
from hopyard.server.pending_commands import PendingCommands
from hopyard.server.queue_cache import QueueCache
from hopyard.server.remote_blobs import RemoteBlobs
from hopyard.server.run_progress import completed_fractions
from hopyard.server.services import Services, refuse_console, refuse_port, wake_nothing
from hopyard.server.signing_keys import SigningKeys
from hopyard.server.storage_quota import StorageQuota
from hopyard.server.token_connections import TokenConnections
from hopyard.server.trial_access import RunReaders, TrialParents
from hopyard.server.visdom_runs import find_visdom_run
from hopyard.tracking.event_hub import EventHub
from hopyard.tracking.ingest import StreamIngest
from hopyard.tracking.leaderboard import pin_best_checkpoint
from hopyard.tracking.run_subscriptions import RunSubscriptions
from hopyard.tracking.series_cache import SeriesCache


async def build_services(
    *,
    runs: RunStore,
    cluster: ClusterStore,
    commands: CommandStore,
    notifications: NotificationStore,
    datasets: DatasetStore,
    queues: QueueStore,
    reservations: ReservationStore,
    usage: UsageStore,
    saved_views: SavedViewStore,
    reports: ReportStore,
    audit: AuditStore,
    changes: ChangeFeed,
    storage: StorageStore,
    access: AccessStore,
    sessions: SessionStore,
    blobs: Blobs,
    streams: Streams,
    engine: Engine,
    policy: SchedulingPolicy,
    clock: Clock,
    url: str,
    home: str,
    owner: str,
    version: str,
    request_shutdown: Callable[[], None],
    started_at: datetime | None = None,
    keep_checkpoints: int = 3,
    storage_quota_bytes: int = 0,
    stream_limits: StreamLimits = NO_LIMITS,
    preempt_grace: timedelta = PREEMPT_GRACE,
    holder: str = "server",
    warnings: Sequence[str] = (),
    prove: Callable[[str], str] = lambda _: "",
    keys: SigningKeys | None = None,
    server_key: str = "",
    check_targets: Callable[[Sequence[NotifyTarget]], None] = lambda _: None,
    base_image: str = "",
    git: GitSettings | None = None,
) -> Services:
    """Returns the services.

    owner: the user who may change everything. holder: the name of this server among the servers of the
    database. No loop runs yet: start `services.controller.run()` and `services.blob_collector.run(clock)`.
    """

    async def on_run_ended(run: Run) -> None:
        await ingest.retire(run.id)
        if run.spec.datasets and run.summary:
            await pin_best_checkpoint(runs, datasets, run)
        await delete_expired_checkpoints(runs, datasets, run, retained_count=keep_checkpoints)

    async def is_live(attempt: AttemptId) -> bool:
        if attempt in await cluster.live_attempts():
            return True
        try:  # a lost attempt may still ship its output, as long as its run continues with another attempt
            return not (await runs.get(split_attempt(attempt)[0])).phase.is_final
        except NotFound:
            return False

    async def has_visdom(user: str) -> bool:
        return await find_visdom_run(runs, user) is not None

    async def live_sessions(user: str) -> set[str]:
        return {session.id for session in await sessions.list_sessions(user, now=clock.now())}

    def on_run_changed(run: RunId) -> None:
        tokens.invalidate_run(run)
        subscriptions.notify_state(run)

    trial_parents = TrialParents(runs)
    subscriptions = RunSubscriptions()
    ingest = StreamIngest(
        runs,
        streams,
        subscriptions,
        limits=stream_limits,
        commands=commands,
        notifications=notifications,
    )
    tokens = TokenAuthenticator(
        access,
        keys or SigningKeys(now=clock.now),
        now=clock.now,
        is_live_attempt=is_live,
        belongs_to_study=trial_parents.belongs_to_study,
        is_evaluated_by=trial_parents.is_evaluated_by,
        reads=RunReaders(runs).reads,
        server_key=server_key,
    )
    remote_blobs = RemoteBlobs(
        cluster, blobs, engine=engine.name, machine=socket.gethostname(), now=clock.now
    )
    manifests = ManifestCheck(blobs, storage, remote_blobs, now=clock.now)
    blob_collector = BlobCollector(access, blobs, utc_now=clock.now)
    storage_quota = StorageQuota(storage, storage_quota_bytes, server=engine.name, now=clock.now)
    await storage_quota.load_uploads()
    blob_collector.on_blobs_removed, blob_collector.on_swept = manifests.clear, storage_quota.remove_swept
    controller = Controller(
        cluster=cluster,
        runs=runs,
        engine=engine,
        policy=policy,
        clock=clock,
        launch_builder=LaunchBuilder(
            runs,
            server_url=url,
            sign_token=tokens.sign_token,
            gang_secret=tokens.gang_secret,
            preflight_secret=tokens.preflight_secret,
            user_secrets=access.secret_values,
            commands=commands,
            has_visdom=has_visdom,
        ),
        on_changed=on_run_changed,
        on_ended=on_run_ended,
        preempt_grace=preempt_grace,
        holder=holder,
        shared_database=bool(server_key),
        forecast=lambda snapshot, plan: expected_starts(
            snapshot, plan, completed_fractions(ingest, snapshot)
        ),
    )
    return Services(
        runs=runs,
        cluster=cluster,
        commands=commands,
        notifications=notifications,
        pending_commands=PendingCommands(commands, shared_database=bool(server_key)),
        datasets=datasets,
        access=access,
        sessions=sessions,
        blobs=blobs,
        streams=streams,
        series=SeriesCache(streams),
        tokens=tokens,
        token_connections=TokenConnections(
            access.list_tokens, live_sessions=live_sessions, now=clock.now, is_live_attempt=is_live
        ),
        manifests=manifests,
        blob_access=BlobAccess(runs, blobs),
        remote_blobs=remote_blobs,
        node_cache=NodeCache(cluster, now=clock.now),
        queue_cache=QueueCache(queues, now=clock.now, owner=owner),
        reservations=reservations,
        usage=usage,
        saved_views=saved_views,
        reports=reports,
        audit=audit,
        storage=storage_quota,
        controller=controller,
        node_failures=NodeFailures(cluster, runs),
        blob_collector=blob_collector,
        ingest=ingest,
        subscriptions=subscriptions,
        events=EventHub(
            changes,
            EventLoader(runs, ingest, now=clock.now),
            followers=subscriptions if server_key else None,
        ),
        now=clock.now,
        on_run_ended=on_run_ended,
        request_shutdown=request_shutdown,
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
        check_targets=check_targets,
        base_image=base_image,
        git=git or GitSettings(),
        wake=engine.wake if isinstance(engine, ReplicaNotifier) else wake_nothing,
        work_folders=engine.work_folders if isinstance(engine, FolderLocator) else lambda _: {},
        connect_port=engine.connect_port if isinstance(engine, ConnectsPorts) else refuse_port,
        connect_console=engine.connect_console if isinstance(engine, ConnectsConsoles) else refuse_console,
    )
