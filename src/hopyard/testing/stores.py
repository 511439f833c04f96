"""What the cases of the store contract work with: the four stores, and short words for the values they take."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

from hopyard.domain.attempt import AttemptStatus, Exit, ExitKind, ReplicaPhase, ReplicaStatus
from hopyard.domain.cluster import Node, Observation, Plan, PlanResult, Snapshot
from hopyard.domain.gang import Assignment, Gang, Placement
from hopyard.domain.ids import AttemptId, Digest, GangId, NodeId, RunId, new_run_id
from hopyard.domain.resources import Gpu, Resources
from hopyard.domain.run import RoleSpec, Run, RunSpec
from hopyard.interfaces.access_store import AccessStore
from hopyard.interfaces.cluster_store import ClusterStore, Recorded
from hopyard.interfaces.dataset_store import DatasetStore
from hopyard.interfaces.run_store import NewRun, RunStore

START = datetime(2030, 1, 1, 12, tzinfo=UTC)
ENGINE = "local"
GIB = 2**30
Where = str | tuple[str, tuple[int, ...]]

_ids = itertools.count()


@dataclass(frozen=True, slots=True)
class Stores:
    """One database, seen through its four contracts."""

    runs: RunStore
    cluster: ClusterStore
    datasets: DatasetStore
    access: AccessStore


def at(seconds: float) -> datetime:
    """`seconds` after the beginning of a test's time."""
    return START + timedelta(seconds=seconds)


def digest(text: str) -> Digest:
    """A digest that stands for `text`."""
    return Digest(text.encode().hex().rjust(64, "0")[-64:])


def new_run(user: str = "alice", *, id: RunId | None = None, offline: bool = False, **spec: Any) -> NewRun:
    """A run to submit; `spec` are fields of RunSpec, `replicas` and `resources` those of its one role."""
    role = RoleSpec(("python", "main.py"), replicas=spec.pop("replicas", 1), resources=spec.pop("resources", Resources()))
    values: dict[str, Any] = {"project": "mnist", "roles": (role,), **spec}
    number = next(_ids)
    return NewRun(id or new_run_id(at(number), number.to_bytes(10)), user, RunSpec(**values), offline)


def node(name: str = "n1", *, cpus: int = 4, memory_gib: int = 8, gpus: int = 0, ready: bool = True, model: str = "T4") -> Node:
    cards = tuple(Gpu(index, model) for index in range(gpus))
    return Node(NodeId(name), ENGINE, cpus * 1000, memory_gib * GIB, cards, ready=ready)


def place(gang: Gang, *where: Where) -> Placement:
    """Rank i goes to `where[i]`: a node, or a node with GPUs."""
    pairs = [(one, ()) if isinstance(one, str) else one for one in where]
    return Placement(gang, tuple(Assignment(rank, NodeId(name), gpus) for rank, (name, gpus) in enumerate(pairs)))


def preparing(attempt: AttemptId, rank: int = 0) -> AttemptStatus:
    return AttemptStatus(attempt, (ReplicaStatus(rank, ReplicaPhase.PREPARING, "fetching code"),))


def running(attempt: AttemptId, rank: int = 0) -> AttemptStatus:
    return AttemptStatus(attempt, (ReplicaStatus(rank, ReplicaPhase.RUNNING),))


def exited(attempt: AttemptId, rank: int = 0, *, code: int = 0, kind: ExitKind = ExitKind.EXIT_CODE) -> AttemptStatus:
    told = Exit(kind, code, f"ended: {kind} {code}")
    return AttemptStatus(attempt, (ReplicaStatus(rank, ReplicaPhase.EXITED, exit=told),))


async def submit(stores: Stores, *, now: datetime = START, **spec: Any) -> Run:
    return (await stores.runs.create([new_run(**spec)], now=now))[0]


async def see(stores: Stores, *statuses: AttemptStatus, nodes: Sequence[Node] = (), seconds: float = 0) -> Recorded:
    """The engine tells everything it sees."""
    return await stores.cluster.record(ENGINE, Observation(tuple(nodes), statuses), now=at(seconds))


async def apply(stores: Stores, *placements: Placement, seconds: float = 0, **plan: Any) -> PlanResult:
    snapshot = await stores.cluster.snapshot(now=at(seconds))
    return await stores.cluster.apply(Plan(snapshot.version, placements, **plan), now=at(seconds))


def gang_of(snapshot: Snapshot, run: RunId) -> Gang:
    """The gang of a run that waits."""
    return next(gang for gang in snapshot.pending if gang.id == GangId(run))


async def start(stores: Stores, run: RunId, *where: Where, seconds: float = 0) -> AttemptId:
    """Place a waiting run (by default its one replica on n1) and tell the id of its new attempt."""
    gang = gang_of(await stores.cluster.snapshot(now=at(seconds)), run)
    result = await apply(stores, place(gang, *(where or ("n1",))), seconds=seconds)
    assert result.applied == (GangId(run),), result.rejected
    attempt = (await stores.runs.get(run)).attempt
    assert attempt is not None
    return attempt.id


async def started(stores: Stores, *, nodes: Sequence[Node] | None = None, **spec: Any) -> tuple[RunId, AttemptId]:
    """A fresh run whose first attempt was placed on the (then only) node n1."""
    await see(stores, nodes=[node()] if nodes is None else nodes)
    run = await submit(stores, **spec)
    return run.id, await start(stores, run.id, *["n1"] * run.spec.size)
