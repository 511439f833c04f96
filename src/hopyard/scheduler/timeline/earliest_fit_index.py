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
    """The free resources of some nodes as runs end, in order of node, then time: at_s, free[i] (as
    `ReleaseSchedule.released`).

    free_now[i]: what is free now on each node. first_entry: the first entry of each node.
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
            tuple(
                amount[node] + released for amount, released in zip(free_now, releases.released, strict=True)
            ),
        )

    def earliest_s(self, role: Role) -> Floats:
        """Returns for each node when it may first hold a replica; infinity if never."""
        request = role.resources
        minimum = (request.cpu_milli, request.memory_bytes, min_gpu_milli(request))
        earliest: Floats = np.minimum.reduceat(
            np.where(_is_enough(self.free, minimum), self.at_s, np.inf), self.first_entry
        )
        earliest[_is_enough(self.free_now, minimum)] = 0.0
        return earliest


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
        """started: runs of this cycle, which `run_ends` does not include."""
        nodes, now = capacity.ids, run_ends.now
        free_now = tuple(amount.copy() for amount in capacity.free_totals())
        all_nodes = FreeOverTime.of(free_now, run_ends.releases(nodes), now)
        new_releases = [release for end in started for release in _releases_of(end)]
        if not new_releases:
            return cls(capacity, all_nodes, None, np.zeros(0, np.int64))
        names = sorted({node for node, _, _ in new_releases})
        rows, index_of = capacity.rows_of(names), {node: index for index, node in enumerate(names)}
        row, times, amounts = run_ends.replica_releases(nodes, rows)
        row = np.concatenate(
            [np.searchsorted(rows, row), np.array([index_of[node] for node, _, _ in new_releases], np.int64)]
        )
        times = np.concatenate([times, np.array([now + end_s for _, end_s, _ in new_releases])])
        amounts = np.concatenate(
            [amounts, np.array([released for _, _, released in new_releases], np.int64).T], axis=1
        )
        changed_nodes = FreeOverTime.of(
            (amount[rows] for amount in free_now), ReleaseSchedule(len(rows), row, times, amounts), now
        )
        return cls(capacity, all_nodes, changed_nodes, rows)

    def earliest_s(self, gang: Gang) -> Floats:
        """Returns for each node when it may first hold a replica of any role; infinity if never."""
        by_role = [self._earliest_role_s(role) for role in gang.roles]
        return by_role[0] if len(by_role) == 1 else np.minimum.reduce(by_role)

    def earliest_nodes(
        self, gang: Gang, factor: int, promised: Collection[NodeId]
    ) -> tuple[list[NodeId], float]:
        """Returns the nodes that may hold a replica of any role first: `factor` times as many as the role has
        replicas, plus EXTRA_NODES. Promised nodes are not counted. Also returns the time from which other
        nodes may fit too (infinity: there are no others)."""
        nodes = self.capacity.ids
        chosen: set[int] = set()
        beyond = np.inf
        counted = np.ones(len(nodes), np.bool_)
        counted[self.capacity.rows_of(promised)] = False
        for role in gang.roles:
            first_s = self._earliest_role_s(role)
            target = factor * role.replicas + EXTRA_NODES
            candidates = np.flatnonzero(
                first_s <= _time_at_rank(first_s, target + len(nodes) - int(np.count_nonzero(counted)))
            )
            candidates = candidates[np.argsort(first_s[candidates], kind="stable")]
            sufficient = np.flatnonzero(np.cumsum(counted[candidates]) >= target)
            count = int(sufficient[0]) + 1 if len(sufficient) else len(candidates)
            chosen.update(candidates[:count].tolist())
            if count < len(candidates):
                beyond = min(beyond, float(first_s[candidates[count]]))
        return [nodes[row] for row in sorted(chosen)], beyond

    def nodes_before(self, gang: Gang, at_s: float) -> list[NodeId]:
        """Returns all nodes that may hold a replica of any role before that time."""
        return [self.capacity.ids[row] for row in np.flatnonzero(self.earliest_s(gang) < at_s)]

    def _earliest_role_s(self, role: Role) -> Floats:
        earliest_s = self.all_nodes.earliest_s(role)
        if self.changed_nodes is not None:
            earliest_s[self.changed_rows] = self.changed_nodes.earliest_s(role)
        earliest_s[~self.capacity.allowed_nodes(role.where)] = np.inf
        return earliest_s


def _is_enough(free: tuple[Ints, ...], minimum: tuple[int, ...]) -> Bools:
    enough = free[0] >= minimum[0]
    for free_amounts, amount in zip(free[1:], minimum[1:], strict=True):
        enough &= free_amounts >= amount
    return enough


def _time_at_rank(earliest_s: Floats, rank: int) -> float:
    """Returns the time at this rank (from 0) in ascending order; the last finite one if there are fewer."""
    if rank < len(earliest_s):
        time_s = float(np.partition(earliest_s, rank)[rank])
        if np.isfinite(time_s):
            return time_s
    return np.max(earliest_s, initial=-np.inf, where=np.isfinite(earliest_s))


def _releases_of(end: RunEnd) -> Iterator[tuple[NodeId, float, tuple[int, int, int]]]:
    for (_, role), assignment in zip(
        end.placement.gang.replica_roles(), end.placement.assignments, strict=True
    ):
        request = role.resources
        yield (
            assignment.node,
            end.mid_s,
            (request.cpu_milli, request.memory_bytes, len(assignment.gpus) * assignment.gpu_milli),
        )
