"""Estimates the duration of a hop: the cost of the trial divided by the speed of the worker, both learned
from finished hops."""

from __future__ import annotations

from collections.abc import Iterable

from hopyard.domain.ids import TrialId, WorkerId

DECAY = 0.1  # the least weight of a new hop in a worker's speed: it may become slower


class HopTimeEstimates:
    """seconds(trial, worker) = cost(trial) / speed(worker).

    Where neither was given, each hop that ended teaches both: the surprise (how much longer it took than
    estimated) is shared between the trial and the worker, each moving by its part of a running mean in
    logarithms, so the order of magnitude is right after one hop. A trial that nobody has seen yet costs the
    mean of those seen: no reason to hurry it or to wait with it.
    """

    def __init__(self) -> None:
        self._cost: dict[TrialId, float] = {}
        self._speed: dict[WorkerId, float] = {}
        self._known_costs: set[TrialId] = set()  # those that were given
        self._known_speeds: set[WorkerId] = set()
        self._learned_trials: dict[TrialId, int] = {}  # hops that each has taught
        self._learned_workers: dict[WorkerId, int] = {}
        self._sum = 0.0  # of learnt and given costs, for the mean

    def set_known_cost(self, trial: TrialId, cost: float) -> None:
        self._set_cost(trial, cost)
        self._known_costs.add(trial)

    def set_known_speed(self, worker: WorkerId, speed: float) -> None:
        self._speed[worker] = speed
        self._known_speeds.add(worker)

    def known_costs(self, trials: Iterable[TrialId]) -> dict[TrialId, float] | None:
        """Returns None if one of them was not given."""
        trials = list(trials)
        found = {trial: self._cost[trial] for trial in trials if trial in self._known_costs}
        return found if len(found) == len(trials) else None

    def known_speeds(self, workers: Iterable[WorkerId]) -> dict[WorkerId, float] | None:
        """Returns None if one of them was not given."""
        workers = list(workers)
        found = {worker: self._speed[worker] for worker in workers if worker in self._known_speeds}
        return found if len(found) == len(workers) else None

    def cost(self, trial: TrialId) -> float:
        found = self._cost.get(trial)
        if found is not None:
            return found
        return self._sum / len(self._cost) if self._cost else 1.0

    def speed(self, worker: WorkerId) -> float:
        return self._speed.get(worker, 1.0)

    def record_hop(self, trial: TrialId, worker: WorkerId, seconds: float) -> None:
        """Records the duration of a hop of this trial on this worker."""
        knows_trial, knows_worker = trial in self._known_costs, worker in self._known_speeds
        if seconds <= 0 or (knows_trial and knows_worker):
            return
        seen_trial, seen_worker = self._learned_trials.get(trial, 0), self._learned_workers.get(worker, 0)
        self._learned_trials[trial], self._learned_workers[worker] = seen_trial + 1, seen_worker + 1
        # the first hop says what it costs, on a worker as fast as we think
        if not knows_trial and not seen_trial:
            self._set_cost(trial, seconds * self.speed(worker))
            return
        surprise = seconds * self.speed(worker) / self.cost(trial)
        trial_weight = 0.0 if knows_trial else 1.0 / (seen_trial + 1)
        worker_weight = 0.0 if knows_worker else max(DECAY, 1.0 / (seen_worker + 1))
        total = trial_weight + worker_weight
        step = max(trial_weight, worker_weight)  # the less it was seen, the more it moves
        self._set_cost(trial, self.cost(trial) * surprise ** (step * trial_weight / total))
        self._speed[worker] = self.speed(worker) / surprise ** (step * worker_weight / total)

    def _set_cost(self, trial: TrialId, cost: float) -> None:
        self._sum += cost - self._cost.get(trial, 0.0)
        self._cost[trial] = cost

    def remove_trial(self, trial: TrialId) -> None:
        self._sum -= self._cost.pop(trial, 0.0)
        self._known_costs.discard(trial)
        self._learned_trials.pop(trial, None)

    def remove_worker(self, worker: WorkerId) -> None:
        self._speed.pop(worker, None)
        self._known_speeds.discard(worker)
        self._learned_workers.pop(worker, None)
