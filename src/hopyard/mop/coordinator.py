"""The model-hopper coordinator: no socket, no clock, no chance.

Laws: a trial is on at most one worker; a worker runs at most one hop; in an epoch a trial is on each partition exactly once;
no idle worker and waiting trial that could go together are left apart.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from heapq import heappop, heappush

from hopyard.domain.ids import PartitionId, TrialId, WorkerId
from hopyard.mop import lookahead
from hopyard.mop.estimate import Estimates
from hopyard.mop.events import (
    CancelHop,
    EpochFinished,
    Event,
    HopFailed,
    HopFinished,
    Instruction,
    TrainHop,
    TrialAdmitted,
    TrialFinished,
    TrialWithdrawn,
    WorkerJoined,
    WorkerLost,
)


@dataclass(slots=True)
class _Trial:
    """todo: partitions that it has not finished in this epoch. weight: what a hop of it counts in a worker's load.
    number: in the order of admission. waits: it could hop now. stamp: how often it began to wait; what bears an older one is out of date."""

    id: TrialId
    epochs: int
    checkpoint: str
    todo: set[PartitionId]
    weight: float
    epoch: int = 0
    hop: TrainHop | None = None
    number: int = 0
    waits: bool = False
    stamp: int = 0


@dataclass(slots=True)
class _Worker:
    id: WorkerId
    partitions: frozenset[PartitionId]
    hop: TrainHop | None = None


class MopCoordinator:
    """`partitions`: all of the training data, each of which an epoch visits once.

    The rule is longest remaining trial first, each to the idle worker that has most work left: what is long in either
    direction bounds the whole (open shop). Where all times are known before, a few biased variants of the rule are tried first.
    Events that came together are better given together: one decision over all of them. biases: factors by which trials count
    as longer; None finds them by looking ahead.
    """

    def __init__(self, partitions: Iterable[PartitionId], *, biases: Mapping[TrialId, float] | None = None) -> None:
        self.partitions = frozenset(partitions)
        self._biases, self._looks_ahead = dict(biases or {}), biases is None
        self._positions = {partition: at for at, partition in enumerate(sorted(self.partitions))}
        self._admitted = 0
        self._trials: dict[TrialId, _Trial] = {}
        self._workers: dict[WorkerId, _Worker] = {}
        self._holders: dict[PartitionId, set[WorkerId]] = {partition: set() for partition in self.partitions}
        self._left: dict[PartitionId, float] = dict.fromkeys(self.partitions, 0.0)  # weight of the hops not yet begun
        self._hops: dict[int, TrainHop] = {}
        # By partition, the trials that lack it and could hop, longest remaining first; those out of date are dropped when met.
        self._waiting: dict[PartitionId, list[tuple[float, TrialId, int]]] = {partition: [] for partition in self.partitions}
        self._idle: set[WorkerId] = set()
        self._next_hop = 0
        self._estimates = Estimates()
        self._slowness: dict[PartitionId, float] = {}  # seconds per cost, of the fastest holder

    def handle(self, *events: Event) -> list[Instruction]:
        """Take in what happened, in this order, and say what to do."""
        out: list[Instruction] = []
        for event in events:
            out += self._take_in(event)
        if self._looks_ahead and not self._hops and any(isinstance(event, TrialAdmitted) for event in events):
            self._look_ahead()
        return out + self._dispatch()

    def _look_ahead(self) -> None:
        """Before the first hop, where all times are known: try the rule under several small biases, keep the best."""
        costs = {trial: self._estimates.given_cost(trial) for trial in self._trials}
        speeds = {
            worker.id: self._estimates.given_speed(worker.id) for worker in self._workers.values() if len(worker.partitions) == 1
        }
        if len(speeds) != len(self.partitions) or len(self._workers) != len(speeds):
            return
        known_costs = {trial: cost for trial, cost in costs.items() if cost is not None}
        known_speeds = {worker: speed for worker, speed in speeds.items() if speed is not None}
        if len(known_costs) == len(costs) and len(known_speeds) == len(speeds):
            self._biases = lookahead.best_biases(MopCoordinator, known_costs, known_speeds)
            for trial in self._trials.values():
                if trial.waits:
                    self._wait(trial)

    def _take_in(self, event: Event) -> list[Instruction]:
        match event:
            case TrialAdmitted():
                self._admit(event)
            case TrialWithdrawn(trial):
                return self._withdraw(trial)
            case WorkerJoined():
                return self._join(event)
            case WorkerLost(worker):
                return self._lose(worker)
            case HopFinished():
                return self._finish(event)
            case HopFailed(hop):
                self._release(hop, begun_again=True)
        return []

    # -- trials ---------------------------------------------------------------------------------------------------

    def _admit(self, event: TrialAdmitted) -> None:
        """One that is there already is left as it is: the news was repeated."""
        if event.trial in self._trials or event.epochs < 1 or not self.partitions:
            return
        if event.cost is not None:
            self._estimates.give_cost(event.trial, event.cost)
        trial = _Trial(
            event.trial, event.epochs, event.checkpoint, set(self.partitions), event.cost or 1.0, number=self._admitted
        )
        self._admitted += 1
        self._trials[trial.id] = trial
        for partition in self.partitions:
            self._left[partition] += trial.weight * trial.epochs
        self._wait(trial)

    def _withdraw(self, trial_id: TrialId) -> list[Instruction]:
        trial = self._trials.get(trial_id)
        if trial is None:
            return []
        out = [] if trial.hop is None else self._cancel(trial.hop)
        for partition in self.partitions:
            self._left[partition] -= trial.weight * (trial.epochs - trial.epoch - (partition not in trial.todo))
        self._drop(trial)
        return out

    def _drop(self, trial: _Trial) -> None:
        del self._trials[trial.id]
        self._estimates.forget(trial.id)

    def _finish(self, event: HopFinished) -> list[Instruction]:
        hop = self._hops.get(event.hop)
        if hop is None:  # late news of one that was cancelled
            return []
        self._estimates.learn(hop.trial, hop.worker, event.seconds)
        trial = self._trials[hop.trial]
        trial.todo.discard(hop.partition)
        trial.checkpoint = event.checkpoint
        self._release(event.hop, begun_again=False)
        if trial.todo:
            return []
        out: list[Instruction] = [EpochFinished(trial.id, trial.epoch, trial.checkpoint)]
        trial.epoch += 1
        if trial.epoch == trial.epochs:
            self._drop(trial)
            return [*out, TrialFinished(trial.id)]
        trial.todo = set(self.partitions)
        self._wait(trial)
        return out

    # -- workers --------------------------------------------------------------------------------------------------

    def _join(self, event: WorkerJoined) -> list[Instruction]:
        if event.speed is not None:
            self._estimates.give_speed(event.worker, event.speed)
        before = self._workers.get(event.worker)
        held = event.partitions & self.partitions
        out: list[Instruction] = []
        if before is None:
            self._workers[event.worker] = _Worker(event.worker, held)
            self._idle.add(event.worker)
        else:
            if before.hop is not None and before.hop.partition not in held:
                out = self._cancel(before.hop)
            self._let_go(before)
            before.partitions = held
        for partition in held:
            self._holders[partition].add(event.worker)
        self._measure(held)
        return out

    def _lose(self, worker_id: WorkerId) -> list[Instruction]:
        worker = self._workers.get(worker_id)
        if worker is None:
            return []
        out = [] if worker.hop is None else self._cancel(worker.hop)
        self._let_go(worker)
        del self._workers[worker_id]
        self._idle.discard(worker_id)
        return out

    def _let_go(self, worker: _Worker) -> None:
        for partition in worker.partitions:
            self._holders[partition].discard(worker.id)
        self._measure(worker.partitions)

    def _measure(self, partitions: Iterable[PartitionId]) -> None:
        for partition in partitions:
            speeds = [self._estimates.speed(worker) for worker in self._holders[partition]]
            self._slowness[partition] = 1.0 / max(speeds) if speeds else 1.0

    def _load(self, worker: _Worker) -> float:
        """Seconds of work that wait for it: of a partition that several hold, its part."""
        cost = sum(self._left[partition] / len(self._holders[partition]) for partition in worker.partitions)
        return cost / self._estimates.speed(worker.id)

    # -- hops -----------------------------------------------------------------------------------------------------

    def _dispatch(self) -> list[Instruction]:
        """Again and again the longest remaining trial that some idle worker can take, to the worker with most work left."""
        idle = {worker: -self._load(self._workers[worker]) for worker in sorted(self._idle)}
        out: list[Instruction] = []
        while idle:
            best: tuple[tuple[float, TrialId, int], float, int, WorkerId] | None = None
            for worker, load in list(idle.items()):
                entry = self._longest_for(self._workers[worker])
                if entry is None:
                    del idle[worker]
                elif best is None or (entry, load) <= best[:2]:
                    candidate = entry, load, self._turns_until(entry[1], worker), worker
                    best = candidate if best is None else min(best, candidate)
            if best is not None:
                trial, chosen = self._trials[best[0][1]], self._workers[best[3]]
                del idle[chosen.id]
                out.append(self._begin(trial, chosen, self._partition_for(trial, chosen)))
        return out

    def _turns_until(self, trial_id: TrialId, worker: WorkerId) -> int:
        """Where all else is equal, trial i goes round the partitions beginning with the i-th: on a square of equal units that
        is a Latin square, and no two trials ever want the same worker."""
        trial = self._trials[trial_id]
        at = min(self._positions[partition] for partition in self._workers[worker].partitions)
        return (at - trial.number - (len(self.partitions) - len(trial.todo))) % len(self.partitions)

    def _longest_for(self, worker: _Worker) -> tuple[float, TrialId, int] | None:
        """The first of those that wait for a partition that it holds."""
        best: tuple[float, TrialId, int] | None = None
        for partition in worker.partitions:
            heap = self._waiting[partition]
            while heap:
                trial = self._trials.get(heap[0][1])
                if trial is not None and trial.waits and trial.stamp == heap[0][2] and partition in trial.todo:
                    if best is None or heap[0] < best:
                        best = heap[0]
                    break
                heappop(heap)
        return best

    def _partition_for(self, trial: _Trial, worker: _Worker) -> PartitionId:
        """One that it lacks and the worker holds: first what fewest others hold, then what most still need."""
        if len(worker.partitions) == 1:
            (only,) = worker.partitions
            return only
        wanted = trial.todo & worker.partitions
        return min(wanted, key=lambda p: (len(self._holders[p]), -self._left[p], p))

    def _begin(self, trial: _Trial, worker: _Worker, partition: PartitionId) -> TrainHop:
        trial.waits = False
        hop = TrainHop(self._next_hop, trial.id, worker.id, partition, trial.epoch, trial.checkpoint)
        self._next_hop += 1
        self._hops[hop.hop] = trial.hop = worker.hop = hop
        self._idle.discard(worker.id)
        self._left[partition] -= trial.weight
        return hop

    def _cancel(self, hop: TrainHop) -> list[Instruction]:
        self._release(hop.hop, begun_again=True)
        return [CancelHop(hop.hop)]

    def _release(self, number: int, *, begun_again: bool) -> None:
        """The hop is over: its trial and worker are free. begun_again: its partition is still to be visited."""
        hop = self._hops.pop(number, None)
        if hop is None:
            return
        trial, worker = self._trials[hop.trial], self._workers[hop.worker]
        trial.hop = worker.hop = None
        self._idle.add(worker.id)
        if begun_again:
            self._left[hop.partition] += trial.weight
        if trial.todo:
            self._wait(trial)

    def _wait(self, trial: _Trial) -> None:
        slowness = self._slowness
        seconds = sum([slowness.get(partition, 1.0) for partition in trial.todo])
        if trial.epoch + 1 < trial.epochs:
            seconds += (trial.epochs - trial.epoch - 1) * (sum(slowness.values()) or len(self.partitions))
        trial.waits = True
        trial.stamp += 1
        entry = (-self._estimates.cost(trial.id) * self._biases.get(trial.id, 1.0) * seconds, trial.id, trial.stamp)
        for partition in trial.todo:
            heappush(self._waiting[partition], entry)
