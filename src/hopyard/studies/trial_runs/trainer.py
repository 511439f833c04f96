"""Trains trials as separate runs through the queue, with the concurrency of the study.

All state is in the journal and on the server: a restarted driver finds its runs by their ids.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, TypedDict

from hopyard.api_client.phase_filter import list_runs_in_phases
from hopyard.domain.ids import RunId, TrialId
from hopyard.domain.run import MAX_CONTINUED_RUNS, ParamValue, RunPhase
from hopyard.domain.study import BudgetUnit
from hopyard.errors import Conflict, HopyardError, NotFound, ServerUnavailable, StudyFailed
from hopyard.studies.code_reads import declared_names, unread_note
from hopyard.studies.journal import CONTINUED, JournalRecord
from hopyard.studies.server_api import StudyApi
from hopyard.studies.trainer import BudgetReached, TrainerContext, TrainerEvent, TrialFailed, TrialWork
from hopyard.studies.trial_runs.resume_checkpoint import ResumeCheckpoints
from hopyard.studies.trial_runs.script_params import ScriptParams
from hopyard.studies.trial_runs.trial_run import TrialRun, TrialStatus
from hopyard.studies.trial_runs.trial_spec import (
    TrialRunSpec,
    copied_epoch_shift,
    plan_run,
    run_request,
    unit_settings,
)

if TYPE_CHECKING:
    from hopyard.api_client import types as api

POLL_INTERVAL_S = 0.15  # the minimum interval between polls, even if each returns events
_POLL_WAIT_S = 1.0  # how long the server waits for events in one poll
_REQUEST_TIMEOUT_S = 30.0
_SAVE_GRACE_S = 60.0  # for a script beyond its budget to reach a safe point
_EXIT_TIMEOUT_S = 30.0  # for runs that were requested to end, when the study is over
_TAIL_LINES = 30
# exits of runs that are not the fault of the script's code, and exits that a retry repeats
_KILLED_KINDS = frozenset({"signal", "out-of-memory", "lost", "node-fault", "peer-failed"})
_PERMANENT_KINDS = frozenset({"time-limit", "prepare-failed"})


class MetricSegment(TypedDict):
    """Announces `size` bytes of a metric stream, which begin at `offset`."""

    attempt: str
    rank: int
    stream: str
    offset: int
    size: int


class TrialsResponse(TypedDict):
    """The first line of the response of POST /runs/{id}/trials. more: some bytes did not fit."""

    trials: list[TrialStatus]
    segments: list[MetricSegment]
    more: bool


class TrialRunTrainer:
    """A `Trainer`. api: the study's connection. run: the study's own run."""

    def __init__(self, context: TrainerContext, api: StudyApi, run: RunId) -> None:
        self._context, self._api, self._run = context, api, run
        self._spec = context.spec
        self._unsubmitted_work: dict[TrialId, TrialWork] = {}  # work whose run is not submitted yet
        self._trial_runs: dict[
            RunId, TrialRun
        ] = {}  # runs that have not ended, or whose output is not read completely
        self._latest_runs: dict[TrialId, TrialRunSpec] = {}  # the newest run of each trial
        self._final_runs: dict[
            TrialId, TrialRunSpec
        ] = {}  # the run in which each trial reached its last budget
        # by budget, the run in which each trial reached it
        self._runs_by_budget: dict[TrialId, dict[int, TrialRunSpec]] = {}
        self._interrupted_runs: dict[
            TrialId, TrialRunSpec
        ] = {}  # runs that ended with the study that this one continues
        # the number of the next repetition of trials with a killed run
        self._retries: dict[TrialId, int] = {}
        self._events: list[TrainerEvent] = []
        self._polled_at = 0.0
        self._warned_over_budget = False
        self._resume_checkpoints = ResumeCheckpoints(api, context.spec, context.log_message)
        self._orphans_stopped = False
        self._warned_uncounted = False
        self._steps_are_epochs = True  # as in `UnitSettings`
        self._step_offset: int | None = None  # likewise
        self._named_in_code = declared_names(context.spec, Path.cwd())
        self._script_params = ScriptParams(context.spec, self._named_in_code)
        self._warned_untaken = False
        self._trial_params: dict[TrialId, Mapping[str, ParamValue]] = {}
        self._load_past(context.past_records)

    def _load_past(self, past_records: Iterable[JournalRecord]) -> None:
        reported_steps: dict[TrialId, int] = {}
        for record in past_records:
            if record.get("kind") == "told":
                reported_steps[TrialId(record["report"]["trial"])] = int(record["report"]["step"])
            elif record.get("kind") == "submitted":
                self._resume_checkpoints.set_run_name(RunId(record["run"]), str(record["name"]))
            elif record.get("kind") == "declared":
                self._script_params.declare(record["params"])
            elif record.get("kind") == "counts":
                self._step_offset = int(record["offset"])
            elif record.get("kind") == "run":
                run_spec = TrialRunSpec.from_record(record)
                self._resume_checkpoints.add_run(
                    run_spec, reported_epoch=reported_steps.get(run_spec.trial, 0)
                )
                self._latest_runs[run_spec.trial] = run_spec
                self._interrupted_runs.pop(run_spec.trial, None)
            elif record.get("kind") == CONTINUED:
                # the code may be another one
                self._script_params = ScriptParams(self._spec, self._named_in_code)
                self._interrupted_runs |= {
                    trial: run_spec
                    for trial, run_spec in self._latest_runs.items()
                    if self._final_runs.get(trial) != run_spec
                }
                self._latest_runs.clear()
            elif record.get("kind") == "reached" and record["trial"] in self._latest_runs:
                self._record_final_run(record["trial"])

    # -- the Trainer -----------------------------------------------------------------------------------------

    def free_capacity(self) -> int:
        busy = sum(not child.is_finished for child in self._trial_runs.values()) + len(self._unsubmitted_work)
        return max(self._spec.max_live_trials - busy, 0)

    def start(self, work: TrialWork) -> None:
        self._trial_params[work.trial] = work.params
        newest = self._latest_runs.get(work.trial)
        if work.is_resumed and newest is not None and newest.budget == work.budget:
            self._submit(
                work,
                newest,
                run_request(
                    self._run,
                    self._spec,
                    work,
                    newest.resume,
                    newest.last_epoch,
                    retry=newest.retry,
                    folder=newest.folder,
                    continued=newest.continued,
                ),
            )
            return
        if (
            work.is_resumed
            and work.trial in self._final_runs
            and self._final_runs[work.trial].budget == work.budget
        ):
            # the trial reached this budget in the study that this one continues
            self._events.append(BudgetReached(work.trial, work.budget))
            return
        self._unsubmitted_work[work.trial] = work
        if newest is not None and newest.run not in self._trial_runs and work.trial not in self._final_runs:
            # it was requested to continue before the end of its last run was observed
            self._track(newest, reported_epoch=newest.budget)

    # checkpoints are stored with their runs
    def end(self, trial: TrialId, *, keep_state: bool) -> None:  # noqa: ARG002
        self._unsubmitted_work.pop(trial, None)
        self._retries.pop(trial, None)
        self._events = [event for event in self._events if event.trial != trial]
        for child in self._trial_runs.values():
            if child.trial == trial and not child.is_finished and not child.end_requested:
                child.end_requested = True
                self._stop(child.run)

    def wait(self, timeout_s: float) -> list[TrainerEvent]:
        deadline = time.monotonic() + timeout_s
        if not self._orphans_stopped:
            self._stop_orphans()
        while True:
            self._submit_waiting()
            if not self._events and not self._context.is_stopping():
                self._poll(max(0.0, min(deadline - time.monotonic(), _POLL_WAIT_S)))
            if self._events or self._context.is_stopping() or time.monotonic() >= deadline:
                events, self._events = self._events, []
                for event in events:
                    newest = self._latest_runs.get(event.trial)
                    if (
                        newest is not None
                        and not isinstance(event, TrialFailed)
                        and (child := self._trial_runs.get(newest.run)) is not None
                        and child.is_finished
                    ):
                        self._record_final_run(event.trial)
                return events

    def close(self, *, completed: bool) -> None:
        """completed: waits some time for the runs that were requested to end, so that a finished study leaves
        no running run."""
        if completed and (names := self._script_params.never_read):
            self._context.log_message(unread_note(names))
        deadline = time.monotonic() + _EXIT_TIMEOUT_S
        while completed and time.monotonic() < deadline and not self._context.is_stopping():
            if all(child.is_finished for child in self._trial_runs.values()):
                return
            self._poll(_POLL_WAIT_S)

    # -- submission ------------------------------------------------------------------------------------------

    def _submit_waiting(self) -> None:
        for trial, work in list(self._unsubmitted_work.items()):
            source_trial = work.trial if work.start_from is None else work.start_from
            if self._is_busy(trial) or self._is_busy(source_trial, reached=True) or self._is_ending(trial):
                continue  # its checkpoint is still being written
            del self._unsubmitted_work[trial]
            folder, continued = self._run_folder(work, source_trial)
            source, shift = self._resume_checkpoint(work, source_trial)
            retry = self._retries.pop(trial, 0)
            run_spec, body = plan_run(
                self._run,
                self._spec,
                work,
                source,
                shift=shift,
                retry=retry,
                folder=folder,
                continued=continued,
            )
            fields = {
                "run": run_spec.run,
                "budget": run_spec.budget,
                "last": run_spec.last_epoch,
                "shift": run_spec.epoch_shift,
                "resume": run_spec.resume,
                "retry": run_spec.retry,
                "folder": run_spec.folder,
                "continued": run_spec.continued,
            }
            self._context.journal.write("run", trial=trial, **fields)
            self._resume_checkpoints.add_run(run_spec, reported_epoch=work.done_epochs)
            self._submit(work, run_spec, body)

    def _run_folder(self, work: TrialWork, source_trial: TrialId) -> tuple[str | None, tuple[str, ...]]:
        """Returns the run folder of the last run of the trial, with the checkpoints that its script wrote
        itself, and the runs that have written to it. A script that does not take its budget may have trained
        beyond it."""
        if source_trial != work.trial:
            return None, ()
        newest = self._interrupted_runs.get(work.trial) or self._latest_runs.get(work.trial)
        is_within_budget = work.trial in self._retries or self._script_params.takes_budget
        if newest is None or not (is_within_budget or work.trial in self._interrupted_runs):
            return None, ()
        run = self._api.find(lambda client: client.get_run(newest.run))
        if run is None or run["run_folder"] is None:
            return None, ()
        continued = (*run["spec"].get("continued_runs", ()), newest.run)[-MAX_CONTINUED_RUNS:]
        return run["run_folder"], continued

    def _resume_checkpoint(
        self, work: TrialWork, source_trial: TrialId
    ) -> tuple[api.CheckpointOut | None, int]:
        """Returns the checkpoint from which the work starts, and the shift from the script's epochs to the
        trial's."""
        interrupted = self._interrupted_runs.pop(work.trial, None)
        if work.trial in self._retries:  # the newest checkpoint, also of epochs that were not reported
            origin, epochs = self._latest_runs.get(work.trial), work.budget
        elif interrupted is not None:
            origin, epochs = interrupted, work.done_epochs
        else:
            origin, epochs = self._origin(work, source_trial)
        checkpoint_and_run = (
            None if origin is None else self._resume_checkpoints.find(origin, epochs, trial=work.trial)
        )
        if checkpoint_and_run is None:
            return None, 0
        source, counting_run = checkpoint_and_run
        is_own_trial = counting_run.trial == work.trial
        return source, counting_run.epoch_shift if is_own_trial else copied_epoch_shift(
            counting_run, int(source["step"]), epochs, done_epochs=work.done_epochs
        )

    def _origin(self, work: TrialWork, source_trial: TrialId) -> tuple[TrialRunSpec | None, int]:
        """Returns the run with the state from which the work resumes, and the epochs of its trial.

        A trial that copies another one takes that trial's state after its own number of epochs, even if the
        other one is ahead. So no state is trained for more epochs than the study allows.
        """
        runs_by_budget = self._runs_by_budget.get(source_trial, {})
        if (
            source_trial != work.trial
            and work.done_epochs
            and (ahead := [budget for budget in runs_by_budget if budget >= work.done_epochs])
        ):
            return runs_by_budget[min(ahead)], work.done_epochs
        final_run = self._final_runs.get(source_trial)
        return final_run, 0 if final_run is None else final_run.budget

    def _submit(self, work: TrialWork, run_spec: TrialRunSpec, body: api.SubmitIn) -> None:
        self._latest_runs[work.trial] = run_spec
        submitted = self._api.call(lambda client: client.create_run(body))
        self._resume_checkpoints.set_run_name(run_spec.run, str(submitted["name"]))
        # users refer to the run by its name
        self._context.journal.write("submitted", trial=work.trial, run=run_spec.run, name=submitted["name"])
        self._track(run_spec, reported_epoch=work.done_epochs)

    def _track(self, run_spec: TrialRunSpec, *, reported_epoch: int) -> None:
        reports_at_end = not self._spec.has_budget
        self._trial_runs[run_spec.run] = TrialRun(
            run_spec.run,
            run_spec.trial,
            run_spec.budget,
            self._spec.metric,
            replace(
                unit_settings(self._spec, run_spec, steps_are_epochs=self._steps_are_epochs),
                offset=self._step_offset,
            ),
            run_spec.epoch_shift,
            self._spec.budget_param,
            reports_at_end,
            self._script_params.budget_in_command,
            reported_epoch=reported_epoch,
        )

    def _is_busy(self, trial: TrialId, *, reached: bool = False) -> bool:
        """Returns whether a run of the trial has not ended; reached: only a run that has reached
        its budget."""
        return any(
            c.trial == trial and not c.is_finished and (not reached or c.reported_epoch >= c.budget)
            for c in self._trial_runs.values()
        )

    def _is_ending(self, trial: TrialId) -> bool:
        """Returns whether its run of the study that this one continues must still save and exit."""
        interrupted = self._interrupted_runs.get(trial)
        run = None if interrupted is None else self._api.find(lambda client: client.get_run(interrupted.run))
        return run is not None and not RunPhase(run["phase"]).is_final

    def _record_final_run(self, trial: TrialId) -> None:
        launched = self._final_runs[trial] = self._latest_runs[trial]
        self._runs_by_budget.setdefault(trial, {})[launched.budget] = launched

    # -- polling ---------------------------------------------------------------------------------------------

    def _poll(self, wait_s: float) -> None:
        """Requests the state and new data of all runs at once."""
        live = {run: child for run, child in self._trial_runs.items() if not child.is_finished}
        delay_s = min(wait_s, self._polled_at + POLL_INTERVAL_S - time.monotonic())
        if delay_s > 0 or not live:
            time.sleep(delay_s if live else wait_s)
        if not live:
            return
        body: api.LookIn = {
            "trials": {
                run: None if child.phase is None else child.phase.value for run, child in live.items()
            },
            "cursors": {
                f"{attempt}:{rank}:{stream}": offset
                for child in live.values()
                for (attempt, rank, stream), offset in child.cursors.items()
            },
            "wait_s": wait_s,
        }
        answer = self._api.post_for_bytes(
            f"/runs/{self._run}/trials", body, timeout_s=wait_s + _REQUEST_TIMEOUT_S
        )
        self._polled_at = time.monotonic()
        line, _, data = answer.partition(b"\n")
        self._apply_response(live, json.loads(line), data)

    def _apply_response(
        self, trial_runs: Mapping[RunId, TrialRun], head: TrialsResponse, data: bytes
    ) -> None:
        heads = {item["id"]: item for item in head["trials"]}
        for run, child in trial_runs.items():
            if run in heads:
                child.update(heads[run])
        position = 0
        for item in head["segments"]:
            run = RunId(str(item["attempt"]).rpartition(".")[0])
            part, position = data[position : position + item["size"]], position + item["size"]
            events = trial_runs[run].add_data(
                (item["attempt"], item["rank"], item["stream"]), item["offset"], part
            )
            self._events += [] if trial_runs[run].end_requested else events
        for run, child in trial_runs.items():
            if not child.end_requested:
                self._check_params(child, ended=run in heads and not head["more"])
                self._check_steps(child)
            if run not in heads:
                child.is_finished = True
                self._events += (
                    []
                    if child.end_requested
                    else [TrialFailed(child.trial, f"its run {child.name or run} was deleted")]
                )
            elif child.phase is not None and child.phase.is_final and not head["more"]:
                self._events += self._finish(child)
            elif child.over_budget and not child.stop_requested and not child.end_requested:
                self._stop_over_budget(child)

    def _check_params(self, trial_run: TrialRun, *, ended: bool) -> None:
        """Raises StudyFailed if the script does not take a parameter that the study searches. That is known
        at the end of a trial: a script may read a parameter after its first report."""
        declared = trial_run.declared
        if declared is not None and self._script_params.declare(declared):
            self._context.journal.write("declared", run=trial_run.run, params=sorted(declared))
        self._resume_checkpoints.takes_budget = self._script_params.takes_budget
        params = self._trial_params.get(trial_run.trial, {})
        has_run_completely = (
            ended
            and trial_run.phase is not None
            and trial_run.phase.is_final
            and (trial_run.phase is RunPhase.SUCCEEDED or trial_run.has_reached_budget)
        )
        if not has_run_completely:
            if declared is not None and trial_run.has_reported:
                self._warn_untaken(trial_run, self._script_params.untaken(params))
            return
        try:
            self._script_params.check(params, trial_run.unread)
        except StudyFailed as error:
            self._context.journal.write("failed", trial=trial_run.trial, error=error.message, traceback="")
            raise

    def _warn_untaken(self, trial_run: TrialRun, untaken: list[str]) -> None:
        if untaken and not self._warned_untaken:
            self._warned_untaken = True
            names = ", ".join(f"`{name}`" for name in untaken)
            self._context.log_message(
                f"trial {trial_run.trial} has reported, and has not read {names} until now; the study ends "
                "with this trial if it never does"
            )

    def _check_steps(self, trial_run: TrialRun) -> None:
        """Records whether the script counts from 0, and notifies of reports that count only at the end of a
        run."""
        if self._step_offset is None and trial_run.step_offset is not None:
            self._step_offset = trial_run.step_offset
            self._context.journal.write("counts", run=trial_run.run, offset=self._step_offset)
        if self._steps_are_epochs and trial_run.steps_exceed_budget:
            self._steps_are_epochs = self._spec.budget_unit is BudgetUnit.STEPS
            self._context.log_message(
                f"trial {trial_run.trial}: its steps exceed its {self._spec.budget_unit}, so they are of "
                f"another unit; trials are judged by their last report (set `steps_per_epoch`, or "
                f"`steps: N` as the budget)"
            )

    def _finish(self, trial_run: TrialRun) -> list[TrainerEvent]:
        if trial_run.has_uncounted_reports and not self._warned_uncounted:
            self._warned_uncounted = True
            self._context.log_message(
                "the reports of trials carry no epoch: trials are judged by their last report (to judge "
                "them earlier: hop.log(…, step=epoch), hop.loop over the epochs, or `steps_per_epoch`)"
            )
        if not trial_run.end_requested and self._retry(trial_run):
            return []
        events = trial_run.finish()
        if events and isinstance(events[-1], TrialFailed) and trial_run.phase is RunPhase.FAILED:
            events[-1] = replace(events[-1], traceback=self._stderr_tail(trial_run.run))
        return events

    def _retry(self, trial_run: TrialRun) -> bool:
        """Starts a trial with a killed run again, from its newest checkpoint. Returns False if the run has
        not failed, or its retries are used up."""
        if trial_run.phase is not RunPhase.FAILED or trial_run.has_reached_budget:
            return False
        is_error = trial_run.exit_kind not in _KILLED_KINDS
        limit = self._spec.retry_errors if is_error else self._spec.retries
        number = self._latest_runs[trial_run.trial].retry + 1
        if number > limit or trial_run.exit_kind in _PERMANENT_KINDS:
            return False
        trial_run.is_finished = True
        trial = trial_run.trial
        self._context.log_message(
            f"trial {trial}: run {trial_run.name} failed: {trial_run.exit_reason}; retry {number} of {limit}"
        )
        self._retries[trial] = number
        self._unsubmitted_work[trial] = TrialWork(
            trial, self._trial_params[trial], trial_run.budget, trial_run.reported_epoch
        )
        return True

    def _stderr_tail(self, run: RunId) -> str:
        try:
            return self._api.get_bytes(f"/runs/{run}/log", stream="stderr", tail_lines=_TAIL_LINES).decode(
                errors="replace"
            )
        except ServerUnavailable:
            raise
        except HopyardError:
            return ""

    # -- stopping runs
    # ----------------------------------------------------------------------------------------------

    def _stop(self, run: RunId, options: api.StopIn | None = None) -> None:
        try:
            self._api.call(lambda client: client.stop_run(run, options))
        except (NotFound, Conflict):
            return  # the run was deleted meanwhile

    def _stop_over_budget(self, trial_run: TrialRun) -> None:
        """Requests a run beyond its budget, once, to stop at its next safe point, so that its
        work is saved."""
        trial_run.stop_requested = True
        if not self._warned_over_budget:
            self._warned_over_budget = True
            name = self._spec.budget_param
            self._context.log_message(
                f"trials continue beyond their budget: the script has no parameter `{name}` "
                f"(hop.params({name}=…)); they are stopped there"
            )
        self._stop(trial_run.run, {"grace_s": _SAVE_GRACE_S, "at_safe_point": True})

    def _stop_orphans(self) -> None:
        """Stops runs of an earlier driver that are not needed any more."""
        self._orphans_stopped = True
        live = tuple(phase.value for phase in RunPhase if not phase.is_final)
        runs = self._api.find(lambda client: list_runs_in_phases(client, live, parent=self._run))
        for run in runs or ():
            if run["id"] not in self._trial_runs and run["phase"] != "stopping":
                self._stop(RunId(run["id"]))
