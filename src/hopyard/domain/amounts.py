"""Sums of resources by name, as queues count them (see `domain.queue` for the names and units)."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Mapping
from datetime import datetime

from hopyard.domain.cluster import Node
from hopyard.domain.gang import Gang, Placement
from hopyard.domain.ids import NodeId
from hopyard.domain.queue import CPU, GPU, GPU_OF, MEMORY, Amounts, PastUsage
from hopyard.domain.resources import WHOLE_GPU, Resources


def requested_amounts(gang: Gang) -> dict[str, int]:
    """What all replicas ask for together, the smallest size of an elastic gang.
    A share by memory counts as a thousandth of a GPU until the card is known, and no model is counted."""
    found: dict[str, int] = {}
    for role in gang.roles:
        _add_request(found, role.resources, role.required_replicas, gpu_milli_of(role.resources))
    return {name: amount for name, amount in found.items() if amount}


def placed_amounts(placement: Placement, nodes: Mapping[NodeId, Node]) -> dict[str, int]:
    """What a placed gang uses, GPUs by model too (of a node that is not there any more: without the
    model)."""
    found: dict[str, int] = {}
    models: dict[str, int] = {}
    for role in placement.gang.roles:
        _add_request(found, role.resources, role.replicas, 0)
    for assignment in placement.assignments:
        indices, milli = assignment.gpus, assignment.gpu_milli
        if not indices:
            continue
        found[GPU] = found.get(GPU, 0) + milli * len(indices)
        node, left = nodes.get(assignment.node), len(indices)
        for gpu in () if node is None else node.gpus:
            if gpu.index in indices:
                models[gpu.model] = models.get(gpu.model, 0) + milli
                left -= 1
                if not left:
                    break
    for model, amount in models.items():
        name = GPU_OF + model.lower()
        found[name] = found.get(name, 0) + amount
    return {name: amount for name, amount in found.items() if amount}


def amounts_by_node(placement: Placement) -> dict[NodeId, dict[str, int]]:
    """Of each of its nodes what a placed gang uses of CPU, memory and GPUs."""
    found: dict[NodeId, dict[str, int]] = {}
    for assignment, (_, role) in zip(placement.assignments, placement.gang.replica_roles(), strict=True):
        here, request = found.setdefault(assignment.node, {CPU: 0, MEMORY: 0, GPU: 0}), role.resources
        here[CPU] += request.cpu_milli
        here[MEMORY] += request.memory_bytes
        here[GPU] += assignment.gpu_milli * len(assignment.gpus)
    return found


def total_amounts(nodes: Iterable[Node]) -> dict[str, int]:
    """Returns the total amounts of these nodes."""
    found: Counter[str] = Counter()
    for node in nodes:
        found[CPU] += node.cpu_milli
        found[MEMORY] += node.memory_bytes
        found[GPU] += WHOLE_GPU * len(node.gpus)
        for gpu in node.gpus:
            found[GPU_OF + gpu.model.lower()] += WHOLE_GPU
        found.update(node.extras)
    return {name: amount for name, amount in found.items() if amount}


def dominant_share(used: Amounts, capacity: Amounts) -> float:
    """The largest part, 0 to 1, that `used` is of any one resource of `capacity` (Ghodsi et al., Dominant
    Resource Fairness, NSDI'11). Models of GPUs count as GPUs only."""
    return max(
        (
            amount / capacity[name]
            for name, amount in used.items()
            if capacity.get(name) and not name.startswith(GPU_OF)
        ),
        default=0.0,
    )


def decayed_share_seconds(used: PastUsage, now: datetime, half_life_s: float) -> float:
    """What past use weighs now, in share-seconds. Time that runs backwards decays nothing."""
    age_s = max((now - used.at).total_seconds(), 0.0)
    return float(used.share_seconds * 0.5 ** (age_s / half_life_s))


def decayed_use_at_end(share: float, held_s: float, half_life_s: float) -> float:
    """What it weighs, in share-seconds, when this share of the cluster is given back after `held_s`: each
    moment of it has decayed since, so that one long run counts as much as many short ones in its place. The
    integral of share * 0.5 ** (age / half_life_s) over the ages from 0 to `held_s`; share * held_s while that
    is short, and never more than share * half_life_s / ln 2."""
    return -share * half_life_s / math.log(2) * math.expm1(-math.log(2) * max(held_s, 0.0) / half_life_s)


def past_usage_after(
    before: PastUsage | None, share: float, held_s: float, now: datetime, half_life_s: float
) -> PastUsage:
    """What somebody has used once this share of the cluster, held for so long, is given back."""
    past = 0.0 if before is None else decayed_share_seconds(before, now, half_life_s)
    at = now if before is None else max(now, before.at)  # a clock that jumped back makes nothing young again
    return PastUsage(past + decayed_use_at_end(share, held_s, half_life_s), at)


def gpu_milli_of(request: Resources) -> int:
    """Thousandths of GPUs that one replica asks for; 1 for a share by memory, since the card is not known."""
    return request.gpus * WHOLE_GPU or request.gpu_milli or (1 if request.gpu_memory_bytes else 0)


def _add_request(totals: dict[str, int], request: Resources, times: int, gpu_milli: int) -> None:
    totals[CPU] = totals.get(CPU, 0) + request.cpu_milli * times
    totals[MEMORY] = totals.get(MEMORY, 0) + request.memory_bytes * times
    totals[GPU] = totals.get(GPU, 0) + gpu_milli * times
    for name, amount in request.extras:
        totals[name] = totals.get(name, 0) + amount * times
