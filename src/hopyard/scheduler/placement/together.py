"""Which nodes hold several roles together: asked where no order in which the roles choose for themselves
finds a place."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from hopyard.domain.gang import NODE_LEVEL, Closeness, Role
from hopyard.scheduler.placement.booked import Booked
from hopyard.scheduler.placement.fitting import Fitting, least_gpu
from hopyard.scheduler.placement.free import Free
from hopyard.scheduler.placement.ground import Ints

Counts = tuple[int, ...]  # of replicas, by role
Kind = tuple[Counts, int, int, bytes, bytes, Counts]  # of nodes that hold the same
Step = tuple["Step | None", int, Counts]  # the one before, a node, and how many of each role it adds

MOST_NODES = 400
MOST_STATES = 256
MOST_SEATS = 20_000  # replicas that are put on a node to see whether it holds them
MOST_SUMS = 50_000  # counts that are added up: about a tenth of a second


def movable(role: Role) -> bool:
    """Whether each of its replicas may be on any node, whatever the others are on."""
    rule = role.topology
    near = (
        rule is not None
        and rule.level == NODE_LEVEL
        and rule.rule is not Closeness.SPREAD
        and rule.slice == 1
    )
    return rule is None or (near and role.replicas == 1) or (near and rule.rule is Closeness.NEAR)


class Together:
    """The counts of each role that nodes can hold are added up node by node, and only those kept that no
    other exceeds in every role (dynamic programming over the Pareto front; the problem is vector bin packing
    with few types of items and bins of many: Gabay and Zaourar, Annals of Operations Research 2016). Exact
    within these bounds; where cards are shared, as exact as best fit."""

    def __init__(
        self,
        free: Free,
        booked: Booked,
        roles: Sequence[Role],
        fittings: Sequence[Fitting],
        order: Sequence[int],
    ) -> None:
        """order: in which the roles take from a node."""
        self._free, self._booked, self._fittings, self._order = free, booked, fittings, order
        self._wanted = tuple(role.replicas for role in roles)
        self._requests = [role.resources for role in roles]
        self._known: dict[Kind, list[Counts]] = {}
        self._seats = 0

    def divide(self, rows: Ints) -> list[tuple[int, Counts]] | None:
        """How many of each role to put on which of these nodes, in `order`; None where it finds no way."""
        rooms = [
            fit.room(self._free, most, rows) for fit, most in zip(self._fittings, self._wanted, strict=True)
        ]
        if any(
            int(room.sum()) < wanted for room, wanted in zip(rooms, self._wanted, strict=True)
        ) or not self._enough(rows, rooms):
            return None
        sums = 0
        front: dict[Counts, Step | None] = {(0,) * len(self._wanted): None}
        for at in self._useful(rows, rooms):
            row = int(rows[at])
            added = self._held(row, tuple(int(room[at]) for room in rooms))
            grown, sums = dict(front), sums + len(front) * len(added)
            if sums > MOST_SUMS:
                return None
            for have, step in front.items():
                for more in added:
                    total = tuple(map(min, map(sum, zip(have, more, strict=True)), self._wanted))
                    if total not in grown:
                        grown[total] = (
                            step,
                            row,
                            tuple(now - before for now, before in zip(total, have, strict=True)),
                        )
            front = _front(grown)
            if self._wanted in front:
                return _steps(front[self._wanted])
        return None

    def _enough(self, rows: Ints, rooms: Sequence[Ints]) -> bool:
        """Whether the nodes that hold anything have as much of each resource as all ask for together."""
        free, held = self._free, rows[np.sum(rooms, axis=0) > 0]
        asked = [*zip(self._wanted, self._requests, strict=True)]
        return (
            sum(count * request.cpu_milli for count, request in asked)
            <= int(np.maximum(free.cpu[held], 0).sum())
            and sum(count * request.memory_bytes for count, request in asked)
            <= int(np.maximum(free.memory[held], 0).sum())
            and sum(count * least_gpu(request) for count, request in asked)
            <= int(np.maximum(free.gpu[held], 0).sum())
        )

    def _useful(self, rows: Ints, rooms: Sequence[Ints]) -> list[int]:
        """Of those that hold anything, by how much: of nodes that hold the same no more than there are
        replicas."""
        total = np.sum(rooms, axis=0)
        found: list[int] = []
        seen: dict[Kind, int] = {}
        for at in np.argsort(-total, kind="stable").tolist():
            if not total[at] or len(found) == MOST_NODES:
                break
            kind = self._kind(int(rows[at]), tuple(int(room[at]) for room in rooms))
            seen[kind] = seen.get(kind, 0) + 1
            if seen[kind] <= sum(self._wanted):
                found.append(at)
        return found

    def _kind(self, row: int, room: Counts) -> Kind:
        free = self._free
        extras = tuple(int(left[row]) for left in free.extras.values())
        return (
            room,
            int(free.cpu[row]),
            int(free.memory[row]),
            free.gpu[row].tobytes(),
            free.ground.card[row].tobytes(),
            extras,
        )

    def _held(self, row: int, room: Counts) -> list[Counts]:
        """What a node holds at most: as many of one role as beside those of the others."""
        kind = self._kind(row, room)
        found = self._known.get(kind)
        if found is None:
            counts: dict[Counts, None] = {}
            self._fill(row, room, 0, (0,) * len(room), counts)
            found = self._known[kind] = list(_front(counts))
        return found

    def _fill(self, row: int, room: Counts, at: int, counts: Counts, found: dict[Counts, None]) -> None:
        """Adds what it holds to found: with these counts of the roles before, as many of this one as it
        takes, or fewer."""
        if at == len(self._order):
            found[counts] = None
            return
        index, before, last, reached = self._order[at], len(self._booked), at == len(self._order) - 1, 0
        for count in range(room[index] + 1):
            if count and not self._seated(index, row):
                break
            reached = count
            if not last:
                self._fill(row, room, at + 1, _with(counts, index, count), found)
        if last:
            self._fill(row, room, at + 1, _with(counts, index, reached), found)
        self._booked.give_back(before)

    def _seated(self, index: int, row: int) -> bool:
        """Whether one more replica of a role is put there."""
        fitting, self._seats = self._fittings[index], self._seats + 1
        if self._seats > MOST_SEATS or not fitting.room(self._free, 1, np.array([row]))[0]:
            return False
        assignment = fitting.seat(self._free, 0, row)
        if assignment is not None:
            self._booked.add(self._requests[index], assignment)
        return assignment is not None


def _front(states: dict[Counts, Step | None] | dict[Counts, None]) -> dict[Counts, Step | None]:
    """Those that no other exceeds; of too many those that hold the most."""
    found: dict[Counts, Step | None] = {}
    for counts in sorted(states, key=lambda one: (-sum(one), one)):
        if len(found) < MOST_STATES and not any(_exceeds(other, counts) for other in found):
            found[counts] = states[counts]
    return found


def _with(counts: Counts, index: int, count: int) -> Counts:
    return (*counts[:index], count, *counts[index + 1 :])


def _exceeds(other: Counts, counts: Counts) -> bool:
    return all(theirs >= mine for theirs, mine in zip(other, counts, strict=True))


def _steps(step: Step | None) -> list[tuple[int, Counts]]:
    found = []
    while step is not None:
        step, row, counts = step
        found.append((row, counts))
    return found[::-1]
