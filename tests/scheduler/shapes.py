"""Random clusters and queues for the laws, and short ways to write one by hand."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

from hypothesis import strategies as st

from hopyard.domain.cluster import Node, Running, Snapshot
from hopyard.domain.gang import Gang, Placement, Role
from hopyard.domain.ids import GangId, NodeId, Version
from hopyard.domain.resources import Gpu, Resources
from hopyard.scheduler.fifo import priority_fifo

T0 = datetime(2030, 1, 1, tzinfo=UTC)
GIB = 1024**3


def node(name: str, *, cpus: float = 4, memory_gib: float = 16, gpus: int = 0, model: str = "A100", ready: bool = True) -> Node:
    return Node(NodeId(name), "local", int(cpus * 1000), int(memory_gib * GIB), tuple(Gpu(i, model) for i in range(gpus)), ready=ready)


def gang(name: str, *, replicas: int = 1, cpus: float = 1, memory_gib: float = 0, gpus: int = 0, model: str | None = None, at: int = 0, priority: int = 50) -> Gang:
    asked = Resources(int(cpus * 1000), int(memory_gib * GIB), gpus, (model,) if model else ())
    return Gang(GangId(name), (Role("worker", replicas, asked),), T0 + timedelta(seconds=at), priority=priority)


def cluster(*nodes: Node, pending: tuple[Gang, ...] = (), running: tuple[Placement, ...] = ()) -> Snapshot:
    return Snapshot(Version(7), T0, {n.id: n for n in nodes}, pending, tuple(Running(p, T0) for p in running))


@st.composite
def nodes(draw: st.DrawFn) -> list[Node]:
    found = []
    for i in range(draw(st.integers(0, 5))):
        indices = draw(st.lists(st.integers(0, 7), unique=True, max_size=5))
        cards = tuple(Gpu(index, draw(st.sampled_from(["A100", "T4"]))) for index in indices)
        found.append(Node(NodeId(f"n{i}"), "local", 1000 * draw(st.integers(0, 8)), GIB * draw(st.integers(0, 8)), cards, ready=draw(st.integers(0, 4)) > 0))
    return found


requests = st.builds(
    Resources,
    cpu_milli=st.sampled_from([0, 500, 1000, 2000, 4000]),
    memory_bytes=st.sampled_from([0, GIB, 3 * GIB]),
    gpus=st.integers(0, 3),
    gpu_models=st.sampled_from([(), ("a100",), ("T4",)]),
)


@st.composite
def gangs(draw: st.DrawFn, *, max_size: int = 10) -> list[Gang]:
    found = []
    for i in range(draw(st.integers(0, max_size))):
        roles = tuple(Role(f"r{j}", draw(st.integers(1, 4)), draw(requests)) for j in range(draw(st.sampled_from([1, 1, 1, 2, 3]))))
        at = T0 + timedelta(seconds=draw(st.integers(0, 3)))
        found.append(Gang(GangId(f"g{i}"), roles, at, priority=draw(st.integers(0, 2))))
    return found


@st.composite
def snapshots(draw: st.DrawFn) -> Snapshot:
    """With running gangs that were placed by the policy itself, of which some have ended since."""
    machines = draw(nodes())
    before = priority_fifo(cluster(*machines, pending=tuple(draw(gangs(max_size=5)))))
    running = tuple(p for p in before.place if draw(st.booleans()))
    busy = tuple(Placement(Gang(GangId("old-" + p.gang.id), p.gang.roles, p.gang.submitted_at), p.assignments) for p in running)
    return cluster(*machines, pending=tuple(draw(gangs())), running=busy)
