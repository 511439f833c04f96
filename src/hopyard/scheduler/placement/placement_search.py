"""Searches a placement for a whole gang: all replicas or none, on one node if possible, otherwise close
together."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import accumulate

import numpy as np

from hopyard.domain.gang import NODE_LEVEL, Assignment, Closeness, Gang, Placement, Role, Topology
from hopyard.domain.ids import NodeId
from hopyard.scheduler.placement.feasibility import NodeFeasibility, ReplicaRequest
from hopyard.scheduler.placement.free_resources import FreeResources
from hopyard.scheduler.placement.multi_role_packing import MultiRolePacking, is_movable
from hopyard.scheduler.placement.node_order import NodeOrder, pack_replicas
from hopyard.scheduler.placement.node_table import Ints
from hopyard.scheduler.placement.role_order import demand_key, role_orders, slice_gangs
from hopyard.scheduler.placement.score_cache import ScoreCache
from hopyard.scheduler.placement.score_rules import Values
from hopyard.scheduler.placement.tentative_allocations import TentativeAllocations
from hopyard.scheduler.placement.topology_check import obeys_topology
from hopyard.scheduler.placement.topology_domains import assign_to_domains

FALLBACK_SCORES = ("first-fit", "best-fit")
# a gang that says nothing about closeness stays within one of these where it can
DEFAULT_LEVELS = ("rack", "zone")

FoundAssignments = list[Assignment] | None


class PlacementSearch:
    """One gang on one state of the cluster. Exact for a gang of one role. For several roles, since packing in
    several dimensions is NP-hard: the most demanding role first, in a few orders; where these find no place,
    see `Together`.

    What is looked at is booked on `free` while the others look for theirs, and given back in the end: it is
    left as it was. Nodes are scored as they are without that, so that no score depends on which gang it was
    worked out for.
    """

    def __init__(
        self,
        free: FreeResources,
        score_cache: ScoreCache,
        gang: Gang,
        score: str,
        closed_models: frozenset[str],
        preferred_nodes: frozenset[NodeId],
    ) -> None:
        self._free, self._score_cache, self._gang, self._score, self._closed_models = (
            free,
            score_cache,
            gang,
            score,
            closed_models,
        )
        self._node_preference = self._preference_of(preferred_nodes)
        self._tentative = TentativeAllocations(free)

    def place(self) -> Placement | None:
        fewest = self._place_sized([role.required_replicas for role in self._gang.roles])
        if fewest is None or not self._gang.is_elastic:
            return fewest
        return self._grow(fewest)

    def _grow(self, minimum: Placement) -> Placement:
        """Adds as many replicas as fit, role after role."""
        best = minimum
        counts = [role.required_replicas for role in self._gang.roles]
        for index, role in enumerate(self._gang.roles):
            low, high = counts[index], role.replicas
            while low < high:
                middle = (low + high + 1) // 2
                found = self._place_sized([*counts[:index], middle, *counts[index + 1 :]])
                if found is None:
                    high = middle - 1
                else:
                    low, best = middle, found
            counts[index] = low
        return best

    def _place_sized(self, counts: Sequence[int]) -> Placement | None:
        """The best place over all engines, on the fewest nodes: a gang is never split over two. Where several
        roles obey rules of topology, what is found depends on which nodes are taken first: so whether it is
        found does not depend on the score alone."""
        gang, wanted = self._gang.with_replica_counts(counts), self._score
        exact = len(gang.roles) == 1 or (gang.topology is None and all(map(is_movable, gang.roles)))
        try:
            for self._score in dict.fromkeys([wanted] if exact else [wanted, *FALLBACK_SCORES]):
                places = [
                    found
                    for rows in self._rows_by_engine(gang)
                    if (found := self._place_on(gang, rows)) is not None
                ]
                if places:
                    return Placement(gang, tuple(min(places, key=lambda found: len({a.node for a in found}))))
            return None
        finally:
            self._score = wanted

    def _rows_by_engine(self, gang: Gang) -> Sequence[Ints]:
        """The nodes of each engine; all of them at once for a gang of one replica."""
        ground = self._free.node_table
        return [ground.rows] if gang.size == 1 or len(ground.rows_by_engine) <= 1 else ground.rows_by_engine

    def _preference_of(self, preferred_nodes: frozenset[NodeId]) -> Ints | None:
        """Smaller is better: those to prefer, then those that hold more of what it wants."""
        if not preferred_nodes and not self._gang.input_digests:
            return None
        ground = self._free.node_table
        found = np.zeros(len(ground.nodes), np.int64)
        for key in self._gang.input_digests:
            found -= ground.holds_data(key)
        for node in preferred_nodes:
            if node in ground.row_of:
                found[ground.row_of[node]] -= len(self._gang.input_digests) + 1
        return found

    def _place_on(self, gang: Gang, rows: Ints) -> FoundAssignments:
        rule = gang.topology
        if rule is None:
            return self._place_near(gang, rows)
        rows = self._rows_inside(rule.level, rows)
        if rule.rule is Closeness.SAME:
            return self._place_in_one_domain(gang, rule.level, rows)
        if len(gang.roles) == 1 and gang.roles[0].topology is None:
            return self._place_roles([replace(gang.roles[0], topology=rule)], rows)
        found = (
            self._place_in_one_domain(gang, rule.level, rows) if rule.rule is not Closeness.SPREAD else None
        )
        found = found or self._place_slices(gang, rule, rows) or self._place_roles(gang.roles, rows)
        return (
            found if found is not None and obeys_topology(gang, found, self._free.node_table.nodes) else None
        )

    def _rows_inside(self, level: str, rows: Ints) -> Ints:
        inside = self._free.node_table.in_domain_of(level)
        return rows if inside is None else rows[inside[rows]]

    def _place_near(self, gang: Gang, rows: Ints) -> FoundAssignments:
        """Tries one node, then one rack, then one zone, then all nodes."""
        if gang.size == 1 or any(role.topology is not None for role in gang.roles):
            return self._place_roles(gang.roles, rows)
        found = self._place_in_one_domain(gang, NODE_LEVEL, rows)
        for level in DEFAULT_LEVELS:
            found = found or (
                self._place_in_one_domain(gang, level, rows)
                if self._free.node_table.domains(level)[1] > 1
                else None
            )
        return found or self._place_roles(gang.roles, rows)

    def _place_in_one_domain(self, gang: Gang, level: str, rows: Ints) -> FoundAssignments:
        """In one domain of the level: the tightest that takes it."""
        domains, count = self._free.node_table.domains(level)
        rows = self._rows_inside(level, rows)
        fitting = [self._feasibility(role) for role in gang.roles]
        rooms = [
            fit.replicas_per_node(self._free, role.replicas, rows)
            for fit, role in zip(fitting, gang.roles, strict=True)
        ]
        if level == NODE_LEVEL:
            return self._place_on_one_node(gang, rows, rooms)
        possible, total = np.ones(count, np.bool_), np.zeros(count, np.int64)
        for role, room in zip(gang.roles, rooms, strict=True):
            held = np.bincount(domains[rows], room, count).astype(np.int64)
            possible &= held >= role.replicas
            total += held
        chosen = np.flatnonzero(possible)
        for domain in chosen[np.argsort(total[chosen], kind="stable")].tolist():
            found = self._place_roles(gang.roles, rows[domains[rows] == domain])
            if found is not None:
                return found
        return None

    def _place_on_one_node(self, gang: Gang, rows: Ints, rooms: Sequence[Ints]) -> FoundAssignments:
        """All on one node: the best of those that take it."""
        possible = np.ones(len(rows), np.bool_)
        for role, room in zip(gang.roles, rooms, strict=True):
            possible &= room >= role.replicas
        possible &= self._has_enough_for_all(gang, rows)
        able = rows[possible]
        if not len(able):
            return None
        heaviest = max(gang.roles, key=demand_key)
        choice = self._node_order(heaviest, heaviest.replicas if len(gang.roles) == 1 else 1)
        for row in choice.sort_rows(able):
            found = self._place_roles(gang.roles, np.array([row]))
            if found is not None:
                return found
        return None

    def _has_enough_for_all(self, gang: Gang, rows: Ints) -> np.ndarray[tuple[int], np.dtype[np.bool_]]:
        """Nodes that have enough CPU and memory for all roles."""
        cpu = sum(role.replicas * role.resources.cpu_milli for role in gang.roles)
        memory = sum(role.replicas * role.resources.memory_bytes for role in gang.roles)
        found: np.ndarray[tuple[int], np.dtype[np.bool_]] = np.ones(len(rows), np.bool_)
        if cpu:
            found &= self._free.cpu[rows] >= cpu
        if memory:
            found &= self._free.memory[rows] >= memory
        return found

    def _place_slices(self, gang: Gang, rule: Topology, rows: Ints) -> FoundAssignments:
        """Slices of several roles, one after another: each a small gang in one domain of the level, in as few
        as possible."""
        domains, _ = self._free.node_table.domains(rule.level)
        slices = list(slice_gangs(gang, rule.slice))
        room = sum(
            self._feasibility(role).replicas_per_node(self._free, role.replicas, rows) for role in gang.roles
        )
        usable = np.unique(domains[rows][room > 0]).tolist()
        for most_domains in range(
            len(slices) if rule.rule is Closeness.SPREAD else 1, min(len(slices), len(usable)) + 1
        ):
            most = -(-len(slices) // most_domains) if rule.rule is not Closeness.NEAR else len(slices)
            found = self._place_slices_in(
                gang, slices, most_domains, most, usable, {d: rows[domains[rows] == d] for d in usable}
            )
            if found is not None:
                return found
        return None

    def _place_slices_in(
        self,
        gang: Gang,
        slices: Sequence[tuple[list[int], Gang]],
        max_domains: int,
        max_slices: int,
        usable: Sequence[int],
        rows: dict[int, Ints],
    ) -> FoundAssignments:
        """At most so many domains, with at most so many slices each."""
        placed, used = [Assignment(0, NodeId(""))] * gang.size, dict[int, int]()
        before = len(self._tentative)
        for ranks, part in slices:
            fresh = [d for d in usable if d not in used] if len(used) < max_domains else []
            for domain in [*(d for d, held in used.items() if held < max_slices), *fresh]:
                found = self._place_roles(part.roles, rows[domain])
                if found is not None:
                    used[domain] = used.get(domain, 0) + 1
                    for rank, (_, role), assignment in zip(ranks, part.replica_roles(), found, strict=True):
                        placed[rank] = replace(assignment, rank=rank)
                        self._tentative.add(role.resources, assignment)
                    break
            else:
                break
        return placed if self._tentative.release_since(before) == gang.size else None

    def _place_roles(self, roles: Sequence[Role], rows: Ints) -> FoundAssignments:
        """Places role by role, in the first order that works; if none works, packs the roles together."""
        if len(roles) == 1 and not (roles[0].resources.gpus or roles[0].resources.is_gpu_share):
            return self._place_without_gpus(roles[0], rows)
        first = list(accumulate((role.replicas for role in roles), initial=0))
        for order in role_orders(roles):
            placed = [Assignment(0, NodeId(""))] * first[-1]
            before = len(self._tentative)
            used: set[int] = set()
            for index in order:
                found = self._place_role(roles[index], first[index], rows, used)
                if found is None:
                    break
                placed[first[index] : first[index + 1]] = found
            if self._tentative.release_since(before) == first[-1]:
                return placed
        return self._place_roles_packed(roles, rows)

    def _place_roles_packed(self, roles: Sequence[Role], rows: Ints) -> FoundAssignments:
        """Wherever each of them goes by itself; None where rules of topology forbid to look at that."""
        if min(len(roles), len(rows)) <= 1 or not all(is_movable(role) for role in roles):
            return None
        fittings, order = [self._feasibility(role) for role in roles], role_orders(roles)[0]
        divided = MultiRolePacking(self._free, self._tentative, roles, fittings, order).assign(rows) or []
        first, before = list(accumulate((role.replicas for role in roles), initial=0)), len(self._tentative)
        placed = [Assignment(0, NodeId(""))] * first[-1]
        for row, counts in divided:
            for index in order:
                for _ in range(counts[index]):
                    assignment = fittings[index].assign_replica(self._free, first[index], row)
                    if assignment is None:
                        break
                    self._tentative.add(roles[index].resources, assignment)
                    placed[first[index]] = assignment
                    first[index] += 1
        return placed if self._tentative.release_since(before) == first[-1] else None

    def _place_without_gpus(self, role: Role, rows: Ints) -> FoundAssignments:
        """Of one role that asks for no cards: there is nobody for whom anything is to be used up."""
        chosen, ids = (
            self._choose_nodes(role, self._feasibility(role), rows, set()),
            self._free.node_table.ids,
        )
        return None if chosen is None else [Assignment(rank, ids[row]) for rank, row in enumerate(chosen)]

    def _choose_nodes(
        self, role: Role, feasibility: NodeFeasibility, rows: Ints, used: set[int]
    ) -> list[int] | None:
        """Returns the node of each replica of a role, in rank order."""
        room = feasibility.replicas_per_node(self._free, role.replicas, rows)
        able = np.flatnonzero(room)
        return self._choose_rows(role, rows[able], room[able], used)

    def _place_role(self, role: Role, first_rank: int, rows: Ints, used: set[int]) -> FoundAssignments:
        """The places of one role's replicas, booked."""
        fitting = self._feasibility(role)
        chosen = self._choose_nodes(role, fitting, rows, used)
        if chosen is None:
            return None
        found = []
        for rank, row in enumerate(chosen, start=first_rank):
            assignment = fitting.assign_replica(self._free, rank, row)
            if assignment is None:
                return None
            self._tentative.add(role.resources, assignment)
            found.append(assignment)
        used.update(chosen)
        return found

    def _choose_rows(self, role: Role, rows: Ints, room: Ints, used: set[int]) -> list[int] | None:
        """The node of each replica, in rank order. `rows` are those with room."""
        rule = role.topology

        def choice(times: int) -> NodeOrder:
            return self._node_order(role, times, used)

        if rule is None or (rule.level == NODE_LEVEL and rule.rule is Closeness.NEAR and rule.slice == 1):
            return pack_replicas(choice, role.replicas, rows, room)
        if rule.level == NODE_LEVEL and rule.rule is Closeness.SPREAD and rule.slice == 1:
            return choice(1).take_best(rows, role.replicas)
        domains, count = self._free.node_table.domains(rule.level)
        inside = self._free.node_table.in_domain_of(rule.level)
        if inside is not None:
            rows, room = rows[inside[rows]], room[inside[rows]]
        domain = domains[rows]
        if rule.level == NODE_LEVEL and rule.rule is Closeness.SAME:
            return pack_replicas(
                choice, role.replicas, rows[room >= role.replicas], room[room >= role.replicas]
            )
        held = np.bincount(domain, room, count).astype(np.int64)
        shares = assign_to_domains(rule.rule, rule.slice, role.replicas, held.tolist())
        if shares is None:
            return None
        found: list[int] = []
        for share in shares:
            here = np.flatnonzero(domain == share.domain)
            found += pack_replicas(choice, share.count, rows[here], room[here]) or []
        return found

    def _feasibility(self, role: Role) -> NodeFeasibility:
        return self._score_cache.feasibility_of(
            ReplicaRequest(role.resources, role.where, self._closed_models_for(role))
        )

    def _closed_models_for(self, role: Role) -> frozenset[str]:
        """What may be used of these models is for the roles that name no other."""
        if not self._closed_models or len(self._gang.roles) == 1:
            return self._closed_models
        named = {*map(str.casefold, role.resources.gpu_models)}
        return frozenset() if named and named <= self._closed_models else self._closed_models

    def _node_order(self, role: Role, replica_count: int, used: set[int] | None = None) -> NodeOrder:
        """The order of nodes for `replica_count` of its replicas at once, as they were when the search
        began."""
        if self._score_cache.has_uniform_scores(self._score):
            return NodeOrder(None, self._node_preference, used or set())
        request = role.resources
        if replica_count > 1 and not request.is_gpu_share:
            request = replace(
                request,
                cpu_milli=replica_count * request.cpu_milli,
                memory_bytes=replica_count * request.memory_bytes,
                gpus=replica_count * request.gpus,
                extras=tuple((name, replica_count * amount) for name, amount in request.extras),
            )
        values = self._scores(ReplicaRequest(request, role.where, self._closed_models_for(role)))
        return NodeOrder(values, self._node_preference, used or set())

    def _scores(self, replica_request: ReplicaRequest) -> Values:
        """Without what is booked: scores are kept for other searches, and those of nodes alike are worked out
        once for all."""
        if self._score_cache.is_current(self._score, replica_request):
            return self._score_cache.values(self._score, replica_request)
        with self._tentative.suspended():
            return self._score_cache.values(self._score, replica_request)
