"""Free resources of every node beside the running gangs: finds a placement for a gang, and allocates it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from hopyard.domain.amounts import amounts_by_node
from hopyard.domain.cluster import Node
from hopyard.domain.gang import ANY_NODE, Assignment, Gang, NodeSelector, Placement, Role
from hopyard.domain.hold_reason import HoldReason
from hopyard.domain.ids import GangId, NodeId
from hopyard.domain.placement_causes import NoCapacityCause
from hopyard.domain.queue import CPU, GPU, MEMORY
from hopyard.domain.resources import Resources
from hopyard.scheduler.placement.feasibility import ReplicaRequest
from hopyard.scheduler.placement.free_resources import FreeResources
from hopyard.scheduler.placement.node_table import Bools, Ints, NodeTable, is_same_machine
from hopyard.scheduler.placement.placement_search import PlacementSearch
from hopyard.scheduler.placement.score_cache import BestNode, ScoreCache
from hopyard.scheduler.placement.workload_mix import WorkloadMix

# Allocations on missing nodes, GPUs and extra resources. These may come back while runs still hold them.
AbsentAllocations = dict[tuple[NodeId, str, int | str], int]
Rows = Ints | slice
PlainAllocation = tuple[list[tuple[int, int, int]], list[tuple[int, int, int]]]
CachedAllocation = tuple[Placement, PlainAllocation | None]  # with the result of `_plain_allocation`
LastPlacement = tuple[Placement | None, BestNode | None]  # the last result of `place`, and its best node
NO_LAST_PLACEMENT: LastPlacement = (None, None)
MAX_CACHED_ALLOCATIONS = 65_536


@dataclass(frozen=True, slots=True)
class NodeHoldback:
    """The capacity to hold back on one node: amounts except GPUs, and how often a GPU, or a GPU share, of
    `gpu_request`."""

    cpu_milli: int
    memory_bytes: int
    extras: tuple[tuple[str, int], ...]
    gpu_request: Resources
    gpu_count: int


class Capacity:
    """Mutable, for one plan or one Planner. Equal nodes and placements give equal results in any order."""

    def __init__(
        self, free: FreeResources, absent: AbsentAllocations, score_cache: ScoreCache | None = None
    ) -> None:
        self._free, self._absent = free, absent
        self._score_cache = ScoreCache(free) if score_cache is None else score_cache
        self._last_placement: LastPlacement = NO_LAST_PLACEMENT
        # valid while rows and GPUs are unchanged
        self._plain_allocations: dict[GangId, CachedAllocation] = {}

    @classmethod
    def of(cls, nodes: Iterable[Node], running: Iterable[Placement] = ()) -> Capacity:
        """Returns the free resources of these nodes. Nothing is ever placed on unschedulable nodes."""
        capacity = cls(FreeResources.of_empty_nodes(NodeTable(nodes)), {})
        for placement in running:
            capacity.allocate(placement)
        return capacity

    def place(
        self,
        gang: Gang,
        *,
        score: str = "fragmentation",
        closed_models: frozenset[str] = frozenset(),
        preferred_nodes: frozenset[NodeId] = frozenset(),
    ) -> Placement | None:
        """Returns a placement for the whole gang, or None; allocates nothing. An elastic gang is as large as
        fits.

        score: the name of a rule of `placement.score_rules`. closed_models: GPU models that the gang may not
        use now. preferred_nodes: nodes to use before others if they suffice.
        """
        if (
            len(gang.roles) == 1
            and gang.size == 1
            and not (gang.input_digests or preferred_nodes or gang.topology or gang.roles[0].topology)
        ):
            return self._place_single_replica(gang, gang.roles[0], score, closed_models)
        return PlacementSearch(
            self._free, self._score_cache, gang, score, closed_models, preferred_nodes
        ).place()

    def place_largest(
        self,
        sizes: Sequence[tuple[Gang, frozenset[str]]],
        *,
        score: str = "fragmentation",
        preferred_nodes: frozenset[NodeId] = frozenset(),
    ) -> Placement | None:
        """Returns the largest placement among the sizes of one gang, each with its closed GPU models; of
        equal sizes the first."""
        placements = (
            self.place(gang, score=score, closed_models=closed_models, preferred_nodes=preferred_nodes)
            for gang, closed_models in sizes
        )
        return max(filter(None, placements), key=lambda placement: placement.gang.size, default=None)

    def certainly_fits(self, gang: Gang, rows: Ints) -> bool:
        """Returns whether the gang fits on these nodes alone, given by their indices in `nodes`, if this is
        cheap to decide. Returns False for gangs of several roles or with a topology, and for nodes of several
        engines."""
        role = gang.roles[0]
        # a gang is never split over engines
        may_be_split = role.replicas > 1 and len(self._free.node_table.rows_by_engine) > 1
        if len(gang.roles) > 1 or gang.topology or role.topology or may_be_split:
            return False
        feasibility = self._score_cache.feasibility_of(ReplicaRequest(role.resources, role.where))
        return int(feasibility.replicas_per_node(self._free, role.replicas, rows).sum()) >= role.replicas

    def _place_single_replica(
        self, gang: Gang, role: Role, score: str, closed_models: frozenset[str]
    ) -> Placement | None:
        """Places one replica, as most gangs have: the best node is cached, except for nodes that changed."""
        best = self._score_cache.best(score, ReplicaRequest(role.resources, role.where, closed_models))
        if best is None:
            return None
        if role.min_replicas:
            gang = gang.with_replica_counts([1])
        row, column, feasibility, node_table = best.row, best.column, best.feasibility, self._free.node_table
        node, gpus = node_table.nodes[row].id, node_table.gpus[row]
        if column >= 0:
            assignment = Assignment(0, node, (gpus[column].index,), feasibility.gpu_milli_on(row, column))
        else:
            chosen = feasibility.choose_gpus(self._free, row)
            assert chosen is not None
            assignment = Assignment(0, node, tuple([gpus[index].index for index in chosen[0]]))
        placement = Placement(gang, (assignment,))
        self._last_placement = placement, best
        return placement

    def update_weights(self, mix: WorkloadMix) -> None:
        """Preserves capacity for these shapes, which gangs usually request. Existing copies are not
        updated."""
        self._score_cache.update_weights(mix)

    def allocate(self, placement: Placement) -> None:
        """Allocates a placement. Allocations on missing nodes are remembered until the nodes come back."""
        last_placement, best = self._last_placement
        if last_placement is placement and best is not None:
            request, assignment, node_table = (
                placement.gang.roles[0].resources,
                placement.assignments[0],
                self._free.node_table,
            )
            columns = tuple([node_table.gpu_column_of[best.row][index] for index in assignment.gpus])
            self._free.allocate(best.row, request, columns, assignment.gpu_milli)
            self._score_cache.record_placed(best)
        else:
            self._apply(placement, 1)
        self._last_placement = NO_LAST_PLACEMENT

    def release(self, placement: Placement) -> None:
        """Exactly undoes `allocate`."""
        self._apply(placement, -1)

    def allocate_all(self, placements: Iterable[Placement]) -> None:
        """Same as `allocate` for each; much cheaper for many."""
        self._apply_all(placements, 1)

    def release_all(self, placements: Iterable[Placement]) -> None:
        """Exactly undoes `allocate_all`."""
        self._apply_all(placements, -1)

    def _apply_all(self, placements: Iterable[Placement], sign: int) -> None:
        nodes, gpus, without_plain_allocation = self._plain_arrays(placements)
        for placement in without_plain_allocation:
            self._apply(placement, sign)
        self._last_placement = NO_LAST_PLACEMENT
        if nodes.size:
            np.subtract.at(self._free.cpu, nodes[:, 0], sign * nodes[:, 1])
            np.subtract.at(self._free.memory, nodes[:, 0], sign * nodes[:, 2])
            np.subtract.at(self._free.gpu, (gpus[:, 0], gpus[:, 1]), sign * gpus[:, 2])
            self._score_cache.invalidate_many(np.unique(nodes[:, 0]))

    def _plain_arrays(self, placements: Iterable[Placement]) -> tuple[Ints, Ints, list[Placement]]:
        """Returns the rows of `_plain_allocation` of these placements, and the placements that have none."""
        node_table, cache = self._free.node_table, self._plain_allocations
        nodes: list[tuple[int, int, int]] = []
        gpus: list[tuple[int, int, int]] = []
        without_plain_allocation: list[Placement] = []
        if len(cache) > MAX_CACHED_ALLOCATIONS:
            cache.clear()
        for placement in placements:
            cached = cache.get(placement.gang.id)
            if cached is None or cached[0] is not placement:
                cached = cache[placement.gang.id] = placement, _plain_allocation(placement, node_table)
            if cached[1] is None:
                without_plain_allocation.append(placement)
            else:
                nodes += cached[1][0]
                gpus += cached[1][1]
        return (
            np.array(nodes, np.int64).reshape(-1, 3),
            np.array(gpus, np.int64).reshape(-1, 3),
            without_plain_allocation,
        )

    def _apply(self, placement: Placement, sign: int) -> None:
        free, node_table = self._free, self._free.node_table
        for (_, role), assignment in zip(placement.gang.replica_roles(), placement.assignments, strict=True):
            request, node = role.resources, assignment.node
            row = node_table.row_of.get(node)
            if row is None:
                self._record_absent(node, "cpu", 0, sign * request.cpu_milli)
                self._record_absent(node, "memory", 0, sign * request.memory_bytes)
                columns: list[int] = []
            else:
                columns = [
                    node_table.gpu_column_of[row][index]
                    for index in assignment.gpus
                    if index in node_table.gpu_column_of[row]
                ]
                free.allocate(row, request, tuple(columns), assignment.gpu_milli, sign)
                self._score_cache.invalidate(row)
            if row is None or len(columns) < len(assignment.gpus):
                for index in assignment.gpus:
                    if row is None or index not in node_table.gpu_column_of[row]:
                        self._record_absent(node, "gpu", index, sign * assignment.gpu_milli)
            for name, amount in request.extras:
                if row is None or name not in free.extras:
                    self._record_absent(node, "extra", name, sign * amount)

    def _record_absent(self, node: NodeId, kind: str, item: int | str, amount: int) -> None:
        key = (node, kind, item)
        total = self._absent.get(key, 0) + amount
        if total:
            self._absent[key] = total
        else:
            self._absent.pop(key, None)

    def copy(self) -> Capacity:
        """Returns an independent copy."""
        free = self._free.copy()
        capacity = Capacity(free, dict(self._absent), self._score_cache.copy(free))
        capacity._plain_allocations = self._plain_allocations
        return capacity

    def intersect(self, other: Capacity, nodes: Iterable[NodeId] | None = None) -> None:
        """Keeps, of each node and each of its GPUs, only what is free in both. If nodes are named, changes
        only these, and only those that both have."""
        own_free, other_free = self._free, other._free
        own_rows: Rows
        other_rows: Rows
        if nodes is not None:
            common_nodes = [
                node
                for node in nodes
                if node in own_free.node_table.row_of and node in other_free.node_table.row_of
            ]
            own_rows, other_rows = self.rows_of(common_nodes), other.rows_of(common_nodes)
        elif own_free.node_table is other_free.node_table:
            own_rows = other_rows = slice(None)
        else:
            other_free, own_rows = other_free.align_to(own_free.node_table), slice(None)
            other_rows = own_rows
        # the GPUs of a node have the same columns in both tables
        width = min(own_free.gpu.shape[1], other_free.gpu.shape[1])
        pairs = [
            (own_free.cpu, other_free.cpu),
            (own_free.memory, other_free.memory),
            (own_free.gpu[:, :width], other_free.gpu[:, :width]),
        ]
        pairs += [
            (own_amounts, other_free.extras[name])
            for name, own_amounts in own_free.extras.items()
            if name in other_free.extras
        ]
        changed = np.zeros(len(own_free.cpu), np.bool_)
        for own_amounts, other_amounts in pairs:
            before, after = own_amounts[own_rows], other_amounts[other_rows]
            is_less = after < before
            if is_less.any():
                own_amounts[own_rows] = np.where(is_less, after, before)
                changed[own_rows] |= is_less if is_less.ndim == 1 else is_less.any(axis=1)
        self._score_cache.invalidate_many(np.flatnonzero(changed))

    def close_nodes(self, nodes: Iterable[NodeId]) -> None:
        """Leaves nothing free on these nodes. Running gangs stay; releasing them makes their resources free
        again."""
        free, rows = self._free, self.rows_of(nodes)
        for amounts in (free.cpu, free.memory, free.gpu, *free.extras.values()):
            amounts[rows] = np.minimum(amounts[rows], 0)
        self._score_cache.invalidate_many(rows)

    def subtract(self, other: Capacity) -> None:
        """Keeps, of each node and each of its GPUs, only what is free here beyond what is free in `other`.
        Both have the same nodes."""
        own_free, other_free = self._free, other._free
        assert own_free.node_table.ids == other_free.node_table.ids
        own_free.cpu -= np.maximum(other_free.cpu, 0)
        own_free.memory -= np.maximum(other_free.memory, 0)
        own_free.gpu -= np.maximum(other_free.gpu, 0)
        for name, amounts in own_free.extras.items():
            amounts -= np.maximum(other_free.extras[name], 0)  # noqa: PLW2901 - in place
        self._score_cache.invalidate_many(np.arange(len(own_free.cpu)))

    def raise_to(self, part: Capacity) -> None:
        """Raises what is free, on each node of `part` and each of its GPUs, to what is free in `part`."""
        own_free, part_free = self._free, part._free
        rows = self.rows_of(part.ids)
        width = part_free.gpu.shape[1]
        own_free.gpu[rows, :width] = np.maximum(own_free.gpu[rows, :width], part_free.gpu)
        own_free.cpu[rows] = np.maximum(own_free.cpu[rows], part_free.cpu)
        own_free.memory[rows] = np.maximum(own_free.memory[rows], part_free.memory)
        for name, amounts in part_free.extras.items():
            own_free.extras[name][rows] = np.maximum(own_free.extras[name][rows], amounts)
        self._score_cache.invalidate_many(rows)

    def withhold(self, node: NodeId, holdback: NodeHoldback) -> tuple[int, ...]:
        """Takes these amounts on one node, or all that is left if there is too little. Returns the missing
        amount of each part."""
        free, row = self._free, self._free.node_table.row_of.get(node)
        if row is None:
            return (
                holdback.cpu_milli,
                holdback.memory_bytes,
                *(amount for _, amount in holdback.extras),
                holdback.gpu_count,
            )
        self._score_cache.invalidate(row)
        missing = []
        for free_amounts, amount in [
            (free.cpu, holdback.cpu_milli),
            (free.memory, holdback.memory_bytes),
            *((free.extras.get(name), amount) for name, amount in holdback.extras),
        ]:
            taken = 0 if free_amounts is None else min(amount, max(int(free_amounts[row]), 0))
            if free_amounts is not None:
                free_amounts[row] -= taken
            missing.append(amount - taken)
        feasibility = self._score_cache.feasibility_of(ReplicaRequest(holdback.gpu_request, ANY_NODE))
        for count in range(holdback.gpu_count):
            chosen = feasibility.choose_gpus(free, row)
            if chosen is None:
                free.gpu[row] = np.minimum(free.gpu[row], 0)
                return (*missing, holdback.gpu_count - count)
            free.allocate(row, holdback.gpu_request, *chosen)
        return (*missing, 0)

    def subset(self, nodes: Iterable[NodeId]) -> Capacity:
        """Returns these nodes alone, as an independent copy. The cost of a search there depends only on these
        nodes."""
        names = sorted({node for node in nodes if node in self._free.node_table.row_of})
        rows = self.rows_of(names)
        node_table = NodeTable(self._free.node_table.nodes[row] for row in rows)
        free = self._free
        gpu = free.gpu[rows][:, : node_table.gpu.shape[1]].copy()
        part = FreeResources(
            node_table,
            free.cpu[rows],
            free.memory[rows],
            gpu,
            {name: amounts[rows] for name, amounts in free.extras.items()},
        )
        return Capacity(part, {}, ScoreCache(part, self._score_cache.mix))

    @property
    def nodes(self) -> tuple[Node, ...]:
        """The nodes with their total resources, sorted by id."""
        return self._free.node_table.nodes

    @property
    def ids(self) -> tuple[NodeId, ...]:
        """The ids of `nodes`; the same object until they change."""
        return self._free.node_table.ids

    def free_totals(self) -> tuple[Ints, Ints, Ints]:
        """Returns the free resources of each node: thousandths of cores, bytes, thousandths of GPUs of all
        models together."""
        return self._free.cpu, self._free.memory, np.maximum(self._free.gpu, 0).sum(axis=1)

    def free_totals_without(self, ended: Iterable[Placement]) -> tuple[Ints, Ints, Ints]:
        """Same as `free_totals`, as if these placements were released."""
        row = self._free.node_table.row_of
        cpu, memory, gpu = (
            self._free.cpu.copy(),
            self._free.memory.copy(),
            np.maximum(self._free.gpu, 0).sum(axis=1),
        )
        nodes, gpus, without_plain_allocation = self._plain_arrays(ended)
        np.add.at(cpu, nodes[:, 0], nodes[:, 1])
        np.add.at(memory, nodes[:, 0], nodes[:, 2])
        np.add.at(gpu, gpus[:, 0], gpus[:, 2])
        for placement in without_plain_allocation:
            for (_, role), assignment in zip(
                placement.gang.replica_roles(), placement.assignments, strict=True
            ):
                node_row = row.get(assignment.node)
                if node_row is not None:
                    cpu[node_row] += role.resources.cpu_milli
                    memory[node_row] += role.resources.memory_bytes
                    gpu[node_row] += len(assignment.gpus) * assignment.gpu_milli
        return cpu, memory, gpu

    def allowed_nodes(self, where: NodeSelector) -> Bools:
        """Returns which of `nodes` are schedulable and allowed."""
        return self._free.node_table.allowed_nodes(where)

    def get_node(self, node: NodeId) -> Node | None:
        """Returns the node with its total resources, or None."""
        row = self._free.node_table.row_of.get(node)
        return None if row is None else self._free.node_table.nodes[row]

    def free_on(self, node: NodeId) -> dict[str, int]:
        """Returns thousandths of cores, bytes, and thousandths of all GPUs together that are free on a node;
        nothing if it is missing or closed."""
        row = self._free.node_table.row_of.get(node)
        if row is None or not self._free.node_table.open[row]:
            return {}
        return {
            CPU: int(self._free.cpu[row]),
            MEMORY: int(self._free.memory[row]),
            GPU: int(np.maximum(self._free.gpu[row], 0).sum()),
        }

    def is_free(self, placement: Placement, resources: Collection[str]) -> bool:
        """Returns whether the placement's amounts of these resources (CPU, MEMORY, GPU) are free on its
        nodes; for GPUs on exactly its GPUs."""
        for node, node_needs in amounts_by_node(placement).items():
            free_amounts = self.free_on(node)
            if any(
                amount > free_amounts.get(name, 0) for name, amount in node_needs.items() if name in resources
            ):
                return False
        gpu_needs = Counter[tuple[NodeId, int]]()
        for assignment in placement.assignments if GPU in resources else ():
            gpu_needs.update({(assignment.node, index): assignment.gpu_milli for index in assignment.gpus})
        node_table = self._free.node_table
        return all(
            milli
            <= self._free.gpu[
                node_table.row_of[node], node_table.gpu_column_of[node_table.row_of[node]][index]
            ]
            for (node, index), milli in gpu_needs.items()
        )

    def rows_of(self, nodes: Iterable[NodeId]) -> Ints:
        """Returns the indices in `nodes` of the given nodes that exist."""
        row = self._free.node_table.row_of
        return np.array([row[node] for node in nodes if node in row], np.int64)

    def set_node(self, node: Node) -> None:
        """Adds or updates a node; its allocations stay."""
        free = self._free
        row = free.node_table.row_of.get(node.id)
        if row is not None and is_same_machine(free.node_table.nodes[row], node):
            was_open = free.node_table.open[row]
            free.node_table = free.node_table.with_node_changed(row, node)
            if node.schedulable != was_open:
                self._score_cache.record_node_changed(row, opened=node.schedulable)
            return
        self._rebuild([*(other for other in self._free.node_table.nodes if other.id != node.id), node])

    def drop_node(self, node: NodeId) -> None:
        """Removes a node; its allocations are remembered."""
        self._rebuild([other for other in self._free.node_table.nodes if other.id != node])

    def _rebuild(self, nodes: Iterable[Node]) -> None:
        """Moves the allocations onto other nodes."""
        old_free, node_table = self._free, NodeTable(nodes)
        new_free = FreeResources.of_empty_nodes(node_table)
        allocated = dict(self._absent)
        self._free, self._absent, self._score_cache = (
            new_free,
            {},
            ScoreCache(new_free, self._score_cache.mix),
        )
        self._last_placement, self._plain_allocations = NO_LAST_PLACEMENT, {}
        for row, node in enumerate(old_free.node_table.nodes):
            allocated[node.id, "cpu", 0] = int(old_free.node_table.cpu[row] - old_free.cpu[row])
            allocated[node.id, "memory", 0] = int(old_free.node_table.memory[row] - old_free.memory[row])
            for gpu, total, free_milli in zip(
                old_free.node_table.gpus[row],
                old_free.node_table.gpu[row].tolist(),
                old_free.gpu[row].tolist(),
                strict=False,
            ):
                allocated[node.id, "gpu", gpu.index] = total - free_milli
            for name, array in old_free.extras.items():
                allocated[node.id, "extra", name] = int(old_free.node_table.extras[name][row] - array[row])
        for (node_id, kind, item), amount in allocated.items():
            if amount:
                self._place_absent(node_id, kind, item, amount)

    def _place_absent(self, node: NodeId, kind: str, item: int | str, amount: int) -> None:
        free = self._free
        row = free.node_table.row_of.get(node)
        if row is not None and kind == "cpu":
            free.cpu[row] -= amount
        elif row is not None and kind == "memory":
            free.memory[row] -= amount
        elif row is not None and kind == "gpu" and item in free.node_table.gpu_column_of[row]:
            free.gpu[row, free.node_table.gpu_column_of[row][int(item)]] -= amount
        elif row is not None and kind == "extra" and item in free.extras:
            free.extras[str(item)][row] -= amount
        else:
            self._record_absent(node, kind, item, amount)

    def why_not_reason(self, gang: Gang) -> HoldReason:
        """Same as the reason of `why_not`, but much cheaper."""
        from hopyard.scheduler.placement.unschedulable import why_not_reason

        return why_not_reason(self._free, gang)

    def why_not(self, gang: Gang) -> NoCapacityCause:
        """Returns why `place` finds no placement, with numbers."""
        from hopyard.scheduler.placement.unschedulable import why_not

        return why_not(self._free, gang)


def _plain_allocation(placement: Placement, node_table: NodeTable) -> PlainAllocation | None:
    """Returns what the placement holds: row, thousandths of cores and bytes of each replica; row, column and
    thousandths of each GPU. Returns None if some of its nodes or GPUs do not exist, or if it holds any other
    resource."""
    nodes, gpus = [], []
    for (_, role), assignment in zip(placement.gang.replica_roles(), placement.assignments, strict=True):
        request, row = role.resources, node_table.row_of.get(assignment.node)
        if row is None or request.extras:
            return None
        nodes.append((row, request.cpu_milli, request.memory_bytes))
        if assignment.gpus:
            column, milli = node_table.gpu_column_of[row], assignment.gpu_milli
            for index in assignment.gpus:
                if index not in column:
                    return None
                gpus.append((row, column[index], milli))
    return nodes, gpus
