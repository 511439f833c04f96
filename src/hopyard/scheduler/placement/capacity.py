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

# What is taken of nodes, cards and extras that are not there: they may come back while their runs still hold
# them.
AbsentAllocations = dict[tuple[NodeId, str, int | str], int]
Rows = Ints | slice
PlainAllocation = tuple[list[tuple[int, int, int]], list[tuple[int, int, int]]]
CachedAllocation = tuple[Placement, PlainAllocation | None]  # with what `_plain` says of it
LastPlacement = tuple[Placement | None, BestNode | None]  # the place that was found last, and how
NO_LAST_PLACEMENT: LastPlacement = (None, None)
MAX_CACHED_ALLOCATIONS = 65_536  # placements of which it is remembered what they hold


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
        self._plain_allocations: dict[GangId, CachedAllocation] = {}  # as long as rows and cards are the same

    @classmethod
    def of(cls, nodes: Iterable[Node], running: Iterable[Placement] = ()) -> Capacity:
        """Returns the free resources of these nodes. Nothing is ever placed on unschedulable nodes."""
        found = cls(FreeResources.of_empty_nodes(NodeTable(nodes)), {})
        for placement in running:
            found.allocate(placement)
        return found

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
        places = (
            self.place(gang, score=score, closed_models=closed, preferred_nodes=preferred_nodes)
            for gang, closed in sizes
        )
        return max(filter(None, places), key=lambda found: found.gang.size, default=None)

    def certainly_fits(self, gang: Gang, rows: Ints) -> bool:
        """Returns whether the gang has a place on these nodes alone, by their indices in `nodes`, if that is
        cheap to find out. Returns False for gangs of several roles or with a topology, and for nodes of
        several engines."""
        role = gang.roles[0]
        # no gang is, over engines
        split = role.replicas > 1 and len(self._free.node_table.rows_by_engine) > 1
        if len(gang.roles) > 1 or gang.topology or role.topology or split:
            return False
        fitting = self._score_cache.feasibility_of(ReplicaRequest(role.resources, role.where))
        return int(fitting.replicas_per_node(self._free, role.replicas, rows).sum()) >= role.replicas

    def _place_single_replica(
        self, gang: Gang, role: Role, score: str, closed_models: frozenset[str]
    ) -> Placement | None:
        """Places one replica, as most gangs have: the best node is cached, except for nodes that changed."""
        best = self._score_cache.best(score, ReplicaRequest(role.resources, role.where, closed_models))
        if best is None:
            return None
        if role.min_replicas:
            gang = gang.with_replica_counts([1])
        row, column, fitting, ground = best.row, best.column, best.feasibility, self._free.node_table
        node, gpus = ground.nodes[row].id, ground.gpus[row]
        if column >= 0:
            assignment = Assignment(0, node, (gpus[column].index,), fitting.gpu_milli_on(row, column))
        else:
            cards = fitting.choose_gpus(self._free, row)
            assert cards is not None
            assignment = Assignment(0, node, tuple([gpus[j].index for j in cards[0]]))
        found = Placement(gang, (assignment,))
        self._last_placement = found, best
        return found

    def update_weights(self, mix: WorkloadMix) -> None:
        """Preserves capacity for these shapes, which gangs usually request. Existing copies are not
        updated."""
        self._score_cache.update_weights(mix)

    def allocate(self, placement: Placement) -> None:
        """Allocates a placement. Allocations on missing nodes are remembered until the nodes come back."""
        found, best = self._last_placement
        if found is placement and best is not None:
            request, assignment, ground = (
                placement.gang.roles[0].resources,
                placement.assignments[0],
                self._free.node_table,
            )
            columns = tuple([ground.gpu_column_of[best.row][index] for index in assignment.gpus])
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
        nodes, cards, others = self._plain_arrays(placements)
        for placement in others:
            self._apply(placement, sign)
        self._last_placement = NO_LAST_PLACEMENT
        if nodes.size:
            np.subtract.at(self._free.cpu, nodes[:, 0], sign * nodes[:, 1])
            np.subtract.at(self._free.memory, nodes[:, 0], sign * nodes[:, 2])
            np.subtract.at(self._free.gpu, (cards[:, 0], cards[:, 1]), sign * cards[:, 2])
            self._score_cache.invalidate_many(np.unique(nodes[:, 0]))

    def _plain_arrays(self, placements: Iterable[Placement]) -> tuple[Ints, Ints, list[Placement]]:
        """What they hold, as of `_plain`, and those that hold anything else."""
        ground, known = self._free.node_table, self._plain_allocations
        nodes: list[tuple[int, int, int]] = []
        cards: list[tuple[int, int, int]] = []
        others: list[Placement] = []
        if len(known) > MAX_CACHED_ALLOCATIONS:
            known.clear()
        for placement in placements:
            found = known.get(placement.gang.id)
            if found is None or found[0] is not placement:
                found = known[placement.gang.id] = placement, _plain_allocation(placement, ground)
            if found[1] is None:
                others.append(placement)
            else:
                nodes += found[1][0]
                cards += found[1][1]
        return np.array(nodes, np.int64).reshape(-1, 3), np.array(cards, np.int64).reshape(-1, 3), others

    def _apply(self, placement: Placement, sign: int) -> None:
        free, ground = self._free, self._free.node_table
        for (_, role), assignment in zip(placement.gang.replica_roles(), placement.assignments, strict=True):
            request, node = role.resources, assignment.node
            row = ground.row_of.get(node)
            if row is None:
                self._record_absent(node, "cpu", 0, sign * request.cpu_milli)
                self._record_absent(node, "memory", 0, sign * request.memory_bytes)
                columns: list[int] = []
            else:
                columns = [
                    ground.gpu_column_of[row][index]
                    for index in assignment.gpus
                    if index in ground.gpu_column_of[row]
                ]
                free.allocate(row, request, tuple(columns), assignment.gpu_milli, sign)
                self._score_cache.invalidate(row)
            if row is None or len(columns) < len(assignment.gpus):
                for index in assignment.gpus:
                    if row is None or index not in ground.gpu_column_of[row]:
                        self._record_absent(node, "gpu", index, sign * assignment.gpu_milli)
            for name, amount in request.extras:
                if row is None or name not in free.extras:
                    self._record_absent(node, "extra", name, sign * amount)

    def _record_absent(self, node: NodeId, kind: str, item: int | str, amount: int) -> None:
        key = (node, kind, item)
        left = self._absent.get(key, 0) + amount
        if left:
            self._absent[key] = left
        else:
            self._absent.pop(key, None)

    def copy(self) -> Capacity:
        """Returns an independent copy."""
        free = self._free.copy()
        found = Capacity(free, dict(self._absent), self._score_cache.copy(free))
        found._plain_allocations = self._plain_allocations
        return found

    def intersect(self, other: Capacity, nodes: Iterable[NodeId] | None = None) -> None:
        """Keeps, of each node and each of its GPUs, only what is free in both. If nodes are named, changes
        only these, and only those that both have."""
        mine, theirs = self._free, other._free
        here: Rows
        there: Rows
        if nodes is not None:
            known = [
                node for node in nodes if node in mine.node_table.row_of and node in theirs.node_table.row_of
            ]
            here, there = self.rows_of(known), other.rows_of(known)
        elif mine.node_table is theirs.node_table:
            here = there = slice(None)
        else:
            theirs, here = theirs.align_to(mine.node_table), slice(None)
            there = here
        # a node's cards stand in the same columns wherever it is
        width = min(mine.gpu.shape[1], theirs.gpu.shape[1])
        pairs = [
            (mine.cpu, theirs.cpu),
            (mine.memory, theirs.memory),
            (mine.gpu[:, :width], theirs.gpu[:, :width]),
        ]
        pairs += [(left, theirs.extras[name]) for name, left in mine.extras.items() if name in theirs.extras]
        changed = np.zeros(len(mine.cpu), np.bool_)
        for left, other_left in pairs:
            before, after = left[here], other_left[there]
            less = after < before
            if less.any():
                left[here] = np.where(less, after, before)
                changed[here] |= less if less.ndim == 1 else less.any(axis=1)
        self._score_cache.invalidate_many(np.flatnonzero(changed))

    def close_nodes(self, nodes: Iterable[NodeId]) -> None:
        """Leaves nothing free on these nodes. Running gangs stay; releasing them opens that much of the
        nodes."""
        free, rows = self._free, self.rows_of(nodes)
        for left in (free.cpu, free.memory, free.gpu, *free.extras.values()):
            left[rows] = np.minimum(left[rows], 0)
        self._score_cache.invalidate_many(rows)

    def subtract(self, other: Capacity) -> None:
        """Keeps, of each node and each of its GPUs, only what is free here beyond what is free there. Both
        have the same nodes."""
        mine, theirs = self._free, other._free
        assert mine.node_table.ids == theirs.node_table.ids
        mine.cpu -= np.maximum(theirs.cpu, 0)
        mine.memory -= np.maximum(theirs.memory, 0)
        mine.gpu -= np.maximum(theirs.gpu, 0)
        for name, left in mine.extras.items():
            left -= np.maximum(theirs.extras[name], 0)  # noqa: PLW2901 - in place
        self._score_cache.invalidate_many(np.arange(len(mine.cpu)))

    def raise_to(self, part: Capacity) -> None:
        """Raises what is free, on each node of a part and each of its GPUs, to what is free there."""
        mine, theirs = self._free, part._free
        rows = self.rows_of(part.ids)
        width = theirs.gpu.shape[1]
        mine.gpu[rows, :width] = np.maximum(mine.gpu[rows, :width], theirs.gpu)
        mine.cpu[rows] = np.maximum(mine.cpu[rows], theirs.cpu)
        mine.memory[rows] = np.maximum(mine.memory[rows], theirs.memory)
        for name, left in theirs.extras.items():
            mine.extras[name][rows] = np.maximum(mine.extras[name][rows], left)
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
        for left, amount in [
            (free.cpu, holdback.cpu_milli),
            (free.memory, holdback.memory_bytes),
            *((free.extras.get(name), amount) for name, amount in holdback.extras),
        ]:
            held = 0 if left is None else min(amount, max(int(left[row]), 0))
            if left is not None:
                left[row] -= held
            missing.append(amount - held)
        fitting = self._score_cache.feasibility_of(ReplicaRequest(holdback.gpu_request, ANY_NODE))
        for count in range(holdback.gpu_count):
            found = fitting.choose_gpus(free, row)
            if found is None:
                free.gpu[row] = np.minimum(free.gpu[row], 0)
                return (*missing, holdback.gpu_count - count)
            free.allocate(row, holdback.gpu_request, *found)
        return (*missing, 0)

    def subset(self, nodes: Iterable[NodeId]) -> Capacity:
        """Returns these nodes alone, as an independent copy. The cost of a search there depends only on these
        nodes."""
        names = sorted({node for node in nodes if node in self._free.node_table.row_of})
        rows = self.rows_of(names)
        ground = NodeTable(self._free.node_table.nodes[row] for row in rows)
        free = self._free
        gpu = free.gpu[rows][:, : ground.gpu.shape[1]].copy()
        part = FreeResources(
            ground, free.cpu[rows], free.memory[rows], gpu, {k: v[rows] for k, v in free.extras.items()}
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
        nodes, cards, others = self._plain_arrays(ended)
        np.add.at(cpu, nodes[:, 0], nodes[:, 1])
        np.add.at(memory, nodes[:, 0], nodes[:, 2])
        np.add.at(gpu, cards[:, 0], cards[:, 2])
        for placement in others:
            for (_, role), assignment in zip(
                placement.gang.replica_roles(), placement.assignments, strict=True
            ):
                at = row.get(assignment.node)
                if at is not None:
                    cpu[at] += role.resources.cpu_milli
                    memory[at] += role.resources.memory_bytes
                    gpu[at] += len(assignment.gpus) * assignment.gpu_milli
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
        for node, needs in amounts_by_node(placement).items():
            left = self.free_on(node)
            if any(need > left.get(name, 0) for name, need in needs.items() if name in resources):
                return False
        cards = Counter[tuple[NodeId, int]]()
        for assignment in placement.assignments if GPU in resources else ():
            cards.update({(assignment.node, index): assignment.gpu_milli for index in assignment.gpus})
        ground = self._free.node_table
        return all(
            milli <= self._free.gpu[ground.row_of[node], ground.gpu_column_of[ground.row_of[node]][index]]
            for (node, index), milli in cards.items()
        )

    def rows_of(self, nodes: Iterable[NodeId]) -> Ints:
        """Returns the indices in `nodes` of those nodes that exist."""
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
        self._rebuild([*(n for n in self._free.node_table.nodes if n.id != node.id), node])

    def drop_node(self, node: NodeId) -> None:
        """Removes a node; its allocations are remembered."""
        self._rebuild([n for n in self._free.node_table.nodes if n.id != node])

    def _rebuild(self, nodes: Iterable[Node]) -> None:
        """Moves the allocations onto other nodes."""
        old, ground = self._free, NodeTable(nodes)
        new = FreeResources.of_empty_nodes(ground)
        taken = dict(self._absent)
        self._free, self._absent, self._score_cache = new, {}, ScoreCache(new, self._score_cache.mix)
        self._last_placement, self._plain_allocations = NO_LAST_PLACEMENT, {}
        for row, node in enumerate(old.node_table.nodes):
            taken[node.id, "cpu", 0] = int(old.node_table.cpu[row] - old.cpu[row])
            taken[node.id, "memory", 0] = int(old.node_table.memory[row] - old.memory[row])
            for gpu, total, left in zip(
                old.node_table.gpus[row],
                old.node_table.gpu[row].tolist(),
                old.gpu[row].tolist(),
                strict=False,
            ):
                taken[node.id, "gpu", gpu.index] = total - left
            for name, array in old.extras.items():
                taken[node.id, "extra", name] = int(old.node_table.extras[name][row] - array[row])
        for (node_id, kind, which), amount in taken.items():
            if amount:
                self._place_absent(node_id, kind, which, amount)

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
    nodes, cards = [], []
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
                cards.append((row, column[index], milli))
    return nodes, cards
