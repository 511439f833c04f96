"""Looks for a place for a whole gang: all its replicas or none, on one node where that is possible, close together otherwise."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import accumulate

import numpy as np

from hopyard.domain.gang import NODE_LEVEL, Assignment, Closeness, Gang, Placement, Role, Topology
from hopyard.domain.ids import NodeId
from hopyard.scheduler.placement.domains import divide
from hopyard.scheduler.placement.free import Free, Shape
from hopyard.scheduler.placement.ground import Bools, Ints
from hopyard.scheduler.placement.legal import obeys_topology
from hopyard.scheduler.placement.scores import SCORES

USUAL_LEVELS = ("rack", "zone")  # a gang that says nothing about closeness stays within one of these where it can

Rows = list[int]  # the node of each replica of a role, in rank order


class Search:
    """One gang on one state of the cluster. Exact for a gang of one role, and for one that fits a node as a whole unless its
    roles compete for different cards; for several roles over several nodes a heuristic (packing in several dimensions is
    NP-hard): the most demanding role first, in a few orders."""

    def __init__(self, free: Free, gang: Gang, score: str, closed_models: frozenset[str], prefer: frozenset[NodeId]) -> None:
        self._free, self._gang, self._closed = free, gang, closed_models
        self._score = SCORES[score]
        self._preference = self._preferred(prefer)
        self._scored: dict[Shape, Ints] = {}

    def place(self) -> Placement | None:
        fewest = self._place_sized(self._gang.sized([role.fewest for role in self._gang.roles]))
        if fewest is None or not self._gang.elastic:
            return fewest
        return self._grown(fewest)

    def _grown(self, fewest: Placement) -> Placement:
        """As many replicas as fit, role after role."""
        best = fewest
        counts = [role.fewest for role in self._gang.roles]
        for index, role in enumerate(self._gang.roles):
            low, high = counts[index], role.replicas
            while low < high:
                middle = (low + high + 1) // 2
                found = self._place_sized(self._gang.sized([*counts[:index], middle, *counts[index + 1 :]]))
                if found is None:
                    high = middle - 1
                else:
                    low, best = middle, found
            counts[index] = low
        return best

    def _place_sized(self, gang: Gang) -> Placement | None:
        """The best place over all engines: a gang is never split over two."""
        best: tuple[int, Placement] | None = None
        for engine in self._engines(gang):
            assignments = _Trial(self, gang, self._free, engine).place()
            if assignments is not None:
                nodes = len({a.node for a in assignments})
                if best is None or nodes < best[0]:
                    best = nodes, Placement(gang, assignments)
        return best[1] if best else None

    def _engines(self, gang: Gang) -> Iterator[Bools]:
        """The nodes of each engine; all of them at once for a gang of one replica."""
        engines = self._free.ground.engines
        count = int(engines.max(initial=0)) + 1
        if gang.size == 1 or count == 1:
            yield np.ones(len(engines), np.bool_)
        else:
            yield from (engines == engine for engine in range(count))

    def _preferred(self, prefer: frozenset[NodeId]) -> Ints:
        """Smaller is better: those to prefer, then those that hold more of what it wants."""
        ground = self._free.ground
        found = np.zeros(len(ground.nodes), np.int64)
        for key in self._gang.wants:
            found -= ground.holding(key)
        for node in prefer:
            if node in ground.row:
                found[ground.row[node]] -= len(self._gang.wants) + 1
        return found

    def shape(self, role: Role) -> Shape:
        return Shape(role.resources, role.where, self._closed)

    def order(self, shape: Shape) -> Ints:
        """The nodes' ranks by preference, score and id, on the state that the search began with."""
        found = self._scored.get(shape)
        if found is None:
            score = self._score(self._free, shape, np.arange(len(self._free.ground.nodes)))
            order = np.lexsort((score, self._preference))
            found = np.empty(len(order), np.int64)
            found[order] = np.arange(len(order))
            self._scored[shape] = found
        return found


class _Trial:
    """A search on the nodes of one engine. `free` is scratch paper once a role is put down."""

    def __init__(self, search: Search, gang: Gang, free: Free, within: Bools) -> None:
        self._search, self._gang, self._free, self._within = search, gang, free, within
        self._first = list(accumulate((role.replicas for role in gang.roles), initial=0))

    def place(self) -> tuple[Assignment, ...] | None:
        rule = self._gang.topology
        within = self._labelled()
        if rule is None:
            return self._near(within)
        if rule.rule is Closeness.SAME:
            return self._same(rule.level, within)
        if len(self._gang.roles) == 1 and self._gang.roles[0].topology is None:
            role = replace(self._gang.roles[0], topology=rule)
            return self._roles([role], within)
        found = self._same(rule.level, within) if rule.rule is not Closeness.SPREAD else None
        found = found or self._slices(rule, within) or (self._roles(self._gang.roles, within))
        return found if found is not None and obeys_topology(self._gang, found, self._free.ground.nodes) else None

    def _labelled(self) -> Bools:
        """Nodes that are in a domain of every level that the gang as a whole names."""
        if self._gang.topology is None:
            return self._within
        domains, _ = self._free.ground.domains(self._gang.topology.level)
        return self._within & (domains >= 0)

    def _near(self, within: Bools) -> tuple[Assignment, ...] | None:
        """On one node, else in one rack, else in one zone, else anywhere."""
        roles = self._gang.roles
        if self._gang.size == 1 or any(role.topology is not None and role.topology.rule is Closeness.SPREAD for role in roles):
            return self._roles(roles, within)
        found = self._same(NODE_LEVEL, within)
        for level in USUAL_LEVELS:
            found = found or (self._same(level, within) if self._free.ground.domains(level)[1] > 1 else None)
        return found or self._roles(roles, within)

    def _same(self, level: str, within: Bools) -> tuple[Assignment, ...] | None:
        """In one domain of the level: the tightest that takes it."""
        domains, count = self._free.ground.domains(level)
        usable = within & (domains >= 0)
        if not count or not usable.any():
            return None
        possible = np.ones(count, np.bool_)
        total, best = np.zeros(count, np.int64), np.zeros(count, np.int64)
        for role in self._gang.roles:
            room = np.where(usable, self._free.room(self._search.shape(role), role.replicas), 0)
            held = room if level == NODE_LEVEL else np.bincount(domains[usable], room[usable], count).astype(np.int64)
            possible &= held >= role.replicas
            total += held
        if level == NODE_LEVEL:
            best = self._search.order(self._search.shape(max(self._gang.roles, key=_weight)))
            total[:] = 0
        chosen = np.flatnonzero(possible)
        for domain in chosen[np.lexsort((best[chosen], total[chosen]))].tolist():
            found = self._roles(self._gang.roles, usable & (domains == domain))
            if found is not None:
                return found
        return None

    def _slices(self, rule: Topology, within: Bools) -> tuple[Assignment, ...] | None:
        """Slices of several roles, one after another: each a small gang in one domain of the level."""
        domains, count = self._free.ground.domains(rule.level)
        parts = list(_parts(self._gang, rule.slice))
        for allowed in range(len(parts) if rule.rule is Closeness.SPREAD else 1, len(parts) + 1):
            free, placed, held = self._free.copy(), [Assignment(0, NodeId(""))] * self._gang.size, [0] * count
            most = (
                -(-len(parts) // allowed)
                if rule.rule is Closeness.BALANCED
                else 1
                if rule.rule is Closeness.SPREAD
                else len(parts)
            )
            for ranks, part in parts:
                used = [d for d in range(count) if held[d]]
                fresh = [d for d in range(count) if not held[d]] if len(used) < allowed else []
                for domain in [d for d in used if held[d] < most] + fresh:
                    found = _Trial(self._search, part, free, within & (domains == domain))._on_paper()
                    if found is not None:
                        held[domain] += 1
                        for rank, assignment in zip(ranks, found, strict=True):
                            placed[rank] = replace(assignment, rank=rank)
                        break
                else:
                    break
            else:
                return tuple(placed)
        return None

    def _on_paper(self) -> tuple[Assignment, ...] | None:
        """As `_roles`, and what is placed is used up on the scratch paper."""
        found = self._roles(self._gang.roles, self._within)
        if found is not None:
            for (_, role), assignment in zip(self._gang.requests(), found, strict=True):
                row = self._free.ground.row[assignment.node]
                columns = tuple(self._free.ground.column[row][index] for index in assignment.gpus)
                self._free.use(row, role.resources, columns, assignment.gpu_milli)
        return found

    def _roles(self, roles: Sequence[Role], within: Bools) -> tuple[Assignment, ...] | None:
        """Role by role, in the first order that works."""
        for order in _role_orders(roles):
            free, placed, used = self._free.copy(), [Assignment(0, NodeId(""))] * self._gang.size, np.zeros(len(within), np.bool_)
            for index in order:
                role = roles[index]
                rows = self._role(role, free, within, used)
                if rows is None:
                    break
                assignments = self._put(role, rows, free, self._first[index])
                if assignments is None:
                    break
                placed[self._first[index] : self._first[index] + role.replicas] = assignments
                used[rows] = True
            else:
                return tuple(placed)
        return None

    def _put(self, role: Role, rows: Rows, free: Free, first: int) -> list[Assignment] | None:
        """Give each replica its cards."""
        shape, ground = self._search.shape(role), free.ground
        found = []
        for rank, row in enumerate(rows, start=first):
            cards = free.cards(shape, row)
            if cards is None:
                return None
            columns, milli = cards
            free.use(row, role.resources, columns, milli)
            found.append(Assignment(rank, ground.nodes[row].id, tuple(ground.gpus[row][j].index for j in columns), milli))
        return found

    def _role(self, role: Role, free: Free, within: Bools, used: Bools) -> Rows | None:
        """The nodes of one role's replicas."""
        shape = self._search.shape(role)
        room = np.where(within, free.room(shape, role.replicas), 0)
        key = self._search.order(shape) - used * len(room)
        rule = role.topology
        if rule is None:
            return fill(role.replicas, room, key)
        domains, count = free.ground.domains(rule.level)
        room[domains < 0] = 0
        held = np.bincount(domains[domains >= 0], room[domains >= 0], count).astype(np.int64).tolist()
        shares = divide(rule.rule, rule.slice, role.replicas, held)
        if shares is None:
            return None
        rows: Rows = []
        for share in shares:
            rows += fill(share.count, np.where(domains == share.domain, room, 0), key) or []
        return rows


def fill(count: int, room: Ints, key: Ints) -> Rows | None:
    """Fill the roomiest nodes, then end on the best that takes the rest, so that the fewest nodes are touched."""
    room = room.copy()
    if int(room.sum()) < count:
        return None
    rows: Rows = []
    while count:
        most = int(room.max())
        ending = np.flatnonzero(room >= count)
        if len(ending):
            rows += [int(ending[key[ending].argmin()])] * count
            return rows
        fullest = np.flatnonzero(room == most)
        chosen = fullest[np.argsort(key[fullest], kind="stable")][: count // most]
        rows += [row for row in chosen.tolist() for _ in range(most)]
        room[chosen] = 0
        count -= len(chosen) * most
    return rows


def _parts(gang: Gang, slice: int) -> Iterator[tuple[list[int], Gang]]:
    """The slices of consecutive ranks, each as a gang of its own that asks for no topology."""
    replicas = list(gang.requests())
    for start in range(0, len(replicas), slice):
        piece = replicas[start : start + slice]
        names = [role for _, role in piece]
        roles = tuple(replace(role, replicas=names.count(role), min_replicas=0, topology=None) for role in dict.fromkeys(names))
        yield [rank for rank, _ in piece], replace(gang, roles=roles, topology=None)


def _weight(role: Role) -> tuple[int, int, int]:
    return role.resources.gpus, role.resources.memory_bytes, role.resources.cpu_milli


def _role_orders(roles: Sequence[Role]) -> list[tuple[int, ...]]:
    """Orders to try: a role that wants a certain model always before one that takes any, then by each resource."""
    if len(roles) == 1:
        return [(0,)]
    orders = []
    for weight in ("gpus", "memory_bytes", "cpu_milli"):
        key = [
            (not r.resources.gpu_models, -getattr(r.resources, weight), -r.resources.gpus, -r.resources.cpu_milli, i)
            for i, r in enumerate(roles)
        ]
        orders.append(tuple(sorted(range(len(roles)), key=key.__getitem__)))
    return list(dict.fromkeys(orders))
