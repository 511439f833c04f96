"""The earliest time at which each node may hold a replica: a filter that selects a few nodes for an exact
search."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass

import numpy as np

from hopyard.domain.gang import Gang, Role
from hopyard.domain.ids import NodeId
from hopyard.scheduler.placement.capacity import Capacity
from hopyard.scheduler.placement.feasibility import min_gpu_milli
from hopyard.scheduler.placement.node_table import Bools, Ints
from hopyard.scheduler.timeline.release_schedule import Floats, ReleaseSchedule
from hopyard.scheduler.timeline.run_end_estimates import OVERDUE_WINDOW_S, RunEnd, RunEndEstimates

EXTRA_NODES = 16


@dataclass(frozen=True, slots=True)
class FreeOverTime:
    """Of some nodes, in order of node, then time, what is free as more and more comes back: at_s, free[i] (as
    `ReleaseSchedule.released`).

    left[i]: what is free now on each node. first_entry: of each node, its first entry.
    """

    free_now: tuple[Ints, ...]
    first_entry: Ints
    at_s: Floats
    free: tuple[Ints, ...]

    @classmethod
    def of(cls, free_now: Iterable[Ints], releases: ReleaseSchedule, now: float) -> FreeOverTime:
        free_now, node = tuple(free_now), releases.node
        at_s = np.maximum(releases.times - now, OVERDUE_WINDOW_S)
        return cls(
            free_now,
            releases.first_entry,
            at_s,
            tuple(amount[node] + back for amount, back in zip(free_now, releases.released, strict=True)),
        )

    def earliest_s(self, role: Role) -> Floats:
        """Returns for each node when it may first hold a replica; infinity if never."""
        asked = role.resources
        least = (asked.cpu_milli, asked.memory_bytes, min_gpu_milli(asked))
        found: Floats = np.minimum.reduceat(
            np.where(_is_enough(self.free, least), self.at_s, np.inf), self.first_entry
        )
        found[_is_enough(self.free_now, least)] = 0.0
        return found


@dataclass(frozen=True, slots=True)
class EarliestFitIndex:
    """Free resources on each node as its runs end. `all_nodes` leaves out starts of this cycle;
    `changed_nodes` includes them for the nodes of these indices.

    The index is optimistic: it adds up GPUs of all models and ignores recent starts. A node never fits
    earlier than the index says.
    """

    capacity: Capacity
    all_nodes: FreeOverTime
    changed_nodes: FreeOverTime | None
    changed_rows: Ints

    @classmethod
    def of(cls, capacity: Capacity, run_ends: RunEndEstimates, started: Iterable[RunEnd]) -> EarliestFitIndex:
        """started: in this turn, of which the future does not know."""
        nodes, now = capacity.ids, run_ends.now
        left = tuple(amount.copy() for amount in capacity.free_totals())
        whole = FreeOverTime.of(left, run_ends.releases(nodes), now)
        new = [found for end in started for found in _releases_of(end)]
        if not new:
            return cls(capacity, whole, None, np.zeros(0, np.int64))
        names = sorted({node for node, _, _ in new})
        rows, place = capacity.rows_of(names), {node: index for index, node in enumerate(names)}
        row, at, amounts = run_ends.replica_releases(nodes, rows)
        row = np.concatenate(
            [np.searchsorted(rows, row), np.array([place[node] for node, _, _ in new], np.int64)]
        )
        at = np.concatenate([at, np.array([now + end_s for _, end_s, _ in new])])
        amounts = np.concatenate([amounts, np.array([back for _, _, back in new], np.int64).T], axis=1)
        again = FreeOverTime.of(
            (amount[rows] for amount in left), ReleaseSchedule(len(rows), row, at, amounts), now
        )
        return cls(capacity, whole, again, rows)

    def earliest_s(self, gang: Gang) -> Floats:
        """Returns for each node when it may first hold a replica of any role; infinity if never."""
        found = [self._earliest_role_s(role) for role in gang.roles]
        return found[0] if len(found) == 1 else np.minimum.reduce(found)

    def earliest_nodes(
        self, gang: Gang, factor: int, promised: Collection[NodeId]
    ) -> tuple[list[NodeId], float]:
        """The nodes that may hold a replica of some role first, `factor` as many as it has replicas and some
        more, those that were promised to others not counted; and the time from which on others may too
        (infinity: these are all)."""
        nodes = self.capacity.ids
        chosen: set[int] = set()
        beyond = np.inf
        counted = np.ones(len(nodes), np.bool_)
        counted[self.capacity.rows_of(promised)] = False
        for role in gang.roles:
            first_s = self._earliest_role_s(role)
            wanted = factor * role.replicas + EXTRA_NODES
            able = np.flatnonzero(
                first_s <= _time_at_rank(first_s, wanted + len(nodes) - int(np.count_nonzero(counted)))
            )
            able = able[np.argsort(first_s[able], kind="stable")]
            enough = np.flatnonzero(np.cumsum(counted[able]) >= wanted)
            count = int(enough[0]) + 1 if len(enough) else len(able)
            chosen.update(able[:count].tolist())
            if count < len(able):
                beyond = min(beyond, float(first_s[able[count]]))
        return [nodes[row] for row in sorted(chosen)], beyond

    def nodes_before(self, gang: Gang, at_s: float) -> list[NodeId]:
        """Returns all nodes that may hold a replica of any role before that time."""
        return [self.capacity.ids[row] for row in np.flatnonzero(self.earliest_s(gang) < at_s)]

    def _earliest_role_s(self, role: Role) -> Floats:
        found = self.all_nodes.earliest_s(role)
        if self.changed_nodes is not None:
            found[self.changed_rows] = self.changed_nodes.earliest_s(role)
        found[~self.capacity.allowed_nodes(role.where)] = np.inf
        return found


def _is_enough(free: tuple[Ints, ...], minimum: tuple[int, ...]) -> Bools:
    found = free[0] >= minimum[0]
    for left, amount in zip(free[1:], minimum[1:], strict=True):
        found &= left >= amount
    return found


def _time_at_rank(earliest_s: Floats, rank: int) -> float:
    """The time of that rank (from 0) in ascending order, the last one that is not infinite where there are
    fewer."""
    if rank < len(earliest_s):
        found = float(np.partition(earliest_s, rank)[rank])
        if np.isfinite(found):
            return found
    return np.max(earliest_s, initial=-np.inf, where=np.isfinite(earliest_s))


def _releases_of(end: RunEnd) -> Iterator[tuple[NodeId, float, tuple[int, int, int]]]:
    for (_, role), assignment in zip(
        end.placement.gang.replica_roles(), end.placement.assignments, strict=True
    ):
        asked = role.resources
        yield (
            assignment.node,
            end.mid_s,
            (asked.cpu_milli, asked.memory_bytes, len(assignment.gpus) * assignment.gpu_milli),
        )
