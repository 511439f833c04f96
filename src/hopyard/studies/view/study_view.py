"""The state of a study, computed from its journal record by record.

The view can be updated as the journal grows. Repeated records and unknown kinds change nothing. Records are
those of design 0003, section 3.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from hopyard.domain.study import BudgetUnit, Goal
from hopyard.domain.trial import TellEvent, TrialOutcome
from hopyard.studies.event_json import event_from_json
from hopyard.studies.journal import JournalRecord
from hopyard.studies.study_state import TrialPhase, phase_after


@dataclass(frozen=True, slots=True)
class ScheduleEntry:
    """A trial was trained with these params after `from_epoch` epochs. copied: the trial that its state was
    copied from then, or None."""

    from_epoch: int
    params: Mapping[str, Any]
    copied: str | None = None


@dataclass(slots=True)
class RungResult:
    """The result of a trial at the end of one of its budgets. is_promoted: it got a larger budget later."""

    budget: int
    value: float | None
    verdict: str
    is_promoted: bool = False


@dataclass(frozen=True, slots=True)
class Improvement:
    """A report that was better than all earlier ones. at: unix seconds. trials, reports: their numbers up to
    it."""

    at: float
    trial: str
    step: int
    value: float
    trials: int
    reports: int


@dataclass(slots=True)
class TrialView:
    """One trial.

    epoch: completed ones. value, best: of the study's metric; points: reported pairs of epoch and value.
    best_params: the params that the epochs up to the best value were trained with. schedule: all params.
    start_from: the trial whose state it started from, if another one. metrics: the last report. where: the
    workers of its last hop. run, run_name: the newest run of a trial that is a separate run (runs: all of
    them); the name is empty until it was submitted. rungs: its results at the ends of its budgets. began_at,
    reported_at: unix seconds of its proposal and of its last report, 0 for none.
    """

    id: str
    params: dict[str, Any] = field(default_factory=dict)
    state: TrialPhase = TrialPhase.TRAINING
    epoch: int = 0
    budget: int = 0
    value: float | None = None
    best: float | None = None
    best_epoch: int = 0
    best_params: dict[str, Any] = field(default_factory=dict)
    schedule: list[ScheduleEntry] = field(default_factory=list)
    points: list[tuple[int, float]] = field(default_factory=list)
    metrics: dict[str, float] = field(default_factory=dict)
    start_from: str | None = None
    where: tuple[str, ...] = ()
    run: str = ""
    runs: list[str] = field(default_factory=list)
    run_name: str = ""
    stop_reason: str = ""
    error: str = ""
    traceback: str = ""
    rungs: list[RungResult] = field(default_factory=list)
    began_at: float = 0.0
    reported_at: float = 0.0

    @property
    def number(self) -> int:
        return int(self.id) if self.id.isdecimal() else 0


@dataclass(frozen=True, slots=True)
class Bar:
    """One unit of work on one worker, from began_at to ended_at (unix seconds). kind: train or evaluate.
    attempt: of the study, from 1."""

    worker: str
    trial: str
    epoch: int
    partition: int
    kind: str
    began_at: float
    ended_at: float
    attempt: int = 1


@dataclass(frozen=True, slots=True)
class WorkerNote:
    """An event of a worker: lost, slow, joined."""

    worker: str
    event: str
    detail: str


@dataclass(slots=True)
class StudyView:
    """The whole study.

    hop_bytes: bytes of hopped states. resumed: how often a driver was restarted. attempts: how often the
    study was launched with new workers, including the runs that it continues. continues: the name of the
    study that this one continues, or "". stop_rule: the rule that has ended the study early, as a text.
    improvements: the best value so far, over time. reports: the number of reported values.
    """

    spec: dict[str, Any] = field(default_factory=dict)
    trials: dict[str, TrialView] = field(default_factory=dict)
    bars: list[Bar] = field(default_factory=list)
    notes: list[WorkerNote] = field(default_factory=list)
    asked: int = 0
    hops: int = 0
    hop_bytes: int = 0
    resumed: int = 0
    attempts: int = 0
    continues: str = ""
    stop_rule: str = ""
    done: bool = False
    improvements: list[Improvement] = field(default_factory=list)
    reports: int = 0
    _hops_seen: set[Any] = field(default_factory=set)
    _attempt: object = None

    @classmethod
    def from_records(cls, records: Iterable[JournalRecord]) -> StudyView:
        view = cls()
        for record in records:
            view.apply(record)
        return view

    @property
    def goal(self) -> Goal:
        return Goal(self.spec.get("goal", "max"))

    @property
    def metric(self) -> str:
        return str(self.spec.get("metric", ""))

    @property
    def unit(self) -> str:
        """The unit of budgets and reports: `epoch` or `step`."""
        return BudgetUnit(self.spec.get("budget_unit", BudgetUnit.EPOCHS)).singular

    def epochs(self, budget: int) -> int:
        """Returns the epochs in a budget of hopping trials; one that is not full counts."""
        if self.unit == BudgetUnit.EPOCHS.singular or not self.spec.get("mop"):
            return budget
        return -(-budget // int(self.spec["mop"]["partitions"]["parts"]))

    def apply(self, record: JournalRecord) -> None:
        """Applies one record."""
        match record.get("kind"):
            case "study":
                self.resumed += bool(self.spec)
                self.spec = dict(record["spec"])
                self.attempts += record.get("attempt") != self._attempt
                self._attempt = record.get("attempt")
            case "asked":
                self._apply_asked(record["answer"], float(record.get("t") or 0.0))
            case "told":
                self._apply_told(record)
            case "run":
                trial = self._trial(record["trial"])
                trial.run, trial.run_name = str(record["run"]), ""
                if trial.run not in trial.runs:
                    trial.runs.append(trial.run)
            case "submitted":
                self._apply_submitted(self._trial(record["trial"]), record)
            case "hop":
                self._apply_hop(record)
            case "evaluated":
                self._add_bar(record, "evaluate", [(record.get("partition", 0), record.get("worker", ""))])
            case "failed":
                trial = self._trial(record["trial"])
                trial.state, trial.error = TrialPhase.FAILED, str(record.get("error", ""))
                trial.traceback = str(record.get("traceback", ""))
            case "worker":
                self.notes.append(
                    WorkerNote(str(record["worker"]), str(record["event"]), str(record.get("detail", "")))
                )
            case "continued":
                self.continues, self.done, self.stop_rule = str(record["name"]), False, ""
            case "note":
                self.stop_rule = str(record.get("stop_rule") or self.stop_rule)
            case "done":
                self.done = True
                self.mark_ended()

    def ranked(self) -> list[TrialView]:
        """Returns all trials, the best first; trials without a value come last, by number."""
        sign = -1.0 if self.goal is Goal.MAX else 1.0
        return sorted(
            self.trials.values(),
            key=lambda t: (t.best is None, 0.0 if t.best is None else sign * t.best, t.number),
        )

    def best(self) -> TrialView | None:
        return next((trial for trial in self.ranked() if trial.best is not None), None)

    def lineage(self, trial: TrialView) -> list[str]:
        """Returns the trials from which its state was copied, directly and indirectly, the nearest first."""
        ancestors: list[str] = []
        ancestor = trial.start_from
        while ancestor is not None and ancestor not in ancestors and ancestor != trial.id:
            ancestors.append(ancestor)
            ancestor = self.trials[ancestor].start_from if ancestor in self.trials else None
        return ancestors

    def schedule(self, trial: TrialView) -> list[tuple[str, ScheduleEntry]]:
        """Returns the params that the state of a trial was trained with, by epoch: each with the trial that
        trained with them. The epochs before a copy are those of the copied trial."""
        entries: list[tuple[str, ScheduleEntry]] = []
        current, remaining = trial, list(trial.schedule)
        while remaining:  # backwards, because two trials may have copied each other
            entry = remaining.pop()
            entries.append((current.id, entry))
            donor = self.trials.get(entry.copied) if entry.copied is not None else None
            if donor is not None:
                current = donor
                remaining = [each for each in donor.schedule if each.from_epoch < entry.from_epoch]
        return entries[::-1]

    def counts(self) -> dict[TrialPhase, int]:
        """Returns the number of trials per state."""
        counts = dict.fromkeys(TrialPhase, 0)
        for trial in self.trials.values():
            counts[trial.state] += 1
        return counts

    def mark_ended(self) -> None:
        """The study's run has ended: trials in training and paused trials will never resume."""
        for trial in self.trials.values():
            if trial.state in (TrialPhase.PAUSED, TrialPhase.TRAINING):
                trial.state = TrialPhase.STOPPED

    def _trial(self, trial: Any) -> TrialView:
        name = str(trial)
        if name not in self.trials:
            self.trials[name] = TrialView(name)
        return self.trials[name]

    @staticmethod
    def _apply_submitted(trial: TrialView, record: JournalRecord) -> None:
        if str(record["run"]) == trial.run:
            trial.run_name = str(record["name"])

    def _apply_asked(self, answer: Any, at: float) -> None:
        if not isinstance(answer, Mapping):  # the searcher had no proposal
            return
        self.asked += 1
        trial = self._trial(answer["trial"])
        trial.began_at = trial.began_at or at
        if trial.rungs and trial.rungs[-1].budget < int(answer["budget"]):
            trial.rungs[-1].is_promoted = True
        trial.params, trial.budget, trial.state = (
            dict(answer["params"]),
            int(answer["budget"]),
            TrialPhase.TRAINING,
        )
        trial.epoch = max(trial.epoch, int((self.spec.get("beginning") or {}).get("epoch", 0)))
        origin = answer.get("start_from")
        copied = None if origin is None or str(origin) == trial.id else str(origin)
        if copied is not None:
            trial.start_from = copied
        if copied is not None or not trial.schedule or trial.schedule[-1].params != trial.params:
            trial.schedule.append(ScheduleEntry(trial.epoch, dict(trial.params), copied))

    def _apply_told(self, record: JournalRecord) -> None:
        report = record["report"]
        trial = self._trial(report["trial"])
        value, step = report.get("value"), int(report["step"])
        trial.metrics |= dict(record.get("metrics") or {})
        if value is not None and math.isfinite(value) and (not trial.points or trial.points[-1][0] < step):
            trial.points.append((step, value))
            trial.value = value
            self.reports += 1
            self._apply_improvement(trial, step, value, float(record.get("t") or 0.0))
            better = trial.best is None or (
                value > trial.best if self.goal is Goal.MAX else value < trial.best
            )
            if better:
                trial.best, trial.best_epoch, trial.best_params = value, step, dict(trial.params)
        trial.epoch = max(trial.epoch, step)
        trial.reported_at = float(record.get("t") or 0.0) or trial.reported_at
        self._apply_rung(trial, step, value, record)
        trial.stop_reason = str(record.get("reason") or trial.stop_reason)
        event = event_from_json(record)
        if isinstance(event, TellEvent) and trial.state is not TrialPhase.COMPLETED:
            trial.state = phase_after(trial.budget, event) or trial.state

    @staticmethod
    def _apply_rung(trial: TrialView, step: int, value: float | None, record: JournalRecord) -> None:
        """Adds the result at the trial's budget. A repeated report changes nothing."""
        if record["report"].get("outcome") != TrialOutcome.RUNNING or not trial.budget <= step:
            return
        if not trial.rungs or trial.rungs[-1].budget < trial.budget:
            trial.rungs.append(RungResult(trial.budget, value, str(record["verdict"])))

    def _apply_improvement(self, trial: TrialView, step: int, value: float, at: float) -> None:
        best = self.improvements[-1].value if self.improvements else None
        if best is None or (value > best if self.goal is Goal.MAX else value < best):
            self.improvements.append(Improvement(at, trial.id, step, value, len(self.trials), self.reports))

    def _apply_hop(self, record: JournalRecord) -> None:
        if record["n"] in self._hops_seen:
            return
        self._hops_seen.add(record["n"])
        workers = [str(worker) for worker in record["workers"]]
        self.hops += 1
        self.hop_bytes += int(record.get("bytes") or 0)
        self._trial(record["trial"]).where = tuple(workers)
        self._add_bar(record, "train", list(zip(record["partitions"], workers, strict=False)))

    def _add_bar(self, record: JournalRecord, kind: str, places: list[tuple[int, str]]) -> None:
        for partition, worker in places:
            self.bars.append(
                Bar(
                    str(worker), str(record["trial"]), int(record["epoch"]), int(partition), kind,
                    float(record["began_at"]), float(record["ended_at"]), max(self.attempts, 1),
                )
            )  # fmt: skip
