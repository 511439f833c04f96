"""The coordinator against a cluster that loses workers, fails hops, repeats and delays news."""

from __future__ import annotations

from collections import Counter

from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from hopyard.domain.ids import PartitionId, TrialId, WorkerId
from hopyard.mop.coordinator import MopCoordinator
from hopyard.mop.events import (
    CancelHop,
    EpochFinished,
    Event,
    HopFailed,
    HopFinished,
    TrainHop,
    TrialAdmitted,
    TrialFinished,
    TrialWithdrawn,
    WorkerJoined,
    WorkerLost,
)
from hopyard.mop.makespan import bound, play_epoch

PARTITIONS = frozenset(PartitionId(i) for i in range(3))
ONE = frozenset({PartitionId(0)})


class Cluster(RuleBasedStateMachine):
    """Holds its own idea of what is true, and compares every instruction with it."""

    def __init__(self) -> None:
        super().__init__()
        self.coordinator = MopCoordinator(PARTITIONS)
        self.flying: dict[int, TrainHop] = {}
        self.cancelled: list[int] = []
        self.held: dict[WorkerId, frozenset[PartitionId]] = {}
        self.wanted: dict[TrialId, int] = {}
        self.state: dict[TrialId, str] = {}
        self.epochs: Counter[TrialId] = Counter()
        self.visits: Counter[tuple[TrialId, int, PartitionId]] = Counter()
        self.told: list[Event] = []
        self.said: list[list[object]] = []
        self.count = 0

    def tell(self, event: Event) -> None:
        self.told.append(event)
        out = self.coordinator.handle(event)
        self.said.append(list(out))
        for said in out:
            match said:
                case TrainHop():
                    assert said.partition in self.held[said.worker], "a worker trains on what it holds"
                    assert said.worker not in {hop.worker for hop in self.flying.values()}, "a worker runs one hop"
                    assert said.trial not in {hop.trial for hop in self.flying.values()}, "a trial is on one worker"
                    assert said.start_from == self.state[said.trial], "a hop goes on from the last good state"
                    assert self.visits[said.trial, said.epoch, said.partition] == 0, "a partition is visited once an epoch"
                    assert said.epoch == self.epochs[said.trial]
                    self.flying[said.hop] = said
                case CancelHop(hop):
                    del self.flying[hop]
                    self.cancelled.append(hop)
                case EpochFinished(trial, epoch, checkpoint):
                    assert (epoch, checkpoint) == (self.epochs[trial], self.state[trial])
                    assert all(self.visits[trial, epoch, partition] == 1 for partition in PARTITIONS)
                    self.epochs[trial] += 1
                case TrialFinished(trial):
                    assert self.wanted.pop(trial) == self.epochs[trial]

    @rule(epochs=st.integers(1, 2), cost=st.sampled_from([None, 0.5, 2.0]))
    def admit(self, epochs: int, cost: float | None) -> None:
        trial = TrialId(f"t{self.count}")
        self.count += 1
        self.wanted[trial], self.state[trial] = epochs, "new"
        self.tell(TrialAdmitted(trial, epochs, "new", cost))

    @precondition(lambda self: self.wanted)
    @rule(data=st.data())
    def admit_again(self, data: st.DataObject) -> None:
        self.tell(TrialAdmitted(data.draw(st.sampled_from(sorted(self.wanted))), 1, "another"))

    @precondition(lambda self: self.wanted)
    @rule(data=st.data())
    def withdraw(self, data: st.DataObject) -> None:
        trial = data.draw(st.sampled_from(sorted(self.wanted)))
        del self.wanted[trial]
        self.tell(TrialWithdrawn(trial))
        assert trial not in {hop.trial for hop in self.flying.values()}

    @rule(
        worker=st.sampled_from("wxyz"),
        held=st.frozensets(st.sampled_from(sorted(PARTITIONS)), min_size=1),
        speed=st.sampled_from([None, 2.0]),
    )
    def join(self, worker: str, held: frozenset[PartitionId], speed: float | None) -> None:
        self.held[WorkerId(worker)] = held
        self.tell(WorkerJoined(WorkerId(worker), held, speed))

    @precondition(lambda self: self.held)
    @rule(data=st.data())
    def lose(self, data: st.DataObject) -> None:
        worker = data.draw(st.sampled_from(sorted(self.held)))
        del self.held[worker]
        self.tell(WorkerLost(worker))
        assert worker not in {hop.worker for hop in self.flying.values()}

    @precondition(lambda self: self.flying)
    @rule(data=st.data(), well=st.booleans(), seconds=st.sampled_from([0.0, 0.1, 7.0]))
    def end(self, data: st.DataObject, well: bool, seconds: float) -> None:
        self.end_hop(data.draw(st.sampled_from(sorted(self.flying))), well, seconds)

    def end_hop(self, number: int, well: bool, seconds: float = 1.0) -> None:
        hop = self.flying.pop(number)
        if well:
            self.visits[hop.trial, hop.epoch, hop.partition] += 1
            self.state[hop.trial] = f"after {number}"
            self.tell(HopFinished(number, f"after {number}", seconds))
        else:
            self.tell(HopFailed(number))

    @precondition(lambda self: self.cancelled)
    @rule(well=st.booleans())
    def late_news(self, well: bool) -> None:
        number = self.cancelled.pop()
        self.tell(HopFinished(number, "stale", 1.0) if well else HopFailed(number))

    @invariant()
    def nobody_who_could_go_together_is_left_apart(self) -> None:
        busy = {hop.worker for hop in self.flying.values()}
        moving = {hop.trial for hop in self.flying.values()}
        for trial in self.wanted.keys() - moving:
            lacks = {partition for partition in PARTITIONS if not self.visits[trial, self.epochs[trial], partition]}
            assert all(worker in busy or not lacks & held for worker, held in self.held.items())

    def teardown(self) -> None:
        self.held[WorkerId("last")] = PARTITIONS
        self.tell(WorkerJoined(WorkerId("last"), PARTITIONS))
        while self.flying:
            self.end_hop(min(self.flying), well=True)
        assert not self.wanted, "with one worker that holds everything, all trials end"
        again = MopCoordinator(PARTITIONS)
        assert [again.handle(event) for event in self.told] == self.said, "equal events, equal instructions"


TestCluster = Cluster.TestCase
TestCluster.settings = settings(max_examples=150, stateful_step_count=40, deadline=None)

amounts = st.floats(0.1, 20.0)


@settings(max_examples=60, deadline=None)
@given(st.lists(amounts, min_size=1, max_size=12), st.lists(amounts, min_size=1, max_size=6), st.booleans())
def test_a_makespan_lies_between_the_bound_and_twice_the_bound(costs: list[float], speeds: list[float], known: bool) -> None:
    """Nobody idles who could work, and such a schedule of an open shop is below the sum of the two totals."""
    of_trials = {TrialId(f"t{i:02d}"): cost for i, cost in enumerate(costs)}
    of_workers = {WorkerId(f"w{i}"): speed for i, speed in enumerate(speeds)}
    took = play_epoch(MopCoordinator(PartitionId(i) for i in range(len(speeds))), of_trials, of_workers, tell_times=known)
    least = bound(of_trials, of_workers)
    assert least * (1 - 1e-9) <= took <= 2 * least


def test_a_square_of_equal_units_is_a_latin_square() -> None:
    for size in (2, 3, 5, 8, 16):
        costs = {TrialId(f"t{i:02d}"): 1.0 for i in range(size)}
        speeds = {WorkerId(f"w{i:02d}"): 1.0 for i in range(size)}
        for known in (True, False):
            assert play_epoch(MopCoordinator(PartitionId(i) for i in range(size)), costs, speeds, tell_times=known) == size


def test_what_was_learnt_decides_who_goes_first() -> None:
    """Two trials are slow where they were first; in the next epoch they go first."""
    coordinator = MopCoordinator(ONE)
    out = coordinator.handle(WorkerJoined(WorkerId("w"), ONE), *(TrialAdmitted(TrialId(t), 2, "new") for t in "abc"))
    seconds = {"a": 1.0, "b": 9.0, "c": 3.0}
    order = []
    while hops := [said for said in out if isinstance(said, TrainHop)]:
        (hop,) = hops
        order.append((hop.epoch, hop.trial))
        out = coordinator.handle(HopFinished(hop.hop, "next", seconds[hop.trial]))
    assert [trial for epoch, trial in order if epoch == 1] == ["b", "c", "a"]
