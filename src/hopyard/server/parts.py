"""What the routes are given: the stores, the loops and the clock, put together by the composition root."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from datetime import datetime

from hopyard.controller.controller import Controller
from hopyard.controller.sweep import Sweeper
from hopyard.domain.run import Run
from hopyard.interfaces.access_store import AccessStore
from hopyard.interfaces.audit_store import AuditStore
from hopyard.interfaces.blobs import Blobs
from hopyard.interfaces.cluster_store import ClusterStore
from hopyard.interfaces.dataset_store import DatasetStore
from hopyard.interfaces.reservation_store import ReservationStore
from hopyard.interfaces.run_store import RunStore
from hopyard.interfaces.streams import Streams
from hopyard.interfaces.usage_store import UsageStore
from hopyard.server.auth import Tokens
from hopyard.server.nodes import Nodes
from hopyard.server.queues import Queues
from hopyard.server.reach import Reach
from hopyard.server.remote_blobs import RemoteBlobs
from hopyard.server.storage import StorageQuota
from hopyard.server.trees import Trees
from hopyard.tracking.hub import Hub
from hopyard.tracking.ingest import Ingest


@dataclass(frozen=True, slots=True, kw_only=True)
class Parts:
    """url, home, pid, started_at, version: what `status` tells.
    keep_checkpoints: newest ones kept per run, 0 keeps all.

    run_ended: what follows when a run became final (its values written, its leaderboards looked at).
    warnings: what the owner must know, sentence by sentence. prove: the answer to a nonce that only this
    server can give. server_key: what other servers of the database sign requests to this one with, "" where
    there are none. end_server: asks the server to end; the answer of the request still goes out.
    """

    runs: RunStore
    cluster: ClusterStore
    datasets: DatasetStore
    access: AccessStore
    blobs: Blobs
    streams: Streams
    tokens: Tokens
    trees: Trees
    reach: Reach
    remote: RemoteBlobs
    nodes: Nodes
    queues: Queues
    reservations: ReservationStore
    usage: UsageStore
    audit: AuditStore
    storage: StorageQuota
    controller: Controller
    sweeper: Sweeper
    ingest: Ingest
    hub: Hub
    now: Callable[[], datetime]
    run_ended: Callable[[Run], Awaitable[None]]
    end_server: Callable[[], None]
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
