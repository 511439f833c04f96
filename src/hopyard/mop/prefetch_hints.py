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
    """The rule played once more: the workers in the order in which they will be free, each taking the first
    that waits.

    A trial that is under way is somewhere else then, or has a state that nobody can name yet; where one of
    those will probably come first, no hint is better than a wrong one, and they are few where there are more
    trials than workers.
    """
    ends: list[tuple[float, WorkerId]] = []
    for worker in workers:
        hop = None if worker.unit is None else hops.get(worker.unit)
        if hop is not None:
            took = running.get(hop.hop, 0.0)
            ends.append((estimates.cost(hop.trial) / estimates.speed(worker.id) - took, worker.id))
    out: list[PrefetchHint] = []
    taken: set[int] = set()
    for _, worker_id in sorted(ends):
        worker = workers.get(worker_id)
        evaluation = evaluations.find_first(worker.validation_mask)
        if evaluation is not None:
            out.append(PrefetchHint(worker.id, evaluation.checkpoint))
            continue
        for trial in queue:
            if trial.number not in taken and trial.eligible_mask & worker.train_mask:
                taken.add(trial.number)
                out.append(PrefetchHint(worker.id, trial.checkpoint))
                break
    return [hint for hint in out if hint.checkpoint]
