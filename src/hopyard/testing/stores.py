"""Tools of the store contract: the stores, and short constructors of values."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

from hopyard.domain.attempt import AttemptStatus, Exit, ExitKind, ReplicaPhase, ReplicaStatus
from hopyard.domain.cluster import Node, Observation, PlanResult, Snapshot
from hopyard.domain.gang import Assignment, Gang, Placement
from hopyard.domain.ids import AttemptId, Digest, GangId, NodeId, RunId, new_run_id
from hopyard.domain.plan_record import HoldRecord, PlanRecord, PreemptionRecord
from hopyard.domain.resources import Gpu
from hopyard.domain.run import RoleSpec, Run, RunSpec
from hopyard.interfaces.access_store import AccessStore
from hopyard.interfaces.audit_store import AuditStore
from hopyard.interfaces.cluster_store import ClusterStore, RecordResult
from hopyard.interfaces.command_store import CommandStore
from hopyard.interfaces.dataset_store import DatasetStore
from hopyard.interfaces.notification_store import NotificationStore
from hopyard.interfaces.queue_store import QueueStore
from hopyard.interfaces.reservation_store import ReservationStore
from hopyard.interfaces.run_store import NewRun, RunStore
from hopyard.interfaces.saved_view_store import SavedViewStore
from hopyard.interfaces.session_store import SessionStore
from hopyard.interfaces.usage_store import UsageStore

START = datetime(2030, 1, 1, 12, tzinfo=UTC)
ENGINE = "local"
GIB = 2**30
SERVER = "server"  # the leader
LEASE = timedelta(minutes=1)
# A node; a node with GPUs; also with thousandths of each GPU.
ReplicaPlace = str | tuple[str, tuple[int, ...]] | tuple[str, tuple[int, ...], int]

_ids = itertools.count()


@dataclass(frozen=True, slots=True)
class ClusterStores:
    """The stores that scheduling needs: one state through seven interfaces."""

    runs: RunStore
    cluster: ClusterStore
    queues: QueueStore
    reservations: ReservationStore
    usage: UsageStore
    commands: CommandStore
    notifications: NotificationStore


@dataclass(frozen=True, slots=True)
class Stores(ClusterStores):
    """One database through all of its interfaces."""

    datasets: DatasetStore
    access: AccessStore
    audit: AuditStore
    sessions: SessionStore
    saved_views: SavedViewStore


def time_at(seconds: float) -> datetime:
    """Returns the time `seconds` after the start of a test's time."""
    return START + timedelta(seconds=seconds)


def make_digest(text: str) -> Digest:
    """Returns a digest that represents `text`."""
    return Digest(text.encode().hex().rjust(64, "0")[-64:])


def new_run(user: str = "alice", *, id: RunId | None = None, offline: bool = False, **spec: Any) -> NewRun:
    """Returns a run to submit. spec: fields of RunSpec, or `replicas`, `resources`, `command` … of its only
    role."""
    role_fields = {name: spec.pop(name) for name in _ROLE_FIELDS if name in spec}
    role = RoleSpec(**{"command": ("python", "main.py"), **role_fields})
    values: dict[str, Any] = {"project": "mnist", "roles": (role,), **spec}
    number = next(_ids)
    return NewRun(id or new_run_id(time_at(number), number.to_bytes(10)), user, RunSpec(**values), offline)


_ROLE_FIELDS = ("command", "replicas", "resources", "min_replicas", "where")


def make_node(
    name: str = "n1", *, cpus: int = 4, memory_gib: int = 8, gpus: int = 0, model: str = "T4", **more: Any
) -> Node:
    """Returns a node. more: fields of Node."""
    gpu_list = more.pop("cards", None) or tuple(Gpu(index, model) for index in range(gpus))
    return Node(NodeId(name), ENGINE, cpus * 1000, memory_gib * GIB, gpu_list, **more)


def make_placement(gang: Gang, *where: ReplicaPlace) -> Placement:
    """Returns a placement with rank i at `where[i]`."""
    places = [(place, ()) if isinstance(place, str) else place for place in where]
    return Placement(
        gang, tuple(Assignment(rank, NodeId(place[0]), *place[1:]) for rank, place in enumerate(places))
    )


def preparing_status(attempt: AttemptId, rank: int = 0) -> AttemptStatus:
    return AttemptStatus(attempt, (ReplicaStatus(rank, ReplicaPhase.PREPARING, "fetching code"),))


def running_status(attempt: AttemptId, rank: int = 0) -> AttemptStatus:
    return AttemptStatus(attempt, (ReplicaStatus(rank, ReplicaPhase.RUNNING),))


def exited_status(
    attempt: AttemptId, rank: int = 0, *, code: int = 0, kind: ExitKind = ExitKind.EXIT_CODE
) -> AttemptStatus:
    exit = Exit(kind, code, f"ended: {kind} {code}")
    return AttemptStatus(attempt, (ReplicaStatus(rank, ReplicaPhase.EXITED, exit=exit),))


async def submit_run(stores: ClusterStores, *, now: datetime = START, **spec: Any) -> Run:
    return (await stores.runs.create([new_run(**spec)], now=now))[0]


async def record_observation(
    stores: ClusterStores, *attempt_statuses: AttemptStatus, nodes: Sequence[Node] = (), seconds: float = 0
) -> RecordResult:
    """Records an observation of the engine."""
    return await stores.cluster.record_observation(
        ENGINE, Observation(tuple(nodes), attempt_statuses), now=time_at(seconds)
    )


async def acquire_epoch(stores: ClusterStores, *, seconds: float = 0, holder: str = SERVER) -> int:
    """Returns the epoch of the leader."""
    lease = await stores.cluster.acquire_lease(holder, now=time_at(seconds), ttl=LEASE)
    assert lease is not None
    return lease.epoch


async def apply_placements(
    stores: ClusterStores, *placements: Placement, seconds: float = 0, **plan: Any
) -> PlanResult:
    snapshot = await stores.cluster.snapshot(now=time_at(seconds))
    epoch = await acquire_epoch(stores, seconds=seconds)
    return await stores.cluster.apply(
        PlanRecord(snapshot.version, placements, **plan), now=time_at(seconds), epoch=epoch
    )


async def apply_preemption(
    stores: ClusterStores, attempt: AttemptId, *, for_gang: str = "", seconds: float = 0
) -> PlanResult:
    """Applies a plan that preempts this attempt. for_gang: a waiting run; "": for a reservation."""
    preemption = PreemptionRecord(
        attempt, GangId(attempt.rpartition(".")[0]), GangId(for_gang), "it makes room"
    )
    return await apply_placements(stores, preempt=(preemption,), seconds=seconds)


async def record_holds(stores: ClusterStores, *holds: HoldRecord, seconds: float = 0) -> Sequence[RunId]:
    """Stores holds as the leader, based on the current version."""
    now, epoch = time_at(seconds), await acquire_epoch(stores, seconds=seconds)
    version = (await stores.cluster.snapshot(now=now)).version
    return await stores.cluster.record_holds(holds, based_on=version, now=now, epoch=epoch)


def pending_gang(snapshot: Snapshot, run: RunId) -> Gang:
    """Returns the gang of a waiting run."""
    return next(gang for gang in snapshot.pending if gang.id == GangId(run))


async def start_run(stores: ClusterStores, run: RunId, *where: ReplicaPlace, seconds: float = 0) -> AttemptId:
    """Places a waiting run (by default its only replica on n1), and returns the id of its new attempt."""
    gang = pending_gang(await stores.cluster.snapshot(now=time_at(seconds)), run)
    result = await apply_placements(stores, make_placement(gang, *(where or ("n1",))), seconds=seconds)
    assert result.applied == (GangId(run),), result.rejected
    (attempt,) = result.attempts
    return attempt


async def started_run(
    stores: ClusterStores, *, nodes: Sequence[Node] | None = None, **spec: Any
) -> tuple[RunId, AttemptId]:
    """Returns a new run with its first attempt, which is placed on the node n1."""
    await record_observation(stores, nodes=[make_node()] if nodes is None else nodes)
    run = await submit_run(stores, **spec)
    return run.id, await start_run(stores, run.id, *["n1"] * run.spec.size)
