"""What a hop will take: a trial's cost over a worker's speed, both learnt from the hops that have ended."""

from __future__ import annotations

from hopyard.domain.ids import TrialId, WorkerId


class Estimates:
    """seconds(trial, worker) = cost(trial) / speed(worker).

    Where neither was given, each hop that ended teaches both: the surprise (how much longer it took than estimated) is shared
    between the trial and the worker, each moving by its part of a running mean in logarithms, so the order of magnitude is right
    after one hop. A trial that nobody has seen yet costs the mean of those seen: no reason to hurry it or to wait with it.
    """

    def __init__(self) -> None:
        self._cost: dict[TrialId, float] = {}
        self._speed: dict[WorkerId, float] = {}
        self._known: set[str] = set()  # trials and workers whose figure was given
        self._seen: dict[str, int] = {}  # hops that a trial or a worker has taught
        self._sum = 0.0  # of learnt and given costs, for the mean

    def give_cost(self, trial: TrialId, cost: float) -> None:
        self._set_cost(trial, cost)
        self._known.add(f"trial {trial}")

    def give_speed(self, worker: WorkerId, speed: float) -> None:
        self._speed[worker] = speed
        self._known.add(f"worker {worker}")

    def given_cost(self, trial: TrialId) -> float | None:
        return self._cost[trial] if f"trial {trial}" in self._known else None

    def given_speed(self, worker: WorkerId) -> float | None:
        return self._speed[worker] if f"worker {worker}" in self._known else None

    def cost(self, trial: TrialId) -> float:
        found = self._cost.get(trial)
        if found is not None:
            return found
        return self._sum / len(self._cost) if self._cost else 1.0

    def speed(self, worker: WorkerId) -> float:
        return self._speed.get(worker, 1.0)

    def learn(self, trial: TrialId, worker: WorkerId, seconds: float) -> None:
        """A hop of this trial on this worker took so long."""
        of_trial, of_worker = f"trial {trial}", f"worker {worker}"
        if seconds <= 0 or (of_trial in self._known and of_worker in self._known):
            return
        seen_trial, seen_worker = self._seen.get(of_trial, 0), self._seen.get(of_worker, 0)
        self._seen[of_trial], self._seen[of_worker] = seen_trial + 1, seen_worker + 1
        if of_trial not in self._known and not seen_trial:  # the first hop says what it costs, on a worker as fast as we think
            self._set_cost(trial, seconds * self.speed(worker))
            return
        surprise = seconds * self.speed(worker) / self.cost(trial)
        trial_weight = 0.0 if of_trial in self._known else 1.0 / (seen_trial + 1)
        worker_weight = 0.0 if of_worker in self._known else 1.0 / (seen_worker + 1)
        total = trial_weight + worker_weight
        step = max(trial_weight, worker_weight)  # the less it was seen, the more it moves
        self._set_cost(trial, self.cost(trial) * surprise ** (step * trial_weight / total))
        self._speed[worker] = self.speed(worker) / surprise ** (step * worker_weight / total)

    def _set_cost(self, trial: TrialId, cost: float) -> None:
        self._sum += cost - self._cost.get(trial, 0.0)
        self._cost[trial] = cost

    def forget(self, trial: TrialId) -> None:
        self._sum -= self._cost.pop(trial, 0.0)
        self._known.discard(f"trial {trial}")
        self._seen.pop(f"trial {trial}", None)
