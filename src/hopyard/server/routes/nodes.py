"""Nodes and pools: what they have and what is in use; taking nodes out of service, gently."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Annotated, Any

import msgspec
from msgspec import Meta, Struct

from hopyard.config.suggest import closest
from hopyard.domain.access import Scope
from hopyard.domain.cluster import Node, Running, Snapshot
from hopyard.domain.ids import NodeId, RunId
from hopyard.domain.resources import WHOLE_GPU, Gpu
from hopyard.errors import Conflict, NotFound
from hopyard.scheduler.timeline.booked import holds
from hopyard.server.endpoint import Ask, Endpoint, Nothing
from hopyard.server.fields import LINE, In
from hopyard.server.parts import Parts
from hopyard.server.reservation_wire import ReservationOut, coming
from hopyard.server.rights import check_owner
from hopyard.server.servers import Servers


class UsedOut(Struct, frozen=True):
    """What runs hold of a node. gpus: indices of cards of which something is in use; gpu_milli: how many
    thousandths of each."""

    cpu_milli: int = 0
    memory_bytes: int = 0
    gpus: Sequence[int] = ()
    gpu_milli: Sequence[int] = ()
    extras: Mapping[str, int] = msgspec.field(default_factory=dict)


class NodeOut(Struct, frozen=True, kw_only=True):
    """A node: what it has in total, and what of it is in use. cordoned: nothing new starts on it. trouble:
    why its engine can start nothing on it for now, "" where it can; it tries again by itself. reserved: names
    of reservations that hold there now. server: where several share the database, the machine and home of the
    one whose node it is. away_since: when that one was last seen, while it is away. not_ready: in words why
    the node is not ready, where its server is the reason."""

    id: str
    engine: str
    cpu_milli: int
    memory_bytes: int
    gpus: Sequence[Gpu]
    pool: str
    ready: bool
    labels: Mapping[str, str]
    cordoned: bool
    cordon_reason: str
    trouble: str
    extras: Mapping[str, int]
    used: UsedOut
    reserved: Sequence[str]
    server: str
    away_since: datetime | None
    not_ready: str


class NodesOut(Struct, frozen=True):
    nodes: list[NodeOut]


class OnNodeOut(Struct, frozen=True):
    """A run that holds something of a node. ranks: of its replicas there. stopping: it was asked to end."""

    id: str
    name: str
    user: str
    queue: str
    ranks: list[int]
    preemptible: bool
    stopping: bool


class NodeDetailOut(Struct, frozen=True):
    """reservations: those of it that hold or come up."""

    node: NodeOut
    runs: list[OnNodeOut]
    reservations: list[ReservationOut]


class CardsOut(Struct, frozen=True):
    """GPUs of one model in a pool, in thousandths."""

    model: str
    milli: int
    used_milli: int


class PoolOut(Struct, frozen=True, kw_only=True):
    """All nodes of a pool together; open: on how many of them something may start; reserved: of how many
    something is reserved now. not_ready: by node, in words why it is not ready, where another server is the
    reason."""

    name: str
    nodes: int
    open: int
    reserved: int
    not_ready: Mapping[str, str]
    cpu_milli: int
    memory_bytes: int
    gpus: list[CardsOut]
    extras: Mapping[str, int]
    used: UsedOut


class PoolsOut(Struct, frozen=True):
    pools: list[PoolOut]


class CordonIn(In):
    reason: Annotated[str, Meta(max_length=1024, pattern=LINE)] = ""


class DrainIn(In):
    """reason: kept with the node, and told to the runs. all: also those that asked never to make room."""

    reason: Annotated[str, Meta(max_length=1024, pattern=LINE)] = ""
    all: bool = False


class DrainOut(Struct, frozen=True):
    """asked: names of runs that save a checkpoint and leave now; left: those that hold on until they end."""

    node: NodeOut
    asked: list[str]
    left: list[str]


class RemoveNodeQuery(In):
    force: Annotated[
        int,
        Meta(
            ge=0,
            le=1,
            description="1 declares lost what is live there, where the node's server is gone for good",
        ),
    ] = 0


class RemovedNodeOut(Struct, frozen=True):
    """lost: names of runs that were live there by record.
    They wait again, or have ended where that was asked for."""

    lost: list[str]


_IN_AND_OUT = "takes nodes in and out of service"


def node_endpoints(parts: Parts) -> Sequence[Endpoint[Any, Any]]:
    async def nodes(_ask: Ask[Nothing, Nothing]) -> NodesOut:
        """List the nodes with what of them is in use."""
        return NodesOut(
            nodes_of(
                await parts.cluster.snapshot(now=parts.now()),
                await Servers.get(parts.cluster, now=parts.now()),
            )
        )

    async def get(ask: Ask[Nothing, Nothing]) -> NodeDetailOut:
        """Get a node with the runs that are on it."""
        snapshot = await parts.cluster.snapshot(now=parts.now())
        node = _find(snapshot, ask.path["node"])
        return NodeDetailOut(
            _one(snapshot, node, await Servers.get(parts.cluster, now=parts.now())),
            [await _on_node(parts, running, node.id) for running in _there(snapshot, node.id)],
            coming(snapshot, lambda one: node.id in one.nodes),
        )

    async def cordon(ask: Ask[Nothing, CordonIn]) -> NodeOut:
        """Let nothing new start on a node; what runs there goes on. Only the server's owner may."""
        return await _cordon(parts, ask, on=True, reason=ask.body.reason)

    async def uncordon(ask: Ask[Nothing, Nothing]) -> NodeOut:
        """Let runs start on a node again. Only the server's owner may."""
        return await _cordon(parts, ask, on=False)

    async def drain(ask: Ask[Nothing, DrainIn]) -> DrainOut:
        """Cordon a node, and ask its runs to save a checkpoint and go on elsewhere.
        Only the server's owner may."""
        node = await _cordon(parts, ask, on=True, reason=ask.body.reason)
        why = f"node {node.id} is drained" + (f": {node.cordon_reason}" if node.cordon_reason else "")
        asked, left = [], []
        for running in _there(await parts.cluster.snapshot(now=parts.now()), NodeId(node.id)):
            run = await parts.runs.get(RunId(running.gang.id))
            if running.gang.preemptible or ask.body.all:
                await parts.controller.preempt(run.id, why)
                asked.append(str(run.name))
            else:
                left.append(str(run.name))
        return DrainOut(node, asked, left)

    async def remove(ask: Ask[RemoveNodeQuery, Nothing]) -> RemovedNodeOut:
        """Forget a node that its engine no longer sees. 409 while it is there, or holds something of a run.
        With force, where its server is away, what is live with that server is lost. Only the server's owner
        may."""
        check_owner(ask.caller, parts.queues.owner, _IN_AND_OUT)
        snapshot = await parts.cluster.snapshot(now=parts.now())
        node = _find(snapshot, ask.path["node"])
        servers = await Servers.get(parts.cluster, now=parts.now())
        gone = node.engine != parts.engine and not servers.is_up(node.engine)
        lost: Sequence[RunId] = ()
        if gone and ask.query.force:
            lost = await parts.controller.give_up_engine(
                node.engine, f"its node {node.id} was declared gone for good by {ask.caller.user}"
            )
        elif gone and _there(snapshot, node.id):
            raise Conflict(
                f"a run holds resources of node {node.id}, and its server is away",
                hints=(
                    (
                        f"if that is gone for good: `hop node rm --force {node.id}`, which puts its runs "
                        "back to the queue"
                    ),
                ),
            )
        elif ask.query.force and node.engine != parts.engine:
            raise Conflict(
                f"the server of node {node.id} ({servers.place(node.engine)}) is up",
                hints=("end it first: `hop down` there",),
            )
        await parts.cluster.remove_node(node.id)
        return RemovedNodeOut([str((await parts.runs.get(run)).name) for run in lost])

    async def pools(_ask: Ask[Nothing, Nothing]) -> PoolsOut:
        """List the pools of nodes with what of them is in use."""
        return PoolsOut(
            pools_of(
                nodes_of(
                    await parts.cluster.snapshot(now=parts.now()),
                    await Servers.get(parts.cluster, now=parts.now()),
                )
            )
        )

    at = "/nodes/{node}"
    return [
        Endpoint("GET", "/nodes", nodes, returns=NodesOut),
        Endpoint("GET", at, get, returns=NodeDetailOut),
        Endpoint(
            "DELETE",
            at,
            remove,
            RemoveNodeQuery,
            returns=RemovedNodeOut,
            errors=(403, 409),
            scope=Scope.ADMIN,
        ),
        Endpoint(
            "POST", at + "/cordon", cordon, body=CordonIn, returns=NodeOut, errors=(403,), scope=Scope.ADMIN
        ),
        Endpoint("POST", at + "/uncordon", uncordon, returns=NodeOut, errors=(403,), scope=Scope.ADMIN),
        Endpoint(
            "POST", at + "/drain", drain, body=DrainIn, returns=DrainOut, errors=(403,), scope=Scope.ADMIN
        ),
        Endpoint("GET", "/pools", pools, returns=PoolsOut),
    ]


def nodes_of(snapshot: Snapshot, servers: Servers) -> list[NodeOut]:
    """All nodes by id."""
    used, reserved = usage(snapshot.running), _reserved(snapshot)
    return [
        _node(node, used.get(node.id, UsedOut()), reserved.get(node.id, ()), servers)
        for node in sorted(snapshot.nodes.values(), key=lambda n: n.id)
    ]


def pools_of(nodes: Sequence[NodeOut]) -> list[PoolOut]:
    """The pools that nodes are in, by name."""
    return [
        _pool(name, [node for node in nodes if node.pool == name])
        for name in sorted({node.pool for node in nodes})
    ]


def usage(running: Sequence[Running]) -> dict[NodeId, UsedOut]:
    """What the running gangs hold of each node."""
    cpu: Counter[NodeId] = Counter()
    memory: Counter[NodeId] = Counter()
    gpus: dict[NodeId, Counter[int]] = {}
    extras: dict[NodeId, Counter[str]] = {}
    for gang in running:
        for (_, role), assignment in zip(gang.gang.requests(), gang.placement.assignments, strict=True):
            cpu[assignment.node] += role.resources.cpu_milli
            memory[assignment.node] += role.resources.memory_bytes
            cards = gpus.setdefault(assignment.node, Counter())
            for index in assignment.gpus:
                cards[index] += assignment.gpu_milli
            extras.setdefault(assignment.node, Counter()).update(dict(role.resources.extras))
    return {
        node: UsedOut(
            cpu[node],
            memory[node],
            sorted(cards),
            [cards[index] for index in sorted(cards)],
            dict(extras[node]),
        )
        for node, cards in gpus.items()
    }


def _reserved(snapshot: Snapshot) -> dict[NodeId, list[str]]:
    """Names of reservations that hold now, by node."""
    found: dict[NodeId, list[str]] = {}
    for name, nodes in sorted(
        (one.name, one.nodes) for one in snapshot.reservations if holds(one, snapshot.now)
    ):
        for node in nodes:
            found.setdefault(node, []).append(name)
    return found


def _node(node: Node, used: UsedOut, reserved: Sequence[str], servers: Servers) -> NodeOut:
    return NodeOut(
        id=node.id,
        engine=node.engine,
        cpu_milli=node.cpu_milli,
        memory_bytes=node.memory_bytes,
        gpus=node.gpus,
        pool=node.pool,
        ready=node.ready,
        labels=node.labels,
        cordoned=node.cordoned,
        cordon_reason=node.cordon_reason,
        trouble=node.trouble,
        extras=node.extras,
        used=used,
        reserved=reserved,
        server=servers.place(node.engine),
        away_since=servers.away_since(node.engine),
        not_ready=servers.not_ready(node),
    )


def _one(snapshot: Snapshot, node: Node, servers: Servers) -> NodeOut:
    used = usage(_there(snapshot, node.id)).get(node.id, UsedOut())
    return _node(node, used, _reserved(snapshot).get(node.id, ()), servers)


def _pool(name: str, nodes: Sequence[NodeOut]) -> PoolOut:
    cards: Counter[str] = Counter()
    busy: Counter[str] = Counter()
    extras: Counter[str] = Counter()
    taken: Counter[str] = Counter()
    for node in nodes:
        models = {gpu.index: gpu.model for gpu in node.gpus}
        cards.update({model: WHOLE_GPU * count for model, count in Counter(models.values()).items()})
        for index, milli in zip(node.used.gpus, node.used.gpu_milli, strict=True):
            busy[models.get(index, "")] += milli
        extras.update(node.extras)
        taken.update(node.used.extras)
    return PoolOut(
        name=name,
        nodes=len(nodes),
        open=sum(node.ready and not node.cordoned and not node.trouble for node in nodes),
        reserved=sum(bool(node.reserved) for node in nodes),
        not_ready={node.id: node.not_ready for node in nodes if node.not_ready},
        cpu_milli=sum(node.cpu_milli for node in nodes),
        memory_bytes=sum(node.memory_bytes for node in nodes),
        gpus=[CardsOut(model, milli, busy[model]) for model, milli in sorted(cards.items())],
        extras=dict(sorted(extras.items())),
        used=UsedOut(
            sum(node.used.cpu_milli for node in nodes),
            sum(node.used.memory_bytes for node in nodes),
            extras=dict(taken),
        ),
    )


def _find(snapshot: Snapshot, name: str) -> Node:
    found = snapshot.nodes.get(NodeId(name))
    if found is None:
        near = closest(name, snapshot.nodes)
        raise NotFound(
            f"there is no node `{name}`",
            hints=(f"did you mean `{near}`?" if near else "`hop node ls` lists them",),
        )
    return found


def _there(snapshot: Snapshot, node: NodeId) -> list[Running]:
    return [
        running
        for running in snapshot.running
        if any(assignment.node == node for assignment in running.placement.assignments)
    ]


async def _on_node(parts: Parts, running: Running, node: NodeId) -> OnNodeOut:
    run = await parts.runs.get(RunId(running.gang.id))
    gang, ranks = (
        running.gang,
        [assignment.rank for assignment in running.placement.assignments if assignment.node == node],
    )
    return OnNodeOut(run.id, str(run.name), gang.user, gang.queue, ranks, gang.preemptible, running.stopping)


async def _cordon(parts: Parts, ask: Ask[Nothing, Any], *, on: bool, reason: str = "") -> NodeOut:
    check_owner(ask.caller, parts.queues.owner, _IN_AND_OUT)
    await parts.cluster.cordon(NodeId(ask.path["node"]), on, reason=reason)
    parts.controller.wake()
    snapshot = await parts.cluster.snapshot(now=parts.now())
    return _one(
        snapshot, _find(snapshot, ask.path["node"]), await Servers.get(parts.cluster, now=parts.now())
    )
