"""The coordinator against a cluster that loses workers, fails units, repeats and delays news."""

from __future__ import annotations

from collections import Counter

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

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


class Cluster(RuleBasedStateMachine):
    """Holds its own idea of what is true, and compares every instruction with it."""

    def __init__(self) -> None:
        super().__init__()
        self.coordinator = MopCoordinator(PARTITIONS, validation=VALIDATION)
        self.hops: dict[int, TrainHop] = {}
        self.evaluations: dict[int, EvaluateState] = {}
        self.cancelled: list[int] = []
        self.held: dict[WorkerId, frozenset[PartitionId]] = {}
        self.judges: dict[WorkerId, frozenset[PartitionId]] = {}
        self.wanted: dict[TrialId, int] = {}  # those that train, and up to which epoch
        self.state: dict[TrialId, str] = {}
        self.epochs: Counter[TrialId] = Counter()
        self.visits: Counter[tuple[TrialId, int, PartitionId]] = Counter()
        self.unjudged: dict[tuple[TrialId, int], tuple[str, set[PartitionId]]] = {}
        self.judged: set[tuple[TrialId, int]] = set()
        self.orders: dict[TrialId, list[PartitionId]] = {}  # partitions that each must visit next
        self.spare = False
        self.told: list[Event] = []
        self.said: list[list[object]] = []
        self.count = 0

    def busy(self) -> list[WorkerId]:
        return [one for hop in self.hops.values() for one in hop.workers] + [
            one.worker for one in self.evaluations.values()
        ]

    def tell(self, event: Event) -> None:
        self.told.append(event)
        out = self.coordinator.handle(event)
        self.said.append(list(out))
        for said in out:
            match said:
                case TrainHop():
                    self.begin(said)
                case EvaluateState():
                    checkpoint, todo = self.unjudged[said.trial, said.epoch]
                    assert said.worker not in self.busy(), "a worker does one unit"
                    assert said.partition in self.judges[said.worker], "a worker evaluates on what it holds"
                    assert said.checkpoint == checkpoint, "the state as it stood after the epoch"
                    todo.remove(said.partition)
                    self.evaluations[said.unit] = said
                case CancelUnit(unit):
                    self.forget(unit)
                    self.cancelled.append(unit)
                case EpochFinished(trial, epoch, checkpoint):
                    assert (epoch, checkpoint) == (self.epochs[trial], self.state[trial])
                    assert all(self.visits[trial, epoch, partition] == 1 for partition in PARTITIONS)
                    self.epochs[trial] += 1
                    self.unjudged[trial, epoch] = checkpoint, set(VALIDATION)
                case EpochEvaluated(trial, epoch, checkpoint):
                    assert self.unjudged.pop((trial, epoch)) == (checkpoint, set())
                    assert (trial, epoch) not in self.judged, "once"
                    self.judged.add((trial, epoch))
                case TrialFinished(trial):
                    assert self.wanted.pop(trial) == self.epochs[trial]

    def begin(self, hop: TrainHop) -> None:
        assert not set(hop.workers) & set(self.busy()), "a worker does one unit"
        assert len(set(hop.workers)) == len(hop.workers) == len(hop.partitions)
        assert list(hop.partitions) == sorted(set(hop.partitions)), "in the order of partitions"
        assert len(hop.workers) == 1 or self.spare, "a group only where workers are to spare"
        assert hop.trial not in {other.trial for other in self.hops.values()}, "a trial is in one place"
        assert hop.start_from == self.state[hop.trial], "a hop goes on from the last good state"
        if self.orders.get(hop.trial):
            assert hop.partitions == (self.orders[hop.trial][0],), "in the order that was asked for"
        assert hop.epoch == self.epochs[hop.trial] < self.wanted[hop.trial]
        for worker, partition in zip(hop.workers, hop.partitions, strict=True):
            assert partition in self.held[worker], "a worker trains on what it holds"
            assert self.visits[hop.trial, hop.epoch, partition] == 0, "a partition is visited once an epoch"
        self.hops[hop.hop] = hop

    def forget(self, unit: int) -> None:
        self.hops.pop(unit, None)
        evaluation = self.evaluations.pop(unit, None)
        if evaluation is not None and (evaluation.trial, evaluation.epoch) in self.unjudged:
            self.unjudged[evaluation.trial, evaluation.epoch][1].add(evaluation.partition)

    # -- trials ----------------------------------------------------------------------------------------------

    @rule(
        epochs=st.integers(1, 2),
        cost=st.sampled_from([None, 0.5, 2.0]),
        done=st.integers(0, 1),
        visited=some_partitions,
        data=st.data(),
    )
    def admit(
        self, epochs: int, cost: float | None, done: int, visited: frozenset[PartitionId], data: st.DataObject
    ) -> None:
        """Also one that goes on from the middle of an epoch, and one that does again what was lost."""
        trial = TrialId(f"t{self.count}")
        self.count += 1
        visited = visited if visited < PARTITIONS else frozenset()
        orders = st.permutations(sorted(PARTITIONS - visited)).flatmap(
            lambda all_: st.integers(0, len(all_)).map(lambda n: all_[:n])
        )
        order = tuple(data.draw(orders))
        self.orders[trial] = list(order)
        self.go_on(trial, done + epochs, f"new {trial}", cost, done, visited, order)

    def go_on(
        self,
        trial: TrialId,
        epochs: int,
        state: str,
        cost: float | None,
        done: int,
        visited: frozenset[PartitionId],
        order: tuple[PartitionId, ...] = (),
    ) -> None:
        self.wanted[trial], self.state[trial], self.epochs[trial] = epochs, state, done
        self.visits.update((trial, done, partition) for partition in visited)
        self.tell(TrialAdmitted(trial, epochs, state, cost, done, visited, order))

    @precondition(lambda self: self.wanted)
    @rule(data=st.data(), more=st.integers(-1, 2))
    def admit_again(self, data: st.DataObject, more: int) -> None:
        """Repeated news changes nothing, a larger budget extends it."""
        trial = data.draw(st.sampled_from(sorted(self.wanted)))
        epochs = self.wanted[trial] + more
        self.wanted[trial] = max(self.wanted[trial], epochs)
        self.tell(TrialAdmitted(trial, epochs, "another"))

    @precondition(lambda self: self.state.keys() - self.wanted.keys())
    @rule(data=st.data())
    def resume(self, data: st.DataObject) -> None:
        """One that was paused, or came to its budget, goes on with a larger one, where it stood after its
        last full epoch."""
        trial = data.draw(st.sampled_from(sorted(self.state.keys() - self.wanted.keys())))
        done = self.epochs[trial]
        for partition in PARTITIONS:
            self.visits.pop((trial, done, partition), None)
        self.go_on(trial, done + 1, f"again {len(self.told)}", None, done, frozenset())

    @precondition(lambda self: self.wanted)
    @rule(data=st.data())
    def withdraw(self, data: st.DataObject) -> None:
        trial = data.draw(st.sampled_from(sorted(self.wanted)))
        del self.wanted[trial]
        self.orders[trial] = []
        for key in [key for key in self.unjudged if key[0] == trial]:
            del self.unjudged[key]
        self.tell(TrialWithdrawn(trial))
        assert trial not in {one.trial for one in [*self.hops.values(), *self.evaluations.values()]}

    @precondition(lambda self: self.epochs)
    @rule(data=st.data(), on=st.frozensets(st.sampled_from(sorted(VALIDATION)), min_size=1))
    def want_evaluation(self, data: st.DataObject, on: frozenset[PartitionId]) -> None:
        trial = data.draw(st.sampled_from(sorted(self.state)))
        key = trial, -1 - len(self.told)
        self.unjudged[key] = "an old one", set(on)
        self.tell(EvaluationRequested(*key, "an old one", on))

    @rule(spare=st.booleans())
    def may_go_together(self, spare: bool) -> None:
        self.spare = spare
        self.tell(SpareWorkersChanged(spare))

    # -- workers ---------------------------------------------------------------------------------------------

    @rule(
        worker=st.sampled_from("wxyz"),
        held=some_partitions,
        judges=st.frozensets(st.sampled_from(sorted(VALIDATION))),
        speed=st.sampled_from([None, 1.0, 5.0]),
    )
    def join(
        self, worker: str, held: frozenset[PartitionId], judges: frozenset[PartitionId], speed: float | None
    ) -> None:
        self.held[WorkerId(worker)], self.judges[WorkerId(worker)] = held, judges
        self.tell(WorkerJoined(WorkerId(worker), held, speed, judges))

    @precondition(lambda self: self.held)
    @rule(data=st.data())
    def lose(self, data: st.DataObject) -> None:
        worker = data.draw(st.sampled_from(sorted(self.held)))
        del self.held[worker], self.judges[worker]
        self.tell(WorkerLost(worker))
        assert worker not in self.busy()

    # -- units -----------------------------------------------------------------------------------------------

    @precondition(lambda self: self.hops or self.evaluations)
    @rule(data=st.data(), well=st.booleans(), seconds=st.sampled_from([0.0, 0.1, 7.0]))
    def end(self, data: st.DataObject, well: bool, seconds: float) -> None:
        self.end_unit(data.draw(st.sampled_from(sorted([*self.hops, *self.evaluations]))), well, seconds)

    def end_unit(self, unit: int, well: bool, seconds: float = 1.0) -> None:
        if not well:
            self.forget(unit)
            self.tell(UnitFailed(unit))
        elif unit in self.evaluations:
            del self.evaluations[unit]
            self.tell(EvaluationFinished(unit))
        else:
            hop = self.hops.pop(unit)
            self.visits.update((hop.trial, hop.epoch, partition) for partition in hop.partitions)
            self.state[hop.trial] = f"after {unit}"
            del self.orders.get(hop.trial, [])[:1]
            self.tell(HopFinished(unit, f"after {unit}", seconds))

    @precondition(lambda self: self.cancelled)
    @rule(how=st.integers(0, 2))
    def late_news(self, how: int) -> None:
        unit = self.cancelled.pop()
        self.tell([HopFinished(unit, "stale", 1.0), UnitFailed(unit), EvaluationFinished(unit)][how])

    @rule()
    def hint(self) -> None:
        """A hint names a state that waits, of a worker that is busy; and asking changes nothing."""
        for hint in self.coordinator.hints({}):
            assert hint.worker in self.busy()
            assert hint.checkpoint in [
                *self.state.values(),
                *(checkpoint for checkpoint, _ in self.unjudged.values()),
            ]

    # -- what holds at any time ------------------------------------------------------------------------------

    @invariant()
    def nobody_who_could_go_together_is_left_apart(self) -> None:
        if self.spare and self.evaluations:
            return  # they wait for those that evaluate, to go together
        idle = self.held.keys() - set(self.busy())
        moving = {hop.trial for hop in self.hops.values()}
        for trial in self.wanted.keys() - moving:
            lacks = {
                partition for partition in PARTITIONS if not self.visits[trial, self.epochs[trial], partition]
            }
            lacks &= set(self.orders.get(trial, [])[:1]) or lacks
            for worker in idle:
                assert all(self.leaves(worker, partition) for partition in lacks & self.held[worker])

    def leaves(self, worker: WorkerId, partition: PartitionId) -> bool:
        """Whether another, much faster one holds it too."""
        speed = self.coordinator.speed
        others = [other for other, held in self.held.items() if partition in held and other != worker]
        return any(speed(other) >= STRAGGLER_RATIO * speed(worker) for other in others)

    @invariant()
    def nobody_idles_while_something_is_to_be_evaluated(self) -> None:
        todo = {partition for _, lacks in self.unjudged.values() for partition in lacks}
        assert not any(todo & self.judges[worker] for worker in self.held.keys() - set(self.busy()))

    def teardown(self) -> None:
        self.held[WorkerId("last")], self.judges[WorkerId("last")] = PARTITIONS, VALIDATION
        self.tell(WorkerJoined(WorkerId("last"), PARTITIONS, None, VALIDATION))
        while self.hops or self.evaluations:
            self.end_unit(min([*self.hops, *self.evaluations]), well=True)
        assert not self.wanted, "with one worker that holds everything, all trials end"
        assert not self.unjudged, "and all states are evaluated"
        again = MopCoordinator(PARTITIONS, validation=VALIDATION)
        assert [again.handle(event) for event in self.told] == self.said, "equal events, equal instructions"


TestCluster = Cluster.TestCase
TestCluster.settings = settings(max_examples=150, stateful_step_count=40, deadline=None)
