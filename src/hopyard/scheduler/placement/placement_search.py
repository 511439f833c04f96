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
# a gang without a topology rule is placed within one domain of these levels if possible
DEFAULT_LEVELS = ("rack", "zone")

FoundAssignments = list[Assignment] | None


class PlacementSearch:
    """Searches a placement for one gang on one state of the cluster. Exact for a gang of one role. Several
    roles are placed by a heuristic, because packing in several dimensions is NP-hard. It places the most
    demanding role first, in a few orders; if all of these fail, see `MultiRolePacking`.

    Replicas placed during the search are allocated tentatively on `free`. They are released at the end, so
    `free` is unchanged. Nodes are scored without these allocations, so no score depends on the gang for which
    it was computed.
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
        minimum = self._place_sized([role.required_replicas for role in self._gang.roles])
        if minimum is None or not self._gang.is_elastic:
            return minimum
        return self._grow(minimum)

    def _grow(self, minimum: Placement) -> Placement:
        """Adds as many optional replicas as fit, one role after another."""
        best = minimum
        counts = [role.required_replicas for role in self._gang.roles]
        for index, role in enumerate(self._gang.roles):
            low, high = counts[index], role.replicas
            while low < high:
                middle = (low + high + 1) // 2
                placement = self._place_sized([*counts[:index], middle, *counts[index + 1 :]])
                if placement is None:
                    high = middle - 1
                else:
                    low, best = middle, placement
            counts[index] = low
        return best

    def _place_sized(self, counts: Sequence[int]) -> Placement | None:
        """Returns the placement on the fewest nodes, over all engines. A gang is never split over two
        engines. With several roles and topology rules, success depends on the order in which nodes are used.
        Other scores are therefore tried, so that success does not depend on one score alone."""
        gang, configured_score = self._gang.with_replica_counts(counts), self._score
        exact = len(gang.roles) == 1 or (gang.topology is None and all(map(is_movable, gang.roles)))
        try:
            for self._score in dict.fromkeys(
                [configured_score] if exact else [configured_score, *FALLBACK_SCORES]
            ):
                candidates = [
                    assignments
                    for rows in self._rows_by_engine(gang)
                    if (assignments := self._place_on(gang, rows)) is not None
                ]
                if candidates:
                    return Placement(
                        gang,
                        tuple(min(candidates, key=lambda assignments: len({a.node for a in assignments}))),
                    )
            return None
        finally:
            self._score = configured_score

    def _rows_by_engine(self, gang: Gang) -> Sequence[Ints]:
        """Returns the nodes of each engine, or all nodes together for a gang of one replica."""
        node_table = self._free.node_table
        return (
            [node_table.rows]
            if gang.size == 1 or len(node_table.rows_by_engine) <= 1
            else node_table.rows_by_engine
        )

    def _preference_of(self, preferred_nodes: frozenset[NodeId]) -> Ints | None:
        """Returns a preference per node; smaller is better. Preferred nodes come first, then nodes that hold
        more of the gang's input data. None if all nodes are equal."""
        if not preferred_nodes and not self._gang.input_digests:
            return None
        node_table = self._free.node_table
        preference = np.zeros(len(node_table.nodes), np.int64)
        for key in self._gang.input_digests:
            preference -= node_table.holds_data(key)
        for node in preferred_nodes:
            if node in node_table.row_of:
                preference[node_table.row_of[node]] -= len(self._gang.input_digests) + 1
        return preference

    def _place_on(self, gang: Gang, rows: Ints) -> FoundAssignments:
        rule = gang.topology
        if rule is None:
            return self._place_near(gang, rows)
        rows = self._rows_inside(rule.level, rows)
        if rule.rule is Closeness.SAME:
            return self._place_in_one_domain(gang, rule.level, rows)
        if len(gang.roles) == 1 and gang.roles[0].topology is None:
            return self._place_roles([replace(gang.roles[0], topology=rule)], rows)
        assignments = (
            self._place_in_one_domain(gang, rule.level, rows) if rule.rule is not Closeness.SPREAD else None
        )
        assignments = (
            assignments or self._place_slices(gang, rule, rows) or self._place_roles(gang.roles, rows)
        )
        return (
            assignments
            if assignments is not None and obeys_topology(gang, assignments, self._free.node_table.nodes)
            else None
        )

    def _rows_inside(self, level: str, rows: Ints) -> Ints:
        in_domain = self._free.node_table.in_domain_of(level)
        return rows if in_domain is None else rows[in_domain[rows]]

    def _place_near(self, gang: Gang, rows: Ints) -> FoundAssignments:
        """Tries one node, then one rack, then one zone, then all nodes."""
        if gang.size == 1 or any(role.topology is not None for role in gang.roles):
            return self._place_roles(gang.roles, rows)
        assignments = self._place_in_one_domain(gang, NODE_LEVEL, rows)
        for level in DEFAULT_LEVELS:
            assignments = assignments or (
                self._place_in_one_domain(gang, level, rows)
                if self._free.node_table.domains(level)[1] > 1
                else None
            )
        return assignments or self._place_roles(gang.roles, rows)

    def _place_in_one_domain(self, gang: Gang, level: str, rows: Ints) -> FoundAssignments:
        """Places the gang in one domain of the level: the domain with the least capacity where it fits."""
        domains, count = self._free.node_table.domains(level)
        rows = self._rows_inside(level, rows)
        feasibilities = [self._feasibility(role) for role in gang.roles]
        replicas_per_node = [
            feasibility.replicas_per_node(self._free, role.replicas, rows)
            for feasibility, role in zip(feasibilities, gang.roles, strict=True)
        ]
        if level == NODE_LEVEL:
            return self._place_on_one_node(gang, rows, replicas_per_node)
        possible, total = np.ones(count, np.bool_), np.zeros(count, np.int64)
        for role, counts in zip(gang.roles, replicas_per_node, strict=True):
            domain_capacity = np.bincount(domains[rows], counts, count).astype(np.int64)
            possible &= domain_capacity >= role.replicas
            total += domain_capacity
        feasible_domains = np.flatnonzero(possible)
        for domain in feasible_domains[np.argsort(total[feasible_domains], kind="stable")].tolist():
            assignments = self._place_roles(gang.roles, rows[domains[rows] == domain])
            if assignments is not None:
                return assignments
        return None

    def _place_on_one_node(self, gang: Gang, rows: Ints, rooms: Sequence[Ints]) -> FoundAssignments:
        """Places all replicas on the best node that has enough capacity."""
        possible = np.ones(len(rows), np.bool_)
        for role, counts in zip(gang.roles, rooms, strict=True):
            possible &= counts >= role.replicas
        possible &= self._has_enough_for_all(gang, rows)
        candidates = rows[possible]
        if not len(candidates):
            return None
        heaviest = max(gang.roles, key=demand_key)
        node_order = self._node_order(heaviest, heaviest.replicas if len(gang.roles) == 1 else 1)
        for row in node_order.sort_rows(candidates):
            assignments = self._place_roles(gang.roles, np.array([row]))
            if assignments is not None:
                return assignments
        return None

    def _has_enough_for_all(self, gang: Gang, rows: Ints) -> np.ndarray[tuple[int], np.dtype[np.bool_]]:
        """Returns which nodes have enough CPU and memory for all roles together."""
        cpu = sum(role.replicas * role.resources.cpu_milli for role in gang.roles)
        memory = sum(role.replicas * role.resources.memory_bytes for role in gang.roles)
        enough: np.ndarray[tuple[int], np.dtype[np.bool_]] = np.ones(len(rows), np.bool_)
        if cpu:
            enough &= self._free.cpu[rows] >= cpu
        if memory:
            enough &= self._free.memory[rows] >= memory
        return enough

    def _place_slices(self, gang: Gang, rule: Topology, rows: Ints) -> FoundAssignments:
        """Places slices of several roles one after another. Each slice is a small gang in one domain of the
        level. Uses as few domains as possible."""
        domains, _ = self._free.node_table.domains(rule.level)
        slices = list(slice_gangs(gang, rule.slice))
        capacity = sum(
            self._feasibility(role).replicas_per_node(self._free, role.replicas, rows) for role in gang.roles
        )
        usable = np.unique(domains[rows][capacity > 0]).tolist()
        for max_domains in range(
            len(slices) if rule.rule is Closeness.SPREAD else 1, min(len(slices), len(usable)) + 1
        ):
            max_slices = -(-len(slices) // max_domains) if rule.rule is not Closeness.NEAR else len(slices)
            assignments = self._place_slices_in(
                gang, slices, max_domains, max_slices, usable, {d: rows[domains[rows] == d] for d in usable}
            )
            if assignments is not None:
                return assignments
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
        """Uses at most `max_domains` domains, with at most `max_slices` slices each."""
        placed, slices_in_domain = [Assignment(0, NodeId(""))] * gang.size, dict[int, int]()
        allocation_count = len(self._tentative)
        for ranks, slice_gang in slices:
            unused_domains = (
                [d for d in usable if d not in slices_in_domain]
                if len(slices_in_domain) < max_domains
                else []
            )
            for domain in [
                *(d for d, slice_count in slices_in_domain.items() if slice_count < max_slices),
                *unused_domains,
            ]:
                assignments = self._place_roles(slice_gang.roles, rows[domain])
                if assignments is not None:
                    slices_in_domain[domain] = slices_in_domain.get(domain, 0) + 1
                    for rank, (_, role), assignment in zip(
                        ranks, slice_gang.replica_roles(), assignments, strict=True
                    ):
                        placed[rank] = replace(assignment, rank=rank)
                        self._tentative.add(role.resources, assignment)
                    break
            else:
                break
        return placed if self._tentative.release_since(allocation_count) == gang.size else None

    def _place_roles(self, roles: Sequence[Role], rows: Ints) -> FoundAssignments:
        """Places one role after another, in the first order that works. If no order works, packs the roles
        together."""
        if len(roles) == 1 and not (roles[0].resources.gpus or roles[0].resources.is_gpu_share):
            return self._place_without_gpus(roles[0], rows)
        first_ranks = list(accumulate((role.replicas for role in roles), initial=0))
        for order in role_orders(roles):
            placed = [Assignment(0, NodeId(""))] * first_ranks[-1]
            allocation_count = len(self._tentative)
            used: set[int] = set()
            for index in order:
                assignments = self._place_role(roles[index], first_ranks[index], rows, used)
                if assignments is None:
                    break
                placed[first_ranks[index] : first_ranks[index + 1]] = assignments
            if self._tentative.release_since(allocation_count) == first_ranks[-1]:
                return placed
        return self._place_roles_packed(roles, rows)

    def _place_roles_packed(self, roles: Sequence[Role], rows: Ints) -> FoundAssignments:
        """Packs all roles together. Returns None if topology rules do not allow each replica to be on any
        node."""
        if min(len(roles), len(rows)) <= 1 or not all(is_movable(role) for role in roles):
            return None
        feasibilities, order = [self._feasibility(role) for role in roles], role_orders(roles)[0]
        node_counts = (
            MultiRolePacking(self._free, self._tentative, roles, feasibilities, order).assign(rows) or []
        )
        next_ranks, allocation_count = (
            list(accumulate((role.replicas for role in roles), initial=0)),
            len(self._tentative),
        )
        placed = [Assignment(0, NodeId(""))] * next_ranks[-1]
        for row, counts in node_counts:
            for index in order:
                for _ in range(counts[index]):
                    assignment = feasibilities[index].assign_replica(self._free, next_ranks[index], row)
                    if assignment is None:
                        break
                    self._tentative.add(roles[index].resources, assignment)
                    placed[next_ranks[index]] = assignment
                    next_ranks[index] += 1
        return placed if self._tentative.release_since(allocation_count) == next_ranks[-1] else None

    def _place_without_gpus(self, role: Role, rows: Ints) -> FoundAssignments:
        """Places a gang of one role without GPUs. No tentative allocation is needed, because no other role
        follows."""
        chosen, ids = (
            self._choose_nodes(role, self._feasibility(role), rows, set()),
            self._free.node_table.ids,
        )
        return None if chosen is None else [Assignment(rank, ids[row]) for rank, row in enumerate(chosen)]

    def _choose_nodes(
        self, role: Role, feasibility: NodeFeasibility, rows: Ints, used: set[int]
    ) -> list[int] | None:
        """Returns the node of each replica of a role, in rank order."""
        replicas_per_node = feasibility.replicas_per_node(self._free, role.replicas, rows)
        feasible = np.flatnonzero(replicas_per_node)
        return self._choose_rows(role, rows[feasible], replicas_per_node[feasible], used)

    def _place_role(self, role: Role, first_rank: int, rows: Ints, used: set[int]) -> FoundAssignments:
        """Returns the assignments of one role's replicas, allocated tentatively."""
        feasibility = self._feasibility(role)
        chosen = self._choose_nodes(role, feasibility, rows, used)
        if chosen is None:
            return None
        assignments = []
        for rank, row in enumerate(chosen, start=first_rank):
            assignment = feasibility.assign_replica(self._free, rank, row)
            if assignment is None:
                return None
            self._tentative.add(role.resources, assignment)
            assignments.append(assignment)
        used.update(chosen)
        return assignments

    def _choose_rows(self, role: Role, rows: Ints, room: Ints, used: set[int]) -> list[int] | None:
        """Returns the node of each replica, in rank order. `rows` are the nodes with capacity."""
        rule = role.topology

        def order_for(count: int) -> NodeOrder:
            return self._node_order(role, count, used)

        if rule is None or (rule.level == NODE_LEVEL and rule.rule is Closeness.NEAR and rule.slice == 1):
            return pack_replicas(order_for, role.replicas, rows, room)
        if rule.level == NODE_LEVEL and rule.rule is Closeness.SPREAD and rule.slice == 1:
            return order_for(1).take_best(rows, role.replicas)
        domains, domain_count = self._free.node_table.domains(rule.level)
        in_domain = self._free.node_table.in_domain_of(rule.level)
        if in_domain is not None:
            rows, room = rows[in_domain[rows]], room[in_domain[rows]]
        domain = domains[rows]
        if rule.level == NODE_LEVEL and rule.rule is Closeness.SAME:
            return pack_replicas(
                order_for, role.replicas, rows[room >= role.replicas], room[room >= role.replicas]
            )
        domain_capacity = np.bincount(domain, room, domain_count).astype(np.int64)
        shares = assign_to_domains(rule.rule, rule.slice, role.replicas, domain_capacity.tolist())
        if shares is None:
            return None
        chosen: list[int] = []
        for share in shares:
            in_share = np.flatnonzero(domain == share.domain)
            chosen += pack_replicas(order_for, share.count, rows[in_share], room[in_share]) or []
        return chosen

    def _feasibility(self, role: Role) -> NodeFeasibility:
        return self._score_cache.feasibility_of(
            ReplicaRequest(role.resources, role.where, self._closed_models_for(role))
        )

    def _closed_models_for(self, role: Role) -> frozenset[str]:
        """Returns the closed GPU models for this role. A role that names only closed models may use them; the
        other roles of the gang may not."""
        if not self._closed_models or len(self._gang.roles) == 1:
            return self._closed_models
        requested_models = {*map(str.casefold, role.resources.gpu_models)}
        return (
            frozenset()
            if requested_models and requested_models <= self._closed_models
            else self._closed_models
        )

    def _node_order(self, role: Role, replica_count: int, used: set[int] | None = None) -> NodeOrder:
        """Returns the order of nodes for `replica_count` replicas of the role at once, by their state when
        the search began."""
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
        """Returns the scores without the tentative allocations: other searches use the same cached scores,
        and equal nodes are scored once."""
        if self._score_cache.is_current(self._score, replica_request):
            return self._score_cache.values(self._score, replica_request)
        with self._tentative.suspended():
            return self._score_cache.values(self._score, replica_request)
