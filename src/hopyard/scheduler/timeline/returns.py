"""From when on each node may hold a replica, for finding the few nodes at which to look closely."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass

import numpy as np

from hopyard.domain.gang import Gang, Role
from hopyard.domain.ids import NodeId
from hopyard.scheduler.placement.capacity import Capacity
from hopyard.scheduler.placement.fitting import least_gpu
from hopyard.scheduler.placement.ground import Bools, Ints
from hopyard.scheduler.timeline.future import OVERDUE_S, End, Future
from hopyard.scheduler.timeline.releases import Floats, Releases

SPARE_NODES = 16


@dataclass(frozen=True, slots=True)
class Part:
    """Of some nodes, in order of node, then time, what is free as more and more comes back: at_s, free[i] (as
    `Releases.back`).

    left[i]: what is free now on each node. first: of each node, its first entry.
    """

    left: tuple[Ints, ...]
    first: Ints
    at_s: Floats
    free: tuple[Ints, ...]

    @classmethod
    def of(cls, left: Iterable[Ints], releases: Releases, now: float) -> Part:
        left, node = tuple(left), releases.node
        at_s = np.maximum(releases.at - now, OVERDUE_S)
        return cls(
            left,
            releases.first,
            at_s,
            tuple(amount[node] + back for amount, back in zip(left, releases.back, strict=True)),
        )

    def first_s(self, role: Role) -> Floats:
        """For each node, when it may first hold a replica; never: infinity."""
        asked = role.resources
        least = (asked.cpu_milli, asked.memory_bytes, least_gpu(asked))
        found: Floats = np.minimum.reduceat(
            np.where(_enough(self.free, least), self.at_s, np.inf), self.first
        )
        found[_enough(self.left, least)] = 0.0
        return found


@dataclass(frozen=True, slots=True)
class Returns:
    """What is free on each node as what runs there ends: of `whole`, which leaves out what was started in
    this turn; `again` says it of the nodes of these indices with what was.

    It is hopeful: cards are counted together, whatever their model, and what was started since is left out.
    So no node is fit before it says so.
    """

    capacity: Capacity
    whole: Part
    again: Part | None
    rows: Ints

    @classmethod
    def of(cls, capacity: Capacity, future: Future, started: Iterable[End]) -> Returns:
        """started: in this turn, of which the future does not know."""
        nodes, now = capacity.ids, future.now
        left = tuple(amount.copy() for amount in capacity.sums())
        whole = Part.of(left, future.releases(nodes), now)
        new = [found for end in started for found in _given_back(end)]
        if not new:
            return cls(capacity, whole, None, np.zeros(0, np.int64))
        names = sorted({node for node, _, _ in new})
        rows, place = capacity.rows(names), {node: index for index, node in enumerate(names)}
        row, at, amounts = future.comes_back(nodes, rows)
        row = np.concatenate(
            [np.searchsorted(rows, row), np.array([place[node] for node, _, _ in new], np.int64)]
        )
        at = np.concatenate([at, np.array([now + end_s for _, end_s, _ in new])])
        amounts = np.concatenate([amounts, np.array([back for _, _, back in new], np.int64).T], axis=1)
        again = Part.of((amount[rows] for amount in left), Releases(len(rows), row, at, amounts), now)
        return cls(capacity, whole, again, rows)

    def first_s(self, gang: Gang) -> Floats:
        """For each node, when it may first hold a replica of any role; never: infinity."""
        found = [self._first_s(role) for role in gang.roles]
        return found[0] if len(found) == 1 else np.minimum.reduce(found)

    def nearest(self, gang: Gang, times: int, promised: Collection[NodeId]) -> tuple[list[NodeId], float]:
        """The nodes that may hold a replica of some role first, `times` as many as it has replicas and some
        more, those that were promised to others not counted; and the time from which on others may too
        (infinity: these are all)."""
        nodes = self.capacity.ids
        chosen: set[int] = set()
        beyond = np.inf
        counted = np.ones(len(nodes), np.bool_)
        counted[self.capacity.rows(promised)] = False
        for role in gang.roles:
            first_s = self._first_s(role)
            wanted = times * role.replicas + SPARE_NODES
            able = np.flatnonzero(
                first_s <= _at(first_s, wanted + len(nodes) - int(np.count_nonzero(counted)))
            )
            able = able[np.argsort(first_s[able], kind="stable")]
            enough = np.flatnonzero(np.cumsum(counted[able]) >= wanted)
            count = int(enough[0]) + 1 if len(enough) else len(able)
            chosen.update(able[:count].tolist())
            if count < len(able):
                beyond = min(beyond, float(first_s[able[count]]))
        return [nodes[row] for row in sorted(chosen)], beyond

    def until(self, gang: Gang, at_s: float) -> list[NodeId]:
        """All that may hold a replica of some role before that time."""
        return [self.capacity.ids[row] for row in np.flatnonzero(self.first_s(gang) < at_s)]

    def _first_s(self, role: Role) -> Floats:
        found = self.whole.first_s(role)
        if self.again is not None:
            found[self.rows] = self.again.first_s(role)
        found[~self.capacity.allowed(role.where)] = np.inf
        return found


def _enough(free: tuple[Ints, ...], least: tuple[int, ...]) -> Bools:
    found = free[0] >= least[0]
    for left, amount in zip(free[1:], least[1:], strict=True):
        found &= left >= amount
    return found


def _at(first_s: Floats, rank: int) -> float:
    """The time of that rank (from 0) in ascending order, the last one that is not infinite where there are
    fewer."""
    if rank < len(first_s):
        found = float(np.partition(first_s, rank)[rank])
        if np.isfinite(found):
            return found
    return np.max(first_s, initial=-np.inf, where=np.isfinite(first_s))


def _given_back(end: End) -> Iterator[tuple[NodeId, float, tuple[int, int, int]]]:
    for (_, role), assignment in zip(end.placement.gang.requests(), end.placement.assignments, strict=True):
        asked = role.resources
        yield (
            assignment.node,
            end.mid_s,
            (asked.cpu_milli, asked.memory_bytes, len(assignment.gpus) * assignment.gpu_milli),
        )
