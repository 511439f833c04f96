"""The coordinator against a cluster that loses workers, fails units, repeats and delays news."""

from __future__ import annotations

from collections import Counter

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from hopyard.domain.ids import PartitionId, TrialId, WorkerId
from hopyard.mop.coordinator import MopCoordinator
from hopyard.mop.events import (
    CancelUnit,
    EpochEvaluated,
    EpochFinished,
    EvaluateState,
    EvaluationFinished,
    EvaluationRequested,
    Event,
    HopFinished,
    SpareWorkersChanged,
    TrainHop,
    TrialAdmitted,
    TrialFinished,
    TrialWithdrawn,
    UnitFailed,
    WorkerJoined,
    WorkerLost,
)
from hopyard.mop.workers import STRAGGLER_RATIO

PARTITIONS = frozenset(PartitionId(i) for i in range(3))
VALIDATION = frozenset(PartitionId(i) for i in range(2))
some_partitions = st.frozensets(st.sampled_from(sorted(PARTITIONS)))


class CoordinatorModel(RuleBasedStateMachine):
    """A model of the expected state, against which every instruction is checked."""

    def __init__(self) -> None:
        super().__init__()
        self.report_visits = len(PARTITIONS)
        self.coordinator = self.make_coordinator()
        self.hops: dict[int, TrainHop] = {}
        self.evaluations: dict[int, EvaluateState] = {}
        self.cancelled: list[int] = []
        self.partitions_of: dict[WorkerId, frozenset[PartitionId]] = {}
        self.validation_of: dict[WorkerId, frozenset[PartitionId]] = {}
        self.target_visits: dict[TrialId, int] = {}  # the training trials and their target visits
        self.state: dict[TrialId, str] = {}
        self.epochs: Counter[TrialId] = Counter()
        self.visits: Counter[tuple[TrialId, int, PartitionId]] = Counter()
        self.pending_evaluations: dict[tuple[TrialId, int, str], set[PartitionId]] = {}
        self.evaluated: set[tuple[TrialId, int, str]] = set()
        self.replay_orders: dict[TrialId, list[PartitionId]] = {}  # the next partitions of each trial
        self.spare = False
        self.events: list[Event] = []
        self.instructions: list[list[object]] = []
        self.count = 0

    def make_coordinator(self) -> MopCoordinator:
        return MopCoordinator(PARTITIONS, validation=VALIDATION, report_visits=self.report_visits)

    @initialize(report_visits=st.sampled_from([1, 2, 3, 5]))
    def choose_report_visits(self, report_visits: int) -> None:
        self.report_visits = report_visits
        self.coordinator = self.make_coordinator()

    def done_visits(self, trial: TrialId) -> int:
        epoch = self.epochs[trial]
        return epoch * len(PARTITIONS) + sum(self.visits[trial, epoch, each] for each in PARTITIONS)

    def busy(self) -> list[WorkerId]:
        return [worker for hop in self.hops.values() for worker in hop.workers] + [
            evaluation.worker for evaluation in self.evaluations.values()
        ]

    def send_event(self, event: Event) -> None:
        self.events.append(event)
        out = self.coordinator.handle(event)
        self.instructions.append(list(out))
        for instruction in out:
            match instruction:
                case TrainHop():
                    self.check_hop(instruction)
                case EvaluateState():
                    pending_partitions = self.pending_evaluations[
                        instruction.trial, instruction.epoch, instruction.checkpoint
                    ]
                    assert instruction.worker not in self.busy(), "a worker does one unit"
                    assert instruction.partition in self.validation_of[instruction.worker], (
                        "a worker evaluates on what it holds"
                    )
                    pending_partitions.remove(instruction.partition)
                    self.evaluations[instruction.unit] = instruction
                case CancelUnit(unit):
                    self.remove_unit(unit)
                    self.cancelled.append(unit)
                case EpochFinished(trial, epoch, checkpoint):
                    assert (epoch, checkpoint) == (self.epochs[trial], self.state[trial])
                    assert all(self.visits[trial, epoch, partition] == 1 for partition in PARTITIONS)
                    self.epochs[trial] += 1
                case EpochEvaluated(trial, epoch, checkpoint):
                    assert self.pending_evaluations.pop((trial, epoch, checkpoint)) == set()
                    assert (trial, epoch, checkpoint) not in self.evaluated, "once"
                    self.evaluated.add((trial, epoch, checkpoint))
                case TrialFinished(trial):
                    assert self.target_visits.pop(trial) == self.done_visits(trial)

    def check_hop(self, hop: TrainHop) -> None:
        assert not set(hop.workers) & set(self.busy()), "a worker does one unit"
        assert len(set(hop.workers)) == len(hop.workers) == len(hop.partitions)
        assert list(hop.partitions) == sorted(set(hop.partitions)), "in the order of partitions"
        assert len(hop.workers) == 1 or self.spare, "a group only where workers are to spare"
        assert hop.trial not in {other.trial for other in self.hops.values()}, "a trial is in one place"
        assert hop.start_from == self.state[hop.trial], "a hop goes on from the last good state"
        if self.replay_orders.get(hop.trial):
            assert hop.partitions == (self.replay_orders[hop.trial][0],), "in the order that was asked for"
        assert hop.epoch == self.epochs[hop.trial]
        visits = self.done_visits(hop.trial)
        assert visits + len(hop.partitions) <= self.target_visits[hop.trial], "not beyond its budget"
        assert len(hop.partitions) <= self.report_visits - visits % self.report_visits, "nor its report"
        for worker, partition in zip(hop.workers, hop.partitions, strict=True):
            assert partition in self.partitions_of[worker], "a worker trains on what it holds"
            assert self.visits[hop.trial, hop.epoch, partition] == 0, "a partition is visited once an epoch"
        self.hops[hop.hop] = hop

    def remove_unit(self, unit: int) -> None:
        self.hops.pop(unit, None)
        evaluation = self.evaluations.pop(unit, None)
        if evaluation is not None:
            key = evaluation.trial, evaluation.epoch, evaluation.checkpoint
            if key in self.pending_evaluations:
                self.pending_evaluations[key].add(evaluation.partition)

    # -- trials ----------------------------------------------------------------------------------------------

    @rule(
        visits=st.integers(1, 2 * len(PARTITIONS)),
        cost=st.sampled_from([None, 0.5, 2.0]),
        done=st.integers(0, 1),
        visited=some_partitions,
        data=st.data(),
    )
    def admit(
        self, visits: int, cost: float | None, done: int, visited: frozenset[PartitionId], data: st.DataObject
    ) -> None:
        """Includes trials that resume within an epoch, and trials that repeat lost units."""
        trial = TrialId(f"t{self.count}")
        self.count += 1
        visited = visited if visited < PARTITIONS else frozenset()
        orders = st.permutations(sorted(PARTITIONS - visited)).flatmap(
            lambda all_: st.integers(0, len(all_)).map(lambda n: all_[:n])
        )
        order = tuple(data.draw(orders))
        self.replay_orders[trial] = list(order)
        target = done * len(PARTITIONS) + len(visited) + visits
        self.send_admission(trial, target, f"new {trial}", cost, done, visited, order)

    def send_admission(
        self,
        trial: TrialId,
        target: int,
        state: str,
        cost: float | None,
        done: int,
        visited: frozenset[PartitionId],
        order: tuple[PartitionId, ...] = (),
    ) -> None:
        self.target_visits[trial], self.state[trial], self.epochs[trial] = target, state, done
        self.visits.update((trial, done, partition) for partition in visited)
        epochs, extra = divmod(target, len(PARTITIONS))
        self.send_event(TrialAdmitted(trial, epochs, state, cost, done, visited, order, extra_visits=extra))

    @precondition(lambda self: self.target_visits)
    @rule(data=st.data(), more=st.integers(-2, 5))
    def admit_again(self, data: st.DataObject, more: int) -> None:
        """A repeated admission changes nothing; a larger budget extends the trial."""
        trial = data.draw(st.sampled_from(sorted(self.target_visits)))
        target = max(self.target_visits[trial] + more, 0)
        self.target_visits[trial] = max(self.target_visits[trial], target)
        epochs, extra = divmod(target, len(PARTITIONS))
        self.send_event(TrialAdmitted(trial, epochs, "another", extra_visits=extra))

    @precondition(lambda self: self.state.keys() - self.target_visits.keys())
    @rule(data=st.data())
    def resume(self, data: st.DataObject) -> None:
        """A paused or completed trial resumes with a larger budget, after its last full epoch."""
        trial = data.draw(st.sampled_from(sorted(self.state.keys() - self.target_visits.keys())))
        done = self.epochs[trial]
        for partition in PARTITIONS:
            self.visits.pop((trial, done, partition), None)
        target = (done + 1) * len(PARTITIONS)
        self.send_admission(trial, target, f"again {len(self.events)}", None, done, frozenset())

    @precondition(lambda self: self.target_visits)
    @rule(data=st.data())
    def withdraw(self, data: st.DataObject) -> None:
        trial = data.draw(st.sampled_from(sorted(self.target_visits)))
        del self.target_visits[trial]
        self.replay_orders[trial] = []
        for key in [key for key in self.pending_evaluations if key[0] == trial]:
            del self.pending_evaluations[key]
        self.send_event(TrialWithdrawn(trial))
        assert trial not in {
            evaluation.trial for evaluation in [*self.hops.values(), *self.evaluations.values()]
        }

    @precondition(lambda self: self.epochs)
    @rule(data=st.data(), on=st.frozensets(st.sampled_from(sorted(VALIDATION)), min_size=1))
    def request_evaluation(self, data: st.DataObject, on: frozenset[PartitionId]) -> None:
        trial = data.draw(st.sampled_from(sorted(self.state)))
        key = trial, -1 - len(self.events), "an old one"
        self.pending_evaluations[key] = set(on)
        self.send_event(EvaluationRequested(*key, on))

    @rule(spare=st.booleans())
    def change_spare_workers(self, spare: bool) -> None:
        self.spare = spare
        self.send_event(SpareWorkersChanged(spare))

    # -- workers ---------------------------------------------------------------------------------------------

    @rule(
        worker=st.sampled_from("wxyz"),
        partitions=some_partitions,
        validation=st.frozensets(st.sampled_from(sorted(VALIDATION))),
        speed=st.sampled_from([None, 1.0, 5.0]),
    )
    def join(
        self,
        worker: str,
        partitions: frozenset[PartitionId],
        validation: frozenset[PartitionId],
        speed: float | None,
    ) -> None:
        self.partitions_of[WorkerId(worker)], self.validation_of[WorkerId(worker)] = partitions, validation
        self.send_event(WorkerJoined(WorkerId(worker), partitions, speed, validation))

    @precondition(lambda self: self.partitions_of)
    @rule(data=st.data())
    def lose_worker(self, data: st.DataObject) -> None:
        worker = data.draw(st.sampled_from(sorted(self.partitions_of)))
        del self.partitions_of[worker], self.validation_of[worker]
        self.send_event(WorkerLost(worker))
        assert worker not in self.busy()

    # -- units -----------------------------------------------------------------------------------------------

    @precondition(lambda self: self.hops or self.evaluations)
    @rule(data=st.data(), succeeded=st.booleans(), seconds=st.sampled_from([0.0, 0.1, 7.0]))
    def end_random_unit(self, data: st.DataObject, succeeded: bool, seconds: float) -> None:
        self.end_unit(data.draw(st.sampled_from(sorted([*self.hops, *self.evaluations]))), succeeded, seconds)

    def end_unit(self, unit: int, succeeded: bool, seconds: float = 1.0) -> None:
        if not succeeded:
            self.remove_unit(unit)
            self.send_event(UnitFailed(unit))
        elif unit in self.evaluations:
            del self.evaluations[unit]
            self.send_event(EvaluationFinished(unit))
        else:
            hop = self.hops.pop(unit)
            self.visits.update((hop.trial, hop.epoch, partition) for partition in hop.partitions)
            self.state[hop.trial] = f"after {unit}"
            visits = self.done_visits(hop.trial)
            if visits % self.report_visits == 0 or visits == self.target_visits[hop.trial]:
                self.pending_evaluations[hop.trial, hop.epoch, f"after {unit}"] = set(VALIDATION)
            del self.replay_orders.get(hop.trial, [])[:1]
            self.send_event(HopFinished(unit, f"after {unit}", seconds))

    @precondition(lambda self: self.cancelled)
    @rule(how=st.integers(0, 2))
    def late_message(self, how: int) -> None:
        unit = self.cancelled.pop()
        self.send_event([HopFinished(unit, "stale", 1.0), UnitFailed(unit), EvaluationFinished(unit)][how])

    @rule()
    def hint(self) -> None:
        """A hint names a state that waits, of a worker that is busy; and asking changes nothing."""
        for hint in self.coordinator.hints({}):
            assert hint.worker in self.busy()
            assert hint.checkpoint in [
                *self.state.values(),
                *(checkpoint for _, _, checkpoint in self.pending_evaluations),
            ]

    # -- what holds at any time ------------------------------------------------------------------------------

    @invariant()
    def no_idle_worker_could_train_a_waiting_trial(self) -> None:
        if self.spare and self.evaluations:
            return  # trials wait for evaluations, to train as a group
        idle = self.partitions_of.keys() - set(self.busy())
        moving = {hop.trial for hop in self.hops.values()}
        for trial in self.target_visits.keys() - moving:
            missing_partitions = {
                partition for partition in PARTITIONS if not self.visits[trial, self.epochs[trial], partition]
            }
            missing_partitions &= set(self.replay_orders.get(trial, [])[:1]) or missing_partitions
            for worker in idle:
                assert all(
                    self.has_faster_worker(worker, partition)
                    for partition in missing_partitions & self.partitions_of[worker]
                )

    def has_faster_worker(self, worker: WorkerId, partition: PartitionId) -> bool:
        """Returns whether another, much faster worker holds the partition."""
        speed = self.coordinator.speed
        others = [
            other
            for other, partitions in self.partitions_of.items()
            if partition in partitions and other != worker
        ]
        return any(speed(other) >= STRAGGLER_RATIO * speed(worker) for other in others)

    @invariant()
    def no_worker_idles_during_pending_evaluations(self) -> None:
        pending_partitions = {
            partition
            for missing_partitions in self.pending_evaluations.values()
            for partition in missing_partitions
        }
        assert not any(
            pending_partitions & self.validation_of[worker]
            for worker in self.partitions_of.keys() - set(self.busy())
        )

    def teardown(self) -> None:
        self.partitions_of[WorkerId("last")], self.validation_of[WorkerId("last")] = PARTITIONS, VALIDATION
        self.send_event(WorkerJoined(WorkerId("last"), PARTITIONS, None, VALIDATION))
        while self.hops or self.evaluations:
            self.end_unit(min([*self.hops, *self.evaluations]), succeeded=True)
        assert not self.target_visits, "with one worker that holds everything, all trials end"
        assert not self.pending_evaluations, "and all states are evaluated"
        costs = self.coordinator._workers.remaining_cost
        assert all(abs(cost) < 1e-9 for cost in costs), "and no work is left of any partition"
        replayed = self.make_coordinator()
        assert [replayed.handle(event) for event in self.events] == self.instructions, (
            "equal events, equal instructions"
        )


TestCoordinatorModel = CoordinatorModel.TestCase
TestCoordinatorModel.settings = settings(max_examples=150, stateful_step_count=40, deadline=None)
