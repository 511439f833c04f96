"""The driver of a study: gets trials from the searcher, gives them to the trainer, and reports results to the
searcher. Every step is written to the journal first.

One thread decides. The journal holds all calls of the searcher in order. A restarted driver repeats these
calls to rebuild the searcher, gives active work to the trainer again, and continues.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any, Protocol

from hopyard.domain.ids import TrialId
from hopyard.domain.study import Goal, StudySpec
from hopyard.domain.trial import (
    AskEvent,
    Proposal,
    Report,
    SearchState,
    StudyEvent,
    TellEvent,
    TrialOutcome,
    Verdict,
)
from hopyard.errors import StudyFailed
from hopyard.interfaces.searcher import ReleasesTrials, Searcher
from hopyard.searchers.replay import replay
from hopyard.studies.event_json import event_from_json, event_json
from hopyard.studies.journal import CONTINUED
from hopyard.studies.study_state import BestResult, StudyState, TrialPhase, TrialState
from hopyard.studies.trainer import (
    BudgetReached,
    EpochReported,
    JournalWriter,
    Trainer,
    TrainerEvent,
    TrialFailed,
    TrialStopped,
    TrialWork,
)

TRAINER_WAIT_S = 1.0
_MIN_FAILED_TRIALS = 3  # at least this many must fail before the study counts as broken
_MIN_DIVERGED_TRIALS = 12  # the same if some of them only diverged: another configuration may not
_MAX_NAMES = 8
# the prefix of the errors of trials that are runs; it differs between runs with equal errors
_RUN_PREFIX = re.compile(r"^run [^\s:]+:? ")


class StudyListener(Protocol):
    """Receives events after they were written: curves, mirrors, console output."""

    def trial_started(self, proposal: Proposal) -> None: ...
    def trial_reported(self, trial: TrialId, step: int, metrics: Mapping[str, float]) -> None: ...
    def trial_ended(self, trial: TrialId, phase: TrialPhase, reason: str) -> None: ...
    def study_stopped(self, reason: str) -> None:
        """A stop rule ends the study."""
        ...

    def study_updated(self, state: StudyState) -> None:
        """Called after each round of events."""
        ...


class StudyDriver:
    """journal: of this attempt. past_records: all earlier records. is_stopping: returns whether to exit soon,
    and resume later. elapsed_s: returns the seconds since the start of the study. stop_requests: returns the
    trials that users have stopped.

    Raises Conflict if the searcher answers differently than before.
    """

    def __init__(
        self,
        spec: StudySpec,
        searcher: Searcher,
        *,
        journal: JournalWriter,
        past_records: Sequence[Mapping[str, Any]],
        listener: StudyListener,
        is_stopping: Callable[[], bool],
        elapsed_s: Callable[[], float] = lambda: 0.0,
        stop_requests: Callable[[], Collection[TrialId]] = tuple,
    ) -> None:
        self._stop_requests = stop_requests
        self._spec, self._searcher, self._journal, self._listener = spec, searcher, journal, listener
        self._is_stopping, self._elapsed_s = is_stopping, elapsed_s
        self.state = StudyState(spec.goal)
        self._active_trials: set[TrialId] = set()  # trials that were given to the trainer
        # set while the searcher has no proposal; reset by the next report
        self._search_state: SearchState | None = None
        self._released_trials: set[TrialId] = set()
        self._latest_metrics: dict[TrialId, Mapping[str, float]] = {}  # the last report of each trial
        self._errors: dict[TrialId, str] = {}
        self._diverged_trials: set[TrialId] = set()  # failed, because their metric was not finite
        self._last_improved = 0  # the number of other ended trials when the best value was reported
        self._earlier_failures = 0  # trials of the study that this one continues
        # states of completed trials may be needed again
        self._keeps_completed_states = spec.searcher.name == "pbt" or ":" in spec.searcher.name
        self._load_past(past_records)

    @property
    def best(self) -> BestResult | None:
        return self.state.best

    def run(self, trainer: Trainer) -> bool:
        """Runs the study. Returns True at its end, False if it was stopped. Raises StudyFailed if the study
        cannot succeed."""
        self._resume(trainer)
        while not self._is_stopping():
            if reason := self._stop_rule_reason():
                self._stop_trials(trainer, reason)
                self._finish()
                return True
            is_done = self._start_trials(trainer)
            if is_done and not self._active_trials:
                self._finish()
                return True
            for event in trainer.wait(TRAINER_WAIT_S):
                self._handle_event(trainer, event)
            self._stop_requested_trials(trainer)
            self._release_trials(trainer)
            self._listener.study_updated(self.state)
            self._check_first_trials()
        return False

    # -- recovery -------------------------------------------------------------------------------------

    def _load_past(self, past_records: Sequence[Mapping[str, Any]]) -> None:
        events: list[StudyEvent] = []
        self._last_record: Mapping[str, Any] = {}
        for record in past_records:
            event = event_from_json(record)
            if event is not None:
                events.append(event)
                self._apply(event)
            if record.get("kind") == CONTINUED:
                self._earlier_failures = self.state.count(TrialPhase.FAILED)
                self._diverged_trials.clear()
            elif record.get("kind") == "done":
                self._last_record = {}
            elif record.get("kind") == "failed":
                self._errors[TrialId(record["trial"])] = str(record["error"])
                if record.get("diverged"):
                    self._diverged_trials.add(TrialId(record["trial"]))
            elif record.get("kind") == "reached":
                self._active_trials.discard(TrialId(record["trial"]))
            if record.get("kind") == "told" and record.get("metrics"):
                self._latest_metrics[TrialId(record["report"]["trial"])] = record["metrics"]
            if record.get("kind") in ("asked", "told", "reached"):
                self._last_record = record
        replay(self._searcher, events)

    def _update_active(self, event: StudyEvent) -> None:
        """Updates the set of active trials after an event."""
        if isinstance(event, AskEvent):
            if isinstance(event.answer, Proposal):
                self._active_trials.add(event.answer.trial)
            return
        report = event.report
        final = report.outcome is not TrialOutcome.RUNNING
        if final or (
            event.verdict is Verdict.STOP and report.step < self.state.trials[report.trial].proposal.budget
        ):
            self._active_trials.discard(report.trial)

    def _resume(self, trainer: Trainer) -> None:
        """Gives the active work to the trainer again. The effect of the last record may be missing."""
        if self._last_record.get("kind") == "reached":
            self._active_trials.add(TrialId(self._last_record["trial"]))
        elif self._last_record.get("kind") == "told":
            trial = TrialId(self._last_record["report"]["trial"])
            if trial not in self._active_trials:
                trainer.end(trial, keep_state=False)
        for trial in sorted(self._active_trials, key=int):
            trial_state = self.state.trials[trial]
            self._start_trial(trainer, trial_state.proposal, done_epochs=trial_state.step, is_resumed=True)

    # -- new trials
    # ----------------------------------------------------------------------------------------------

    def _start_trials(self, trainer: Trainer) -> bool:
        """Gets proposals while there is capacity. Returns whether the searcher has no more proposals.

        The searcher is called again only after a report, so that the order of its calls does not depend on
        the number of polls.
        """
        while self._search_state is None and trainer.free_capacity() > 0 and not self._is_stopping():
            answer = self._searcher.ask()
            if isinstance(answer, SearchState):
                self._search_state = answer
                break
            self._record(AskEvent(answer))
            self._start_trial(
                trainer, answer, done_epochs=self.state.trials[answer.trial].step, is_resumed=False
            )
        if self._search_state is SearchState.WAIT and not self._active_trials:
            raise StudyFailed(
                "the searcher returned WAIT, and no trial is running",
                hints=("return DONE from `ask` when there are no more trials",),
            )
        return self._search_state is SearchState.DONE

    def _start_trial(
        self, trainer: Trainer, proposal: Proposal, *, done_epochs: int, is_resumed: bool
    ) -> None:
        self._active_trials.add(proposal.trial)
        origin = None if proposal.start_from == proposal.trial else proposal.start_from
        trainer.start(
            TrialWork(proposal.trial, proposal.params, proposal.budget, done_epochs, origin, is_resumed)
        )
        self._listener.trial_started(proposal)

    # -- reports ---------------------------------------------------------------------------------------------

    def _handle_event(self, trainer: Trainer, event: TrainerEvent) -> None:
        if event.trial not in self._active_trials:
            return  # a late event: the trial was ended meanwhile
        trial_state = self.state.trials[event.trial]
        match event:
            case EpochReported():
                self._on_reported(trainer, trial_state, event)
            case TrialFailed():
                self._on_trial_failed(trainer, trial_state, event)
            case TrialStopped():
                self._on_trial_stopped(trainer, trial_state, event)
            case BudgetReached() if event.budget == trial_state.proposal.budget:
                self._on_budget_reached(trainer, trial_state, event)

    def _on_reported(self, trainer: Trainer, trial_state: TrialState, event: EpochReported) -> None:
        step = min(event.step, trial_state.proposal.budget)
        if trial_state.phase is not TrialPhase.TRAINING or step <= trial_state.step:
            return  # repeated, after a state was lost
        value = event.metrics.get(self._spec.metric)
        if value is None:
            self._fail_trial(
                trainer,
                event.trial,
                f"it reported no `{self._spec.metric}`, but {_format_names(event.metrics)}",
            )
        elif not math.isfinite(value):
            self._fail_trial(
                trainer,
                event.trial,
                f"its `{self._spec.metric}` was {_format_value(value)} after "
                f"{self._spec.budget_unit.singular} {step}",
                diverged=True,
            )
        else:
            self._report_to_searcher(trainer, Report(event.trial, step, float(value)), event.metrics)

    def _report_to_searcher(self, trainer: Trainer, report: Report, metrics: Mapping[str, float]) -> None:
        verdict = self._searcher.tell(report)
        self._record(
            TellEvent(report, verdict), metrics={name: float(value) for name, value in metrics.items()}
        )
        self._latest_metrics[report.trial] = metrics
        self._listener.trial_reported(report.trial, report.step, metrics)
        trial_state = self.state.trials[report.trial]
        if report.trial not in self._active_trials:  # stopped below its budget
            trainer.end(report.trial, keep_state=False)
            self._listener.trial_ended(
                report.trial,
                trial_state.phase,
                f"after {self._spec.budget_unit.singular} {report.step} of {trial_state.proposal.budget}",
            )

    def _on_budget_reached(self, trainer: Trainer, trial_state: TrialState, event: BudgetReached) -> None:
        trial = event.trial
        if trial_state.phase is TrialPhase.TRAINING and trial_state.step < trial_state.proposal.budget:
            if trial_state.value is None:
                self._fail_trial(trainer, trial, f"it never reported `{self._spec.metric}`")
                return
            self._report_to_searcher(
                trainer,
                Report(trial, trial_state.proposal.budget, trial_state.value),
                self._latest_metrics.get(trial, {}),
            )
        self._active_trials.discard(trial)
        if (
            self._last_record.get("kind"),
            self._last_record.get("trial"),
            self._last_record.get("budget"),
        ) != (
            "reached",
            trial,
            event.budget,
        ):
            self._write("reached", trial=trial, budget=event.budget)
        trainer.end(
            trial,
            keep_state=trial_state.phase is TrialPhase.PAUSED
            or (trial_state.phase is TrialPhase.COMPLETED and self._keeps_completed_states),
        )
        if trial_state.phase is not TrialPhase.PAUSED:
            self._listener.trial_ended(trial, trial_state.phase, "")

    def _on_trial_failed(self, trainer: Trainer, trial_state: TrialState, event: TrialFailed) -> None:
        if trial_state.phase is TrialPhase.TRAINING:
            self._fail_trial(trainer, event.trial, event.error, event.traceback)
            return
        # its reported value stays valid
        self._journal.write("note", trial=event.trial, text=f"after its last report: {event.error}")
        self._on_budget_reached(trainer, trial_state, BudgetReached(event.trial, trial_state.proposal.budget))

    def _on_trial_stopped(self, trainer: Trainer, trial_state: TrialState, event: TrialStopped) -> None:
        """Its reported values count, and the searcher is notified. It is not a failure."""
        if trial_state.phase is not TrialPhase.TRAINING:
            self._on_budget_reached(
                trainer, trial_state, BudgetReached(event.trial, trial_state.proposal.budget)
            )
            return
        value = event.metrics.get(self._spec.metric)
        if value is None or not math.isfinite(value):
            self._stop_trial(trainer, trial_state, event.reason, trial_state.value)
            return
        step = min(trial_state.step + 1, trial_state.proposal.budget)
        self._stop_trial(trainer, trial_state, event.reason, float(value), step=step, metrics=event.metrics)

    def _stop_trial(
        self,
        trainer: Trainer,
        trial_state: TrialState,
        reason: str,
        value: float | None,
        *,
        step: int | None = None,
        metrics: Mapping[str, float] | None = None,
    ) -> None:
        trial = trial_state.proposal.trial
        report = Report(trial, trial_state.step if step is None else step, value, TrialOutcome.STOPPED)
        fields = {"metrics": dict(metrics)} if metrics else {}
        self._record(TellEvent(report, self._searcher.tell(report)), reason=reason, **fields)
        trainer.end(trial, keep_state=False)
        self._listener.trial_ended(trial, TrialPhase.STOPPED, reason)

    def _stop_trials(self, trainer: Trainer, reason: str) -> None:
        """Ends all trials, because a stop rule of the study holds."""
        self._journal.write("note", text=f"the study ends: {reason}", stop_rule=reason)
        self._listener.study_stopped(reason)
        for trial in sorted(self._active_trials, key=int):
            trial_state = self.state.trials[trial]
            if trial_state.phase is TrialPhase.TRAINING:
                self._stop_trial(trainer, trial_state, reason, trial_state.value)
            else:
                trainer.end(trial, keep_state=False)
        self._active_trials.clear()

    def _stop_requested_trials(self, trainer: Trainer) -> None:
        for trial in sorted(self._active_trials.intersection(self._stop_requests()), key=int):
            trial_state = self.state.trials[trial]
            if trial_state.phase is TrialPhase.TRAINING:
                self._stop_trial(trainer, trial_state, "it was stopped by request", trial_state.value)

    def _stop_rule_reason(self) -> str:
        """Returns the stop rule that holds, as a text; "" for none."""
        rules, best = self._spec.stop, self.state.best
        if best is not None and rules.target is not None:
            is_max = self._spec.goal is Goal.MAX
            if best.value >= rules.target if is_max else best.value <= rules.target:
                return f"its target of {rules.target:g} is reached"
        if (
            best is not None
            and rules.patience
            and self._count_others() - self._last_improved >= rules.patience
        ):
            return f"no better value in {rules.patience} trials (patience)"
        if rules.time_s and self._elapsed_s() >= rules.time_s:
            return f"its time of {rules.time_s:g} s is over"
        return ""

    def _fail_trial(
        self, trainer: Trainer, trial: TrialId, error: str, traceback: str = "", *, diverged: bool = False
    ) -> None:
        """Fails this trial only. diverged: its metric was not finite, so another configuration may work."""
        fields = {"diverged": True} if diverged else {}
        self._journal.write("failed", trial=trial, error=error, traceback=traceback, **fields)
        self._errors[trial] = error
        if diverged:
            self._diverged_trials.add(trial)
        report = Report(trial, self.state.trials[trial].step, None, TrialOutcome.FAILED)
        self._record(TellEvent(report, self._searcher.tell(report)))
        trainer.end(trial, keep_state=False)
        self._listener.trial_ended(trial, TrialPhase.FAILED, error)

    def _release_trials(self, trainer: Trainer) -> None:
        """Releases the states of paused trials that will never resume."""
        if not isinstance(self._searcher, ReleasesTrials):
            return
        for trial in sorted(self._searcher.released() - self._released_trials, key=int):
            if trial not in self._active_trials:
                self._released_trials.add(trial)
                trainer.end(trial, keep_state=False)

    def _record(self, event: StudyEvent, **fields: Any) -> None:
        record = dict(event_json(event))
        self._write(record.pop("kind"), **record, **fields)
        self._apply(event)
        if isinstance(event, TellEvent):
            self._search_state = None

    def _apply(self, event: StudyEvent) -> None:
        best = self.state.best
        self.state.apply(event)
        self._update_active(event)
        if self.state.best != best:
            self._last_improved = self._count_others()

    def _count_others(self) -> int:
        """Returns the number of ended trials, without the best one."""
        best = None if self.state.best is None else self.state.best.trial
        return sum(
            trial.phase is not TrialPhase.TRAINING
            for name, trial in self.state.trials.items()
            if name != best
        )

    def _write(self, kind: str, **fields: Any) -> None:
        self._journal.write(kind, **fields)
        self._last_record = {"kind": kind, **fields}

    # -- the end ---------------------------------------------------------------------------------------------

    def _check_first_trials(self) -> None:
        """Ends a study early with too many failed trials: by default, if its first trials all failed. If some
        of these diverged, more of them must fail."""
        failed = self.state.count(TrialPhase.FAILED) - self._earlier_failures
        errors, limit = failed - len(self._diverged_trials), self._spec.max_failures
        if limit is not None:
            if errors > limit:
                raise StudyFailed(
                    f"{errors} trials failed, and `max_failures` is {limit}: {self._error_summary()}",
                    hints=self._hints(),
                )
            return
        live = self._spec.max_live_trials
        is_broken = errors >= max(_MIN_FAILED_TRIALS, live) or failed >= max(_MIN_DIVERGED_TRIALS, 3 * live)
        if is_broken and not self.state.has_usable_value():
            raise StudyFailed(
                f"all of the first {failed} trials failed: {self._error_summary()}", hints=self._hints()
            )

    def _finish(self) -> None:
        best, count = self.state.best, self.state.count(TrialPhase.FAILED)
        if best is None or count == len(self.state.trials):
            if not self.state.trials:
                raise StudyFailed("the searcher proposed no trial")
            if not count:
                raise StudyFailed(f"every trial was stopped before it reported `{self._spec.metric}`")
            raise StudyFailed(
                f"{'the only trial' if count == 1 else f'all {count} trials'} failed: "
                f"{self._error_summary()}",
                hints=self._hints(),
            )
        self._journal.write(
            "done",
            best={"trial": best.trial, "step": best.step, "value": best.value, "params": dict(best.params)},
        )
        self._listener.study_updated(self.state)

    def _error_summary(self) -> str:
        """Returns the distinct errors of the trials."""
        trials_by_error: dict[str, list[TrialId]] = {}
        for trial, error in self._errors.items():
            lines = [line for line in error.strip().splitlines() if not line.startswith("hint: ")]
            trials_by_error.setdefault(_RUN_PREFIX.sub("", lines[-1]) if lines else "nothing", []).append(
                trial
            )
        most_frequent = sorted(trials_by_error.items(), key=lambda item: -len(item[1]))[:3]
        return "; ".join(
            f"{error} (trial {trials[0]}{f' and {len(trials) - 1} more' if len(trials) > 1 else ''})"
            for error, trials in most_frequent
        )

    def _hints(self) -> tuple[str, ...]:
        trial = next(iter(self._errors), TrialId("0"))
        details_hint = f"run `hop search show --trial {trial}` for details"
        if self._spec.beginning is None:
            return (
                details_hint,
                "continue it with `hop search resume STUDY --code .` after a fix, and `--trials N` for more",
            )
        return (
            details_hint,
            "a fork resumes from a trained state: keep parameters that change the shape of the model",
        )


def _format_names(metrics: Mapping[str, float]) -> str:
    names = sorted(metrics)
    return (
        ", ".join(f"`{name}`" for name in names[:_MAX_NAMES])
        + (f" and {len(names) - _MAX_NAMES} more" if len(names) > _MAX_NAMES else "")
        or "nothing"
    )


def _format_value(value: float) -> str:
    return "not a number (NaN)" if math.isnan(value) else f"{value}"
