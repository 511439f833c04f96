"""Packs several roles together, for gangs where no order of placing role by role succeeds."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from hopyard.domain.gang import NODE_LEVEL, Closeness, Role
from hopyard.scheduler.placement.feasibility import NodeFeasibility, min_gpu_milli
from hopyard.scheduler.placement.free_resources import FreeResources
from hopyard.scheduler.placement.node_table import Ints
from hopyard.scheduler.placement.tentative_allocations import TentativeAllocations

Counts = tuple[int, ...]  # of replicas, by role
NodeKind = tuple[Counts, int, int, bytes, bytes, Counts]  # equal for nodes with equal capacity
# the previous step, a node, and the number of replicas of each role that it adds
PackingStep = tuple["PackingStep | None", int, Counts]

MAX_NODES = 400
MAX_STATES = 256
MAX_TRIAL_PLACEMENTS = 20_000  # replicas that are placed on a node as a trial
MAX_SUMS = 50_000  # additions of counts: about a tenth of a second


def is_movable(role: Role) -> bool:
    """Returns whether each replica of the role may be on any node, independent of the other replicas."""
    rule = role.topology
    is_near = (
        rule is not None
        and rule.level == NODE_LEVEL
        and rule.rule is not Closeness.SPREAD
        and rule.slice == 1
    )
    return rule is None or (is_near and role.replicas == 1) or (is_near and rule.rule is Closeness.NEAR)


class MultiRolePacking:
    """Adds up the counts of each role that nodes can hold, node by node. Keeps only counts that are not
    dominated in every role. This is dynamic programming over the Pareto front. The problem is vector bin
    packing with few types of items and many types of bins (Gabay and Zaourar, Annals of Operations Research
    2016). Exact within the limits above; with shared GPUs, as exact as best fit."""

    def __init__(
        self,
        free: FreeResources,
        tentative: TentativeAllocations,
        roles: Sequence[Role],
        feasibilities: Sequence[NodeFeasibility],
        order: Sequence[int],
    ) -> None:
        """order: the order in which the roles are placed on a node."""
        self._free, self._tentative, self._feasibilities, self._order = free, tentative, feasibilities, order
        self._wanted_counts = tuple(role.replicas for role in roles)
        self._requests = [role.resources for role in roles]
        self._held_by_kind: dict[NodeKind, list[Counts]] = {}
        self._trial_placements = 0

    def assign(self, rows: Ints) -> list[tuple[int, Counts]] | None:
        """Returns the number of replicas of each role per node, to be placed in `order`; None if no packing
        was found."""
        capacities = [
            feasibility.replicas_per_node(self._free, count, rows)
            for feasibility, count in zip(self._feasibilities, self._wanted_counts, strict=True)
        ]
        if any(
            int(capacity.sum()) < count
            for capacity, count in zip(capacities, self._wanted_counts, strict=True)
        ) or not self._has_enough(rows, capacities):
            return None
        sums = 0
        front: dict[Counts, PackingStep | None] = {(0,) * len(self._wanted_counts): None}
        for index in self._useful_rows(rows, capacities):
            row = int(rows[index])
            node_counts = self._max_counts(row, tuple(int(capacity[index]) for capacity in capacities))
            next_front, sums = dict(front), sums + len(front) * len(node_counts)
            if sums > MAX_SUMS:
                return None
            for counts, step in front.items():
                for added_counts in node_counts:
                    total = tuple(
                        map(min, map(sum, zip(counts, added_counts, strict=True)), self._wanted_counts)
                    )
                    if total not in next_front:
                        next_front[total] = (
                            step,
                            row,
                            tuple(after - before for after, before in zip(total, counts, strict=True)),
                        )
            front = _pareto_front(next_front)
            if self._wanted_counts in front:
                return _trace_steps(front[self._wanted_counts])
        return None

    def _has_enough(self, rows: Ints, rooms: Sequence[Ints]) -> bool:
        """Returns whether the usable nodes have enough of each resource for all roles together."""
        free, usable_rows = self._free, rows[np.sum(rooms, axis=0) > 0]
        requests = [*zip(self._wanted_counts, self._requests, strict=True)]
        return (
            sum(count * request.cpu_milli for count, request in requests)
            <= int(np.maximum(free.cpu[usable_rows], 0).sum())
            and sum(count * request.memory_bytes for count, request in requests)
            <= int(np.maximum(free.memory[usable_rows], 0).sum())
            and sum(count * min_gpu_milli(request) for count, request in requests)
            <= int(np.maximum(free.gpu[usable_rows], 0).sum())
        )

    def _useful_rows(self, rows: Ints, rooms: Sequence[Ints]) -> list[int]:
        """Returns the usable nodes, by capacity. Of nodes with equal capacity, returns at most as many as
        there are replicas."""
        total = np.sum(rooms, axis=0)
        useful: list[int] = []
        kind_counts: dict[NodeKind, int] = {}
        for index in np.argsort(-total, kind="stable").tolist():
            if not total[index] or len(useful) == MAX_NODES:
                break
            kind = self._kind_of(int(rows[index]), tuple(int(capacity[index]) for capacity in rooms))
            kind_counts[kind] = kind_counts.get(kind, 0) + 1
            if kind_counts[kind] <= sum(self._wanted_counts):
                useful.append(index)
        return useful

    def _kind_of(self, row: int, room: Counts) -> NodeKind:
        free = self._free
        extras = tuple(int(free_amounts[row]) for free_amounts in free.extras.values())
        return (
            room,
            int(free.cpu[row]),
            int(free.memory[row]),
            free.gpu[row].tobytes(),
            free.node_table.gpu_model[row].tobytes(),
            extras,
        )

    def _max_counts(self, row: int, room: Counts) -> list[Counts]:
        """Returns the maximal combinations of replica counts that the node can hold."""
        kind = self._kind_of(row, room)
        max_counts = self._held_by_kind.get(kind)
        if max_counts is None:
            counts: dict[Counts, None] = {}
            self._enumerate_counts(row, room, 0, (0,) * len(room), counts)
            max_counts = self._held_by_kind[kind] = list(_pareto_front(counts))
        return max_counts

    def _enumerate_counts(
        self, row: int, room: Counts, role_index: int, counts: Counts, results: dict[Counts, None]
    ) -> None:
        """Adds to `results` the counts that the node can hold, given the counts of the roles before
        `role_index`. Tries every feasible count of this role."""
        if role_index == len(self._order):
            results[counts] = None
            return
        index, allocation_count, is_last_role, max_count = (
            self._order[role_index],
            len(self._tentative),
            role_index == len(self._order) - 1,
            0,
        )
        for count in range(room[index] + 1):
            if count and not self._try_place_replica(index, row):
                break
            max_count = count
            if not is_last_role:
                self._enumerate_counts(row, room, role_index + 1, _with_added(counts, index, count), results)
        if is_last_role:
            self._enumerate_counts(row, room, role_index + 1, _with_added(counts, index, max_count), results)
        self._tentative.release_since(allocation_count)

    def _try_place_replica(self, index: int, row: int) -> bool:
        """Returns whether one more replica of the role was allocated on the node."""
        feasibility, self._trial_placements = self._feasibilities[index], self._trial_placements + 1
        if (
            self._trial_placements > MAX_TRIAL_PLACEMENTS
            or not feasibility.replicas_per_node(self._free, 1, np.array([row]))[0]
        ):
            return False
        assignment = feasibility.assign_replica(self._free, 0, row)
        if assignment is not None:
            self._tentative.add(self._requests[index], assignment)
        return assignment is not None


def _pareto_front(
    states: dict[Counts, PackingStep | None] | dict[Counts, None],
) -> dict[Counts, PackingStep | None]:
    """Returns the counts that are not dominated; if there are too many, those with the most replicas."""
    front: dict[Counts, PackingStep | None] = {}
    for counts in sorted(states, key=lambda state: (-sum(state), state)):
        if len(front) < MAX_STATES and not any(_dominates(other, counts) for other in front):
            front[counts] = states[counts]
    return front


def _with_added(counts: Counts, index: int, count: int) -> Counts:
    return (*counts[:index], count, *counts[index + 1 :])


def _dominates(other: Counts, counts: Counts) -> bool:
    return all(other_count >= count for other_count, count in zip(other, counts, strict=True))


def _trace_steps(step: PackingStep | None) -> list[tuple[int, Counts]]:
    steps = []
    while step is not None:
        step, row, counts = step
        steps.append((row, counts))
    return steps[::-1]
