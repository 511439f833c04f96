"""The trainer of model hopper parallelism: workers connect, trials hop between them, and lost work is
repeated.

One thread decides: the driver's, inside `wait`. It writes each message to the journal, passes it to the
coordinator, and sends the resulting instructions. Nothing else happens between the end of one unit and the
start of the next: dropping states, acknowledgements and hints come after that.
"""

from __future__ import annotations

import hashlib
import time
from pathlib import Path
from typing import Any

from hopyard.domain.ids import PartitionId, TrialId
from hopyard.domain.study import BudgetUnit
from hopyard.errors import SpecError, WorkersLost
from hopyard.mop.coordinator import MopCoordinator
from hopyard.mop.events import SpareWorkersChanged
from hopyard.mop.fixed_order import make_fixed_order
from hopyard.mop.report_schedule import ReportSchedule
from hopyard.mop_runtime.driver.active_trials import ActiveTrials
from hopyard.mop_runtime.driver.checkpointing import Checkpointer
from hopyard.mop_runtime.driver.fork_state import fork_states
from hopyard.mop_runtime.driver.journal_index import BestState
from hopyard.mop_runtime.driver.journal_writer import MopJournal
from hopyard.mop_runtime.driver.orphaned_units import OrphanedUnits
from hopyard.mop_runtime.driver.report_order import ReportOrder
from hopyard.mop_runtime.driver.state_locations import StateLocations
from hopyard.mop_runtime.driver.state_relay import StateRelay
from hopyard.mop_runtime.driver.stragglers import StragglerDetector
from hopyard.mop_runtime.driver.unit_dispatch import UnitDispatcher
from hopyard.mop_runtime.driver.units import UnitNames
from hopyard.mop_runtime.driver.worker_messages import WorkerMessages
from hopyard.mop_runtime.driver.worker_registry import RegisteredWorker, Timeouts, WorkerRegistry
from hopyard.mop_runtime.messages import OpenPartitions, Shutdown
from hopyard.mop_runtime.transport.driver_server import DriverServer
from hopyard.mop_runtime.transport.framing import join_address
from hopyard.private_files import make_folder
from hopyard.studies.code_reads import unread_note
from hopyard.studies.trainer import TrainerContext, TrainerEvent, TrialWork
from hopyard.trial_state.shared_memory_store import StateStore

_CHECK_INTERVAL_S = 0.1
_DISPATCH_WAIT_S = 0.005  # after this time without events a dispatched unit has begun
_DIGEST_TIMEOUT_S = 3.0
_LOOPBACK_HOSTS = ("127.0.0.1", "localhost", "::1")


def open_mop_trainer(context: TrainerContext, scratch_dir: Path) -> MopTrainer:
    """scratch_dir: a folder on disk that all processes of the attempt on this host share, including the
    workers."""
    make_folder(scratch_dir)
    return MopTrainer(
        context,
        StateStore(hashlib.blake2b(context.secret, digest_size=8).hexdigest(), scratch_dir),
        scratch_dir,
    )


class MopTrainer:
    """A `Trainer`. store: the driver's state store. Raises SpecError if the study has no section `mop`."""

    def __init__(
        self,
        context: TrainerContext,
        store: StateStore,
        scratch_dir: Path,
        *,
        timeouts: Timeouts | None = None,
    ) -> None:
        if context.spec.mop is None:
            raise SpecError(
                "parallel: `mop` needs a section `mop`",
                hints=("add `mop:` with `trainable`, `workers` and `dataset`",),
            )
        self._context, self._store, self._mop = context, store, context.spec.mop
        self._timeouts = timeouts or Timeouts()
        parts = self._mop.partitions.parts
        self._has_validation = self._mop.partitions.validation > 0 or bool(
            self._mop.partitions.validation_from
        )
        schedule = ReportSchedule(
            parts,
            1 if context.spec.budget_unit is BudgetUnit.STEPS else parts,
            self._mop.evaluate_every,
        )
        self._journal = MopJournal(context, schedule)
        names, orphaned_units = (
            UnitNames(self._journal.index.driver_starts),
            OrphanedUnits(UnitNames(self._journal.index.driver_starts)),
        )
        host, port = context.listen_address
        # `self._server` does not exist yet
        self._relay = StateRelay(store, lambda event: self._server.post(event))  # noqa: PLW0108
        self._server = DriverServer(
            context.secret, host=host if host in _LOOPBACK_HOSTS else "", port=port, serve=self._relay.serve
        )
        self._workers = WorkerRegistry(
            self._server,
            expected_count=self._mop.workers,
            partition_count=parts,
            timeouts=self._timeouts,
            make_open=self._make_open,
            open_prefix=str(self._journal.index.driver_starts),
            record_event=self._journal.record_worker_event,
        )
        saved = fork_states(
            context.restored_checkpoint.files if context.restored_checkpoint is not None else {},
            context.spec.beginning,
        )
        self._state_locations = StateLocations(
            store,
            join_address(host, self._server.port),
            saved,
            self._workers,
            context.log_message,
            self._relay.reject,
        )
        self._checkpointer = Checkpointer(
            context,
            store,
            self._relay.ensure_local,
            scratch_dir,
            interval_s=self._timeouts.checkpoint_interval_s,
            on_done=self._server.wake,
        )
        all_partitions = [PartitionId(index) for index in range(parts)]
        measuring = PartitionId(parts)
        self._report_order = ReportOrder() if self._mop.order == "fixed" else None
        self._coordinator = MopCoordinator(
            all_partitions,
            validation=all_partitions,
            measuring=measuring,
            fixed_order=None
            if self._report_order is None
            else make_fixed_order(all_partitions, context.spec.seed),
            report_visits=schedule.report_visits,
        )
        self._dispatcher = UnitDispatcher(
            self._coordinator,
            self._workers,
            self._state_locations,
            names,
            evaluate_on_training_data=not self._has_validation,
            measuring=measuring,
            gathered_by_state=self._journal.index.gathered,
        )
        self._stragglers = StragglerDetector(
            self._coordinator,
            self._workers,
            self._journal.record_worker_event,
            unit_timeout_s=self._mop.unit_timeout_s,
        )
        self._stragglers.load_history(context.past_records)
        self._trials = ActiveTrials(
            context, self._journal, self._state_locations, orphaned_units, self._workers, parts
        )
        self._orphaned_units = orphaned_units
        self._worker_messages = WorkerMessages(
            self._journal,
            self._workers,
            self._state_locations,
            self._dispatcher,
            self._trials,
            orphaned_units,
            self._stragglers,
            names,
            has_validation=self._has_validation,
            retries=context.spec.retries,
            retry_errors=context.spec.retry_errors,
        )
        # states of an earlier driver: their workers may be gone
        self._undigested_at_start = self._journal.index.undigested_count
        self._pending_work: list[TrialWork] = []
        self._has_free_capacity = self._has_spare_workers = False
        self._checked_at, self._no_worker_since = 0.0, time.monotonic()
        self._deferred_since: float | None = None  # since when acknowledgements, drops and hints are pending
        self._has_dispatched = (
            False  # since the last deferred messages; without it they are not worth a wake-up
        )

    # -- the Trainer -----------------------------------------------------------------------------------------

    @property
    def port(self) -> int:
        """The port for workers."""
        return self._server.port

    def free_capacity(self) -> int:
        concurrent = self._context.spec.concurrent or 2 * self._mop.workers
        active_count = (
            sum(not training.has_reached_budget for training in self._trials) + len(self._pending_work)
            if self._report_order is None
            else len(self._report_order)
        )
        self._has_free_capacity = concurrent > active_count
        return max(concurrent - active_count, 0)

    def start(self, work: TrialWork) -> None:
        self._has_free_capacity = False
        if self._report_order is not None:
            self._report_order.start(
                work.trial, max(work.done_epochs, self._journal.index.initial_state.epoch)
            )
        if self._worker_messages.has_started:
            self._trials.start(work)
            self._dispatch_events()
        else:
            self._pending_work.append(work)

    def end(self, trial: TrialId, *, keep_state: bool) -> None:
        self._pending_work = [work for work in self._pending_work if work.trial != trial]
        if self._report_order is not None:
            self._report_order.end(trial)
        self._trials.end(trial, keep_state=keep_state)
        self._dispatch_events()

    def wait(self, timeout_s: float) -> list[TrainerEvent]:
        """Raises SpecError if no worker can open its data or the user's code, or none ever connected;
        WorkersLost if there was none for a long time."""
        deadline = time.monotonic() + timeout_s
        ready_events = self._take_events()
        while not ready_events and not self._context.is_stopping():
            self._update_spare_and_dispatch()
            remaining_s = deadline - time.monotonic()
            events = self._server.wait(
                min(max(remaining_s, 0.0), _DISPATCH_WAIT_S if self._has_dispatched else _CHECK_INTERVAL_S)
            )
            for event in events:
                self._worker_messages.dispatch(event)
            self._update_spare_and_dispatch()
            if events and self._deferred_since is None:
                self._deferred_since = time.monotonic()
            if not events or (
                self._deferred_since is not None
                and time.monotonic() - self._deferred_since > _CHECK_INTERVAL_S
            ):
                self._send_deferred()
            self._run_checks()
            ready_events = self._take_events()
            if remaining_s <= 0:
                break
        if ready_events:
            self._set_spare(False)
            self._send_deferred()
        return ready_events

    def _take_events(self) -> list[TrainerEvent]:
        if self._report_order is not None:
            return self._report_order.take(self._trials.trainer_events)
        events, self._trials.trainer_events = self._trials.trainer_events, []
        return events

    def close(self, *, completed: bool) -> None:
        """completed: saves the best state only; otherwise all states from which the study would resume."""
        if completed and (names := self._trials.never_read):
            self._context.log_message(unread_note(names))
        self._send_deferred()
        self._wait_for_checkpoint()
        self._worker_messages.is_leaving = not completed
        self._checkpoint(leaving=not completed, only_best=completed)
        self._wait_for_digests()
        self._wait_for_checkpoint()
        for worker in self._workers:
            self._workers.send(
                worker, Shutdown("the study is over" if completed else "the study continues later")
            )
        self._server.close()
        self._store.close()

    def _wait_for_checkpoint(self) -> None:
        """Handles messages until the save has ended, since its states may have to come from workers."""
        while self._checkpointer.is_running:
            self._process_messages()

    def _process_messages(self) -> None:
        for event in self._server.wait(_CHECK_INTERVAL_S):
            self._worker_messages.dispatch(event)
        self._worker_messages.send_acknowledgements()

    def _wait_for_digests(self) -> None:
        """Waits for the digests of the last states, which arrive a little after the states."""
        deadline = time.monotonic() + _DIGEST_TIMEOUT_S
        while (
            self._journal.index.undigested_count > self._undigested_at_start
            and len(self._workers)
            and time.monotonic() < deadline
        ):
            self._process_messages()

    @property
    def best(self) -> BestState | None:
        """Returns the state with the best value of the study's metric."""
        return self._journal.index.best

    # -- deciding --------------------------------------------------------------------------------------------

    def _dispatch_events(self) -> None:
        while self._trials.coordinator_events and self._worker_messages.has_started:
            coordinator_events, self._trials.coordinator_events = self._trials.coordinator_events, []
            self._dispatcher.dispatch(
                self._coordinator.handle(*coordinator_events), self._trials.by_id, self._context.spec.seed
            )
            self._deferred_since, self._has_dispatched = self._deferred_since or time.monotonic(), True

    def _send_deferred(self) -> None:
        """Sends everything that can wait until the dispatched units have begun. Before that it would delay
        them, most of all if driver and workers share a processor."""
        self._deferred_since, self._has_dispatched = None, False
        with self._workers.batch_messages():
            self._worker_messages.send_acknowledgements()
            self._state_locations.drop_unreferenced()
            self._dispatcher.send_prefetch_hints()

    def _update_spare_and_dispatch(self) -> None:
        """Whether the workers' code can train in groups is known once they are ready, so it is checked before
        each dispatch."""
        self._set_spare(
            self._has_free_capacity
            and self._mop.hybrid
            and self._report_order is None  # a group visits several partitions at once
            and self._worker_messages.supports_data_parallel
        )
        self._dispatch_events()

    def _set_spare(self, has_spare: bool) -> None:
        if has_spare is not self._has_spare_workers:
            self._has_spare_workers = has_spare
            self._trials.coordinator_events.append(SpareWorkersChanged(has_spare))

    # -- periodic checks -----------------------------------------------------------------------------------

    def _run_checks(self) -> None:
        now = time.monotonic()
        if now - self._checked_at < _CHECK_INTERVAL_S:
            return
        self._checked_at = now
        self._workers.check_timeouts()
        self._worker_messages.remove_lost_workers()
        self._check_has_workers(now)
        if not self._worker_messages.has_started:
            self._start_when_ready(now)
            return
        self._workers.assign_free_slots(
            include_unclaimed=self._waited_s(now) > self._timeouts.absent_worker_s
        )
        for worker in self._workers.complete_handovers(self._uses_none_of):
            self._worker_messages.admit_worker(worker)
        self._stragglers.check(list(self._dispatcher.units.values()), self._orphaned_units.orphans)
        if not self._checkpointer.is_running:
            self._state_locations.set_refs("save", ())
        if self._checkpointer.is_due:
            self._checkpoint()

    def _check_has_workers(self, now: float) -> None:
        if self._workers.has_viable_worker:
            self._no_worker_since = now
        elif now - self._no_worker_since > self._timeouts.no_worker_s:
            failure = SpecError if self._worker_messages.first_hello_at is None else WorkersLost
            raise failure(
                f"the study has had no worker for {self._timeouts.no_worker_s:.0f} s"
                + (
                    ": workers hang or exit before they open the dataset and the code"
                    if self._workers.has_failing_worker
                    else ""
                ),
                hints=("run `hop logs STUDY --rank 1` to see the output of the first worker",),
            )

    def _start_when_ready(self, now: float) -> None:
        """Starts when all workers are ready, or when the ready ones have waited long enough."""
        has_timed_out = self._waited_s(now) > self._timeouts.initial_wait_s and any(
            worker.train_partitions for worker in self._workers
        )
        all_ready = self._workers.is_complete(self._journal.expected_workers)
        if not has_timed_out and not all_ready:
            return
        self._worker_messages.has_started = True
        if len(self._workers) < self._mop.workers:
            self._context.log_message(
                f"{len(self._workers)} of {self._mop.workers} workers are connected; the study starts "
                "with them"
            )
        self._workers.assign_free_slots(include_unclaimed=all_ready)
        pending, self._pending_work = self._pending_work, []
        for work in pending:
            self._trials.start(work)
        for member, unit in self._orphaned_units.remove_unclaimed(self._trials.by_id):
            self._workers.cancel_unit(member, unit)
        for worker in self._workers:
            self._worker_messages.admit_worker(worker)
        self._worker_messages.drop_stale_states()

    def _waited_s(self, now: float) -> float:
        """Returns the seconds since the first worker connected."""
        return (
            0.0
            if self._worker_messages.first_hello_at is None
            else now - self._worker_messages.first_hello_at
        )

    def _uses_none_of(self, worker: RegisteredWorker, partitions: frozenset[PartitionId]) -> bool:
        return not any(
            worker.id in unit.workers and partitions & set(unit.partitions)
            for unit in self._dispatcher.units.values()
        )

    def _checkpoint(self, *, leaving: bool = False, only_best: bool = False) -> None:
        """Saves the best state, the initial state of a fork (for a replay or another fork), and the states of
        each trial at its reports.

        leaving: also the states in the middle of an epoch.
        """
        states: dict[str, Any] = {}
        best, initial = self._journal.index.best, self._journal.index.initial_state
        if best is not None:
            states[best.state] = {
                "trial": best.trial,
                "epoch": best.step,
                "best": True,
                "value": best.value,
                "params": dict(best.params),
            }
            if visited := self._journal.index.states[best.state].position.visited:
                states[best.state]["visited"] = sorted(visited)
        if initial.state:
            states[initial.state] = {"trial": "0", "epoch": initial.epoch, "beginning": True}
        if not only_best:
            for trial, final_state in self._journal.index.final_states.items():
                states.setdefault(final_state.state, {"trial": trial, "epoch": final_state.epoch})
            for training in self._trials:
                for step, state in training.report_states.items():
                    states.setdefault(state, {"trial": training.trial, "epoch": step})
                if leaving:
                    states.setdefault(
                        training.state, {"trial": training.trial, "epoch": training.position.epoch}
                    )
        states = {
            state: metadata
            for state, metadata in states.items()
            if state and self._state_locations.is_available(state)
        }
        if initial.state and initial.state not in states:
            return  # a checkpoint of this study must contain it (see `fork_states`)
        self._state_locations.set_refs("save", states)
        self._checkpointer.start(states)

    def _make_open(self, partitions: frozenset[PartitionId], open_id: str) -> OpenPartitions:
        mop, indices = self._mop, tuple(sorted(partitions))
        return OpenPartitions(
            indices,
            indices if self._has_validation else (),
            mop.dataset,
            mop.partitions,
            mop.trainable,
            mop.deterministic,
            mop.threads,
            open_id,
        )
