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
NEVER_SEEN = -1  # what is known of no node holds any more
# times the number of nodes: so many are remembered, for shapes that were not asked for in a while
MAX_CHANGES_PER_NODE = 8


class NodeScores:
    """The scores of all nodes for one shape (INFEASIBLE where it does not fit), as of the first
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
    """column: the card to share, NO_COLUMN where none is.
    changes_applied: how many changes were known when it was found."""

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
        """Keep room for these shapes from now on, and most for those for which there is least now."""
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
        self._scores = {key: ranked for key, ranked in self._scores.items() if key[0] != score}

    def feasibility_of(self, replica_request: ReplicaRequest) -> NodeFeasibility:
        found = self._feasibilities.get(replica_request)
        if found is None:
            if len(self._feasibilities) >= 2 * MAX_CACHED_REQUESTS:
                self._feasibilities.clear()
            found = self._feasibilities[replica_request] = NodeFeasibility(
                self._free.node_table, replica_request
            )
        return found

    def copy(self, free: FreeResources) -> ScoreCache:
        """For a copy of the Free; what is known is shared until one of them learns more."""
        found = ScoreCache(free, self._mix)
        if self._scores or self._scorers:
            found._changes = self._changes.copy()  # which of them these know
        found._scorers = {name: (gradient.copy(), seen) for name, (gradient, seen) in self._scorers.items()}
        found._feasibilities, found._fragmentation_values = (
            self._feasibilities,
            self._fragmentation_values,
        )  # true of the ground, whatever is free
        found._scores = dict(self._scores)
        for ranked in self._scores.values():
            ranked.shared = True
        return found

    def record_node_changed(self, row: int, *, opened: bool) -> None:
        """The machine of one row was opened or closed, or holds other things: the Free has another ground by
        now."""
        ground = self._free.node_table
        if any(worth.is_only_open_of_kind(ground, row) for worth in self._fragmentation_values.values()):
            self._fragmentation_values = {}
            self._drop_scorers()
        self._feasibilities = (
            {}
            if opened
            else {shape: known.with_node_closed(ground, row) for shape, known in self._feasibilities.items()}
        )
        self._scores = {
            (score, shape): NodeScores(
                self.feasibility_of(shape), known.values, known.gpu_columns, known.changes_applied
            )
            for (score, shape), known in self._scores.items()
        }
        for ranked in self._scores.values():
            ranked.shared = True
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
        """Everything may have changed. What shapes count stays as it was when they were weighed."""
        self._changes.clear()
        self._scores.clear()
        self._scorers = {name: (gradient, NEVER_SEEN) for name, (gradient, _) in self._scorers.items()}

    def best(self, score: str, replica_request: ReplicaRequest) -> BestNode | None:
        """Returns the best node for one replica; None if it fits on no node."""
        fitting = self.feasibility_of(replica_request)
        ranked = self._current_scores(score, fitting)
        if ranked.feasibility is fitting:
            row = int(ranked.values.argmin()) if len(ranked.values) else NO_ROW
        else:
            rows = fitting.allowed_rows
            row = rows.item(ranked.values[rows].argmin()) if len(rows) else NO_ROW
        if row == NO_ROW or (value := ranked.values.item(row)) == INFEASIBLE:
            return None
        return BestNode(score, fitting, row, ranked.gpu_columns.item(row), value, len(self._changes))

    def values(self, score: str, replica_request: ReplicaRequest) -> Values:
        """The scores of all nodes for one replica, INFEASIBLE where it does not fit."""
        fitting = self.feasibility_of(replica_request)
        ranked = self._current_scores(score, fitting)
        return (
            ranked.values
            if ranked.feasibility is fitting
            else np.where(fitting.allowed_nodes, ranked.values, INFEASIBLE)
        )

    def record_placed(self, best: BestNode) -> None:
        """A replica of that shape was put where it was best: what the node is worth now was worked out to
        find that out."""
        gradient, seen = self._scorers.get(best.score) or (None, 0)
        as_then = seen == best.changes_applied == len(self._changes)
        self.invalidate(best.row)
        if gradient is not None and as_then and len(self._changes) == seen + 1:
            gradient.record_placed(self._free, best.row, best.column, best.feasibility, best.value)
            self._scorers[best.score] = gradient, seen + 1

    def has_uniform_scores(self, score: str) -> bool:
        """Whether all nodes where something fits have one score: where there are no cards, nothing of them is
        destroyed."""
        return score == "first-fit" or (
            score in FRAGMENTATION_SCORES and not self._free.node_table.gpu_models
        )

    def is_current(self, score: str, replica_request: ReplicaRequest) -> bool:
        """Whether nothing is left to work out of the scores as of now."""
        found = self._scores.get((score, _scoring_request(score, self.feasibility_of(replica_request))))
        return found is not None and found.changes_applied == len(self._changes)

    def _current_scores(self, score: str, feasibility: NodeFeasibility) -> NodeScores:
        """The scores as of now; they hold for this shape on the nodes that are allowed to it."""
        key = score, _scoring_request(score, feasibility)
        found = self._scores.get(key)
        if found is None:
            return self._score_all(*key)
        return self._apply_changes(key, found) if found.changes_applied < len(self._changes) else found

    def _score_all(self, score: str, replica_request: ReplicaRequest) -> NodeScores:
        fitting = self.feasibility_of(replica_request)
        if score in FRAGMENTATION_SCORES:
            values, columns = self._scorer(score).score_all(self._free, fitting)
        else:
            values, columns = SCORES[score](self._free, fitting, np.arange(len(self._free.cpu)))
        if len(self._scores) >= MAX_CACHED_REQUESTS:
            del self._scores[next(iter(self._scores))]
        found = self._scores[score, replica_request] = NodeScores(
            fitting, values, columns, len(self._changes)
        )
        return found

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
        """The nodes that changed since then, each once."""
        return set(self._changes[changes_applied:])

    def _scorer(self, name: str) -> FragmentationScorer:
        """Of this name, with all changes taken in."""
        gradient, seen = self._scorers.get(name) or (None, 0)
        if gradient is None or seen == NEVER_SEEN:
            gradient = FragmentationScorer(
                self._fragmentation_value(name), self._free, None if gradient is None else gradient.weights
            )
        elif seen < len(self._changes):
            gradient.refresh(self._free, self._changed_since(seen))
        self._scorers[name] = gradient, len(self._changes)
        return gradient

    def _fragmentation_value(self, name: str) -> FragmentationValue:
        key = self._mix, FRAGMENTATION_SCORES[name]
        found = self._fragmentation_values.get(key)
        if found is None:
            if len(self._fragmentation_values) >= MAX_CACHED_VALUES:
                self._fragmentation_values.clear()
            found = self._fragmentation_values[key] = FragmentationValue(
                self._free.node_table, self._mix, fluid=FRAGMENTATION_SCORES[name]
            )
        return found

    def _drop_oldest(self) -> None:
        """The older half of the changes, and what has not been asked for since."""
        half = len(self._changes) // 2
        del self._changes[:half]
        self._scorers = {
            name: (gradient, seen - half if seen >= half else NEVER_SEEN)
            for name, (gradient, seen) in self._scorers.items()
        }
        kept = {key: ranked for key, ranked in self._scores.items() if ranked.changes_applied >= half}
        self._scores = {}
        for key, ranked in kept.items():
            self._scores[key] = NodeScores(
                ranked.feasibility, ranked.values, ranked.gpu_columns, ranked.changes_applied - half
            )
            self._scores[key].shared = ranked.shared


def _scoring_request(score: str, feasibility: NodeFeasibility) -> ReplicaRequest:
    """The shape whose scores serve this one, too."""
    return (
        feasibility.replica_request
        if feasibility.unconstrained_request is None or score not in FRAGMENTATION_SCORES
        else feasibility.unconstrained_request
    )
