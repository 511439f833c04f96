"""Predicts the next state of each busy worker, so that it is transferred before it is needed."""

from __future__ import annotations

from collections.abc import Mapping

from hopyard.domain.ids import WorkerId
from hopyard.mop.evaluations import EvaluationQueue
from hopyard.mop.events import PrefetchHint, TrainHop
from hopyard.mop.hop_time_estimates import HopTimeEstimates
from hopyard.mop.trial_queue import TrialQueue
from hopyard.mop.workers import Workers


def predict_next_states(
    workers: Workers,
    queue: TrialQueue,
    evaluations: EvaluationQueue,
    estimates: HopTimeEstimates,
    hops: Mapping[int, TrainHop],
    running: Mapping[int, float],
) -> list[PrefetchHint]:
    """Applies the rule once more: the workers in the order in which they become idle, each with the first
    pending trial.

    An active trial will be on another worker by then, or will have a state that has no name yet. If such a
    trial probably comes first, no hint is better than a wrong one. These cases are few if there are more
    trials than workers.
    """
    ends: list[tuple[float, WorkerId]] = []
    for worker in workers:
        hop = None if worker.unit is None else hops.get(worker.unit)
        if hop is not None:
            elapsed_s = running.get(hop.hop, 0.0)
            ends.append((estimates.cost(hop.trial) / estimates.speed(worker.id) - elapsed_s, worker.id))
    hints: list[PrefetchHint] = []
    assigned: set[int] = set()
    for _, worker_id in sorted(ends):
        worker = workers.get(worker_id)
        evaluation = evaluations.find_first(worker.validation_mask)
        if evaluation is not None:
            hints.append(PrefetchHint(worker.id, evaluation.checkpoint))
            continue
        for trial in queue:
            if trial.number not in assigned and trial.eligible_mask & worker.train_mask:
                assigned.add(trial.number)
                hints.append(PrefetchHint(worker.id, trial.checkpoint))
                break
    return [hint for hint in hints if hint.checkpoint]
