"""Handles messages of workers: records them, passes them to the coordinator, and acknowledges them."""

from __future__ import annotations

import time

from hopyard.domain.ids import WorkerId
from hopyard.errors import SpecError
from hopyard.mop.events import EvaluationFinished, HopFinished, UnitFailed, WorkerJoined, WorkerLost
from hopyard.mop_runtime.driver.active_trials import ActiveTrials
from hopyard.mop_runtime.driver.journal_writer import MopJournal
from hopyard.mop_runtime.driver.orphaned_units import OrphanedUnits
from hopyard.mop_runtime.driver.retry_counts import RetryCause
from hopyard.mop_runtime.driver.state_locations import StateLocations
from hopyard.mop_runtime.driver.stragglers import StragglerDetector
from hopyard.mop_runtime.driver.unit_dispatch import UnitDispatcher
from hopyard.mop_runtime.driver.units import DispatchedUnit, UnitNames
from hopyard.mop_runtime.driver.worker_registry import RegisteredWorker, WorkerRegistry
from hopyard.mop_runtime.messages import (
    Acknowledge,
    DigestComputed,
    EvaluationResult,
    Heartbeat,
    Hello,
    HopResult,
    MeasurementResult,
    Ready,
    Shutdown,
    UnitFailure,
    UnitInProgress,
)
from hopyard.mop_runtime.transport.driver_server import DriverServerEvent, StateReceived, StateRequested

_MAX_GROUP_FAILURES = 5  # failed groups in a row: their members cannot reach each other
_MAX_MISSING_STATES = 5  # missing start states of the same unit before the trial fails


class WorkerMessages:
    """has_validation: whether there are validation partitions; otherwise states are evaluated on the training
    data. has_started: whether trials are trained yet. is_leaving: the final checkpoint is chosen, so hops
    that end now will be repeated. first_hello_at: `time.monotonic()` of the first hello.
    supports_data_parallel: whether all workers' code can train in groups. retries: how often a unit is
    repeated after the loss of its worker, before the trial counts as the cause. retry_errors: how often a
    trial is repeated after an error of its code."""

    def __init__(
        self,
        journal: MopJournal,
        workers: WorkerRegistry,
        state_locations: StateLocations,
        dispatcher: UnitDispatcher,
        trials: ActiveTrials,
        orphaned_units: OrphanedUnits,
        stragglers: StragglerDetector,
        unit_names: UnitNames,
        *,
        has_validation: bool,
        retries: int,
        retry_errors: int,
    ) -> None:
        self._retries, self._retry_errors = retries, retry_errors
        self._journal, self._workers, self._state_locations, self._dispatcher, self._trials = (
            journal,
            workers,
            state_locations,
            dispatcher,
            trials,
        )
        self._orphaned_units, self._stragglers, self._unit_names, self._has_validation = (
            orphaned_units,
            stragglers,
            unit_names,
            has_validation,
        )
        self._pending_acknowledgements: dict[WorkerId, tuple[list[str], list[str]]] = {}
        self._open_failures: dict[WorkerId, UnitFailure] = {}  # workers that could not open their partitions
        self.has_started, self.supports_data_parallel, self.is_leaving = False, True, False
        self._group_failures = 0
        self.first_hello_at: float | None = None

    def dispatch(self, event: DriverServerEvent) -> None:
        """Raises SpecError if no worker can open the data or the user's code."""
        if isinstance(event, (StateRequested, StateReceived)):
            self._state_locations.handle(event)
            return
        received = self._workers.handle(event)
        # also a worker that was replaced by another process, before that process's message is handled
        self.remove_lost_workers()
        if received is None:
            return
        worker, message = received
        match message:
            case Hello():
                self._on_hello(worker)
            case Ready():
                self._open_failures.pop(worker.id, None)
                self.supports_data_parallel = self.supports_data_parallel and message.supports_data_parallel
                self.admit_worker(worker)
                self._check_open_failures()
            case HopResult() if self.is_leaving:
                self._queue_acknowledgement(worker, unit=message.unit)
            case HopResult():
                self._on_finished(worker, message)
            case EvaluationResult():
                self._on_evaluated(worker, message)
            case MeasurementResult():
                self._on_measured(worker, message)
            case DigestComputed():
                if message.state not in self._journal.index.digests:
                    self._journal.write(
                        "named", unit=message.unit, state=message.state, digest=message.digest
                    )
                self._queue_acknowledgement(worker, digest_unit=message.unit)
            case UnitFailure():
                self._on_failed(worker, message)
            case Heartbeat():
                if not worker.is_synced:
                    self._on_first_heartbeat(worker)

    # -- connections -----------------------------------------------------------------------------------------

    def _on_hello(self, worker: RegisteredWorker) -> None:
        self.first_hello_at = self.first_hello_at or time.monotonic()
        self.supports_data_parallel = self.supports_data_parallel and worker.hello.supports_data_parallel
        for state in worker.hello.states:
            self._state_locations.add_location(state, worker.hello.store_id)
        for in_progress in worker.hello.units_in_progress:
            self._reconcile_unit(worker, in_progress)
        self.admit_worker(worker)

    def _reconcile_unit(self, worker: RegisteredWorker, in_progress: UnitInProgress) -> None:
        """Cancels a worker's unit that is not needed any more."""
        unit = self._find_unit(worker, in_progress.unit, training=in_progress.is_training)
        if unit is None and self._unit_names.parse_number(in_progress.unit) is None and not self.has_started:
            self._orphaned_units.add(in_progress, worker.id)
        elif unit is None:
            self._workers.cancel_unit(worker.id, in_progress.unit)

    def _on_first_heartbeat(self, worker: RegisteredWorker) -> None:
        """Handles the first heartbeat after a hello: all repeated messages have arrived.

        The worker never received a unit that it neither runs nor has finished. States that became unneeded
        while it was disconnected are dropped.
        """
        worker.is_synced = True
        unit_ids = {in_progress.unit for in_progress in worker.hello.units_in_progress}
        for unit in list(self._dispatcher.units.values()):
            is_unknown = (
                self._unit_names.name_of(unit.number) not in unit_ids and worker.id not in unit.results
            )
            if worker.id in unit.workers and is_unknown and unit.started_at < worker.hello_at:
                self._retry_unit(unit)
        if self.has_started:
            self.drop_stale_states()

    def drop_stale_states(self) -> None:
        """Drops the states of earlier drivers, except those that units are producing now."""
        self._state_locations.drop_all_unreferenced(
            {self._unit_names.name_of(number) for number in self._dispatcher.units}
            | self._orphaned_units.unit_ids
        )

    def admit_worker(self, worker: RegisteredWorker) -> None:
        """Admits a worker that has open partitions and no unit of an earlier driver."""
        if self.has_started and not self._orphaned_units.has_worker(worker.id) and worker.train_partitions:
            evaluation_partitions = (
                worker.validation_partitions if self._has_validation else worker.train_partitions
            )
            self._trials.coordinator_events.append(
                WorkerJoined(worker.id, worker.train_partitions, None, evaluation_partitions)
            )

    def remove_lost_workers(self) -> None:
        lost_workers = self._workers.drain_lost()
        for worker in lost_workers:
            self._on_worker_lost(worker)
        if lost_workers:
            self._check_open_failures()

    def _on_worker_lost(self, worker: RegisteredWorker) -> None:
        for unit in [unit for unit in self._dispatcher.units.values() if worker.id in unit.workers]:
            if unit.results:  # a group, of which another member has the state
                self._complete_hop(unit, next(iter(unit.results.values())))
            else:
                self._on_unit_lost(worker, unit)
        self._trials.coordinator_events.append(WorkerLost(worker.id))
        self._open_failures.pop(worker.id, None)
        for orphan in self._orphaned_units.remove_worker(worker.id):
            training = self._trials.find(orphan.in_progress.trial)
            if training is not None:
                self._trials.admit(training)
        self._trials.roll_back_unavailable()

    def _on_unit_lost(self, worker: RegisteredWorker, unit: DispatchedUnit) -> None:
        for other in unit.workers:
            if other != worker.id:
                self._workers.cancel_unit(other, self._unit_names.name_of(unit.number))
        del self._dispatcher.units[unit.number]
        if self._trials.find(unit.trial) is None:
            return
        # a hanging unit hangs on any partition
        partitions = () if unit.stuck_s else unit.partitions
        losses = self._journal.record_retry(unit.trial, RetryCause.WORKER, unit.epoch, partitions)
        if losses > self._retries:
            reason = f"the worker that trained it was lost {losses} times in the same unit (out of memory?)"
            if unit.stuck_s:
                reason = (
                    f"the worker that trained it was ended {losses} times in epoch "
                    f"{unit.epoch + 1}, the last time after {unit.stuck_s:.0f} s on one unit: "
                    "it hangs, or `unit_timeout` is too short"
                )
            self._trials.fail(unit.trial, reason)

    def _on_open_failed(self, worker: RegisteredWorker, failure: UnitFailure) -> None:
        """The worker cannot open its partitions or the user's code."""
        self._open_failures[worker.id] = failure
        self._check_open_failures()

    def _check_open_failures(self) -> None:
        """Raises the study's error, once, if no worker can start. A failing worker is shut down only when
        another one could start."""
        has_working = any(candidate.train_partitions for candidate in self._workers)
        failing = [candidate for candidate in self._workers if candidate.id in self._open_failures]
        if failing and not has_working and len(failing) == len(self._workers):
            failure = self._open_failures[failing[0].id]
            raise SpecError(
                f"no worker can start: {failure.error}",
                hints=tuple(failure.traceback.strip().splitlines()[-1:]),
            )
        for worker in failing if has_working else ():
            failure = self._open_failures.pop(worker.id)
            self._journal.record_worker_event(worker.id, "cannot open", failure.error)
            self._workers.send(worker, Shutdown(f"it cannot open its partitions: {failure.error}"))
            self._workers.remove(worker, failure.error)

    # -- units -----------------------------------------------------------------------------------------------

    def _find_unit(self, worker: RegisteredWorker, name: str, *, training: bool) -> DispatchedUnit | None:
        number = self._unit_names.parse_number(name)
        unit = self._dispatcher.units.get(number) if number is not None else None
        return (
            unit if unit is not None and unit.is_training is training and worker.id in unit.workers else None
        )

    def _on_finished(self, worker: RegisteredWorker, result: HopResult) -> None:
        self._journal.record_reads(result.read)
        for state in (result.state, result.start_from):
            if state:
                self._state_locations.add_location(state, worker.hello.store_id)
        unit = self._find_unit(worker, result.unit, training=True)
        if unit is not None:
            unit.results[worker.id] = result
            if len(unit.results) < len(unit.workers):
                return  # a group: acknowledged when all members have reported
            self._complete_hop(unit, result)
        elif self._orphaned_units.is_next_hop(self._journal.index, result):
            self._journal.record_hop(result, (worker.id,) * len(result.partitions))
            self._trials.record_hop(result.trial, result.state)
        elif result.state not in self._journal.index.states:
            self._state_locations.drop([result.state])
        self._queue_acknowledgement(worker, unit=result.unit)
        self._release_orphan(worker, result.unit)

    def _complete_hop(self, unit: DispatchedUnit, result: HopResult) -> None:
        del self._dispatcher.units[unit.number]
        self._group_failures = self._group_failures if len(unit.workers) == 1 else 0
        self._journal.record_hop(result, unit.workers)
        self._trials.record_hop(unit.trial, result.state)
        self._trials.coordinator_events.append(
            HopFinished(unit.number, result.state, result.ended_at - result.began_at)
        )
        self._stragglers.record_hop(unit.workers, unit.trial, result.ended_at - result.began_at)
        for member_id in unit.results:
            member = self._workers.find(member_id)
            if member is not None:
                self._queue_acknowledgement(member, unit=result.unit)

    def _on_evaluated(self, worker: RegisteredWorker, result: EvaluationResult) -> None:
        unit = self._find_unit(worker, result.unit, training=False)
        if unit is not None:
            del self._dispatcher.units[unit.number]
            self._trials.coordinator_events.append(EvaluationFinished(unit.number))
        self._journal.record_reads(result.read)
        if result.gathered:
            self._state_locations.add_location(result.unit, worker.hello.store_id)
        is_recorded = self._journal.record_evaluation(
            result,
            worker.id,
            of="validation" if self._has_validation else "train",
            is_available=self._state_locations.is_available,
        )
        # before the start, trials may come that need it; the rest is dropped then
        is_in_use = self._trials.find(result.trial) is not None or not self.has_started
        if result.gathered and not (is_recorded and is_in_use):
            self._state_locations.drop([result.unit])
        self._end_evaluation(worker, result)

    def _on_measured(self, worker: RegisteredWorker, result: MeasurementResult) -> None:
        unit = self._find_unit(worker, result.unit, training=False)
        if unit is not None:
            del self._dispatcher.units[unit.number]
            self._trials.coordinator_events.append(EvaluationFinished(unit.number))
        self._journal.record_measurement(result, worker.id)
        self._end_evaluation(worker, result)

    def _end_evaluation(self, worker: RegisteredWorker, result: EvaluationResult | MeasurementResult) -> None:
        training = self._trials.find(result.trial)
        if training is not None:
            self._trials.report_ready(training)
        self._queue_acknowledgement(worker, unit=result.unit)
        self._release_orphan(worker, result.unit)

    def _on_failed(self, worker: RegisteredWorker, failure: UnitFailure) -> None:
        if not failure.unit:
            self._on_open_failed(worker, failure)
            return
        self._queue_acknowledgement(worker, unit=failure.unit)
        unit = self._find_unit(worker, failure.unit, training=True) or self._find_unit(
            worker, failure.unit, training=False
        )
        orphan = self._orphaned_units.find(failure.unit)
        if failure.kind == "partition":
            self._workers.reopen(worker)
        trial = unit.trial if unit is not None else orphan.in_progress.trial if orphan is not None else None
        if trial is not None and failure.kind in ("code", "memory"):
            if not self._trials.retry_after_error(trial, failure.error, limit=self._retry_errors):
                self._trials.fail(trial, failure.error, failure.traceback)
            elif unit is not None:
                self._retry_unit(unit)
        elif unit is not None:
            if failure.kind == "state" and unit.is_measurement:
                # which one is not known; without all of them, the state is evaluated again
                self._state_locations.drop(self._journal.index.pending_gathered(unit.state).values())
                self._count_missing_state(unit, failure.error)
                self._retry_unit(unit)
                self._trials.roll_back(unit.trial)
                self._release_orphan(worker, failure.unit)
                return
            if failure.kind == "state":
                self._state_locations.remove_location(unit.state, worker.hello.store_id)
                self._count_missing_state(unit, failure.error)
            if failure.kind == "group":
                self._count_group_failure(worker, failure.error)
            self._retry_unit(unit)
            if failure.kind == "partition":  # after the end of its unit; it joins again when it is ready
                self._trials.coordinator_events.append(WorkerLost(worker.id))
            if not self._state_locations.is_available(unit.state):
                self._trials.roll_back(unit.trial)
        self._release_orphan(worker, failure.unit)

    def _count_missing_state(self, unit: DispatchedUnit, error: str) -> None:
        if self._trials.find(unit.trial) is not None:
            count = self._journal.record_retry(unit.trial, RetryCause.STATE, unit.epoch, unit.partitions)
            if count >= _MAX_MISSING_STATES:
                self._trials.fail(
                    unit.trial,
                    f"no worker could fetch the initial state of a unit in epoch {unit.epoch + 1}, "
                    f"{_MAX_MISSING_STATES} times: {error}",
                )

    def _count_group_failure(self, worker: RegisteredWorker, error: str) -> None:
        self._group_failures += 1
        if self._group_failures == _MAX_GROUP_FAILURES:
            self.supports_data_parallel = False
            self._journal.record_worker_event(
                worker.id, "alone", f"{error}; from now on each trial uses one worker at a time"
            )

    def _retry_unit(self, unit: DispatchedUnit) -> None:
        self._dispatcher.units.pop(unit.number, None)
        for worker in unit.workers:
            self._workers.cancel_unit(worker, self._unit_names.name_of(unit.number))
        self._trials.coordinator_events.append(UnitFailed(unit.number))

    def _release_orphan(self, worker: RegisteredWorker, unit: str) -> None:
        """A unit of an earlier driver has ended: its trial and its worker continue."""
        orphan = self._orphaned_units.discard_worker(unit, worker.id)
        if orphan is not None:
            training = self._trials.find(orphan.in_progress.trial)
            if training is not None:
                self._trials.admit(training)
            self.admit_worker(worker)

    # -- acknowledgements -------------------------------------------------------------------------------

    def _queue_acknowledgement(
        self, worker: RegisteredWorker, *, unit: str = "", digest_unit: str = ""
    ) -> None:
        units, names = self._pending_acknowledgements.setdefault(worker.id, ([], []))
        if unit:
            units.append(unit)
        if digest_unit:
            names.append(digest_unit)

    def send_acknowledgements(self) -> None:
        for worker_id, (units, names) in self._pending_acknowledgements.items():
            worker = self._workers.find(worker_id)
            if worker is not None:
                self._workers.send(worker, Acknowledge(tuple(units), tuple(names)))
        self._pending_acknowledgements.clear()
