"""The trials of the trainer: starts them, reports their epochs, ends them, and rolls them back when a state
is lost."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Collection, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from hopyard.domain.ids import PartitionId, TrialId
from hopyard.domain.space import Constant
from hopyard.domain.study import Goal
from hopyard.errors import StudyFailed
from hopyard.mop.events import EvaluationRequested, Event, TrialAdmitted, TrialWithdrawn
from hopyard.mop_runtime.driver.active_trial import ActiveTrial
from hopyard.mop_runtime.driver.journal_index import TrainingPosition
from hopyard.mop_runtime.driver.journal_writer import MopJournal
from hopyard.mop_runtime.driver.orphaned_units import OrphanedUnits
from hopyard.mop_runtime.driver.resume_point import find_start_state, resume_trial
from hopyard.mop_runtime.driver.retry_counts import RetryCause
from hopyard.mop_runtime.driver.state_locations import StateLocations
from hopyard.mop_runtime.driver.worker_registry import WorkerRegistry
from hopyard.studies.code_reads import MAX_UNREAD_TRIALS, trainable_reads
from hopyard.studies.trainer import (
    BudgetReached,
    EpochReported,
    TrainerContext,
    TrainerEvent,
    TrialFailed,
    TrialWork,
)
from hopyard.trainables.config import ALL_READ


class ActiveTrials:
    """coordinator_events: pending events for the coordinator. trainer_events: pending events for
    the driver."""

    def __init__(
        self,
        context: TrainerContext,
        journal: MopJournal,
        state_locations: StateLocations,
        orphaned_units: OrphanedUnits,
        workers: WorkerRegistry,
        partition_count: int,
    ) -> None:
        self._context = context
        self._journal = journal
        self._state_locations = state_locations
        self._orphaned_units = orphaned_units
        self._workers = workers
        self._partition_count = partition_count
        self._by_id: dict[TrialId, ActiveTrial] = {}
        self.coordinator_events: list[Event] = []
        self.trainer_events: list[TrainerEvent] = []
        # not if the trial's code ran elsewhere before, or in a version that recorded no reads
        self._checks_reads = context.spec.beginning is None and (
            not journal.index.hop_count or bool(journal.index.read_params)
        )
        self._read_in_code = (
            trainable_reads(context.spec.mop.trainable, Path.cwd()) if context.spec.mop else ()
        )
        self._unread_trials: Counter[str] = Counter()  # trials at their budget, by unread parameter
        for trial, final_state in journal.index.final_states.items():
            state_locations.set_refs(trial, {final_state.state})
        state_locations.set_refs("beginning", {journal.index.initial_state.state})
        if journal.index.best is not None:
            state_locations.set_refs("best", {journal.index.best.state})

    def __iter__(self) -> Iterator[ActiveTrial]:
        return iter(self._by_id.values())

    def find(self, trial: TrialId) -> ActiveTrial | None:
        return self._by_id.get(trial)

    @property
    def by_id(self) -> Mapping[TrialId, ActiveTrial]:
        return self._by_id

    def start(self, work: TrialWork) -> None:
        """Starts a trial. After a restart of the driver it resumes the trial, otherwise the trial starts from
        its start state.

        Raises StudyFailed if that is a state of another study and cannot be read.
        """
        index = self._journal.index
        work = replace(work, done_epochs=max(work.done_epochs, index.initial_state.epoch))
        previous_start = index.trial_starts.get(work.trial)
        if (
            work.is_resumed
            and previous_start is not None
            and previous_start.budget == work.budget
            and dict(previous_start.params) == dict(work.params)
        ):
            training = resume_trial(index, work, self._state_locations.is_available)
            self._check_initial_state(training.state)
            if training.state != index.latest_states.get(work.trial):
                self._journal.write(
                    "again", trial=work.trial, state=training.state, order=list(training.replay_order)
                )
        else:
            state, position = find_start_state(index, self._by_id, work, self._state_locations.is_available)
            self._check_initial_state(state)
            if work.trial in self._by_id:
                self._withdraw(work.trial)
            self._journal.write(
                "begun",
                trial=work.trial,
                state=state,
                epoch=position.epoch,
                budget=work.budget,
                params=dict(work.params),
                **self._start_fields(work, position),
            )
            training = ActiveTrial(
                index.schedule, work.trial, work.params, work.budget, work.done_epochs, state, position
            )
            if state and position == index.position_at(work.done_epochs, position.visited):
                training.report_states[work.done_epochs] = state
        self._by_id[work.trial] = training
        self._update_refs(training)
        self.admit(training)

    def _start_fields(self, work: TrialWork, position: TrainingPosition) -> dict[str, Any]:
        """Returns what only the start within an epoch, or of a budget in steps, has."""
        fields: dict[str, Any] = {"visited": sorted(position.visited)} if position.visited else {}
        schedule = self._journal.index.schedule
        if schedule.unit != schedule.partition_count:
            fields["epochs"] = schedule.epochs(work.budget)
        return fields

    def _check_initial_state(self, state: str) -> None:
        if (
            state
            and state == self._journal.index.initial_state.state
            and not self._state_locations.is_available(state)
        ):
            hint = "fork the study again: `hop fork STUDY --checkpoint best`"
            raise StudyFailed("the initial state of this study cannot be read", hints=(hint,))

    def admit(self, training: ActiveTrial) -> None:
        """Requests training and evaluations, except units of an earlier driver that still run."""
        if not self._orphaned_units.is_training(training.trial) and not training.is_trained:
            position = training.position
            epochs, extra_visits = training.schedule.split(training.budget)
            self.coordinator_events.append(
                TrialAdmitted(
                    training.trial,
                    epochs,
                    training.state,
                    None,
                    position.epoch,
                    position.visited,
                    training.replay_order,
                    int(training.trial),
                    extra_visits,
                )
            )
        for step, state in training.unreported_states():
            unevaluated = self._journal.index.missing_evaluations(state, self._state_locations.is_available)
            missing = unevaluated - self._orphaned_units.partitions_under_evaluation(state)
            if missing:
                self.coordinator_events.append(self._request_evaluation(training, step, state, missing))
        self.report_ready(training)

    def _request_evaluation(
        self, training: ActiveTrial, step: int, state: str, partitions: frozenset[PartitionId]
    ) -> EvaluationRequested:
        last_epoch = training.schedule.epochs(step) - 1
        return EvaluationRequested(training.trial, last_epoch, state, partitions)

    def record_hop(self, trial: TrialId, state: str) -> None:
        """Records the new state of the trial."""
        training = self._by_id.get(trial)
        if training is not None:
            training.record_hop(state, self._journal.index.states[state].position)
            training.replay_order = training.replay_order[1:]
            self._update_refs(training)

    def report_ready(self, training: ActiveTrial) -> None:
        """Reports the evaluated states. Requests metrics of the whole validation set for a state that was
        evaluated on all partitions; a repeated request changes nothing."""
        index = self._journal.index
        for step, state in training.unreported_states():
            if index.pending_gathered(state) and not index.missing_evaluations(
                state, self._state_locations.is_available
            ):
                measuring = frozenset({PartitionId(self._partition_count)})
                self.coordinator_events.append(self._request_evaluation(training, step, state, measuring))
        for event in training.drain_events(index):
            if isinstance(event, BudgetReached):
                self._check_reads(training)
            self.trainer_events.append(event)
            if isinstance(event, EpochReported):
                self._update_best(training, event)
        self._update_refs(training)

    def _check_reads(self, training: ActiveTrial) -> None:
        """Ends the study if a searched parameter has no effect. Checked at the budget of a trial: then all of
        its code has run. A parameter that the code reads in another branch has more trials."""
        unread = self._unread(training.params)
        self._unread_trials.update(unread)
        unread = [
            name
            for name in unread
            if name not in self._read_in_code or self._unread_trials[name] >= MAX_UNREAD_TRIALS
        ]
        if unread and self._checks_reads:
            names = ", ".join(f"`{name}`" for name in unread)
            unit = self._context.spec.budget_unit
            raise StudyFailed(
                f"no code has read {names} in the {training.budget} {unit} of trial {training.trial}: values "
                "of the search have no effect",
                hints=(f"read it in the trainable: `config.{unread[0]}`", "or remove it from `space`"),
            )

    def _unread(self, names: Collection[str]) -> list[str]:
        """Returns the searched parameters among these that no code has read."""
        read = self._journal.index.read_params
        return [
            parameter.name
            for parameter in self._context.spec.space.parameters
            if parameter.name in names
            and not isinstance(parameter.domain, Constant)
            and not read & {parameter.name, ALL_READ}
        ]

    @property
    def never_read(self) -> list[str]:
        """The searched parameters that trials had at their budget, and that no code has read."""
        return self._unread(self._unread_trials) if self._checks_reads else []

    def _update_best(self, training: ActiveTrial, report: EpochReported) -> None:
        value, best = report.metrics.get(self._context.spec.metric, math.nan), self._journal.index.best
        sign = 1.0 if self._context.spec.goal is Goal.MAX else -1.0
        if math.isfinite(value) and (best is None or sign * value > sign * best.value):
            state = training.report_states[report.step]
            self._journal.write(
                "best",
                trial=training.trial,
                step=report.step,
                state=state,
                value=value,
                params=dict(training.params),
            )
            self._state_locations.set_refs("best", {state})

    def _update_refs(self, training: ActiveTrial) -> None:
        for step in [step for step in training.report_states if step < training.reported_step]:
            del training.report_states[step]
        self._state_locations.set_refs(training.trial, training.needed_states(self._journal.index))

    # -- the end of trials
    # ---------------------------------------------------------------------------------------------

    def end(self, trial: TrialId, *, keep_state: bool) -> None:
        """keep_state: keeps the state of the last report."""
        training, final_state = self._by_id.get(trial), self._journal.index.final_states.get(trial)
        state, epoch = "", 0
        if keep_state and training is not None:
            state, epoch = training.report_states.get(training.reported_step, ""), training.reported_step
        elif keep_state and final_state is not None:
            state, epoch = final_state.state, final_state.epoch
        self._journal.write("left", trial=trial, state=state, epoch=epoch)
        self._drop_trial(trial, {state})

    def retry_after_error(self, trial: TrialId, error: str, *, limit: int) -> bool:
        """Counts an error of the trial's code. Returns whether its unit is repeated."""
        counts = self._journal.index.retry_counts.get(trial)
        if trial not in self._by_id or (0 if counts is None else counts.errors) >= limit:
            return False
        number = self._journal.record_retry(trial, RetryCause.ERROR)
        self._context.log_message(
            f"trial {trial} failed: {error.strip().splitlines()[-1] if error.strip() else 'no reason'}; "
            f"retry {number} of {limit}"
        )
        return True

    def fail(self, trial: TrialId, error: str, traceback: str = "") -> None:
        if trial in self._by_id:
            earlier = [event for event in self.trainer_events if event.trial == trial]
            self._drop_trial(trial, set())
            self.trainer_events += [*earlier, TrialFailed(trial, error, traceback)]

    def roll_back(self, trial: TrialId) -> None:
        """The newest state of the trial is lost: resumes from the newest available state before it."""
        training = self._by_id.pop(trial, None)
        if training is not None:
            self._withdraw(trial)
            self._context.log_message(
                f"trial {trial}: its state was lost with its worker; it resumes from an older state"
            )
            self.start(
                TrialWork(trial, training.params, training.budget, training.reported_step, is_resumed=True)
            )

    def roll_back_unavailable(self) -> None:
        for training in list(self):
            unevaluated = [state for _, state in training.unreported_states()]
            unevaluated += [
                name for state in unevaluated for name in self._journal.index.pending_gathered(state).values()
            ]
            if not all(map(self._state_locations.is_available, [training.state, *unevaluated])):
                self.roll_back(training.trial)

    def _drop_trial(self, trial: TrialId, needed_states: set[str]) -> None:
        self.trainer_events = [event for event in self.trainer_events if event.trial != trial]
        if self._by_id.pop(trial, None) is not None:
            self._withdraw(trial)
        self._state_locations.set_refs(trial, needed_states)

    def _withdraw(self, trial: TrialId) -> None:
        self.coordinator_events.append(TrialWithdrawn(trial))
        for worker, unit in self._orphaned_units.remove_trial(trial):
            self._workers.cancel_unit(worker, unit)
