"""The coordinator of model hopper parallelism: no sockets, no clock, no randomness.

Invariants: a trial is on at most one worker, or one group of workers. A worker executes at most one unit. In
an epoch, a trial visits each partition exactly once. A state is evaluated on each validation partition once
per epoch. No idle worker and pending trial that match are left apart, with two exceptions: a straggler leaves
work to a much faster worker that will finish it sooner; with spare workers, trials wait for workers that
evaluate, because together they finish sooner.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Mapping

from hopyard.domain.ids import PartitionId, TrialId, WorkerId
from hopyard.mop import assignment, lookahead
from hopyard.mop.evaluations import Evaluation, EvaluationQueue
from hopyard.mop.events import (
    CancelUnit,
    EpochEvaluated,
    EpochFinished,
    EvaluateState,
    EvaluationFinished,
    EvaluationRequested,
    Event,
    HopFinished,
    Instruction,
    PrefetchHint,
    SpareWorkersChanged,
    TrainHop,
    TrialAdmitted,
    TrialFinished,
    TrialWithdrawn,
    UnitFailed,
    WorkerJoined,
    WorkerLost,
)
from hopyard.mop.hop_time_estimates import HopTimeEstimates
from hopyard.mop.prefetch_hints import predict_next_states
from hopyard.mop.trial_queue import MopTrial, TrialQueue
from hopyard.mop.workers import MopWorker, PartitionIndex, Workers, bit_positions

_SPEED_CHANGE = 0.25  # a learnt speed that moved by more than this share puts the queue in order anew


class MopCoordinator:
    """`partitions`: all of the training data, each of which an epoch visits once.
    `validation`: those that a state is evaluated on.

    The rule is longest remaining trial first, each to the idle worker that has most work left: what is long
    in either direction bounds the whole (open shop). Where all times are known before, a few biased variants
    of the rule are tried first. Evaluations go before hops: they decide which hops are worth it. Events that
    came together are better given together: one decision over all of them. biases: factors by which trials
    count as longer; None finds them by looking ahead.
    """

    def __init__(
        self,
        partitions: Iterable[PartitionId],
        *,
        validation: Iterable[PartitionId] = (),
        biases: Mapping[TrialId, float] | None = None,
    ) -> None:
        self._train_partitions, self._validation_partitions = (
            PartitionIndex(partitions),
            PartitionIndex(validation),
        )
        self._uses_lookahead = biases is None
        self._estimates = HopTimeEstimates()
        self._workers = Workers(len(self._train_partitions.partitions), self._estimates)
        self._queue = TrialQueue(self._workers, self._estimates, dict(biases or {}))
        self._evaluations = EvaluationQueue()
        self._trials: dict[TrialId, MopTrial] = {}
        self._hops: dict[int, TrainHop] = {}
        self._admitted_count = self._next_unit = 0
        self._queue_speeds: dict[WorkerId, float] = {}  # that the queue's present order goes by
        self._has_spare_workers = False
        self._instructions: list[Instruction] = []
        self._handlers = {
            HopFinished: self._finish_hop,
            EvaluationFinished: self._finish_evaluation,
            UnitFailed: self._fail_unit,
            TrialAdmitted: self._admit_trial,
            TrialWithdrawn: self._withdraw_trial,
            EvaluationRequested: self._request_evaluation,
            WorkerJoined: self._add_worker,
            WorkerLost: self._remove_worker,
            SpareWorkersChanged: self._set_spare,
        }

    def speed(self, worker: WorkerId) -> float:
        """Returns the cost that a worker finishes per second, as given or learned; 1 if unknown."""
        return self._estimates.speed(worker)

    def expected_s(self, trial: TrialId, worker: WorkerId) -> float:
        """Returns the expected duration of a hop of the trial on the worker."""
        return self._estimates.cost(trial) / self._estimates.speed(worker)

    def handle(self, *events: Event) -> list[Instruction]:
        """Applies the events in order, and returns the instructions."""
        self._instructions = out = list[Instruction]()
        for event in events:
            self._handlers[type(event)](event)  # type: ignore[operator]
        if self._uses_lookahead and not self._next_unit:
            self._choose_biases()
        if self._workers.idle:
            self._dispatch()
        else:
            self._queue.added.clear()
        return out

    def hints(self, running: Mapping[int, float]) -> list[PrefetchHint]:
        """Returns the state that each busy worker will most likely need next, if it can be predicted.
        running: seconds since the start of each active hop."""
        return predict_next_states(
            self._workers, self._queue, self._evaluations, self._estimates, self._hops, running
        )

    def _choose_biases(self) -> None:
        """Before the first hop, with all durations known: simulates the rule under several small biases, and
        keeps the best."""
        if (
            self._trials
            and self._workers.is_one_to_one()
            and all(one.remaining_mask == self._train_partitions.full_mask for one in self._trials.values())
        ):
            costs, speeds = (
                self._estimates.known_costs(self._trials),
                self._estimates.known_speeds(one.id for one in self._workers),
            )
            if costs is not None and speeds is not None:
                self._queue.biases = lookahead.find_biases(MopCoordinator, costs, speeds)
                self._queue.reorder()

    # -- trials ----------------------------------------------------------------------------------------------

    def _admit_trial(self, event: TrialAdmitted) -> None:
        """One that is there already is at most extended: the news was repeated."""
        present = self._trials.get(event.trial)
        if present is not None:
            if event.epochs > present.epochs:
                self._add_remaining_cost(
                    present, self._train_partitions.full_mask, event.epochs - present.epochs
                )
                present.epochs = event.epochs
                if present.queue_entry is not None:
                    self._queue.remove(present)
                    self._queue.add(present)
            return
        todo = self._train_partitions.full_mask & ~self._train_partitions.mask(event.visited)
        if event.epochs <= event.epoch or not todo:
            return
        if event.cost is not None:
            self._estimates.set_known_cost(event.trial, event.cost)
        order = deque(1 << self._train_partitions.index_of(partition) for partition in event.order)
        number = self._admitted_count
        turn = number if event.first_partition is None else event.first_partition
        trial = MopTrial(
            event.trial,
            event.epochs,
            event.checkpoint,
            todo,
            event.cost or 1.0,
            number,
            turn,
            event.epoch,
            order,
        )
        self._admitted_count += 1
        self._trials[trial.id] = trial
        self._add_remaining_cost(trial, todo, 1)
        self._add_remaining_cost(trial, self._train_partitions.full_mask, trial.epochs - trial.epoch - 1)
        self._queue.add(trial)

    def _add_remaining_cost(self, trial: MopTrial, mask: int, times: int) -> None:
        """Its hops on these partitions are more, or (times < 0) fewer, by so many an each."""
        if times:
            for at in bit_positions(mask):
                self._workers.remaining_cost[at] += trial.weight * times

    def _withdraw_trial(self, event: TrialWithdrawn) -> None:
        for unit, worker in self._evaluations.withdraw(event.trial).items():
            self._release_worker(worker)
            self._instructions.append(CancelUnit(unit))
        trial = self._trials.get(event.trial)
        if trial is None:
            return
        if trial.hop is not None:
            self._cancel_unit(trial.hop.hop)
        self._queue.remove(trial)
        self._add_remaining_cost(trial, trial.remaining_mask, -1)
        self._add_remaining_cost(trial, self._train_partitions.full_mask, trial.epoch + 1 - trial.epochs)
        self._remove_trial(trial)

    def _remove_trial(self, trial: MopTrial) -> None:
        del self._trials[trial.id]
        self._estimates.remove_trial(trial.id)

    def _finish_hop(self, event: HopFinished) -> None:
        hop = self._hops.pop(event.hop, None)
        if hop is None:  # late news of one that was cancelled
            return
        trial = self._trials[hop.trial]
        trial.checkpoint = event.checkpoint
        if len(hop.workers) == 1:
            self._update_estimates(hop, event.seconds)
        for partition, worker in zip(hop.partitions, hop.workers, strict=True):
            at = self._train_partitions.index_of(partition)
            trial.remaining_mask ^= 1 << at
            trial.seconds -= self._workers.seconds_per_cost[at]
            self._release_worker(self._workers.get(worker))
        trial.hop = None
        if trial.visit_order:
            trial.visit_order.popleft()
        if not trial.remaining_mask:
            self._end_epoch(trial)
        if trial.remaining_mask:
            self._queue.add(trial)

    def _update_estimates(self, hop: TrainHop, seconds: float) -> None:
        worker = hop.workers[0]
        self._estimates.record_hop(hop.trial, worker, seconds)
        speed, used = self._estimates.speed(worker), self._queue_speeds.get(worker, 1.0)
        if abs(speed - used) > _SPEED_CHANGE * used:
            self._queue_speeds[worker] = speed
            self._workers.update_speeds()

    def _end_epoch(self, trial: MopTrial) -> None:
        self._instructions.append(EpochFinished(trial.id, trial.epoch, trial.checkpoint))
        self._evaluations.add(
            Evaluation(trial.id, trial.epoch, trial.checkpoint, self._validation_partitions.full_mask)
        )
        trial.epoch += 1
        if trial.epoch == trial.epochs:
            self._remove_trial(trial)
            self._instructions.append(TrialFinished(trial.id))
        else:
            trial.remaining_mask, trial.generation = self._train_partitions.full_mask, -1

    # -- evaluations -----------------------------------------------------------------------------------------

    def _request_evaluation(self, event: EvaluationRequested) -> None:
        todo = self._validation_partitions.mask(event.partitions)
        self._evaluations.add(Evaluation(event.trial, event.epoch, event.checkpoint, todo))

    def _finish_evaluation(self, event: EvaluationFinished) -> None:
        one = self._evaluations.finish(event.unit)
        if one is not None:
            self._release_worker(one.worker)
            if self._evaluations.is_done(one.evaluation):
                self._instructions.append(
                    EpochEvaluated(one.evaluation.trial, one.evaluation.epoch, one.evaluation.checkpoint)
                )

    # -- workers ---------------------------------------------------------------------------------------------

    def _add_worker(self, event: WorkerJoined) -> None:
        if event.speed is not None:
            self._estimates.set_known_speed(event.worker, event.speed)
            self._queue_speeds[event.worker] = event.speed
        worker = MopWorker(
            event.worker,
            self._train_partitions.mask(event.partitions),
            self._validation_partitions.mask(event.validation),
        )
        before = self._workers.find(event.worker)
        if before is not None:
            if before.unit is not None and not self._can_continue(before.unit, worker):
                self._cancel_unit(before.unit)
            worker.unit = before.unit
            self._workers.remove(before)
            for one in self._evaluations.units.values():
                if one.worker is before:
                    one.worker = worker
        self._workers.add(worker)

    def _can_continue(self, unit: int, worker: MopWorker) -> bool:
        """Returns whether the worker still holds the partition of this unit."""
        hop = self._hops.get(unit)
        if hop is None:
            return bool(worker.validation_mask >> self._evaluations.units[unit].partition_index & 1)
        return bool(
            worker.train_mask >> self._train_partitions.index_of(hop.partitions[hop.workers.index(worker.id)])
            & 1
        )

    def _remove_worker(self, event: WorkerLost) -> None:
        worker = self._workers.find(event.worker)
        if worker is None:
            return
        if worker.unit is not None:
            self._cancel_unit(worker.unit)
        self._workers.remove(worker)
        self._queue_speeds.pop(worker.id, None)
        self._estimates.remove_worker(worker.id)

    def _set_spare(self, event: SpareWorkersChanged) -> None:
        self._has_spare_workers = event.has_spare

    # -- units -----------------------------------------------------------------------------------------------

    def _dispatch(self) -> None:
        if self._evaluations.pending_mask:
            for worker in list(self._workers.idle.values()):
                self._start_evaluation(worker)
        self._queue.refresh()
        if self._queue and self._workers.idle:
            if self._has_spare_workers and len(self._workers.idle) + len(self._evaluations.units) > len(
                self._queue
            ):
                if self._evaluations.units:
                    return  # and all that came since stays new
                pairs = assignment.assign_groups(self._workers, self._queue)
            elif self._workers.has_shared_partitions:
                pairs = assignment.assign_shared(self._workers, self._queue)
            else:
                pairs = assignment.assign_single(
                    self._workers, self._queue, len(self._train_partitions.partitions)
                )
            for trial, members in pairs:
                self._start_hop(trial, members)
        self._workers.newly_idle.clear()
        self._queue.added.clear()

    def _start_evaluation(self, worker: MopWorker) -> None:
        one = self._evaluations.start(self._next_unit, worker)
        if one is not None:
            unit = worker.unit = self._new_unit()
            self._workers.mark_busy(worker)
            partition = self._validation_partitions.partitions[one.partition_index]
            self._instructions.append(
                EvaluateState(
                    unit,
                    one.evaluation.trial,
                    worker.id,
                    partition,
                    one.evaluation.epoch,
                    one.evaluation.checkpoint,
                )
            )

    def _start_hop(self, trial: MopTrial, members: list[tuple[int, MopWorker]]) -> None:
        unit = self._new_unit()
        for at, worker in members:
            worker.unit = unit
            self._workers.remaining_cost[at] -= trial.weight
        hop = TrainHop(
            unit,
            trial.id,
            tuple([worker.id for _, worker in members]),
            tuple([self._train_partitions.partitions[at] for at, _ in members]),
            trial.epoch,
            trial.checkpoint,
        )
        self._hops[unit] = trial.hop = hop
        self._instructions.append(hop)

    def _new_unit(self) -> int:
        self._next_unit += 1
        return self._next_unit - 1

    def _release_worker(self, worker: MopWorker) -> None:
        worker.unit = None
        self._workers.idle[worker.id] = worker
        self._workers.newly_idle.append(worker)

    def _cancel_unit(self, unit: int) -> None:
        self._fail_unit(UnitFailed(unit))
        self._instructions.append(CancelUnit(unit))

    def _fail_unit(self, event: UnitFailed) -> None:
        """Ends a unit without a result; it must be repeated."""
        one = self._evaluations.release(event.unit)
        if one is not None:
            self._release_worker(one.worker)
        hop = self._hops.pop(event.unit, None)
        if hop is None:
            return
        trial = self._trials[hop.trial]
        trial.hop = None
        for partition, worker in zip(hop.partitions, hop.workers, strict=True):
            self._workers.remaining_cost[self._train_partitions.index_of(partition)] += trial.weight
            self._release_worker(self._workers.get(worker))
        self._queue.add(trial)
