"""Why a gang does not fit: sentences for people, with the numbers, what is nearest, and where it would
fit."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

import numpy as np

from hopyard.domain.amounts import asked_for, totals
from hopyard.domain.cluster import HoldReason, Node
from hopyard.domain.gang import ANYWHERE, NODE_LEVEL, Closeness, Gang, Role, Topology
from hopyard.domain.queue import CPU, GPU, MEMORY
from hopyard.domain.resources import WHOLE_GPU
from hopyard.scheduler.placement.fitting import Fitting, Shape
from hopyard.scheduler.placement.free import Free
from hopyard.scheduler.placement.ground import Bools, Ints, matches
from hopyard.scheduler.placement.lacks import describe, lacks, places
from hopyard.scheduler.placement.ranking import Rankings
from hopyard.scheduler.placement.search import Search
from hopyard.scheduler.reasons import cpus, plural, size


def reason(free: Free, gang: Gang) -> HoldReason:
    """Of `why_not`, without its sentence."""
    if not free.ground.open.any():
        return HoldReason.NO_NODES
    gang = gang.sized([role.fewest for role in gang.roles])
    loose = without_topology(gang)
    return HoldReason.TOPOLOGY if loose != gang and fits(free, loose) else HoldReason.NO_CAPACITY


def why_not(free: Free, gang: Gang) -> tuple[HoldReason, str]:
    """Why there is no place for the gang in what is free, which may be smaller than all that there is."""
    if not free.ground.open.any():
        return HoldReason.NO_NODES, _no_nodes(free)
    gang = gang.sized([role.fewest for role in gang.roles])
    for role in gang.roles:
        if not _fitting(free, role).fits(free).any():
            return HoldReason.NO_CAPACITY, _nothing_free(free, gang, role)
    for role in gang.roles:
        room = _room(free, role)
        if room < role.replicas:
            text = f"needs {_together(role)} at once; there is room for {room} now"
            return HoldReason.NO_CAPACITY, text
    loose = without_topology(gang)
    if loose != gang and fits(free, loose):
        return (
            HoldReason.TOPOLOGY,
            f"needs {_close(free, gang)}, though there is room for all of it elsewhere",
        )
    if len(gang.roles) > 1:
        return (
            HoldReason.NO_CAPACITY,
            f"needs {_all_roles(gang, '(')}; what is free does not hold them together",
        )
    return (
        HoldReason.NO_CAPACITY,
        f"needs {_together(gang.roles[0])} at once; no engine alone has room for all of them now",
    )


def too_large(gang: Gang, whole: Free) -> str:
    """Why the gang does not fit into these nodes (at least one) although nothing runs on them."""
    for role in gang.roles:
        if not _fitting(whole, role).fits(whole).any():
            return _on_no_node(whole, gang, role)
    for role in gang.roles:
        room = _room(whole, role)
        if room < role.replicas:
            return f"needs {_together(role)} at once; {_all_nodes(whole, role)} can hold {room}"
    loose = without_topology(gang)
    if loose != gang and fits(whole, loose):
        return f"needs {_close(whole, gang)}"
    if len(gang.roles) > 1:
        return (
            f"needs {_all_roles(gang, ':')}; {_all_nodes(whole, gang.roles[0])} cannot hold them "
            f"together{_short(whole, gang)}"
        )
    return f"needs {_together(gang.roles[0])} at once; no engine alone can hold them"


def fits(free: Free, gang: Gang) -> bool:
    """Whether there is a place for the gang; for one of several roles, whether one is found by either of two
    rules."""
    rules = ("first-fit",) if len(gang.roles) == 1 else ("first-fit", "fragmentation")
    return any(
        Search(free, Rankings(free), gang, rule, frozenset(), frozenset()).place() is not None
        for rule in rules
    )


def without_topology(gang: Gang) -> Gang:
    return replace(gang, topology=None, roles=tuple(replace(role, topology=None) for role in gang.roles))


def _no_nodes(free: Free) -> str:
    nodes = free.ground.nodes
    if not nodes:
        return "no node has joined yet"
    if len(nodes) == 1:
        return f"the only node, {nodes[0].id}, is {nodes[0].state}"
    if any(node.trouble for node in nodes):
        return f"no node of {len(nodes)} is open; {_in_trouble(nodes)}"
    return (
        f"all {len(nodes)} nodes are cordoned"
        if all(node.ready for node in nodes)
        else f"none of {len(nodes)} nodes is ready"
    )


def _in_trouble(nodes: Iterable[Node]) -> str:
    """The first of them that is out of service, and why."""
    return next((f"{node.id} is {node.state}" for node in nodes if node.trouble), "")


def _nothing_free(free: Free, gang: Gang, role: Role) -> str:
    """No node holds one replica of this role now: what the nearest that could lacks."""
    whole = Free.whole(free.ground)
    request, where = role.resources, f" {places(role.where)}" if role.where != ANYWHERE else ""
    able = np.flatnonzero(_fitting(whole, role).fits(whole))
    if not len(able):
        closed = [node for node in free.ground.nodes if not node.open and matches(role.where, node)]
        state = "cordoned" if all(node.ready for node in closed) else "not ready"
        if any(node.trouble for node in closed):
            state = f"not open; {_in_trouble(closed)}"
        return f"needs {describe(request)}{where}; the nodes that have that are {state}"
    row = _nearest(role, free, able)
    missing = lacks(request, free, row)
    each = (
        ""
        if gang.size == 1
        else " for each replica"
        if len(gang.roles) == 1
        else f" for each `{role.name}` replica"
    )
    asked = " and ".join(lack.asked for lack in missing) or describe(request)
    left = " and ".join(lack.free for lack in missing) or "its cards are kept from this queue"
    return f"needs {asked}{each}{where}; {left} on {free.ground.nodes[row].id}"


def _on_no_node(whole: Free, gang: Gang, role: Role) -> str:
    """No node is large enough for one replica of this role."""
    ground, request = whole.ground, role.resources
    who = (
        "needs"
        if gang.size == 1
        else "each replica needs"
        if len(gang.roles) == 1
        else f"each `{role.name}` replica needs"
    )
    allowed = [row for row, node in enumerate(ground.nodes) if matches(role.where, node)]
    where = f" {places(role.where)}" if role.where != ANYWHERE else ""
    elsewhere = _elsewhere(whole, role) if where else ""
    if not allowed:
        return f"{who} a node{where}; there is none{elsewhere}"
    row = _nearest(role, whole, np.array(allowed))
    node, missing = ground.nodes[row], lacks(request, whole, row)
    asked = " and ".join(lack.asked for lack in missing) or describe(request)
    has = ", ".join(f"{lack.has} ({lack.short})" for lack in missing)
    in_pool = f" in pool `{node.pool}`" if len({n.pool for n in ground.nodes}) > 1 else ""
    nearest = (
        f"the only node, {node.id}, has"
        if len(ground.nodes) == 1
        else f"no node has that; the nearest, {node.id}{in_pool}, has"
    )
    return f"{who} {asked} on one node{where}; {nearest} {has}{elsewhere}"


def _elsewhere(whole: Free, role: Role) -> str:
    """In which pool, or with which labels, one replica would fit."""
    rows = np.flatnonzero(Fitting(whole.ground, Shape(role.resources, ANYWHERE)).fits(whole))
    if not len(rows):
        return ""
    node = whole.ground.nodes[int(rows[0])]
    if role.where.pools and node.pool not in role.where.pools:
        return f"; in pool `{node.pool}` it would fit"
    return f"; without the labels it would fit on {node.id}"


def _close(free: Free, gang: Gang) -> str:
    """What the rule of topology that cannot be kept asks for, and what there is."""
    ruled = [(role.topology, role.replicas, [role]) for role in gang.roles if role.topology is not None]
    ruled += [(gang.topology, gang.size, list(gang.roles))] if gang.topology is not None else []
    for rule, replicas, roles in ruled:
        alone = replace(gang, topology=None, roles=tuple(replace(role, topology=None) for role in roles))
        alone = replace(alone, topology=rule)
        if not fits(free, alone):
            return _rule_in_words(free, rule, replicas, roles)
    return f"{plural(gang.size, 'replica')} as close together, or as far apart, as it asks"


def _rule_in_words(free: Free, rule: Topology, replicas: int, roles: list[Role]) -> str:
    domains, count = free.ground.domains(rule.level)
    room, inside = np.zeros(max(count, 1), np.int64), domains >= 0
    for role in roles:
        room += np.bincount(domains[inside], _rooms(free, role)[inside], max(count, 1)).astype(np.int64)
    if not count:
        return f"{plural(replicas, 'replica')} by `{rule.level}`; no node has the label `{rule.level}`"
    if rule.rule is Closeness.SAME:
        return (
            f"{plural(replicas, 'replica')} in one {rule.level}; the roomiest has room for {int(room.max())}"
        )
    if rule.rule is Closeness.SPREAD:
        slices, apart = -(-replicas // rule.slice), int((room >= rule.slice).sum())
        what = "replica" if rule.slice == 1 else f"slice of {rule.slice}"
        level = "node" if rule.level == NODE_LEVEL else rule.level
        return (
            f"{slices} different {level}s for one {what} each; {apart} "
            f"{'has' if apart == 1 else 'have'} room for one"
        )
    held = int((room // rule.slice).sum())
    return (
        f"{plural(-(-replicas // rule.slice), 'slice')} of {rule.slice}, each in one {rule.level}; "
        f"there is room for {held}"
    )


def _nearest(role: Role, free: Free, rows: Ints) -> int:
    """The node that lacks the fewest kinds of resource, and of these the least, for one replica."""
    request, parts = role.resources, []
    asked = [(free.cpu[rows], request.cpu_milli), (free.memory[rows], request.memory_bytes)]
    asked += [(free.extra(name, rows), amount) for name, amount in request.extras]
    parts = [np.clip(left / amount, 0, 1) for left, amount in asked if amount]
    if request.gpus or request.shares_gpu:
        needs = free.ground.needs(request, frozenset())[free.ground.card[rows]]
        left = np.maximum(free.gpu[rows], 0)
        whole = np.count_nonzero(left >= needs, axis=1) / max(request.gpus, 1)
        parts.append(np.clip(whole if request.gpus else (left / needs).max(axis=1), 0, 1))
    kinds = sum((part < 1 for part in parts), np.zeros(len(rows), np.int64))
    lacking = sum((1 - part for part in parts), np.zeros(len(rows)))
    return int(rows[np.lexsort((rows, lacking, kinds))[0]])


def _fitting(free: Free, role: Role) -> Fitting:
    return Fitting(free.ground, Shape(role.resources, role.where))


def _rooms(free: Free, role: Role) -> np.ndarray[tuple[int], np.dtype[np.int64]]:
    return _fitting(free, role).room(free, role.replicas)


def _room(free: Free, role: Role) -> int:
    return int(_rooms(free, role).sum())


def _together(role: Role) -> str:
    where = f" {places(role.where)}" if role.where != ANYWHERE else ""
    return f"{plural(role.replicas, 'replica')} with {describe(role.resources)} each{where}"


def _all_nodes(whole: Free, role: Role) -> str:
    nodes: Bools = whole.ground.allowed(role.where)
    count = int(nodes.sum())
    return whole.ground.nodes[int(nodes.argmax())].id if count == 1 else f"all {count} nodes together"


def _short(whole: Free, gang: Gang) -> str:
    """How much less all open nodes have than all its replicas ask for; nothing where it is only spread
    badly."""
    asked, has = asked_for(gang), totals(node for node in whole.ground.nodes if node.open)
    missing = {name: amount - has.get(name, 0) for name, amount in asked.items()}
    parts = [f"{cpus(missing[CPU])} too few"] if missing.get(CPU, 0) > 0 else []
    parts += [f"{size(missing[MEMORY])} of memory too little"] if missing.get(MEMORY, 0) > 0 else []
    parts += [f"{missing[GPU] / WHOLE_GPU:g} GPUs too few"] if missing.get(GPU, 0) > 0 else []
    return f": {', '.join(parts)}" if parts else ""


def _all_roles(gang: Gang, opening: str) -> str:
    roles = ", ".join(f"{role.replicas} `{role.name}` with {describe(role.resources)}" for role in gang.roles)
    return (
        f"{plural(gang.size, 'replica')} at "
        f"once{' (' if opening == '(' else ': '}{roles}{')' if opening == '(' else ''}"
    )
