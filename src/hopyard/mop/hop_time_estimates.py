"""Estimates the duration of a hop: the cost of the trial divided by the speed of the worker, both learned
from finished hops."""

from __future__ import annotations

from collections.abc import Iterable

from hopyard.domain.ids import TrialId, WorkerId

DECAY = 0.1  # the smallest weight of a new hop in the speed of a worker, which may become slower


class HopTimeEstimates:
    """seconds(trial, worker) = cost(trial) / speed(worker).

    If neither was given, each finished hop updates both. The error (the factor by which it took longer than
    estimated) is shared between the trial and the worker. Each moves by its part of a running mean in
    logarithms, so the order of magnitude is right after one hop. A trial without a finished hop costs the
    mean of the known trials: there is no reason to hurry or to delay it.
    """

    def __init__(self) -> None:
        self._cost: dict[TrialId, float] = {}
        self._speed: dict[WorkerId, float] = {}
        self._known_costs: set[TrialId] = set()  # trials whose cost was given
        self._known_speeds: set[WorkerId] = set()
        self._learned_trials: dict[TrialId, int] = {}  # finished hops that count, per trial
        self._learned_workers: dict[WorkerId, int] = {}
        self._sum = 0.0  # of learned and given costs, for the mean

    def set_known_cost(self, trial: TrialId, cost: float) -> None:
        self._set_cost(trial, cost)
        self._known_costs.add(trial)

    def set_known_speed(self, worker: WorkerId, speed: float) -> None:
        self._speed[worker] = speed
        self._known_speeds.add(worker)

    def known_costs(self, trials: Iterable[TrialId]) -> dict[TrialId, float] | None:
        """Returns None if the cost of one of the trials was not given."""
        trials = list(trials)
        costs = {trial: self._cost[trial] for trial in trials if trial in self._known_costs}
        return costs if len(costs) == len(trials) else None

    def known_speeds(self, workers: Iterable[WorkerId]) -> dict[WorkerId, float] | None:
        """Returns None if the speed of one of the workers was not given."""
        workers = list(workers)
        speeds = {worker: self._speed[worker] for worker in workers if worker in self._known_speeds}
        return speeds if len(speeds) == len(workers) else None

    def cost(self, trial: TrialId) -> float:
        cost = self._cost.get(trial)
        if cost is not None:
            return cost
        return self._sum / len(self._cost) if self._cost else 1.0

    def speed(self, worker: WorkerId) -> float:
        return self._speed.get(worker, 1.0)

    def record_hop(self, trial: TrialId, worker: WorkerId, seconds: float) -> None:
        """Records the duration of a hop of this trial on this worker."""
        is_cost_known, is_speed_known = trial in self._known_costs, worker in self._known_speeds
        if seconds <= 0 or (is_cost_known and is_speed_known):
            return
        trial_hops, worker_hops = self._learned_trials.get(trial, 0), self._learned_workers.get(worker, 0)
        self._learned_trials[trial], self._learned_workers[worker] = trial_hops + 1, worker_hops + 1
        # the first hop sets the cost, with the estimated speed of the worker
        if not is_cost_known and not trial_hops:
            self._set_cost(trial, seconds * self.speed(worker))
            return
        error_factor = seconds * self.speed(worker) / self.cost(trial)
        trial_weight = 0.0 if is_cost_known else 1.0 / (trial_hops + 1)
        worker_weight = 0.0 if is_speed_known else max(DECAY, 1.0 / (worker_hops + 1))
        total = trial_weight + worker_weight
        step = max(trial_weight, worker_weight)  # fewer hops make a larger step
        self._set_cost(trial, self.cost(trial) * error_factor ** (step * trial_weight / total))
        self._speed[worker] = self.speed(worker) / error_factor ** (step * worker_weight / total)

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
