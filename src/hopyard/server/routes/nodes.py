"""Nodes and pools: what they have and what is in use; taking nodes out of service, gently."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Annotated, Any

import msgspec
from msgspec import Meta, Struct

from hopyard.config.schemas.fields import LINE, RequestModel
from hopyard.config.suggest import closest_name
from hopyard.domain.access import Scope
from hopyard.domain.cluster import Node, Running, Snapshot
from hopyard.domain.ids import NodeId, RunId
from hopyard.domain.resources import WHOLE_GPU, Gpu
from hopyard.errors import Conflict, NotFound
from hopyard.scheduler.timeline.reservation_windows import is_active
from hopyard.server.authorization import check_owner
from hopyard.server.endpoint import ApiRequest, Empty, Endpoint
from hopyard.server.schemas.reservations import ReservationOut, upcoming_reservations
from hopyard.server.server_directory import ServerDirectory
from hopyard.server.services import Services


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


class CordonIn(RequestModel):
    reason: Annotated[str, Meta(max_length=1024, pattern=LINE)] = ""


class DrainIn(RequestModel):
    """reason: kept with the node, and told to the runs. all: also those that asked never to make room."""

    reason: Annotated[str, Meta(max_length=1024, pattern=LINE)] = ""
    all: bool = False


class DrainOut(Struct, frozen=True):
    """asked: names of runs that save a checkpoint and leave now; left: those that hold on until they end."""

    node: NodeOut
    asked: list[str]
    left: list[str]


class RemoveNodeQuery(RequestModel):
    force: Annotated[
        int,
        Meta(
            ge=0,
            le=1,
            description="1: the server of the node is gone for good; its live attempts are declared lost",
        ),
    ] = 0


class RemovedNodeOut(Struct, frozen=True):
    """lost: names of runs that were live there by record.
    They wait again, or have ended where that was asked for."""

    lost: list[str]


_CORDON_ACTION = "takes nodes in and out of service"


def node_endpoints(services: Services) -> Sequence[Endpoint[Any, Any]]:
    async def nodes(_ask: ApiRequest[Empty, Empty]) -> NodesOut:
        """List the nodes with what of them is in use."""
        return NodesOut(
            all_node_outs(
                await services.cluster.snapshot(now=services.now()),
                await ServerDirectory.load(services.cluster, now=services.now()),
            )
        )

    async def get(ask: ApiRequest[Empty, Empty]) -> NodeDetailOut:
        """Get a node with the runs that are on it."""
        snapshot = await services.cluster.snapshot(now=services.now())
        node = _find_node(snapshot, ask.path["node"])
        return NodeDetailOut(
            _node_out_of(snapshot, node, await ServerDirectory.load(services.cluster, now=services.now())),
            [
                await _to_run_on_node_out(services, running, node.id)
                for running in _running_on(snapshot, node.id)
            ],
            upcoming_reservations(snapshot, lambda one: node.id in one.nodes),
        )

    async def cordon(ask: ApiRequest[Empty, CordonIn]) -> NodeOut:
        """Cordon a node: no new run starts there, live runs continue. Only for the owner of the server."""
        return await _set_cordon(services, ask, on=True, reason=ask.body.reason)

    async def uncordon(ask: ApiRequest[Empty, Empty]) -> NodeOut:
        """Let runs start on a node again. Only for the owner of the server."""
        return await _set_cordon(services, ask, on=False)

    async def drain(ask: ApiRequest[Empty, DrainIn]) -> DrainOut:
        """Cordon a node, and ask its runs to save a checkpoint and go on elsewhere.
        Only for the owner of the server."""
        node = await _set_cordon(services, ask, on=True, reason=ask.body.reason)
        why = f"node {node.id} is drained" + (f": {node.cordon_reason}" if node.cordon_reason else "")
        asked, left = [], []
        for running in _running_on(await services.cluster.snapshot(now=services.now()), NodeId(node.id)):
            run = await services.runs.get(RunId(running.gang.id))
            if running.gang.preemptible or ask.body.all:
                await services.controller.preempt(run.id, why)
                asked.append(str(run.name))
            else:
                left.append(str(run.name))
        return DrainOut(node, asked, left)

    async def remove(ask: ApiRequest[RemoveNodeQuery, Empty]) -> RemovedNodeOut:
        """Forget a node that its engine no longer sees. 409 while it is there, or holds something of a run.
        With force, where its server is away, what is live with that server is lost. Only for the owner of the
        server."""
        check_owner(ask.caller, services.queue_cache.owner, _CORDON_ACTION)
        snapshot = await services.cluster.snapshot(now=services.now())
        node = _find_node(snapshot, ask.path["node"])
        servers = await ServerDirectory.load(services.cluster, now=services.now())
        gone = node.engine != services.engine and not servers.is_up(node.engine)
        lost: Sequence[RunId] = ()
        if gone and ask.query.force:
            lost = await services.controller.mark_engine_lost(
                node.engine, f"the node {node.id} was declared gone for good by {ask.caller.user}"
            )
        elif gone and _running_on(snapshot, node.id):
            raise Conflict(
                f"a run holds resources of node {node.id}, and its server is away",
                hints=(
                    (
                        "if that server is gone for good, requeue its runs with `hop node rm --force "
                        f"{node.id}`"
                    ),
                ),
            )
        elif ask.query.force and node.engine != services.engine:
            raise Conflict(
                f"the server of node {node.id} ({servers.location(node.engine)}) is up",
                hints=("stop it first: run `hop down` on its machine",),
            )
        await services.cluster.remove_node(node.id)
        return RemovedNodeOut([str((await services.runs.get(run)).name) for run in lost])

    async def pools(_ask: ApiRequest[Empty, Empty]) -> PoolsOut:
        """List the pools of nodes with what of them is in use."""
        return PoolsOut(
            pool_outs(
                all_node_outs(
                    await services.cluster.snapshot(now=services.now()),
                    await ServerDirectory.load(services.cluster, now=services.now()),
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


def all_node_outs(snapshot: Snapshot, servers: ServerDirectory) -> list[NodeOut]:
    """All nodes by id."""
    used, reserved = usage_by_node(snapshot.running), _reservations_by_node(snapshot)
    return [
        _to_node_out(node, used.get(node.id, UsedOut()), reserved.get(node.id, ()), servers)
        for node in sorted(snapshot.nodes.values(), key=lambda n: n.id)
    ]


def pool_outs(nodes: Sequence[NodeOut]) -> list[PoolOut]:
    """The pools that nodes are in, by name."""
    return [
        _to_pool_out(name, [node for node in nodes if node.pool == name])
        for name in sorted({node.pool for node in nodes})
    ]


def usage_by_node(running: Sequence[Running]) -> dict[NodeId, UsedOut]:
    """What the running gangs hold of each node."""
    cpu: Counter[NodeId] = Counter()
    memory: Counter[NodeId] = Counter()
    gpus: dict[NodeId, Counter[int]] = {}
    extras: dict[NodeId, Counter[str]] = {}
    for gang in running:
        for (_, role), assignment in zip(gang.gang.replica_roles(), gang.placement.assignments, strict=True):
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


def _reservations_by_node(snapshot: Snapshot) -> dict[NodeId, list[str]]:
    """Names of reservations that hold now, by node."""
    found: dict[NodeId, list[str]] = {}
    for name, nodes in sorted(
        (one.name, one.nodes) for one in snapshot.reservations if is_active(one, snapshot.now)
    ):
        for node in nodes:
            found.setdefault(node, []).append(name)
    return found


def _to_node_out(node: Node, used: UsedOut, reserved: Sequence[str], servers: ServerDirectory) -> NodeOut:
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
        server=servers.location(node.engine),
        away_since=servers.down_since(node.engine),
        not_ready=servers.not_ready_reason(node),
    )


def _node_out_of(snapshot: Snapshot, node: Node, servers: ServerDirectory) -> NodeOut:
    used = usage_by_node(_running_on(snapshot, node.id)).get(node.id, UsedOut())
    return _to_node_out(node, used, _reservations_by_node(snapshot).get(node.id, ()), servers)


def _to_pool_out(name: str, nodes: Sequence[NodeOut]) -> PoolOut:
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


def _find_node(snapshot: Snapshot, name: str) -> Node:
    found = snapshot.nodes.get(NodeId(name))
    if found is None:
        near = closest_name(name, snapshot.nodes)
        raise NotFound(
            f"there is no node `{name}`",
            hints=(f"did you mean `{near}`?" if near else "list the nodes with `hop node ls`",),
        )
    return found


def _running_on(snapshot: Snapshot, node: NodeId) -> list[Running]:
    return [
        running
        for running in snapshot.running
        if any(assignment.node == node for assignment in running.placement.assignments)
    ]


async def _to_run_on_node_out(services: Services, running: Running, node: NodeId) -> OnNodeOut:
    run = await services.runs.get(RunId(running.gang.id))
    gang, ranks = (
        running.gang,
        [assignment.rank for assignment in running.placement.assignments if assignment.node == node],
    )
    return OnNodeOut(run.id, str(run.name), gang.user, gang.queue, ranks, gang.preemptible, running.stopping)


async def _set_cordon(
    services: Services, request: ApiRequest[Empty, Any], *, on: bool, reason: str = ""
) -> NodeOut:
    check_owner(request.caller, services.queue_cache.owner, _CORDON_ACTION)
    await services.cluster.set_cordon(NodeId(request.path["node"]), on, reason=reason)
    services.controller.request_cycle()
    snapshot = await services.cluster.snapshot(now=services.now())
    return _node_out_of(
        snapshot,
        _find_node(snapshot, request.path["node"]),
        await ServerDirectory.load(services.cluster, now=services.now()),
    )
