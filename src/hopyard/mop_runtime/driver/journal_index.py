"""Index of the hops and evaluations in the journal: the origin of each state, and its metrics."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from hopyard.domain.ids import PartitionId, TrialId
from hopyard.mop.report_schedule import ReportSchedule
from hopyard.mop_runtime.driver.retry_counts import RetryCause, RetryCounts
from hopyard.mop_runtime.driver.validation_metrics import weighted_mean, weighted_means
from hopyard.studies.journal import CONTINUED

JournalRecord = Mapping[str, Any]
INITIAL_STATE = ""  # the state of a trial that has not begun


@dataclass(frozen=True, slots=True)
class TrainingPosition:
    """The progress of a trial: `epoch` full epochs, and these partitions of the next one."""

    epoch: int = 0
    visited: frozenset[PartitionId] = frozenset()


@dataclass(frozen=True, slots=True)
class StateRecord:
    """The origin of a state: its trial, the previous state, the partitions of the hop, and the resulting
    position. logged: the means of what the hop logged."""

    trial: TrialId
    parent: str
    partitions: tuple[PartitionId, ...]
    position: TrainingPosition
    logged: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class TrialStart:
    """The start of a trial: from this state at this position, up to `budget`."""

    trial: TrialId
    state: str
    position: TrainingPosition
    budget: int
    params: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class FinalState:
    """epoch: in the unit of the budget. visited: the partitions of the epoch that it has begun."""

    state: str
    epoch: int
    visited: frozenset[PartitionId] = frozenset()


@dataclass(frozen=True, slots=True)
class BestState:
    """The best value of the study's metric so far, and its state."""

    trial: TrialId
    step: int
    state: str
    value: float
    params: Mapping[str, Any] = field(default_factory=dict)


PartitionResult = tuple[Mapping[str, float], int]  # metrics, rows


class JournalIndex:
    """Built from the records of kinds `hop`, `read`, `named`, `evaluated`, `measured`, `begun`, `again`,
    `left`, `best`, `retried`, `worker`, `hopper` and `study`, which are applied as they are written.

    initial_state: the start state of every trial, and its epochs: none, unless this study is a fork.
    final_states: by trial, the state that is kept of an ended trial, to resume from or to be copied.
    schedule: when trials are evaluated; None: after each epoch.
    """

    def __init__(
        self,
        partitions: int,
        initial_state: FinalState | None = None,
        schedule: ReportSchedule | None = None,
    ) -> None:
        self._partition_count = partitions
        self.schedule = schedule or ReportSchedule(partitions, partitions)
        self.initial_state = initial_state or FinalState(INITIAL_STATE, 0)
        self.states: dict[str, StateRecord] = {}
        self.trial_starts: dict[TrialId, TrialStart] = {}
        self.latest_states: dict[TrialId, str] = {}  # the newest state of each trial
        self.results: dict[str, dict[PartitionId, PartitionResult]] = {}  # by state
        self.gathered: dict[str, dict[PartitionId, str]] = {}  # by state, names of what evaluations gathered
        self.measured: dict[str, Mapping[str, float]] = {}  # by state, metrics of the whole validation set
        # the lost partitions that each trial repeats, in this order
        self.replay_orders: dict[TrialId, tuple[PartitionId, ...]] = {}
        self.final_states: dict[TrialId, FinalState] = {}
        self.best: BestState | None = None
        self.active_workers: set[str] = set()  # workers of this attempt that joined and were not lost
        self.digests: dict[str, str] = {}
        self.read_params: set[str] = set()  # that the user's code has read, of any trial
        self.retry_counts: dict[TrialId, RetryCounts] = {}  # since the start of the trial
        self.hop_count = 0
        self.driver_starts = 0
        self._attempt: object = None

    @classmethod
    def from_records(
        cls,
        records: Iterable[JournalRecord],
        partitions: int,
        initial_state: FinalState | None = None,
        schedule: ReportSchedule | None = None,
    ) -> JournalIndex:
        index = cls(partitions, initial_state, schedule)
        for record in records:
            index.apply(record)
        return index

    def apply(self, record: JournalRecord) -> None:
        match record.get("kind"):
            case "hop":
                self._apply_hop(record)
            case "evaluated":
                state, partition = str(record["state"]), PartitionId(int(record["partition"]))
                result = dict(record["metrics"]), int(record["rows"])
                self.results.setdefault(state, {})[partition] = result
                if record.get("gathered"):
                    self.gathered.setdefault(state, {})[partition] = str(record["unit"])
            case "measured":
                self.measured[str(record["state"])] = dict(record["metrics"])
            case "begun":
                trial = TrialId(str(record["trial"]))
                self.trial_starts[trial] = TrialStart(
                    trial,
                    str(record["state"]),
                    TrainingPosition(
                        int(record["epoch"]),
                        frozenset(PartitionId(int(number)) for number in record.get("visited") or ()),
                    ),
                    int(record["budget"]),
                    dict(record["params"]),
                )
                self.latest_states[trial] = str(record["state"])
                self.replay_orders.pop(trial, None)
                self.retry_counts.pop(trial, None)
                self.final_states.pop(trial, None)
            case "again":
                trial = TrialId(str(record["trial"]))
                self.latest_states[trial] = str(record["state"])
                self.replay_orders[trial] = tuple(PartitionId(int(number)) for number in record["order"])
            case "left":
                trial = TrialId(str(record["trial"]))
                self.final_states.pop(trial, None)
                if record["state"]:
                    self.final_states[trial] = FinalState(str(record["state"]), int(record["epoch"]))
            case "retried":
                unit = int(record["epoch"]), tuple(PartitionId(int(each)) for each in record["partitions"])
                counts = self.retry_counts.setdefault(TrialId(str(record["trial"])), RetryCounts())
                counts.add(RetryCause(record["cause"]), unit)
            case kind if kind == CONTINUED:  # by a user, after the cause was removed
                self.retry_counts.clear()
            case "best":
                self.best = BestState(
                    TrialId(str(record["trial"])),
                    int(record["step"]),
                    str(record["state"]),
                    float(record["value"]),
                    dict(record.get("params") or {}),
                )
            case "worker" if record["event"] == "joined":
                self.active_workers.add(str(record["worker"]))
            case "worker" if record["event"] == "lost":
                self.active_workers.discard(str(record["worker"]))
            case "read":
                self.read_params.update(map(str, record["params"]))
            case "named":
                self.digests[str(record["state"])] = str(record["digest"])
            case "hopper":
                self.driver_starts += 1
            case "study" if record.get("attempt") != self._attempt:
                self._attempt = record.get("attempt")
                # each attempt, and each run that continues another, has its own workers
                self.active_workers.clear()

    def _apply_hop(self, record: JournalRecord) -> None:
        trial, state, parent = TrialId(str(record["trial"])), str(record["state"]), str(record["start_from"])
        if state in self.states:
            return
        partitions = frozenset(PartitionId(int(number)) for number in record["partitions"])
        position = self.position_after(trial, parent, int(record["epoch"]), partitions)
        logged = dict(record.get("logged") or {})
        self.states[state] = StateRecord(trial, parent, tuple(sorted(partitions)), position, logged)
        self.latest_states[trial] = state
        self.replay_orders[trial] = self.replay_orders.get(trial, ())[1:]
        self.hop_count += 1

    def position_after(
        self, trial: TrialId, parent: str, epoch: int, partitions: frozenset[PartitionId]
    ) -> TrainingPosition:
        """Returns the position of a trial after a hop from this state, in this epoch, on these partitions."""
        parent_record, start = self.states.get(parent), self.trial_starts.get(trial)
        visited = partitions
        if (
            parent_record is not None
            and parent_record.position.epoch == epoch
            and parent_record.trial == trial
        ):
            visited |= parent_record.position.visited
        if start is not None and start.state == parent and start.position.epoch == epoch:
            visited |= start.position.visited  # of a state of another trial
        return (
            TrainingPosition(epoch + 1)
            if len(visited) == self._partition_count
            else TrainingPosition(epoch, visited)
        )

    def position_at(self, step: int, preferred: frozenset[PartitionId] = frozenset()) -> TrainingPosition:
        """Returns the position after this step. preferred: the partitions of the last epoch that count as
        visited; the number of visits decides how many of them and of the others."""
        epoch, visits = self.schedule.split(step)
        everything = map(PartitionId, range(self._partition_count))
        ordered = sorted(everything, key=lambda partition: (partition not in preferred, partition))
        return TrainingPosition(epoch, frozenset(ordered[:visits]))

    @property
    def initial_position(self) -> TrainingPosition:
        return self.position_at(self.initial_state.epoch, self.initial_state.visited)

    def step_at(self, position: TrainingPosition) -> int:
        """Returns the full steps, in the unit of the budget, at this position."""
        return self.schedule.units(position.epoch, len(position.visited))

    def metrics(self, state: str) -> dict[str, float] | None:
        """Returns the metrics of a state at a report: those on all partitions, and what its training has
        logged. None if some are missing."""
        results = self.results.get(state, {})
        if len(results) < self._partition_count or self.pending_gathered(state):
            return None
        return {
            **self._logged_before(state),
            **weighted_means(results),
            **self.measured.get(state, {}),
        }

    def _logged_before(self, state: str) -> dict[str, float]:
        """Returns the means over the partitions of what was logged between the last report and this state."""
        hops: list[StateRecord] = []
        for _, record in self.ancestry(state):
            if hops and (self._is_report(record) or record.trial != hops[0].trial):
                break
            hops.append(record)
        weighted: dict[str, list[tuple[float, int]]] = {}
        for hop in sorted(hops, key=lambda record: record.partitions):
            for name, value in hop.logged.items():
                weighted.setdefault(name, []).append((value, len(hop.partitions)))
        return {name: weighted_mean(values) for name, values in weighted.items()}

    def pending_gathered(self, state: str) -> Mapping[PartitionId, str]:
        """Returns what was gathered for metrics that are not computed yet."""
        return {} if state in self.measured else self.gathered.get(state, {})

    def missing_evaluations(self, state: str, is_available: Callable[[str], bool]) -> frozenset[PartitionId]:
        """Returns the partitions on which the state must be evaluated, also because what was gathered there
        is lost."""
        lost = {
            partition for partition, name in self.pending_gathered(state).items() if not is_available(name)
        }
        return (
            frozenset(map(PartitionId, range(self._partition_count))) - self.results.get(state, {}).keys()
        ) | lost

    @property
    def undigested_count(self) -> int:
        """Returns the number of states without a digest."""
        return len(self.states.keys() - self.digests.keys())

    def ancestry(self, state: str) -> Iterator[tuple[str, StateRecord]]:
        """Yields the state and its predecessors, newest first, including those of another trial from which it
        was copied."""
        while (record := self.states.get(state)) is not None:
            yield state, record
            state = record.parent

    def _is_report(self, record: StateRecord) -> bool:
        return self.schedule.is_report(record.position.epoch, len(record.position.visited), 0)

    def step_states(self, trial: TrialId, state: str) -> dict[int, str]:
        """Returns the states of the trial itself after each step, up to this state."""
        ends: dict[int, str] = {}
        for name, record in self.ancestry(state):
            if record.trial != trial:
                break
            position = record.position
            step = self.step_at(position)
            if self.schedule.split(step) == (position.epoch, len(position.visited)):
                ends.setdefault(step, name)
        return ends
