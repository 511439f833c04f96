"""Trains trials as separate runs through the queue, with the concurrency of the study.

All state is in the journal and on the server: a restarted driver finds its runs by their ids.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, TypedDict

from hopyard.domain.ids import RunId, TrialId
from hopyard.domain.run import RunPhase
from hopyard.errors import Conflict, HopyardError, NotFound, ServerUnavailable
from hopyard.studies.journal import CONTINUED, JournalRecord
from hopyard.studies.server_api import StudyApi
from hopyard.studies.trainer import BudgetReached, TrainerContext, TrainerEvent, TrialFailed, TrialWork
from hopyard.studies.trial_runs.resume_checkpoint import ResumeCheckpoints
from hopyard.studies.trial_runs.trial_run import TrialRun, TrialStatus
from hopyard.studies.trial_runs.trial_spec import (
    TrialRunSpec,
    copied_epoch_shift,
    counts_epochs,
    plan_run,
    run_request,
)

if TYPE_CHECKING:
    from hopyard.api_client import types as api

POLL_INTERVAL_S = 0.15  # on average at most so often, though there is always news
_POLL_WAIT_S = 1.0  # a look waits so long for news
_REQUEST_TIMEOUT_S = 30.0
_SAVE_GRACE_S = 60.0  # for a script beyond its budget to reach a safe point
_EXIT_TIMEOUT_S = 30.0  # for runs that were asked to end, when the study is over
_TAIL_LINES = 30


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
    """A `Trainer`. api: the study's line. run: the study's own."""

    def __init__(self, context: TrainerContext, api: StudyApi, run: RunId) -> None:
        self._context, self._api, self._run = context, api, run
        self._spec = context.spec
        self._unsubmitted_work: dict[TrialId, TrialWork] = {}  # works whose run is not submitted yet
        self._trial_runs: dict[RunId, TrialRun] = {}  # runs that are not over, or still speak
        self._latest_runs: dict[TrialId, TrialRunSpec] = {}  # the run that each trial was given last
        self._final_runs: dict[
            TrialId, TrialRunSpec
        ] = {}  # the run in which each trial came to a budget last
        # by budget, the run in which each trial came to it
        self._runs_by_budget: dict[TrialId, dict[int, TrialRunSpec]] = {}
        self._interrupted_runs: dict[
            TrialId, TrialRunSpec
        ] = {}  # runs that ended with the study that this one continues
        self._events: list[TrainerEvent] = []
        self._polled_at = 0.0
        self._warned_over_budget = False
        self._resume_checkpoints = ResumeCheckpoints(api, context.spec, context.log_message)
        self._orphans_stopped = False
        self._load_past(context.past_records)

    def _load_past(self, past_records: Iterable[JournalRecord]) -> None:
        told: dict[TrialId, int] = {}
        for record in past_records:
            if record.get("kind") == "told":
                told[TrialId(record["report"]["trial"])] = int(record["report"]["step"])
            elif record.get("kind") == "submitted":
                self._resume_checkpoints.set_run_name(RunId(record["run"]), str(record["name"]))
            elif record.get("kind") == "run":
                launched = TrialRunSpec.from_record(record)
                self._resume_checkpoints.add_run(launched, reported_epoch=told.get(launched.trial, 0))
                self._latest_runs[launched.trial] = launched
                self._interrupted_runs.pop(launched.trial, None)
            elif record.get("kind") == CONTINUED:
                self._interrupted_runs |= {
                    trial: launched
                    for trial, launched in self._latest_runs.items()
                    if self._final_runs.get(trial) != launched
                }
                self._latest_runs.clear()
            elif record.get("kind") == "reached" and record["trial"] in self._latest_runs:
                self._record_final_run(record["trial"])

    # -- the Trainer -----------------------------------------------------------------------------------------

    def free_capacity(self) -> int:
        busy = sum(not child.is_finished for child in self._trial_runs.values()) + len(self._unsubmitted_work)
        return max(self._spec.max_live_trials - busy, 0)

    def start(self, work: TrialWork) -> None:
        known = self._latest_runs.get(work.trial)
        if work.is_resumed and known is not None and known.budget == work.budget:
            self._submit(
                work, known, run_request(self._run, self._spec, work, known.resume, known.last_epoch)
            )
            return
        if (
            work.is_resumed
            and work.trial in self._final_runs
            and self._final_runs[work.trial].budget == work.budget
        ):
            # the last thing that the study which this one continues has seen
            self._events.append(BudgetReached(work.trial, work.budget))
            return
        self._unsubmitted_work[work.trial] = work
        if known is not None and known.run not in self._trial_runs and work.trial not in self._final_runs:
            # it was asked to go on before anybody saw the end of its last run
            self._track(known, reported_epoch=known.budget)

    # checkpoints are kept with their runs
    def end(self, trial: TrialId, *, keep_state: bool) -> None:  # noqa: ARG002
        self._unsubmitted_work.pop(trial, None)
        self._events = [news for news in self._events if news.trial != trial]
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
                news, self._events = self._events, []
                for one in news:
                    launched = self._latest_runs.get(one.trial)
                    if (
                        launched is not None
                        and not isinstance(one, TrialFailed)
                        and (child := self._trial_runs.get(launched.run)) is not None
                        and child.is_finished
                    ):
                        self._record_final_run(one.trial)
                return news

    def close(self, *, completed: bool) -> None:
        """completed: wait a while for what was asked to end, so that a study that is over leaves nothing
        behind it."""
        deadline = time.monotonic() + _EXIT_TIMEOUT_S
        while completed and time.monotonic() < deadline and not self._context.is_stopping():
            if all(child.is_finished for child in self._trial_runs.values()):
                return
            self._poll(_POLL_WAIT_S)

    # -- submitting ------------------------------------------------------------------------------------------

    def _submit_waiting(self) -> None:
        for trial, work in list(self._unsubmitted_work.items()):
            source_of = work.trial if work.start_from is None else work.start_from
            if self._is_busy(trial) or self._is_busy(source_of, reached=True) or self._is_ending(trial):
                continue  # its checkpoint is still being written
            del self._unsubmitted_work[trial]
            source, shift = self._resume_checkpoint(work, source_of)
            launched, body = plan_run(self._run, self._spec, work, source, shift=shift)
            fields = {
                "run": launched.run,
                "budget": launched.budget,
                "last": launched.last_epoch,
                "shift": launched.epoch_shift,
                "resume": launched.resume,
            }
            self._context.journal.write("run", trial=trial, **fields)
            self._resume_checkpoints.add_run(launched, reported_epoch=work.done_epochs)
            self._submit(work, launched, body)

    def _resume_checkpoint(self, work: TrialWork, source_trial: TrialId) -> tuple[api.Checkpoint | None, int]:
        """The checkpoint that the work begins with, and the shift from the script's epochs to the trial's."""
        cut = self._interrupted_runs.pop(work.trial, None)
        origin, epochs = (cut, work.done_epochs) if cut is not None else self._origin(work, source_trial)
        found = None if origin is None else self._resume_checkpoints.find(origin, epochs, trial=work.trial)
        if found is None:
            return None, 0
        source, counted = found
        own = counted.trial == work.trial
        return source, counted.epoch_shift if own else copied_epoch_shift(
            counted, int(source["step"]), epochs, done_epochs=work.done_epochs
        )

    def _origin(self, work: TrialWork, source_trial: TrialId) -> tuple[TrialRunSpec | None, int]:
        """The run with the state that the work resumes from, and after how many epochs of its trial. A trial
        that copies another one takes the state after its own number of epochs, though the other one is ahead
        by now: so no state is trained for more epochs than the study says."""
        reached = self._runs_by_budget.get(source_trial, {})
        if (
            source_trial != work.trial
            and work.done_epochs
            and (ahead := [budget for budget in reached if budget >= work.done_epochs])
        ):
            return reached[min(ahead)], work.done_epochs
        left = self._final_runs.get(source_trial)
        return left, 0 if left is None else left.budget

    def _submit(self, work: TrialWork, run_spec: TrialRunSpec, body: api.SubmitIn) -> None:
        self._latest_runs[work.trial] = run_spec
        taken = self._api.call(lambda client: client.create_run(body))
        self._resume_checkpoints.set_run_name(run_spec.run, str(taken["name"]))
        # people say it by its name
        self._context.journal.write("submitted", trial=work.trial, run=run_spec.run, name=taken["name"])
        self._track(run_spec, reported_epoch=work.done_epochs)

    def _track(self, run_spec: TrialRunSpec, *, reported_epoch: int) -> None:
        whole = not counts_epochs(self._spec)
        self._trial_runs[run_spec.run] = TrialRun(
            run_spec.run,
            run_spec.trial,
            run_spec.budget,
            self._spec.metric,
            run_spec.last_epoch,
            run_spec.epoch_shift,
            whole,
            reported_epoch=reported_epoch,
        )

    def _is_busy(self, trial: TrialId, *, reached: bool = False) -> bool:
        """Whether a run of the trial is still to end; reached: only one that has done its budget."""
        return any(
            c.trial == trial and not c.is_finished and (not reached or c.reported_epoch >= c.budget)
            for c in self._trial_runs.values()
        )

    def _is_ending(self, trial: TrialId) -> bool:
        """Whether its run of the study that this one continues has still to save and to leave."""
        cut = self._interrupted_runs.get(trial)
        found = None if cut is None else self._api.find(lambda client: client.get_run(cut.run))
        return found is not None and not RunPhase(found["phase"]).is_final

    def _record_final_run(self, trial: TrialId) -> None:
        launched = self._final_runs[trial] = self._latest_runs[trial]
        self._runs_by_budget.setdefault(trial, {})[launched.budget] = launched

    # -- looking ---------------------------------------------------------------------------------------------

    def _poll(self, wait_s: float) -> None:
        """Ask after all runs at once, and take what came."""
        live = {run: child for run, child in self._trial_runs.items() if not child.is_finished}
        pause = min(wait_s, self._polled_at + POLL_INTERVAL_S - time.monotonic())
        if pause > 0 or not live:
            time.sleep(pause if live else wait_s)
        if not live:
            return
        body: api.LookIn = {
            "trials": {
                run: None if child.phase is None else child.phase.value for run, child in live.items()
            },
            "cursors": {
                f"{attempt}:{rank}:{stream}": at
                for child in live.values()
                for (attempt, rank, stream), at in child.cursors.items()
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
        heads = {one["id"]: one for one in head["trials"]}
        for run, child in trial_runs.items():
            if run in heads:
                child.update(heads[run])
        at = 0
        for one in head["segments"]:
            run = RunId(str(one["attempt"]).rpartition(".")[0])
            part, at = data[at : at + one["size"]], at + one["size"]
            news = trial_runs[run].add_data((one["attempt"], one["rank"], one["stream"]), one["offset"], part)
            self._events += [] if trial_runs[run].end_requested else news
        for run, child in trial_runs.items():
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

    def _finish(self, trial_run: TrialRun) -> list[TrainerEvent]:
        news = trial_run.finish()
        if news and isinstance(news[-1], TrialFailed) and trial_run.phase is RunPhase.FAILED:
            news[-1] = replace(news[-1], traceback=self._stderr_tail(trial_run.run))
        return news

    def _stderr_tail(self, run: RunId) -> str:
        try:
            return self._api.get_bytes(f"/runs/{run}/log", stream="stderr", tail_lines=_TAIL_LINES).decode(
                errors="replace"
            )
        except ServerUnavailable:
            raise
        except HopyardError:
            return ""

    # -- ending ----------------------------------------------------------------------------------------------

    def _stop(self, run: RunId, options: api.StopIn | None = None) -> None:
        try:
            self._api.call(lambda client: client.stop_run(run, options))
        except (NotFound, Conflict):
            return  # deleted meanwhile

    def _stop_over_budget(self, trial_run: TrialRun) -> None:
        """It has done its budget and goes on: asked once to leave at its next safe point, so that what it did
        is kept."""
        trial_run.stop_requested = True
        if not self._warned_over_budget:
            self._warned_over_budget = True
            name = self._spec.budget_param
            self._context.log_message(
                f"trials go on beyond their budget: the script takes no parameter `{name}` "
                f"(hop.params({name}=…)); they are stopped there"
            )
        self._stop(trial_run.run, {"grace_s": _SAVE_GRACE_S, "at_safe_point": True})

    def _stop_orphans(self) -> None:
        """Runs that an earlier driver started, or meant to stop, and that nobody wants now."""
        self._orphans_stopped = True
        live = ",".join(phase.value for phase in RunPhase if not phase.is_final)
        found = self._api.find(lambda client: list(client.iterate_runs(parent=self._run, phase=live)))
        for run in found or ():
            if run["id"] not in self._trial_runs and run["phase"] != "stopping":
                self._stop(RunId(run["id"]))
