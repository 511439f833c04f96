"""The services of the routes: stores, loops and clock, built by the composition root."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path

from hopyard.config.git_settings import GitSettings
from hopyard.controller.blob_gc import BlobCollector
from hopyard.controller.controller import Controller
from hopyard.controller.node_failures import NodeFailures
from hopyard.domain.ids import AttemptId, RunId
from hopyard.domain.notification import NotifyTarget
from hopyard.domain.run import Run
from hopyard.errors import ConsoleUnreachable, PortUnreachable
from hopyard.interfaces.access_store import AccessStore
from hopyard.interfaces.audit_store import AuditStore
from hopyard.interfaces.blobs import Blobs
from hopyard.interfaces.cluster_store import ClusterStore
from hopyard.interfaces.command_store import CommandStore
from hopyard.interfaces.dataset_store import DatasetStore
from hopyard.interfaces.engine import PortStream
from hopyard.interfaces.notification_store import NotificationStore
from hopyard.interfaces.report_store import ReportStore
from hopyard.interfaces.reservation_store import ReservationStore
from hopyard.interfaces.run_store import RunStore
from hopyard.interfaces.saved_view_store import SavedViewStore
from hopyard.interfaces.session_store import SessionStore
from hopyard.interfaces.streams import Streams
from hopyard.interfaces.usage_store import UsageStore
from hopyard.server.authentication import TokenAuthenticator
from hopyard.server.blob_access import BlobAccess
from hopyard.server.manifest_check import ManifestCheck
from hopyard.server.node_cache import NodeCache
from hopyard.server.pending_commands import PendingCommands
from hopyard.server.queue_cache import QueueCache
from hopyard.server.remote_blobs import RemoteBlobs
from hopyard.server.run_connections import RunConnections
from hopyard.server.storage_quota import StorageQuota
from hopyard.server.token_connections import TokenConnections
from hopyard.tracking.event_hub import EventHub
from hopyard.tracking.ingest import StreamIngest
from hopyard.tracking.run_subscriptions import RunSubscriptions
from hopyard.tracking.series_cache import SeriesCache

ConnectPort = Callable[[AttemptId, int, int], Awaitable[PortStream]]
ConnectConsole = Callable[[AttemptId, int], Awaitable[PortStream]]


async def refuse_port(_attempt: AttemptId, _rank: int, _port: int) -> PortStream:
    """Connects to the ports of an engine that cannot do so. Raises PortUnreachable."""
    raise PortUnreachable(
        "the engine of this run passes no connections to ports", hints=("use the local engine",)
    )


async def refuse_console(_attempt: AttemptId, _rank: int) -> PortStream:
    """Connects to the consoles of an engine that has none. Raises ConsoleUnreachable."""
    raise ConsoleUnreachable("the engine of this run has no consoles", hints=("use the local engine",))


async def wake_nothing(_: AttemptId) -> None:
    return


@dataclass(frozen=True, slots=True, kw_only=True)
class Services:
    """Everything that the routes need.

    url, home, pid, started_at, version: part of the server's status. keep_checkpoints: how many of the newest
    checkpoints are kept per run; 0 keeps all. on_run_ended: awaited for a run that became final (writes its
    values, updates leaderboards).

    warnings: sentences for the owner. prove: the response to a nonce that only this server can give.
    server_key: the key with which other servers of the database sign requests to this one, "" if there are
    none. request_shutdown: stops the server after the response to the request. work_folders: returns the
    working folders of an attempt on this machine by rank; none for an engine that has none here. wake: makes
    the replicas of an attempt sync now, if the engine can. connect_port: as of `ConnectsPorts`.
    check_targets: raises SpecError for a target of notifications that the server cannot notify.
    connect_console: as of `ConnectsConsoles`. base_image: of containers of a run that names no image.
    git: which repositories users may name.
    connections, token_connections: to ports and consoles.
    """

    runs: RunStore
    cluster: ClusterStore
    commands: CommandStore
    notifications: NotificationStore
    pending_commands: PendingCommands
    datasets: DatasetStore
    access: AccessStore
    sessions: SessionStore
    blobs: Blobs
    streams: Streams
    series: SeriesCache
    tokens: TokenAuthenticator
    token_connections: TokenConnections
    manifests: ManifestCheck
    blob_access: BlobAccess
    remote_blobs: RemoteBlobs
    node_cache: NodeCache
    queue_cache: QueueCache
    reservations: ReservationStore
    usage: UsageStore
    saved_views: SavedViewStore
    reports: ReportStore
    audit: AuditStore
    storage: StorageQuota
    controller: Controller
    node_failures: NodeFailures
    blob_collector: BlobCollector
    ingest: StreamIngest
    subscriptions: RunSubscriptions
    events: EventHub
    now: Callable[[], datetime]
    on_run_ended: Callable[[Run], Awaitable[None]]
    request_shutdown: Callable[[], None]
    url: str
    home: str
    engine: str
    version: str
    pid: int
    started_at: datetime
    keep_checkpoints: int = 3
    warnings: Sequence[str] = ()
    prove: Callable[[str], str] = lambda _: ""
    server_key: str = ""
    wake: Callable[[AttemptId], Awaitable[None]] = wake_nothing
    work_folders: Callable[[AttemptId], Mapping[int, Path]] = lambda _: {}
    connect_port: ConnectPort = refuse_port
    connections: RunConnections = field(default_factory=lambda: RunConnections(lambda: datetime.now(UTC)))
    check_targets: Callable[[Sequence[NotifyTarget]], None] = lambda _: None
    connect_console: ConnectConsole = refuse_console
    base_image: str = ""
    git: GitSettings = field(default_factory=GitSettings)

    async def latest_metrics(self, run: RunId) -> Mapping[str, tuple[int, float]]:
        """Returns the newest points of a run, also those that are only in memory."""
        return self.ingest.latest_metrics(await self.runs.latest_metrics([run]))[run]
