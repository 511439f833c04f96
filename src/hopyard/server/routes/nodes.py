"""Nodes and pools: capacity and usage; cordon, drain and removal of nodes."""

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
    """Resources of a node that runs use. gpus: indices of GPUs that are used at least partly; gpu_milli: used
    thousandths of each."""

    cpu_milli: int = 0
    memory_bytes: int = 0
    gpus: Sequence[int] = ()
    gpu_milli: Sequence[int] = ()
    extras: Mapping[str, int] = msgspec.field(default_factory=dict)


class NodeOut(Struct, frozen=True, kw_only=True):
    """A node with its total and used resources. cordoned: no new run starts on it. trouble: why its engine
    cannot start runs on it now, "" if it can; the engine retries by itself. reserved: names of reservations
    that are active on it now.

    server: machine and home of the node's server, if several servers share the database. away_since: when
    that server was last seen, while it is down. not_ready: why the node is not ready, if its server is the
    reason.
    """

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
    """A run that uses resources of a node. ranks: of its replicas there. stopping: it was asked to stop."""

    id: str
    name: str
    user: str
    queue: str
    ranks: list[int]
    preemptible: bool
    stopping: bool


class NodeDetailOut(Struct, frozen=True):
    """reservations: active and future ones of the node."""

    node: NodeOut
    runs: list[OnNodeOut]
    reservations: list[ReservationOut]


class CardsOut(Struct, frozen=True):
    """GPUs of one model in a pool, in thousandths."""

    model: str
    milli: int
    used_milli: int


class PoolOut(Struct, frozen=True, kw_only=True):
    """All nodes of a pool together. open: number of nodes that accept runs; reserved: number of nodes with an
    active reservation. not_ready: by node, why it is not ready, if another server is the reason."""

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
    """reason: stored with the node, and reported to the runs. all: includes runs that are not preemptible."""

    reason: Annotated[str, Meta(max_length=1024, pattern=LINE)] = ""
    all: bool = False


class DrainOut(Struct, frozen=True):
    """asked: names of runs that save a checkpoint and leave the node now; left: names of runs that stay until
    they end."""

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
    """lost: names of runs that were live on the node according to the database. They wait again, or have
    ended if a stop was requested."""

    lost: list[str]


_CORDON_ACTION = "takes nodes in and out of service"


def node_endpoints(services: Services) -> Sequence[Endpoint[Any, Any]]:
    async def nodes(_request: ApiRequest[Empty, Empty]) -> NodesOut:
        """List the nodes with their used resources."""
        return NodesOut(
            all_node_outs(
                await services.cluster.snapshot(now=services.now()),
                await ServerDirectory.load(services.cluster, now=services.now()),
            )
        )

    async def get(request: ApiRequest[Empty, Empty]) -> NodeDetailOut:
        """Get a node with its runs."""
        snapshot = await services.cluster.snapshot(now=services.now())
        node = _find_node(snapshot, request.path["node"])
        return NodeDetailOut(
            _node_out_of(snapshot, node, await ServerDirectory.load(services.cluster, now=services.now())),
            [
                await _to_run_on_node_out(services, running, node.id)
                for running in _running_on(snapshot, node.id)
            ],
            upcoming_reservations(snapshot, lambda reservation: node.id in reservation.nodes),
        )

    async def cordon(request: ApiRequest[Empty, CordonIn]) -> NodeOut:
        """Cordon a node: no new run starts there, live runs continue. Only for the owner of the server."""
        return await _set_cordon(services, request, on=True, reason=request.body.reason)

    async def uncordon(request: ApiRequest[Empty, Empty]) -> NodeOut:
        """Uncordon a node, so that runs start there again. Only for the owner of the server."""
        return await _set_cordon(services, request, on=False)

    async def drain(request: ApiRequest[Empty, DrainIn]) -> DrainOut:
        """Cordon a node, and preempt its runs, which save a checkpoint and resume on other nodes. Only for
        the owner of the server."""
        node = await _set_cordon(services, request, on=True, reason=request.body.reason)
        reason = f"node {node.id} is drained" + (f": {node.cordon_reason}" if node.cordon_reason else "")
        preempted, remaining = [], []
        for running in _running_on(await services.cluster.snapshot(now=services.now()), NodeId(node.id)):
            run = await services.runs.get(RunId(running.gang.id))
            if running.gang.preemptible or request.body.all:
                await services.controller.preempt(run.id, reason)
                preempted.append(str(run.name))
            else:
                remaining.append(str(run.name))
        return DrainOut(node, preempted, remaining)

    async def remove(request: ApiRequest[RemoveNodeQuery, Empty]) -> RemovedNodeOut:
        """Remove a node that its engine no longer sees. 409 while the node exists, or while a run uses it.
        With `force`, if its server is down, all live attempts of that server are declared lost. Only for the
        owner of the server."""
        check_owner(request.caller, services.queue_cache.owner, _CORDON_ACTION)
        snapshot = await services.cluster.snapshot(now=services.now())
        node = _find_node(snapshot, request.path["node"])
        servers = await ServerDirectory.load(services.cluster, now=services.now())
        is_server_down = node.engine != services.engine and not servers.is_up(node.engine)
        lost_runs: Sequence[RunId] = ()
        if is_server_down and request.query.force:
            lost_runs = await services.controller.mark_engine_lost(
                node.engine, f"the node {node.id} was declared gone for good by {request.caller.user}"
            )
        elif is_server_down and _running_on(snapshot, node.id):
            raise Conflict(
                f"a run holds resources of node {node.id}, and its server is down",
                hints=(
                    (
                        "if that server is gone for good, requeue its runs with `hop node rm --force "
                        f"{node.id}`"
                    ),
                ),
            )
        elif request.query.force and node.engine != services.engine:
            raise Conflict(
                f"the server of node {node.id} ({servers.location(node.engine)}) is up",
                hints=("stop it first: run `hop down` on its machine",),
            )
        await services.cluster.remove_node(node.id)
        return RemovedNodeOut([str((await services.runs.get(run)).name) for run in lost_runs])

    async def pools(_request: ApiRequest[Empty, Empty]) -> PoolsOut:
        """List the pools of nodes with their used resources."""
        return PoolsOut(
            pool_outs(
                all_node_outs(
                    await services.cluster.snapshot(now=services.now()),
                    await ServerDirectory.load(services.cluster, now=services.now()),
                )
            )
        )

    path = "/nodes/{node}"
    return [
        Endpoint("GET", "/nodes", nodes, returns=NodesOut),
        Endpoint("GET", path, get, returns=NodeDetailOut),
        Endpoint(
            "DELETE",
            path,
            remove,
            RemoveNodeQuery,
            returns=RemovedNodeOut,
            errors=(403, 409),
            scope=Scope.ADMIN,
        ),
        Endpoint(
            "POST", path + "/cordon", cordon, body=CordonIn, returns=NodeOut, errors=(403,), scope=Scope.ADMIN
        ),
        Endpoint("POST", path + "/uncordon", uncordon, returns=NodeOut, errors=(403,), scope=Scope.ADMIN),
        Endpoint(
            "POST", path + "/drain", drain, body=DrainIn, returns=DrainOut, errors=(403,), scope=Scope.ADMIN
        ),
        Endpoint("GET", "/pools", pools, returns=PoolsOut),
    ]


def all_node_outs(snapshot: Snapshot, servers: ServerDirectory) -> list[NodeOut]:
    """Returns all nodes, sorted by ID."""
    used, reserved = usage_by_node(snapshot.running), _reservations_by_node(snapshot)
    return [
        _to_node_out(node, used.get(node.id, UsedOut()), reserved.get(node.id, ()), servers)
        for node in sorted(snapshot.nodes.values(), key=lambda node: node.id)
    ]


def pool_outs(nodes: Sequence[NodeOut]) -> list[PoolOut]:
    """Returns the pools of the nodes, sorted by name."""
    return [
        _to_pool_out(name, [node for node in nodes if node.pool == name])
        for name in sorted({node.pool for node in nodes})
    ]


def usage_by_node(running: Sequence[Running]) -> dict[NodeId, UsedOut]:
    """Returns the resources that the running gangs use, by node."""
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
    """Returns the names of active reservations, by node."""
    names_by_node: dict[NodeId, list[str]] = {}
    for name, nodes in sorted(
        (reservation.name, reservation.nodes)
        for reservation in snapshot.reservations
        if is_active(reservation, snapshot.now)
    ):
        for node in nodes:
            names_by_node.setdefault(node, []).append(name)
    return names_by_node


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
    used_cards: Counter[str] = Counter()
    extras: Counter[str] = Counter()
    used_extras: Counter[str] = Counter()
    for node in nodes:
        models = {gpu.index: gpu.model for gpu in node.gpus}
        cards.update({model: WHOLE_GPU * count for model, count in Counter(models.values()).items()})
        for index, milli in zip(node.used.gpus, node.used.gpu_milli, strict=True):
            used_cards[models.get(index, "")] += milli
        extras.update(node.extras)
        used_extras.update(node.used.extras)
    return PoolOut(
        name=name,
        nodes=len(nodes),
        open=sum(node.ready and not node.cordoned and not node.trouble for node in nodes),
        reserved=sum(bool(node.reserved) for node in nodes),
        not_ready={node.id: node.not_ready for node in nodes if node.not_ready},
        cpu_milli=sum(node.cpu_milli for node in nodes),
        memory_bytes=sum(node.memory_bytes for node in nodes),
        gpus=[CardsOut(model, milli, used_cards[model]) for model, milli in sorted(cards.items())],
        extras=dict(sorted(extras.items())),
        used=UsedOut(
            sum(node.used.cpu_milli for node in nodes),
            sum(node.used.memory_bytes for node in nodes),
            extras=dict(used_extras),
        ),
    )


def _find_node(snapshot: Snapshot, name: str) -> Node:
    node = snapshot.nodes.get(NodeId(name))
    if node is None:
        suggestion = closest_name(name, snapshot.nodes)
        raise NotFound(
            f"there is no node `{name}`",
            hints=(f"did you mean `{suggestion}`?" if suggestion else "list the nodes with `hop node ls`",),
        )
    return node


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
