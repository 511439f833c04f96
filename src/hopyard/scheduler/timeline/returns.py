"""From when on each node may hold a replica, for finding the few nodes at which to look closely."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from hopyard.domain.gang import Gang, Role
from hopyard.domain.ids import NodeId
from hopyard.scheduler.placement.capacity import Capacity
from hopyard.scheduler.placement.fitting import least_gpu
from hopyard.scheduler.timeline.future import End, Future

SPARE_NODES = 16
Floats = NDArray[np.float64]
Ints = NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Returns:
    """What comes back to each node, in order of time, with what is free then. Row i is node `nodes[i]`.

    It is hopeful: cards are counted together, whatever their model, and what was started since is left out. So no node is fit
    before it says so.
    """

    capacity: Capacity
    nodes: tuple[NodeId, ...]
    row: Ints
    at_s: Floats
    cpu: Ints
    memory: Ints
    gpu: Ints

    @classmethod
    def of(cls, capacity: Capacity, future: Future, started: Iterable[End]) -> Returns:
        """started: in this turn, of which the future does not know."""
        nodes = capacity.ids
        row, at_s, back = future.comes_back(nodes)
        new = [found for end in started for found in _given_back(end)]
        if new:
            index = {node: row for row, node in enumerate(nodes)}
            row = np.concatenate([row, np.array([index[node] for node, _, _ in new], np.int64)])
            at_s = np.concatenate([at_s, np.array([time_s for _, time_s, _ in new])])
            back = np.concatenate([back, np.array([amounts for _, _, amounts in new], np.int64)])
        by_time = np.argsort(at_s)
        small = np.uint16 if len(nodes) <= np.iinfo(np.uint16).max else np.int64  # few bits are sorted much faster
        order = by_time[np.argsort(row[by_time].astype(small), kind="stable")]
        row, back = row[order], back[order]
        free = [left[row] + _summed(back[:, i], row) for i, left in enumerate(capacity.sums())]
        return cls(capacity.copy(), nodes, row, at_s[order], *free)

    def first_s(self, gang: Gang) -> Floats:
        """For each node, when it may first hold a replica of any role; never: infinity."""
        found = np.full(len(self.nodes), np.inf)
        for role in gang.roles:
            np.minimum(found, self._first_s(role), out=found)
        return found

    def nearest(self, gang: Gang, times: int, promised: Collection[NodeId]) -> tuple[list[NodeId], float]:
        """The nodes that may hold a replica of some role first, `times` as many as it has replicas and some more, those that
        were promised to others not counted; and the time from which on others may too (infinity: these are all)."""
        chosen: set[int] = set()
        beyond = np.inf
        counted = np.array([node not in promised for node in self.nodes], np.bool_)
        for role in gang.roles:
            first_s = self._first_s(role)
            order = np.argsort(first_s, kind="stable")
            able = order[: int(np.count_nonzero(np.isfinite(first_s)))]
            enough = np.flatnonzero(np.cumsum(counted[able]) >= times * role.replicas + SPARE_NODES)
            count = int(enough[0]) + 1 if len(enough) else len(able)
            chosen.update(able[:count].tolist())
            if count < len(able):
                beyond = min(beyond, float(first_s[able[count]]))
        return [self.nodes[row] for row in sorted(chosen)], beyond

    def until(self, gang: Gang, at_s: float) -> list[NodeId]:
        """All that may hold a replica of some role before that time."""
        return [self.nodes[row] for row in np.flatnonzero(self.first_s(gang) < at_s)]

    def _first_s(self, role: Role) -> Floats:
        request = role.resources
        gpu = least_gpu(request)
        cpu, memory, gpus = self.capacity.sums()
        fits = (self.cpu >= request.cpu_milli) & (self.memory >= request.memory_bytes) & (self.gpu >= gpu)
        found = np.full(len(self.nodes), np.inf)
        np.minimum.at(found, self.row[fits], self.at_s[fits])
        found[(cpu >= request.cpu_milli) & (memory >= request.memory_bytes) & (gpus >= gpu)] = 0.0
        found[~self.capacity.allowed(role.where)] = np.inf
        return found


def _given_back(end: End) -> Iterator[tuple[NodeId, float, tuple[int, int, int]]]:
    for (_, role), assignment in zip(end.placement.gang.requests(), end.placement.assignments, strict=True):
        asked = role.resources
        yield assignment.node, end.mid_s, (asked.cpu_milli, asked.memory_bytes, len(assignment.gpus) * assignment.gpu_milli)


def _summed(amounts: Ints, rows: Ints) -> Ints:
    """Running sums within each row."""
    sums = np.cumsum(amounts)
    starts = np.flatnonzero(np.diff(rows, prepend=-1))
    before = np.repeat(sums[starts] - amounts[starts], np.diff(starts, append=len(rows)))
    found: Ints = sums - before
    return found
