"""The model-hopper coordinator: no socket, no clock, no chance.

Laws: a trial is on at most one worker, or one group of workers; a worker does at most one unit; in an epoch a
trial is on each partition exactly once; a state is evaluated on each validation partition once an epoch; no
idle worker and waiting trial that could go together are left apart, except that a straggler leaves to a much
faster worker what that one will have done sooner, and that, with workers to spare, trials wait for those that
evaluate, since together they are done sooner.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Mapping

from hopyard.domain.ids import PartitionId, TrialId, WorkerId
from hopyard.mop import dispatch, lookahead
from hopyard.mop.estimate import Estimates
from hopyard.mop.evaluations import Evaluation, Evaluations
from hopyard.mop.events import (
    CancelUnit,
    EpochEvaluated,
    EpochFinished,
    EvaluateState,
    EvaluationFinished,
    EvaluationWanted,
    Event,
    Hint,
    HopFinished,
    Instruction,
    TrainHop,
    TrialAdmitted,
    TrialFinished,
    TrialWithdrawn,
    UnitFailed,
    WorkerJoined,
    WorkerLost,
    WorkersToSpare,
)
from hopyard.mop.hints import likely_next
from hopyard.mop.queue import Queue, Trial
from hopyard.mop.roster import Numbering, Roster, Worker, positions

_SURPRISE = 0.25  # a learnt speed that moved by more than this share puts the queue in order anew


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
        self._train, self._validation = Numbering(partitions), Numbering(validation)
        self._looks_ahead = biases is None
        self._estimates = Estimates()
        self._roster = Roster(len(self._train.partitions), self._estimates)
        self._queue = Queue(self._roster, self._estimates, dict(biases or {}))
        self._evaluations = Evaluations()
        self._trials: dict[TrialId, Trial] = {}
        self._hops: dict[int, TrainHop] = {}
        self._admitted = self._next_unit = 0
        self._used_speed: dict[WorkerId, float] = {}  # that the queue's present order goes by
        self._spare = False
        self._out: list[Instruction] = []
        self._take_in = {
            HopFinished: self._finish,
            EvaluationFinished: self._finish_evaluation,
            UnitFailed: self._fail,
            TrialAdmitted: self._admit,
            TrialWithdrawn: self._withdraw,
            EvaluationWanted: self._want,
            WorkerJoined: self._join,
            WorkerLost: self._lose,
            WorkersToSpare: self._set_spare,
        }

    def speed(self, worker: WorkerId) -> float:
        """Cost done a second, as given or learnt; 1 where nothing is known."""
        return self._estimates.speed(worker)

    def expected_s(self, trial: TrialId, worker: WorkerId) -> float:
        """What a hop of the trial on the worker should take."""
        return self._estimates.cost(trial) / self._estimates.speed(worker)

    def handle(self, *events: Event) -> list[Instruction]:
        """Take in what happened, in this order, and say what to do."""
        self._out = out = list[Instruction]()
        for event in events:
            self._take_in[type(event)](event)  # type: ignore[operator]
        if self._looks_ahead and not self._next_unit:
            self._look_ahead()
        if self._roster.idle:
            self._dispatch()
        else:
            self._queue.news.clear()
        return out

    def hints(self, running: Mapping[int, float]) -> list[Hint]:
        """Which state each busy worker will most likely need next, where one can be told.
        running: how many seconds each hop that is on its way has taken so far."""
        return likely_next(self._roster, self._queue, self._evaluations, self._estimates, self._hops, running)

    def _look_ahead(self) -> None:
        """Before the first hop, where all times are known: try the rule under several small biases, keep the
        best."""
        if (
            self._trials
            and self._roster.covers_singly()
            and all(one.todo == self._train.all for one in self._trials.values())
        ):
            costs, speeds = (
                self._estimates.given_costs(self._trials),
                self._estimates.given_speeds(one.id for one in self._roster),
            )
            if costs is not None and speeds is not None:
                self._queue.biases = lookahead.best_biases(MopCoordinator, costs, speeds)
                self._queue.reorder()

    # -- trials
    # ---------------------------------------------------------------------------------------------------

    def _admit(self, event: TrialAdmitted) -> None:
        """One that is there already is at most extended: the news was repeated."""
        present = self._trials.get(event.trial)
        if present is not None:
            if event.epochs > present.epochs:
                self._count(present, self._train.all, event.epochs - present.epochs)
                present.epochs = event.epochs
                if present.entry is not None:
                    self._queue.remove(present)
                    self._queue.put(present)
            return
        todo = self._train.all & ~self._train.mask(event.visited)
        if event.epochs <= event.epoch or not todo:
            return
        if event.cost is not None:
            self._estimates.give_cost(event.trial, event.cost)
        order = deque(1 << self._train.place(partition) for partition in event.order)
        number = self._admitted
        turn = number if event.turn is None else event.turn
        trial = Trial(
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
        self._admitted += 1
        self._trials[trial.id] = trial
        self._count(trial, todo, 1)
        self._count(trial, self._train.all, trial.epochs - trial.epoch - 1)
        self._queue.put(trial)

    def _count(self, trial: Trial, mask: int, times: int) -> None:
        """Its hops on these partitions are more, or (times < 0) fewer, by so many an each."""
        if times:
            for at in positions(mask):
                self._roster.left[at] += trial.weight * times

    def _withdraw(self, event: TrialWithdrawn) -> None:
        for unit, worker in self._evaluations.withdraw(event.trial).items():
            self._free(worker)
            self._out.append(CancelUnit(unit))
        trial = self._trials.get(event.trial)
        if trial is None:
            return
        if trial.hop is not None:
            self._cancel(trial.hop.hop)
        self._queue.remove(trial)
        self._count(trial, trial.todo, -1)
        self._count(trial, self._train.all, trial.epoch + 1 - trial.epochs)
        self._drop(trial)

    def _drop(self, trial: Trial) -> None:
        del self._trials[trial.id]
        self._estimates.forget(trial.id)

    def _finish(self, event: HopFinished) -> None:
        hop = self._hops.pop(event.hop, None)
        if hop is None:  # late news of one that was cancelled
            return
        trial = self._trials[hop.trial]
        trial.checkpoint = event.checkpoint
        if len(hop.workers) == 1:
            self._learn(hop, event.seconds)
        for partition, worker in zip(hop.partitions, hop.workers, strict=True):
            at = self._train.place(partition)
            trial.todo ^= 1 << at
            trial.seconds -= self._roster.slowness[at]
            self._free(self._roster.get(worker))
        trial.hop = None
        if trial.order:
            trial.order.popleft()
        if not trial.todo:
            self._end_epoch(trial)
        if trial.todo:
            self._queue.put(trial)

    def _learn(self, hop: TrainHop, seconds: float) -> None:
        worker = hop.workers[0]
        self._estimates.learn(hop.trial, worker, seconds)
        speed, used = self._estimates.speed(worker), self._used_speed.get(worker, 1.0)
        if abs(speed - used) > _SURPRISE * used:
            self._used_speed[worker] = speed
            self._roster.measure()

    def _end_epoch(self, trial: Trial) -> None:
        self._out.append(EpochFinished(trial.id, trial.epoch, trial.checkpoint))
        self._evaluations.want(Evaluation(trial.id, trial.epoch, trial.checkpoint, self._validation.all))
        trial.epoch += 1
        if trial.epoch == trial.epochs:
            self._drop(trial)
            self._out.append(TrialFinished(trial.id))
        else:
            trial.todo, trial.generation = self._train.all, -1

    # -- evaluations
    # ----------------------------------------------------------------------------------------------

    def _want(self, event: EvaluationWanted) -> None:
        todo = self._validation.mask(event.partitions)
        self._evaluations.want(Evaluation(event.trial, event.epoch, event.checkpoint, todo))

    def _finish_evaluation(self, event: EvaluationFinished) -> None:
        one = self._evaluations.finish(event.unit)
        if one is not None:
            self._free(one.worker)
            if self._evaluations.is_done(one.of):
                self._out.append(EpochEvaluated(one.of.trial, one.of.epoch, one.of.checkpoint))

    # -- workers
    # --------------------------------------------------------------------------------------------------

    def _join(self, event: WorkerJoined) -> None:
        if event.speed is not None:
            self._estimates.give_speed(event.worker, event.speed)
            self._used_speed[event.worker] = event.speed
        worker = Worker(
            event.worker, self._train.mask(event.partitions), self._validation.mask(event.validation)
        )
        before = self._roster.find(event.worker)
        if before is not None:
            if before.unit is not None and not self._may_go_on(before.unit, worker):
                self._cancel(before.unit)
            worker.unit = before.unit
            self._roster.remove(before)
            for one in self._evaluations.units.values():
                if one.worker is before:
                    one.worker = worker
        self._roster.add(worker)

    def _may_go_on(self, unit: int, worker: Worker) -> bool:
        """Whether the worker still holds what it reads for this."""
        hop = self._hops.get(unit)
        if hop is None:
            return bool(worker.validation >> self._evaluations.units[unit].at & 1)
        return bool(worker.mask >> self._train.place(hop.partitions[hop.workers.index(worker.id)]) & 1)

    def _lose(self, event: WorkerLost) -> None:
        worker = self._roster.find(event.worker)
        if worker is None:
            return
        if worker.unit is not None:
            self._cancel(worker.unit)
        self._roster.remove(worker)
        self._used_speed.pop(worker.id, None)
        self._estimates.forget_worker(worker.id)

    def _set_spare(self, event: WorkersToSpare) -> None:
        self._spare = event.spare

    # -- units
    # ----------------------------------------------------------------------------------------------------

    def _dispatch(self) -> None:
        if self._evaluations.open:
            for worker in list(self._roster.idle.values()):
                self._evaluate_on(worker)
        self._queue.refresh()
        if self._queue and self._roster.idle:
            if self._spare and len(self._roster.idle) + len(self._evaluations.units) > len(self._queue):
                if self._evaluations.units:
                    return  # and all that came since stays new
                pairs = dispatch.together(self._roster, self._queue)
            elif self._roster.shared:
                pairs = dispatch.shared(self._roster, self._queue)
            else:
                pairs = dispatch.singly(self._roster, self._queue, len(self._train.partitions))
            for trial, members in pairs:
                self._begin(trial, members)
        self._roster.fresh.clear()
        self._queue.news.clear()

    def _evaluate_on(self, worker: Worker) -> None:
        one = self._evaluations.begin(self._next_unit, worker)
        if one is not None:
            unit = worker.unit = self._number()
            self._roster.occupy(worker)
            partition = self._validation.partitions[one.at]
            self._out.append(
                EvaluateState(unit, one.of.trial, worker.id, partition, one.of.epoch, one.of.checkpoint)
            )

    def _begin(self, trial: Trial, members: list[tuple[int, Worker]]) -> None:
        unit = self._number()
        for at, worker in members:
            worker.unit = unit
            self._roster.left[at] -= trial.weight
        hop = TrainHop(
            unit,
            trial.id,
            tuple([worker.id for _, worker in members]),
            tuple([self._train.partitions[at] for at, _ in members]),
            trial.epoch,
            trial.checkpoint,
        )
        self._hops[unit] = trial.hop = hop
        self._out.append(hop)

    def _number(self) -> int:
        self._next_unit += 1
        return self._next_unit - 1

    def _free(self, worker: Worker) -> None:
        worker.unit = None
        self._roster.idle[worker.id] = worker
        self._roster.fresh.append(worker)

    def _cancel(self, unit: int) -> None:
        self._fail(UnitFailed(unit))
        self._out.append(CancelUnit(unit))

    def _fail(self, event: UnitFailed) -> None:
        """It is over without a result, and still to be done."""
        one = self._evaluations.give_back(event.unit)
        if one is not None:
            self._free(one.worker)
        hop = self._hops.pop(event.unit, None)
        if hop is None:
            return
        trial = self._trials[hop.trial]
        trial.hop = None
        for partition, worker in zip(hop.partitions, hop.workers, strict=True):
            self._roster.left[self._train.place(partition)] += trial.weight
            self._free(self._roster.get(worker))
        self._queue.put(trial)
