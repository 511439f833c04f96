"""What runs hold on the nodes now: GPUs with their measured use, CPUs and memory."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from msgspec import Struct

from hopyard.config.schemas.fields import Name
from hopyard.domain.cluster import Running
from hopyard.domain.gang import Assignment
from hopyard.domain.ids import NodeId, RunId
from hopyard.domain.resources import Resources
from hopyard.server.endpoint import ApiRequest, Empty, Endpoint
from hopyard.server.pages import PageQuery, paginate
from hopyard.server.run_names import run_names
from hopyard.server.services import Services
from hopyard.tracking.ingest import StreamIngest


class AllocationsQuery(PageQuery, kw_only=True):
    node: Name | None = None


class HeldGpuOut(Struct, frozen=True, kw_only=True):
    """A GPU that a run holds, or a share of it: thousandths. The measured values are of the whole GPU, from
    the newest sample; null without a sample."""

    index: int
    milli: int
    utilisation_percent: float | None
    memory_bytes: int | None
    temperature_celsius: float | None


class AllocationOut(Struct, frozen=True, kw_only=True):
    """What one run holds on one node. ranks: of its replicas there. stopping: it was asked to stop.
    cpu_percent (of one core), used_memory_bytes: measured, all ranks on the node together; null without a
    sample."""

    run: str
    name: str
    user: str
    queue: str
    node: str
    ranks: list[int]
    cpu_milli: int
    memory_bytes: int
    extras: Mapping[str, int]
    gpus: list[HeldGpuOut]
    cpu_percent: float | None
    used_memory_bytes: int | None
    placed_at: datetime
    started_at: datetime | None
    preemptible: bool
    stopping: bool


class AllocationsOut(Struct, frozen=True):
    """By node, then by the ID of the run. next: `after` of the next page; null at the end."""

    allocations: list[AllocationOut]
    next: str | None


@dataclass(slots=True)
class _Held:
    """The replicas of one run on one node."""

    running: Running
    node: NodeId
    replicas: list[tuple[Assignment, Resources]] = field(default_factory=list)


def allocation_endpoints(services: Services) -> Sequence[Endpoint[Any, Any]]:
    async def allocations(request: ApiRequest[AllocationsQuery, Empty]) -> AllocationsOut:
        """List what runs hold on the nodes now, with the newest measured values of their GPUs."""
        snapshot = await services.cluster.snapshot(now=services.now())
        held = [
            each
            for running in snapshot.running
            for each in _by_node(running)
            if request.query.node in (None, each.node)
        ]
        page, after = paginate(held, request.query, key=lambda each: f"{each.node} {each.running.gang.id}")
        names = await run_names(services.runs, (each.running.gang.id for each in page))
        return AllocationsOut([_to_out(each, names, services.ingest) for each in page], after)

    return [Endpoint("GET", "/allocations", allocations, AllocationsQuery, returns=AllocationsOut)]


def _by_node(running: Running) -> list[_Held]:
    held: dict[NodeId, _Held] = {}
    roles = running.gang.replica_roles()
    for (_, role), assignment in zip(roles, running.placement.assignments, strict=True):
        each = held.setdefault(assignment.node, _Held(running, assignment.node))
        each.replicas.append((assignment, role.resources))
    return list(held.values())


def _to_out(held: _Held, names: Mapping[str, str], ingest: StreamIngest) -> AllocationOut:
    gang = held.running.gang
    live = ingest.find_live_run(RunId(gang.id))
    ranks = [assignment.rank for assignment, _ in held.replicas]
    samples = [] if live is None else [live.system[rank] for rank in ranks if rank in live.system]
    measured = {gpu["index"]: gpu for sample in samples for gpu in sample["gpus"]}
    milli: dict[int, int] = {}
    extras: dict[str, int] = {}
    for assignment, resources in held.replicas:
        for index in assignment.gpus:
            milli[index] = milli.get(index, 0) + assignment.gpu_milli
        for name, count in resources.extras:
            extras[name] = extras.get(name, 0) + count
    return AllocationOut(
        run=gang.id,
        name=names.get(gang.id, gang.id),
        user=gang.user,
        queue=gang.queue,
        node=held.node,
        ranks=ranks,
        cpu_milli=sum(resources.cpu_milli for _, resources in held.replicas),
        memory_bytes=sum(resources.memory_bytes for _, resources in held.replicas),
        extras=extras,
        gpus=[_to_gpu_out(index, milli[index], measured.get(index, {})) for index in sorted(milli)],
        cpu_percent=sum(sample["cpu_percent"] for sample in samples) if samples else None,
        used_memory_bytes=sum(sample["memory_bytes"] for sample in samples) if samples else None,
        placed_at=held.running.placed_at,
        started_at=held.running.started_at,
        preemptible=gang.preemptible,
        stopping=held.running.stopping,
    )


def _to_gpu_out(index: int, milli: int, sample: Mapping[str, Any]) -> HeldGpuOut:
    return HeldGpuOut(
        index=index,
        milli=milli,
        utilisation_percent=sample.get("utilisation_percent"),
        memory_bytes=sample.get("memory_bytes"),
        temperature_celsius=sample.get("temperature_celsius"),
    )
