"""Sums of resources by name, in the names and units of `domain.queue`."""

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
    """Returns the request of all replicas, with the smallest size of an elastic gang.

    A share by memory counts as a thousandth of a GPU until the card is known. Models are not counted.
    """
    amounts: dict[str, int] = {}
    for role in gang.roles:
        _add_request(amounts, role.resources, role.required_replicas, gpu_milli_of(role.resources))
    return {name: amount for name, amount in amounts.items() if amount}


def placed_amounts(placement: Placement, nodes: Mapping[NodeId, Node]) -> dict[str, int]:
    """Returns the use of a placed gang, with GPUs by model, too. GPUs of a missing node count without
    model."""
    amounts: dict[str, int] = {}
    models: dict[str, int] = {}
    for role in placement.gang.roles:
        _add_request(amounts, role.resources, role.replicas, 0)
    for assignment in placement.assignments:
        indices, milli = assignment.gpus, assignment.gpu_milli
        if not indices:
            continue
        amounts[GPU] = amounts.get(GPU, 0) + milli * len(indices)
        node, remaining = nodes.get(assignment.node), len(indices)
        for gpu in () if node is None else node.gpus:
            if gpu.index in indices:
                models[gpu.model] = models.get(gpu.model, 0) + milli
                remaining -= 1
                if not remaining:
                    break
    for model, amount in models.items():
        name = GPU_OF + model.lower()
        amounts[name] = amounts.get(name, 0) + amount
    return {name: amount for name, amount in amounts.items() if amount}


def amounts_by_node(placement: Placement) -> dict[NodeId, dict[str, int]]:
    """Returns the CPU, memory and GPUs that a placed gang uses on each of its nodes."""
    amounts: dict[NodeId, dict[str, int]] = {}
    for assignment, (_, role) in zip(placement.assignments, placement.gang.replica_roles(), strict=True):
        node_amounts, request = (
            amounts.setdefault(assignment.node, {CPU: 0, MEMORY: 0, GPU: 0}),
            role.resources,
        )
        node_amounts[CPU] += request.cpu_milli
        node_amounts[MEMORY] += request.memory_bytes
        node_amounts[GPU] += assignment.gpu_milli * len(assignment.gpus)
    return amounts


def total_amounts(nodes: Iterable[Node]) -> dict[str, int]:
    """Returns the total amounts of these nodes."""
    totals: Counter[str] = Counter()
    for node in nodes:
        totals[CPU] += node.cpu_milli
        totals[MEMORY] += node.memory_bytes
        totals[GPU] += WHOLE_GPU * len(node.gpus)
        for gpu in node.gpus:
            totals[GPU_OF + gpu.model.lower()] += WHOLE_GPU
        totals.update(node.extras)
    return {name: amount for name, amount in totals.items() if amount}


def dominant_share(used: Amounts, capacity: Amounts) -> float:
    """Returns the largest fraction, 0 to 1, that `used` is of any resource of `capacity` (Ghodsi et al.,
    Dominant Resource Fairness, NSDI'11). GPU models count as GPUs only."""
    return max(
        (
            amount / capacity[name]
            for name, amount in used.items()
            if capacity.get(name) and not name.startswith(GPU_OF)
        ),
        default=0.0,
    )


def decayed_share_seconds(used: PastUsage, now: datetime, half_life_s: float) -> float:
    """Returns the decayed weight of past use, in share-seconds. A clock that runs backwards causes no
    decay."""
    age_s = max((now - used.at).total_seconds(), 0.0)
    return float(used.share_seconds * 0.5 ** (age_s / half_life_s))


def decayed_use_at_end(share: float, held_s: float, half_life_s: float) -> float:
    """Returns the weight, in share-seconds, of holding this share of the cluster for `held_s` until now.

    Each moment of the use has decayed since. So one long run counts as much as many short runs in its place.
    The value is the integral of share * 0.5 ** (age / half_life_s) over the ages from 0 to `held_s`. It is
    about share * held_s for short runs, and never more than share * half_life_s / ln 2.
    """
    return -share * half_life_s / math.log(2) * math.expm1(-math.log(2) * max(held_s, 0.0) / half_life_s)


def past_usage_after(
    before: PastUsage | None, share: float, held_s: float, now: datetime, half_life_s: float
) -> PastUsage:
    """Returns the past use after a share of the cluster, held for `held_s`, is released."""
    decayed = 0.0 if before is None else decayed_share_seconds(before, now, half_life_s)
    # a clock that jumped back must not make old use young
    at = now if before is None else max(now, before.at)
    return PastUsage(decayed + decayed_use_at_end(share, held_s, half_life_s), at)


def gpu_milli_of(request: Resources) -> int:
    """Returns the thousandths of GPUs that one replica requests; 1 for a share by memory, because the card is
    unknown."""
    return request.gpus * WHOLE_GPU or request.gpu_milli or (1 if request.gpu_memory_bytes else 0)


def _add_request(totals: dict[str, int], request: Resources, times: int, gpu_milli: int) -> None:
    totals[CPU] = totals.get(CPU, 0) + request.cpu_milli * times
    totals[MEMORY] = totals.get(MEMORY, 0) + request.memory_bytes * times
    totals[GPU] = totals.get(GPU, 0) + gpu_milli * times
    for name, amount in request.extras:
        totals[name] = totals.get(name, 0) + amount * times
