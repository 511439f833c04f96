"""The coordinator of model hopper parallelism: no sockets, no clock, no randomness.

Invariants: a trial is on at most one worker, or one group of workers. A worker executes at most one unit. In
an epoch, a trial visits each partition exactly once, or at most once in the last epoch of a budget that is no
whole number of epochs. The state at a report is evaluated on each validation partition once. An idle worker
never waits beside a pending trial that matches, with two exceptions. A straggler leaves work to a much faster
worker that will finish it sooner. With spare workers, trials wait for workers that evaluate, because together
they finish sooner.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence

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

_SPEED_CHANGE = 0.25  # a learned speed that changed by more than this share re-sorts the queue


class MopCoordinator:
    """`partitions`: all of the training data; an epoch visits each partition once. `validation`: the
    partitions on which a state is evaluated. measuring: the number that requests metrics of the whole
    validation set, which any worker computes. fixed_order: the order in which a trial visits the partitions
    in an epoch; None chooses it by the rule. report_visits: the visits from one report of a trial to the
    next; None: an epoch. Each trial has a report at its end, too.

    The rule is longest remaining trial first, each to the idle worker with the most remaining work: the
    longest trial or worker bounds the makespan (open shop). If all durations are known in advance, a few
    biased variants of the rule are simulated first. Evaluations go before hops: they decide which hops are
    worth it. Events of one moment belong in one call, so that one decision covers all of them. biases:
    factors by which trials count as longer; None finds them by lookahead.
    """

    def __init__(
        self,
        partitions: Iterable[PartitionId],
        *,
        validation: Iterable[PartitionId] = (),
        measuring: PartitionId | None = None,
        fixed_order: Callable[[TrialId, int], Sequence[PartitionId]] | None = None,
        biases: Mapping[TrialId, float] | None = None,
        report_visits: int | None = None,
    ) -> None:
        validation, anywhere = list(validation), [] if measuring is None else [measuring]
        self._train_partitions, self._validation_partitions = (
            PartitionIndex(partitions),
            PartitionIndex([*validation, *anywhere]),
        )
        self._evaluated_mask = self._validation_partitions.mask(validation)
        self._measuring_mask = self._validation_partitions.mask(anywhere)
        self._fixed_order = fixed_order
        self._report_visits = report_visits or len(self._train_partitions.partitions)
        self._uses_lookahead = biases is None
        self._estimates = HopTimeEstimates()
        self._workers = Workers(len(self._train_partitions.partitions), self._estimates)
        self._queue = TrialQueue(self._workers, self._estimates, dict(biases or {}))
        self._evaluations = EvaluationQueue()
        self._trials: dict[TrialId, MopTrial] = {}
        self._hops: dict[int, TrainHop] = {}
        self._admitted_count = self._next_unit = 0
        self._queue_speeds: dict[WorkerId, float] = {}  # the speeds behind the present order of the queue
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
        self._instructions = instructions = list[Instruction]()
        for event in events:
            self._handlers[type(event)](event)  # type: ignore[operator]
        if self._uses_lookahead and not self._next_unit:
            self._choose_biases()
        if self._workers.idle:
            self._dispatch()
        else:
            self._queue.added.clear()
        return instructions

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
            and all(
                entry.remaining_mask == self._train_partitions.full_mask and not entry.has_partial_epoch
                for entry in self._trials.values()
            )
        ):
            costs, speeds = (
                self._estimates.known_costs(self._trials),
                self._estimates.known_speeds(entry.id for entry in self._workers),
            )
            if costs is not None and speeds is not None:
                self._queue.biases = lookahead.find_biases(MopCoordinator, costs, speeds)
                self._queue.reorder()

    # -- trials ----------------------------------------------------------------------------------------------

    def _admit_trial(self, event: TrialAdmitted) -> None:
        """Admits a trial. For a trial that is present, a repeated event can only raise its number of
        visits."""
        count = len(self._train_partitions.partitions)
        total_visits = event.epochs * count + event.extra_visits
        existing = self._trials.get(event.trial)
        if existing is not None:
            if total_visits > existing.total_visits:
                self._extend_trial(existing, total_visits)
            return
        remaining_mask = self._train_partitions.full_mask & ~self._train_partitions.mask(event.visited)
        if total_visits <= (event.epoch + 1) * count - remaining_mask.bit_count() or not remaining_mask:
            return
        epochs, last_visits = _split_visits(total_visits, count)
        if event.cost is not None:
            self._estimates.set_known_cost(event.trial, event.cost)
        order = deque(1 << self._train_partitions.index_of(partition) for partition in event.order)
        if self._fixed_order is not None:
            order = self._epoch_order(event.trial, event.epoch, remaining_mask)
        number = self._admitted_count
        first_partition = number if event.first_partition is None else event.first_partition
        trial = MopTrial(
            event.trial,
            epochs,
            event.checkpoint,
            remaining_mask,
            event.cost or 1.0,
            number,
            first_partition,
            event.epoch,
            order,
            count,
            self._report_visits,
            last_visits,
        )
        self._admitted_count += 1
        self._trials[trial.id] = trial
        self._add_remaining_cost(trial, remaining_mask, trial.share(remaining_mask))
        self._add_remaining_cost(trial, self._train_partitions.full_mask, trial.later_epochs)
        self._queue.add(trial)

    def _extend_trial(self, trial: MopTrial, total_visits: int) -> None:
        pending_mask = self._pending_mask(trial)
        share, later_epochs = trial.share(pending_mask), trial.later_epochs
        trial.epochs, trial.last_visits = _split_visits(total_visits, trial.partition_count)
        self._add_remaining_cost(trial, pending_mask, trial.share(pending_mask) - share)
        self._add_remaining_cost(trial, self._train_partitions.full_mask, trial.later_epochs - later_epochs)
        if trial.queue_entry is not None:
            self._queue.remove(trial)
            self._queue.add(trial)

    def _pending_mask(self, trial: MopTrial) -> int:
        """Returns the partitions that the trial needs in this epoch, without those of its active hop."""
        active = () if trial.hop is None else trial.hop.partitions
        return trial.remaining_mask & ~self._train_partitions.mask(active)

    def _add_remaining_cost(self, trial: MopTrial, mask: int, times: float) -> None:
        """Adds the cost of `times` more hops of the trial on each of these partitions; a negative number
        removes hops."""
        if times:
            for index in bit_positions(mask):
                self._workers.remaining_cost[index] += trial.weight * times

    def _update_shares(self, trial: MopTrial, before_mask: int, after_mask: int) -> None:
        """Updates the cost of a partial epoch, in which a hop begins or is repeated. The partitions that the
        trial has not begun change from `before_mask` to `after_mask`."""
        self._add_remaining_cost(trial, before_mask, -trial.share(before_mask))
        self._add_remaining_cost(trial, after_mask, trial.share(after_mask))

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
        self._add_remaining_cost(trial, trial.remaining_mask, -trial.share(trial.remaining_mask))
        self._add_remaining_cost(trial, self._train_partitions.full_mask, -trial.later_epochs)
        self._remove_trial(trial)

    def _remove_trial(self, trial: MopTrial) -> None:
        del self._trials[trial.id]
        self._estimates.remove_trial(trial.id)

    def _finish_hop(self, event: HopFinished) -> None:
        hop = self._hops.pop(event.hop, None)
        if hop is None:  # a late event of a cancelled hop
            return
        trial = self._trials[hop.trial]
        trial.checkpoint = event.checkpoint
        if len(hop.workers) == 1:
            self._update_estimates(hop, event.seconds)
        for partition, worker in zip(hop.partitions, hop.workers, strict=True):
            index = self._train_partitions.index_of(partition)
            trial.remaining_mask ^= 1 << index
            trial.seconds -= self._workers.seconds_per_cost[index]
            self._release_worker(self._workers.get(worker))
        trial.hop = None
        if trial.visit_order:
            trial.visit_order.popleft()
        self._request_report(trial)
        if trial.visits == trial.total_visits:
            self._remove_trial(trial)
            self._instructions.append(TrialFinished(trial.id))
            return
        if not trial.remaining_mask:
            self._begin_epoch(trial)
        self._queue.add(trial)

    def _update_estimates(self, hop: TrainHop, seconds: float) -> None:
        worker = hop.workers[0]
        self._estimates.record_hop(hop.trial, worker, seconds)
        speed, queue_speed = self._estimates.speed(worker), self._queue_speeds.get(worker, 1.0)
        if abs(speed - queue_speed) > _SPEED_CHANGE * queue_speed:
            self._queue_speeds[worker] = speed
            self._workers.update_speeds()

    def _request_report(self, trial: MopTrial) -> None:
        """Announces the end of an epoch. Evaluates the state if a report is due."""
        if not trial.remaining_mask:
            self._instructions.append(EpochFinished(trial.id, trial.epoch, trial.checkpoint))
        if trial.visits % self._report_visits == 0 or trial.visits == trial.total_visits:
            self._evaluations.add(Evaluation(trial.id, trial.epoch, trial.checkpoint, self._evaluated_mask))

    def _begin_epoch(self, trial: MopTrial) -> None:
        trial.epoch += 1
        trial.remaining_mask, trial.generation = self._train_partitions.full_mask, -1
        if self._fixed_order is not None:
            trial.visit_order = self._epoch_order(trial.id, trial.epoch, trial.remaining_mask)

    def _epoch_order(self, trial: TrialId, epoch: int, remaining_mask: int) -> deque[int]:
        """Returns the bits of the remaining partitions in the fixed order of this epoch."""
        assert self._fixed_order is not None
        bits = (
            1 << self._train_partitions.index_of(partition) for partition in self._fixed_order(trial, epoch)
        )
        return deque(bit for bit in bits if bit & remaining_mask)

    # -- evaluations -----------------------------------------------------------------------------------------

    def _request_evaluation(self, event: EvaluationRequested) -> None:
        remaining_mask = self._validation_partitions.mask(event.partitions)
        self._evaluations.add(Evaluation(event.trial, event.epoch, event.checkpoint, remaining_mask))

    def _finish_evaluation(self, event: EvaluationFinished) -> None:
        unit = self._evaluations.finish(event.unit)
        if unit is not None:
            self._release_worker(unit.worker)
            if self._evaluations.is_done(unit.evaluation):
                self._instructions.append(
                    EpochEvaluated(unit.evaluation.trial, unit.evaluation.epoch, unit.evaluation.checkpoint)
                )

    # -- workers ---------------------------------------------------------------------------------------------

    def _add_worker(self, event: WorkerJoined) -> None:
        if event.speed is not None:
            self._estimates.set_known_speed(event.worker, event.speed)
            self._queue_speeds[event.worker] = event.speed
        worker = MopWorker(
            event.worker,
            self._train_partitions.mask(event.partitions),
            self._validation_partitions.mask(event.validation) | self._measuring_mask,
        )
        previous = self._workers.find(event.worker)
        if previous is not None:
            if previous.unit is not None and not self._can_continue(previous.unit, worker):
                self._cancel_unit(previous.unit)
            worker.unit = previous.unit
            self._workers.remove(previous)
            for unit in self._evaluations.units.values():
                if unit.worker is previous:
                    unit.worker = worker
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
                    return  # the new trials and workers stay new for the next call
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
        started = self._evaluations.start(self._next_unit, worker)
        if started is not None:
            unit = worker.unit = self._new_unit()
            self._workers.mark_busy(worker)
            partition = self._validation_partitions.partitions[started.partition_index]
            self._instructions.append(
                EvaluateState(
                    unit,
                    started.evaluation.trial,
                    worker.id,
                    partition,
                    started.evaluation.epoch,
                    started.evaluation.checkpoint,
                )
            )

    def _start_hop(self, trial: MopTrial, members: list[tuple[int, MopWorker]]) -> None:
        unit = self._new_unit()
        for index, worker in members:
            worker.unit = unit
            if not trial.has_partial_epoch:
                self._workers.remaining_cost[index] -= trial.weight
        if trial.has_partial_epoch:
            begun = sum(1 << index for index, _ in members)
            self._update_shares(trial, trial.remaining_mask, trial.remaining_mask & ~begun)
        hop = TrainHop(
            unit,
            trial.id,
            tuple([worker.id for _, worker in members]),
            tuple([self._train_partitions.partitions[index] for index, _ in members]),
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
        unit = self._evaluations.release(event.unit)
        if unit is not None:
            self._release_worker(unit.worker)
        hop = self._hops.pop(event.unit, None)
        if hop is None:
            return
        trial = self._trials[hop.trial]
        if trial.has_partial_epoch:
            self._update_shares(trial, self._pending_mask(trial), trial.remaining_mask)
        trial.hop = None
        for partition, worker in zip(hop.partitions, hop.workers, strict=True):
            if not trial.has_partial_epoch:
                self._workers.remaining_cost[self._train_partitions.index_of(partition)] += trial.weight
            self._release_worker(self._workers.get(worker))
        self._queue.add(trial)


def _split_visits(total_visits: int, count: int) -> tuple[int, int]:
    """Returns the number of begun epochs, and the visits in the last one."""
    epochs = -(-total_visits // count)
    return epochs, total_visits - (epochs - 1) * count
