"""Which state a busy worker will be asked for next, so that it is there before it is needed."""

from __future__ import annotations

from collections.abc import Mapping

from hopyard.domain.ids import WorkerId
from hopyard.mop.estimate import Estimates
from hopyard.mop.evaluations import Evaluations
from hopyard.mop.events import Hint, TrainHop
from hopyard.mop.queue import Queue
from hopyard.mop.roster import Roster


def likely_next(
    roster: Roster,
    queue: Queue,
    evaluations: Evaluations,
    estimates: Estimates,
    hops: Mapping[int, TrainHop],
    running: Mapping[int, float],
) -> list[Hint]:
    """The rule played once more: the workers in the order in which they will be free, each taking the first
    that waits.

    A trial that is under way is somewhere else then, or has a state that nobody can name yet; where one of
    those will probably come first, no hint is better than a wrong one, and they are few where there are more
    trials than workers.
    """
    ends: list[tuple[float, WorkerId]] = []
    for worker in roster:
        hop = None if worker.unit is None else hops.get(worker.unit)
        if hop is not None:
            took = running.get(hop.hop, 0.0)
            ends.append((estimates.cost(hop.trial) / estimates.speed(worker.id) - took, worker.id))
    out: list[Hint] = []
    taken: set[int] = set()
    for _, worker_id in sorted(ends):
        worker = roster.get(worker_id)
        evaluation = evaluations.first_for(worker.validation)
        if evaluation is not None:
            out.append(Hint(worker.id, evaluation.checkpoint))
            continue
        for trial in queue:
            if trial.number not in taken and trial.wants & worker.mask:
                taken.add(trial.number)
                out.append(Hint(worker.id, trial.checkpoint))
                break
    return [hint for hint in out if hint.checkpoint]
