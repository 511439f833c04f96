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
NodeKind = tuple[Counts, int, int, bytes, bytes, Counts]  # of nodes that hold the same
# the one before, a node, and how many of each role it adds
PackingStep = tuple["PackingStep | None", int, Counts]

MAX_NODES = 400
MAX_STATES = 256
MAX_TRIAL_PLACEMENTS = 20_000  # replicas that are put on a node to see whether it holds them
MAX_SUMS = 50_000  # counts that are added up: about a tenth of a second


def is_movable(role: Role) -> bool:
    """Whether each of its replicas may be on any node, whatever the others are on."""
    rule = role.topology
    near = (
        rule is not None
        and rule.level == NODE_LEVEL
        and rule.rule is not Closeness.SPREAD
        and rule.slice == 1
    )
    return rule is None or (near and role.replicas == 1) or (near and rule.rule is Closeness.NEAR)


class MultiRolePacking:
    """The counts of each role that nodes can hold are added up node by node, and only those kept that no
    other exceeds in every role (dynamic programming over the Pareto front; the problem is vector bin packing
    with few types of items and bins of many: Gabay and Zaourar, Annals of Operations Research 2016). Exact
    within these bounds; where cards are shared, as exact as best fit."""

    def __init__(
        self,
        free: FreeResources,
        tentative: TentativeAllocations,
        roles: Sequence[Role],
        feasibilities: Sequence[NodeFeasibility],
        order: Sequence[int],
    ) -> None:
        """order: in which the roles take from a node."""
        self._free, self._tentative, self._feasibilities, self._order = free, tentative, feasibilities, order
        self._wanted_counts = tuple(role.replicas for role in roles)
        self._requests = [role.resources for role in roles]
        self._held_by_kind: dict[NodeKind, list[Counts]] = {}
        self._trial_placements = 0

    def assign(self, rows: Ints) -> list[tuple[int, Counts]] | None:
        """How many of each role to put on which of these nodes, in `order`; None where it finds no way."""
        rooms = [
            fit.replicas_per_node(self._free, most, rows)
            for fit, most in zip(self._feasibilities, self._wanted_counts, strict=True)
        ]
        if any(
            int(room.sum()) < wanted for room, wanted in zip(rooms, self._wanted_counts, strict=True)
        ) or not self._has_enough(rows, rooms):
            return None
        sums = 0
        front: dict[Counts, PackingStep | None] = {(0,) * len(self._wanted_counts): None}
        for at in self._useful_rows(rows, rooms):
            row = int(rows[at])
            added = self._max_counts(row, tuple(int(room[at]) for room in rooms))
            grown, sums = dict(front), sums + len(front) * len(added)
            if sums > MAX_SUMS:
                return None
            for have, step in front.items():
                for more in added:
                    total = tuple(map(min, map(sum, zip(have, more, strict=True)), self._wanted_counts))
                    if total not in grown:
                        grown[total] = (
                            step,
                            row,
                            tuple(now - before for now, before in zip(total, have, strict=True)),
                        )
            front = _pareto_front(grown)
            if self._wanted_counts in front:
                return _trace_steps(front[self._wanted_counts])
        return None

    def _has_enough(self, rows: Ints, rooms: Sequence[Ints]) -> bool:
        """Whether the nodes that hold anything have as much of each resource as all ask for together."""
        free, held = self._free, rows[np.sum(rooms, axis=0) > 0]
        asked = [*zip(self._wanted_counts, self._requests, strict=True)]
        return (
            sum(count * request.cpu_milli for count, request in asked)
            <= int(np.maximum(free.cpu[held], 0).sum())
            and sum(count * request.memory_bytes for count, request in asked)
            <= int(np.maximum(free.memory[held], 0).sum())
            and sum(count * min_gpu_milli(request) for count, request in asked)
            <= int(np.maximum(free.gpu[held], 0).sum())
        )

    def _useful_rows(self, rows: Ints, rooms: Sequence[Ints]) -> list[int]:
        """Of those that hold anything, by how much: of nodes that hold the same no more than there are
        replicas."""
        total = np.sum(rooms, axis=0)
        found: list[int] = []
        seen: dict[NodeKind, int] = {}
        for at in np.argsort(-total, kind="stable").tolist():
            if not total[at] or len(found) == MAX_NODES:
                break
            kind = self._kind_of(int(rows[at]), tuple(int(room[at]) for room in rooms))
            seen[kind] = seen.get(kind, 0) + 1
            if seen[kind] <= sum(self._wanted_counts):
                found.append(at)
        return found

    def _kind_of(self, row: int, room: Counts) -> NodeKind:
        free = self._free
        extras = tuple(int(left[row]) for left in free.extras.values())
        return (
            room,
            int(free.cpu[row]),
            int(free.memory[row]),
            free.gpu[row].tobytes(),
            free.node_table.gpu_model[row].tobytes(),
            extras,
        )

    def _max_counts(self, row: int, room: Counts) -> list[Counts]:
        """What a node holds at most: as many of one role as beside those of the others."""
        kind = self._kind_of(row, room)
        found = self._held_by_kind.get(kind)
        if found is None:
            counts: dict[Counts, None] = {}
            self._enumerate_counts(row, room, 0, (0,) * len(room), counts)
            found = self._held_by_kind[kind] = list(_pareto_front(counts))
        return found

    def _enumerate_counts(
        self, row: int, room: Counts, role_index: int, counts: Counts, results: dict[Counts, None]
    ) -> None:
        """Adds what it holds to found: with these counts of the roles before, as many of this one as it
        takes, or fewer."""
        if role_index == len(self._order):
            results[counts] = None
            return
        index, before, last, reached = (
            self._order[role_index],
            len(self._tentative),
            role_index == len(self._order) - 1,
            0,
        )
        for count in range(room[index] + 1):
            if count and not self._try_place_replica(index, row):
                break
            reached = count
            if not last:
                self._enumerate_counts(row, room, role_index + 1, _with_added(counts, index, count), results)
        if last:
            self._enumerate_counts(row, room, role_index + 1, _with_added(counts, index, reached), results)
        self._tentative.release_since(before)

    def _try_place_replica(self, index: int, row: int) -> bool:
        """Whether one more replica of a role is put there."""
        fitting, self._trial_placements = self._feasibilities[index], self._trial_placements + 1
        if (
            self._trial_placements > MAX_TRIAL_PLACEMENTS
            or not fitting.replicas_per_node(self._free, 1, np.array([row]))[0]
        ):
            return False
        assignment = fitting.assign_replica(self._free, 0, row)
        if assignment is not None:
            self._tentative.add(self._requests[index], assignment)
        return assignment is not None


def _pareto_front(
    states: dict[Counts, PackingStep | None] | dict[Counts, None],
) -> dict[Counts, PackingStep | None]:
    """Those that no other exceeds; of too many those that hold the most."""
    found: dict[Counts, PackingStep | None] = {}
    for counts in sorted(states, key=lambda one: (-sum(one), one)):
        if len(found) < MAX_STATES and not any(_dominates(other, counts) for other in found):
            found[counts] = states[counts]
    return found


def _with_added(counts: Counts, index: int, count: int) -> Counts:
    return (*counts[:index], count, *counts[index + 1 :])


def _dominates(other: Counts, counts: Counts) -> bool:
    return all(theirs >= mine for theirs, mine in zip(other, counts, strict=True))


def _trace_steps(step: PackingStep | None) -> list[tuple[int, Counts]]:
    found = []
    while step is not None:
        step, row, counts = step
        found.append((row, counts))
    return found[::-1]
