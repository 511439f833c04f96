"""Caches the best node for each request shape; only changed nodes are scored again."""

from __future__ import annotations

from collections.abc import Collection
from typing import NamedTuple

import numpy as np

from hopyard.scheduler.placement.feasibility import NodeFeasibility, ReplicaRequest
from hopyard.scheduler.placement.fragmentation_score import FragmentationScorer
from hopyard.scheduler.placement.fragmentation_value import FragmentationValue
from hopyard.scheduler.placement.free_resources import FreeResources
from hopyard.scheduler.placement.node_table import Ints
from hopyard.scheduler.placement.score_rules import FRAGMENTATION_SCORES, INFEASIBLE, SCORES, Columns, Values
from hopyard.scheduler.placement.workload_mix import EMPTY_MIX, WorkloadMix

MAX_CACHED_REQUESTS = 512
MAX_CACHED_VALUES = 4
NO_ROW = -1
NEVER_SEEN = -1  # the scorer is outdated for all nodes
# changes kept per node, for request shapes that are scored seldom
MAX_CHANGES_PER_NODE = 8


class NodeScores:
    """The scores of all nodes for one request shape (INFEASIBLE if it does not fit), as of the first
    `changes_applied` changes."""

    __slots__ = ("changes_applied", "feasibility", "gpu_columns", "shared", "values")

    def __init__(
        self, feasibility: NodeFeasibility, values: Values, gpu_columns: Columns, changes_applied: int
    ) -> None:
        self.feasibility, self.values, self.gpu_columns, self.changes_applied, self.shared = (
            feasibility,
            values,
            gpu_columns,
            changes_applied,
            False,
        )


class BestNode(NamedTuple):
    """The best node for one replica.

    column: the GPU to share; NO_COLUMN if no GPU is shared. changes_applied: the number of changes known when
    it was computed.
    """

    score: str
    feasibility: NodeFeasibility
    row: int
    column: int
    value: float
    changes_applied: int


class ScoreCache:
    """One cache per FreeResources, for all requested shapes and scores. The code that changes the
    FreeResources must record the changed nodes."""

    def __init__(self, free: FreeResources, mix: WorkloadMix = EMPTY_MIX) -> None:
        self._free, self._mix = free, mix
        self._changes: list[int] = []
        self._scores: dict[tuple[str, ReplicaRequest], NodeScores] = {}
        self._scorers: dict[str, tuple[FragmentationScorer, int]] = {}
        self._feasibilities: dict[ReplicaRequest, NodeFeasibility] = {}
        self._fragmentation_values: dict[tuple[WorkloadMix, bool], FragmentationValue] = {}

    @property
    def mix(self) -> WorkloadMix:
        return self._mix

    def update_weights(self, mix: WorkloadMix) -> None:
        """Sets the workload mix for which capacity is preserved. Shapes with the least capacity in the
        cluster count most."""
        if mix != self._mix:
            self._mix = mix
            self._drop_scorers()
        if self._free.node_table.gpu_models and self._scorer("fragmentation").update_weights(self._free):
            self._drop_scores("fragmentation")

    def _drop_scorers(self) -> None:
        for name in FRAGMENTATION_SCORES:
            self._scorers.pop(name, None)
            self._drop_scores(name)

    def _drop_scores(self, score: str) -> None:
        self._scores = {key: scores for key, scores in self._scores.items() if key[0] != score}

    def feasibility_of(self, replica_request: ReplicaRequest) -> NodeFeasibility:
        feasibility = self._feasibilities.get(replica_request)
        if feasibility is None:
            if len(self._feasibilities) >= 2 * MAX_CACHED_REQUESTS:
                self._feasibilities.clear()
            feasibility = self._feasibilities[replica_request] = NodeFeasibility(
                self._free.node_table, replica_request
            )
        return feasibility

    def copy(self, free: FreeResources) -> ScoreCache:
        """Returns a cache for a copy of the FreeResources. Cached scores are shared until one of the two
        changes them."""
        cache = ScoreCache(free, self._mix)
        if self._scores or self._scorers:
            cache._changes = self._changes.copy()  # the copied scores refer to these by count
        cache._scorers = {
            name: (scorer.copy(), changes_applied)
            for name, (scorer, changes_applied) in self._scorers.items()
        }
        # these depend on the node table only, not on free resources
        cache._feasibilities, cache._fragmentation_values = (self._feasibilities, self._fragmentation_values)
        cache._scores = dict(self._scores)
        for scores in self._scores.values():
            scores.shared = True
        return cache

    def record_node_changed(self, row: int, *, opened: bool) -> None:
        """Records that the node of one row was opened or closed, or holds other data. The FreeResources
        already refers to the new node table."""
        node_table = self._free.node_table
        if any(
            fragmentation_value.is_only_open_of_kind(node_table, row)
            for fragmentation_value in self._fragmentation_values.values()
        ):
            self._fragmentation_values = {}
            self._drop_scorers()
        self._feasibilities = (
            {}
            if opened
            else {
                shape: cached.with_node_closed(node_table, row)
                for shape, cached in self._feasibilities.items()
            }
        )
        self._scores = {
            (score, shape): NodeScores(
                self.feasibility_of(shape), cached.values, cached.gpu_columns, cached.changes_applied
            )
            for (score, shape), cached in self._scores.items()
        }
        for scores in self._scores.values():
            scores.shared = True
        self.invalidate(row)

    def invalidate(self, row: int) -> None:
        self._changes.append(row)
        if len(self._changes) > 4096 + MAX_CHANGES_PER_NODE * len(self._free.cpu):
            self._drop_oldest()

    def invalidate_many(self, rows: Ints) -> None:
        if len(rows) * 4 > len(self._free.cpu):
            self.invalidate_all()
        else:
            self._changes += rows.tolist()

    def invalidate_all(self) -> None:
        """Records that all nodes may have changed. The weights of the shapes stay as they are."""
        self._changes.clear()
        self._scores.clear()
        self._scorers = {name: (scorer, NEVER_SEEN) for name, (scorer, _) in self._scorers.items()}

    def best(self, score: str, replica_request: ReplicaRequest) -> BestNode | None:
        """Returns the best node for one replica; None if it fits on no node."""
        feasibility = self.feasibility_of(replica_request)
        scores = self._current_scores(score, feasibility)
        if scores.feasibility is feasibility:
            row = int(scores.values.argmin()) if len(scores.values) else NO_ROW
        else:
            rows = feasibility.allowed_rows
            row = rows.item(scores.values[rows].argmin()) if len(rows) else NO_ROW
        if row == NO_ROW or (value := scores.values.item(row)) == INFEASIBLE:
            return None
        return BestNode(score, feasibility, row, scores.gpu_columns.item(row), value, len(self._changes))

    def values(self, score: str, replica_request: ReplicaRequest) -> Values:
        """Returns the scores of all nodes for one replica, INFEASIBLE if it does not fit."""
        feasibility = self.feasibility_of(replica_request)
        scores = self._current_scores(score, feasibility)
        return (
            scores.values
            if scores.feasibility is feasibility
            else np.where(feasibility.allowed_nodes, scores.values, INFEASIBLE)
        )

    def record_placed(self, best: BestNode) -> None:
        """Records that a replica was placed on its best node. The new value of the node is known from its
        score, so the node is not evaluated again."""
        scorer, changes_applied = self._scorers.get(best.score) or (None, 0)
        unchanged = changes_applied == best.changes_applied == len(self._changes)
        self.invalidate(best.row)
        if scorer is not None and unchanged and len(self._changes) == changes_applied + 1:
            scorer.record_placed(self._free, best.row, best.column, best.feasibility, best.value)
            self._scorers[best.score] = scorer, changes_applied + 1

    def has_uniform_scores(self, score: str) -> bool:
        """Returns whether all feasible nodes have the same score. Without GPUs in the cluster, no GPU
        capacity can be fragmented."""
        return score == "first-fit" or (
            score in FRAGMENTATION_SCORES and not self._free.node_table.gpu_models
        )

    def is_current(self, score: str, replica_request: ReplicaRequest) -> bool:
        """Returns whether the cached scores include all changes."""
        scores = self._scores.get((score, _scoring_request(score, self.feasibility_of(replica_request))))
        return scores is not None and scores.changes_applied == len(self._changes)

    def _current_scores(self, score: str, feasibility: NodeFeasibility) -> NodeScores:
        """Returns the scores with all changes applied. They are valid for this shape on the nodes that it may
        use."""
        key = score, _scoring_request(score, feasibility)
        scores = self._scores.get(key)
        if scores is None:
            return self._score_all(*key)
        return self._apply_changes(key, scores) if scores.changes_applied < len(self._changes) else scores

    def _score_all(self, score: str, replica_request: ReplicaRequest) -> NodeScores:
        feasibility = self.feasibility_of(replica_request)
        if score in FRAGMENTATION_SCORES:
            values, columns = self._scorer(score).score_all(self._free, feasibility)
        else:
            values, columns = SCORES[score](self._free, feasibility, np.arange(len(self._free.cpu)))
        if len(self._scores) >= MAX_CACHED_REQUESTS:
            del self._scores[next(iter(self._scores))]
        scores = self._scores[score, replica_request] = NodeScores(
            feasibility, values, columns, len(self._changes)
        )
        return scores

    def _apply_changes(self, key: tuple[str, ReplicaRequest], scores: NodeScores) -> NodeScores:
        changed = self._changed_since(scores.changes_applied)
        rows = np.fromiter(changed, np.int64, len(changed))
        if scores.shared:
            scores = NodeScores(
                scores.feasibility, scores.values.copy(), scores.gpu_columns.copy(), scores.changes_applied
            )
            self._scores[key] = scores
        score = key[0]
        if score in FRAGMENTATION_SCORES:
            self._scorer(score).rescore(
                self._free, scores.feasibility, rows, scores.values, scores.gpu_columns
            )
        else:
            scores.values[rows], scores.gpu_columns[rows] = SCORES[score](
                self._free, scores.feasibility, rows
            )
        scores.changes_applied = len(self._changes)
        return scores

    def _changed_since(self, changes_applied: int) -> Collection[int]:
        """Returns the nodes that changed after the first `changes_applied` changes, each once."""
        return set(self._changes[changes_applied:])

    def _scorer(self, name: str) -> FragmentationScorer:
        """Returns the scorer of this name with all changes applied."""
        scorer, changes_applied = self._scorers.get(name) or (None, 0)
        if scorer is None or changes_applied == NEVER_SEEN:
            scorer = FragmentationScorer(
                self._fragmentation_value(name), self._free, None if scorer is None else scorer.weights
            )
        elif changes_applied < len(self._changes):
            scorer.refresh(self._free, self._changed_since(changes_applied))
        self._scorers[name] = scorer, len(self._changes)
        return scorer

    def _fragmentation_value(self, name: str) -> FragmentationValue:
        key = self._mix, FRAGMENTATION_SCORES[name]
        fragmentation_value = self._fragmentation_values.get(key)
        if fragmentation_value is None:
            if len(self._fragmentation_values) >= MAX_CACHED_VALUES:
                self._fragmentation_values.clear()
            fragmentation_value = self._fragmentation_values[key] = FragmentationValue(
                self._free.node_table, self._mix, fluid=FRAGMENTATION_SCORES[name]
            )
        return fragmentation_value

    def _drop_oldest(self) -> None:
        """Drops the older half of the changes, and the scores that were last updated before them."""
        half = len(self._changes) // 2
        del self._changes[:half]
        self._scorers = {
            name: (scorer, changes_applied - half if changes_applied >= half else NEVER_SEEN)
            for name, (scorer, changes_applied) in self._scorers.items()
        }
        retained = {key: scores for key, scores in self._scores.items() if scores.changes_applied >= half}
        self._scores = {}
        for key, scores in retained.items():
            self._scores[key] = NodeScores(
                scores.feasibility, scores.values, scores.gpu_columns, scores.changes_applied - half
            )
            self._scores[key].shared = scores.shared


def _scoring_request(score: str, feasibility: NodeFeasibility) -> ReplicaRequest:
    """Returns the shape whose scores are also valid for this shape."""
    return (
        feasibility.replica_request
        if feasibility.unconstrained_request is None or score not in FRAGMENTATION_SCORES
        else feasibility.unconstrained_request
    )
