"""Schemas of the state of a study. Texts and numbers come from its journal, so they are bounded here."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Literal

from msgspec import UNSET, Struct, UnsetType

from hopyard.domain.run import RunPhase
from hopyard.domain.study import Goal
from hopyard.studies.study_state import TrialPhase
from hopyard.studies.view.study_view import Bar, ScheduleEntry, StudyView, TrialView

MAX_POINTS = 10_000  # of the curve of a trial
_MAX_TEXT = 1024
_MAX_ERROR = 64 * 1024
_MAX_INTEGER = 2**53
_MAX_LINEAGE = 100

Value = str | int | float | bool | None
RungOutcome = Literal["promoted", "paused", "stopped", "completed", "failed"]


class ImportanceOut(Struct, frozen=True):
    """share: 0 to 1, of all parameters together 1."""

    param: str
    share: float


class ImprovementOut(Struct, frozen=True):
    """A report that was better than all earlier ones. at: unix seconds. trials, reports: their numbers in the
    study up to it."""

    at: float
    trial: str
    step: int
    value: float
    trials: int
    reports: int


class BestTrialOut(Struct, frozen=True):
    """step: the epoch (or step) of its best value. params: those that it was trained with up to then."""

    trial: str
    value: float
    step: int
    params: Mapping[str, Value]


class WorkerEventOut(Struct, frozen=True):
    """event: `joined`, `lost` or `slow`."""

    worker: str
    event: str
    detail: str


class StudyOut(Struct, frozen=True, kw_only=True):
    """The state of a study. `trials` and `units` are listed by addresses of their own.

    unit: of budgets and steps, `epoch` or `step`. trial_limit: the maximum number of trials; null if the
    searcher decides. counts: trials by state. importance: empty while the results are too few; uncertain: the
    order may be chance. stop_rule: the rule that has ended it early. continues: the study that this one
    continues. records: of the journal; an equal number means that nothing has changed. skipped: records that
    this server cannot read. hops, hop_bytes: of states between workers. resumed: restarts of the driver.
    improvements: the newest 1000. workers: the newest 100 events of workers.
    """

    id: str
    name: str
    phase: RunPhase
    metric: str
    goal: Goal
    unit: str
    parallel: str
    searcher: str
    trial_limit: int | None
    max_budget: int
    done: bool
    counts: Mapping[TrialPhase, int]
    best: BestTrialOut | None
    importance: Sequence[ImportanceOut]
    importance_uncertain: bool
    improvements: Sequence[ImprovementOut]
    stop_rule: str | None
    continues: str | None
    units: int
    hops: int
    hop_bytes: int
    resumed: int
    records: int
    skipped: int
    workers: Sequence[WorkerEventOut]


class RungOut(Struct, frozen=True):
    """The result of a trial at the end of one of its budgets. outcome: `promoted` (it got a larger budget),
    `paused` (it may still be promoted), `stopped`, `completed` or `failed`."""

    budget: int
    value: float | None
    outcome: RungOutcome


class ScheduleEntryOut(Struct, frozen=True):
    """The state of a trial was trained with these params from an epoch on, by `trial`. copied: the trial that
    the state was copied from then."""

    from_epoch: int
    trial: str
    params: Mapping[str, Value]
    copied: str | None


class TrialOut(Struct, frozen=True, kw_only=True):
    """A trial. epoch, budget: completed and requested units of the budget. value: the newest one of the
    metric. best_params: those of the best value, if they differ from `params`. rungs: results at the ends of
    its budgets. began_at, reported_at: unix seconds. run, run_name: of a trial that is a run of its own.
    start_from: its state is a copy of that trial's. workers: of its last hop.

    metrics, steps, values, lineage, schedule, traceback: only for a single trial. steps, values: its curve,
    thinned out beyond 10,000 points. lineage: the trials that its state was copied from, the nearest first.
    """

    trial: str
    state: TrialPhase
    params: Mapping[str, Value]
    epoch: int
    budget: int
    value: float | None
    best: float | None
    best_epoch: int
    best_params: Mapping[str, Value] | None
    rungs: Sequence[RungOut]
    began_at: float | None
    reported_at: float | None
    run: str | None
    run_name: str | None
    start_from: str | None
    workers: Sequence[str]
    stop_reason: str | None
    error: str | None
    metrics: Mapping[str, Value] | UnsetType = UNSET
    steps: Sequence[int] | UnsetType = UNSET
    values: Sequence[float] | UnsetType = UNSET
    lineage: Sequence[str] | UnsetType = UNSET
    schedule: Sequence[ScheduleEntryOut] | UnsetType = UNSET
    traceback: str | UnsetType | None = UNSET


class TrialsOut(Struct, frozen=True):
    """records: for `since` of a later request. next: `after` of the next page; null at the end."""

    trials: Sequence[TrialOut]
    records: int
    next: int | None


class UnitOut(Struct, frozen=True):
    """A unit of work on a worker: training or evaluation of a trial on a partition. epoch, partition: from 0.
    began_at, ended_at: unix seconds. attempt: of the study, from 1."""

    worker: str
    trial: str
    epoch: int
    partition: int
    kind: Literal["train", "evaluate"]
    began_at: float
    ended_at: float
    attempt: int


class UnitsOut(Struct, frozen=True):
    """total: the number of units of the study. next: `after` of the next page; null at the end."""

    units: Sequence[UnitOut]
    total: int
    next: int | None


def text_out(value: object, limit: int = _MAX_TEXT) -> str:
    """Returns a text that JSON can hold, truncated."""
    return str(value)[:limit].encode("utf-8", "replace").decode()


def integer_out(value: int) -> int:
    return max(-_MAX_INTEGER, min(_MAX_INTEGER, value))


def values_out(values: Mapping[str, Any]) -> dict[str, Value]:
    """Returns single values as they are, and all others as texts."""
    return {text_out(name): _value_out(value) for name, value in values.items()}


def _value_out(value: Any) -> Value:
    if isinstance(value, bool | float | None):
        return value
    if isinstance(value, int):
        return value if abs(value) <= _MAX_INTEGER else float(integer_out(value))
    return text_out(value)


def to_best_out(view: StudyView) -> BestTrialOut | None:
    best = view.best()
    if best is None or best.best is None:
        return None
    return BestTrialOut(
        text_out(best.id), best.best, integer_out(best.best_epoch), values_out(best.best_params)
    )


def to_trial_out(trial: TrialView, **fields: Any) -> TrialOut:
    return TrialOut(
        trial=text_out(trial.id),
        state=trial.state,
        params=values_out(trial.params),
        epoch=integer_out(trial.epoch),
        budget=integer_out(trial.budget),
        value=trial.value,
        best=trial.best,
        best_epoch=integer_out(trial.best_epoch),
        best_params=(
            values_out(trial.best_params) if trial.best_params and trial.best_params != trial.params else None
        ),
        rungs=[
            RungOut(integer_out(rung.budget), rung.value, _outcome(trial, index))
            for index, rung in enumerate(trial.rungs)
        ],
        began_at=trial.began_at or None,
        reported_at=trial.reported_at or None,
        run=text_out(trial.run) if trial.run else None,
        run_name=text_out(trial.run_name) if trial.run_name else None,
        start_from=None if trial.start_from is None else text_out(trial.start_from),
        workers=[text_out(worker) for worker in trial.where],
        stop_reason=text_out(trial.stop_reason) if trial.stop_reason else None,
        error=text_out(trial.error) if trial.error else None,
        **fields,
    )


def _outcome(trial: TrialView, index: int) -> RungOutcome:
    rung = trial.rungs[index]
    if rung.is_promoted:
        return "promoted"
    if rung.value is None or trial.state is TrialPhase.FAILED:
        return "failed"
    if rung.verdict == "continue":
        return "completed"
    return "paused" if rung.verdict == "pause" and trial.state is TrialPhase.PAUSED else "stopped"


def to_full_trial_out(view: StudyView, trial: TrialView) -> TrialOut:
    """Returns a trial with its curve, its schedule and its error."""
    stride = max(1, -(-len(trial.points) // MAX_POINTS))
    points = trial.points[::-1][::stride][::-1]  # with the newest point
    return to_trial_out(
        trial,
        metrics=values_out(trial.metrics),
        steps=[integer_out(step) for step, _ in points],
        values=[value for _, value in points],
        lineage=[text_out(each) for each in view.lineage(trial)[:_MAX_LINEAGE]],
        schedule=[_schedule_out(name, entry) for name, entry in view.schedule(trial)[-_MAX_LINEAGE:]],
        traceback=text_out(trial.traceback, _MAX_ERROR) if trial.traceback else None,
    )


def _schedule_out(trial: str, entry: ScheduleEntry) -> ScheduleEntryOut:
    copied = None if entry.copied is None else text_out(entry.copied)
    return ScheduleEntryOut(integer_out(entry.from_epoch), text_out(trial), values_out(entry.params), copied)


def to_unit_out(bar: Bar) -> UnitOut:
    return UnitOut(
        text_out(bar.worker),
        text_out(bar.trial),
        integer_out(bar.epoch),
        integer_out(bar.partition),
        "evaluate" if bar.kind == "evaluate" else "train",
        bar.began_at,
        bar.ended_at,
        bar.attempt,
    )
