"""The run of one trial up to one budget, as its study sees it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, TypedDict

from hopyard.domain.ids import RunId, TrialId
from hopyard.domain.run import RunPhase
from hopyard.domain.study import DEFAULT_BUDGET_PARAM
from hopyard.studies.trainer import BudgetReached, EpochReported, TrainerEvent, TrialFailed, TrialStopped
from hopyard.studies.trial_runs.metric_reports import MetricReport, MetricStreamParser
from hopyard.studies.trial_runs.report_unit import ReportUnit, UnitSettings
from hopyard.studies.trial_runs.run_events import RunEvents

if TYPE_CHECKING:
    from hopyard.api_client import types as api

EVENTS_STREAM = "events"
_MAX_NAMES = 12
StreamId = tuple[str, int, str]  # attempt, rank, stream


class TrialStatus(TypedDict):
    """The state of a trial's run, as the server sends it. attempt: the id of the newest attempt."""

    id: str
    name: str
    phase: api.RunPhase
    exit: api.Exit | None
    attempt: str | None
    resumed_from_step: int | None


@dataclass(slots=True)
class TrialRun:
    """The run of a trial.

    unit: of its reports. epoch_shift: from the script's epochs to the trial's, which differ if it resumed
    from another trial's checkpoint. reports_at_end: its budget is not counted in epochs, so its last value is
    reported when it has ended. budget_in_command: the script takes its budget from its command.
    """

    run: RunId
    trial: TrialId
    budget: int
    metric: str
    unit: UnitSettings
    epoch_shift: int = 0
    budget_param: str = DEFAULT_BUDGET_PARAM
    reports_at_end: bool = False
    budget_in_command: bool = False
    name: str = ""
    phase: RunPhase | None = None
    exit_kind: str = ""
    exit_reason: str = ""
    end_requested: bool = False  # it was requested to end, and its reports are ignored
    stop_requested: bool = False  # it was requested to stop at its next safe point, beyond its budget
    is_finished: bool = False  # it has ended, and all its output was read
    reported_epoch: int = 0  # the largest epoch of the trial that was reported
    cursors: dict[StreamId, int] = field(default_factory=dict)
    _parsers: dict[StreamId, MetricStreamParser] = field(default_factory=dict)
    _events: dict[str, RunEvents] = field(default_factory=dict)  # by attempt
    _report_units: dict[str, ReportUnit] = field(default_factory=dict)  # by attempt
    # by the script's step, if steps are not epochs
    _epoch_by_step: dict[int, int] = field(default_factory=dict)
    _metric_source: tuple[int, str] | None = None  # the rank and stream that report the metric
    _report_count: int = 0
    _latest_metrics: Mapping[str, float] | None = None
    _budget_metrics: Mapping[str, float] | None = None  # of the report that reached the budget
    _exceeds_budget: bool = False  # a report is of an epoch beyond the budget

    def update(self, status: TrialStatus) -> None:
        """Applies the server's record of the run."""
        self.name, self.phase = str(status["name"]), RunPhase(status["phase"])
        exit = status["exit"]
        self.exit_reason = str(exit["reason"]) if exit else ""
        self.exit_kind = str(exit.get("kind", "")) if exit else ""
        attempt = status["attempt"]
        if attempt is not None and attempt not in self._report_units:
            self._report_units[attempt] = ReportUnit(
                self._epochs_at_step(status["resumed_from_step"]), self._known_unit
            )

    def add_data(self, stream: StreamId, offset: int, data: bytes) -> list[TrainerEvent]:
        """Adds data of one of its streams; returns the resulting events."""
        cursor = self.cursors.get(stream, 0)
        if offset > cursor or offset + len(data) <= cursor:
            return []
        data = data[cursor - offset :]
        self.cursors[stream] = cursor + len(data)
        attempt, rank, name = stream
        if name == EVENTS_STREAM:
            return self._add_events(attempt, data) if rank == 0 else []
        reports = self._parsers.setdefault(stream, MetricStreamParser(self.metric)).parse(data)
        if reports and self._metric_source is None:
            self._metric_source = rank, name
        if self._metric_source != (rank, name):
            return []
        return [event for report in reports for event in self._add_report(attempt, report)]

    def finish(self) -> list[TrainerEvent]:
        """Called when the run has ended and all its output was read."""
        self.is_finished = True
        if self.end_requested:
            return []
        reached: list[TrainerEvent] = []
        at_budget = None if self.steps_exceed_budget else self._budget_metrics
        if at_budget is not None and not self._has_reported_budget:
            reached.append(self._report(self.budget, at_budget))
        if self.phase is RunPhase.FAILED:
            return [
                *reached,
                TrialFailed(self.trial, f"run {self.name}: {self.exit_reason or 'it failed'}"),
            ]
        if self.phase is RunPhase.CANCELLED and not self._has_reported_budget:
            metrics = {} if self.reported_epoch else self._latest_metrics or {}
            reason = f"run {self.name} was stopped: {self.exit_reason or 'by request'}"
            return [TrialStopped(self.trial, reason, metrics)]
        if self._latest_metrics is None and not self.reported_epoch:
            return [
                TrialFailed(
                    self.trial,
                    f"run {self.name} ended, and never reported `{self.metric}`; it reported "
                    f"{self._format_metric_names()}",
                )
            ]
        # it reports only some epochs, or in another unit, or ended earlier
        if not self._has_reported_budget and self._latest_metrics is not None:
            reached.append(EpochReported(self.trial, self.budget, self._latest_metrics))
        return [*reached, BudgetReached(self.trial, self.budget)]

    @property
    def declared(self) -> set[str] | None:
        """The names of the parameters that the script takes; None while it has taken none."""
        known = [events.declared for events in self._events.values() if events.declared is not None]
        return set().union(*known) if known else None

    @property
    def unread(self) -> set[str]:
        """The names of the parameters that no process of the run has read."""
        return set().union(*(events.unread for events in self._events.values()))

    @property
    def takes_budget(self) -> bool | None:
        """Whether the script takes the parameter of its budget; None if it is unknown."""
        if self.budget_in_command:
            return True
        declared = self.declared
        return None if declared is None else self.budget_param in declared

    @property
    def over_budget(self) -> bool:
        """Whether it continues beyond its budget. A script that takes its budget ends by itself."""
        return self._exceeds_budget and self.takes_budget is False

    @property
    def steps_exceed_budget(self) -> bool:
        """Whether the steps of its reports are no epochs, although the first ones could be."""
        return self._exceeds_budget and self.takes_budget is not False

    @property
    def has_uncounted_reports(self) -> bool:
        """Whether several reports were made, and none counted before the end of the run."""
        return not self.reports_at_end and not self.reported_epoch and self._report_count > 1

    @property
    def has_reached_budget(self) -> bool:
        """Whether the report of the last epoch was made."""
        return self._has_reported_budget or (
            self._budget_metrics is not None and not self.steps_exceed_budget
        )

    @property
    def has_reported(self) -> bool:
        return self._report_count > 0

    @property
    def _has_reported_budget(self) -> bool:
        return self.reported_epoch >= self.budget

    def _add_events(self, attempt: str, data: bytes) -> list[TrainerEvent]:
        events = self._events.setdefault(attempt, RunEvents())
        events.parse(data)
        unit = self._unit_of(attempt)
        unit.add_positions(events.take_positions())
        if self.reports_at_end:
            return []
        reported = self._count_reports(unit.release(takes_budget=self.takes_budget))
        # the script was found to take no budget
        if self.takes_budget is False and self._budget_metrics is not None and not self._has_reported_budget:
            reported.append(self._report(self.budget, self._budget_metrics))
        return reported

    def _add_report(self, attempt: str, report: MetricReport) -> list[TrainerEvent]:
        self._latest_metrics = report.metrics
        self._report_count += 1
        if self.reports_at_end:
            return []
        return self._count_reports(self._unit_of(attempt).add(report, takes_budget=self.takes_budget))

    def _count_reports(self, reports: Sequence[tuple[int, MetricReport]]) -> list[TrainerEvent]:
        """Returns the events of reports with their epochs. The report of the last epoch of a script that
        takes its budget counts at the end of its run, when it is certain."""
        events: list[TrainerEvent] = []
        for script_epoch, report in reports:
            if report.step is not None and report.step > self.unit.last:
                self._epoch_by_step[report.step] = script_epoch
            epoch = script_epoch + self.epoch_shift
            self._exceeds_budget |= epoch > self.budget
            if epoch >= self.budget and self._budget_metrics is None:
                self._budget_metrics = report.metrics
            if epoch == self.budget and self.takes_budget is not False:
                continue
            if self.reported_epoch < epoch <= self.budget and epoch >= 1:
                events.append(self._report(epoch, report.metrics))
        return events

    def _report(self, epoch: int, metrics: Mapping[str, float]) -> EpochReported:
        self.reported_epoch = epoch
        return EpochReported(self.trial, epoch, metrics)

    def _unit_of(self, attempt: str) -> ReportUnit:
        return self._report_units.setdefault(attempt, ReportUnit(0, self._known_unit))

    @property
    def step_offset(self) -> int | None:
        """From steps to epochs, if an attempt without a checkpoint has shown it."""
        units = self._report_units.values()
        return next((unit.shown_offset for unit in units if unit.shown_offset is not None), self.unit.offset)

    @property
    def _known_unit(self) -> UnitSettings:
        return replace(self.unit, offset=self.step_offset)

    def _epochs_at_step(self, step: int | None) -> int:
        """Returns the script's completed epochs at a checkpoint. A step beyond the last epoch counts batches;
        then the epochs reported up to that step were completed."""
        if step is None:
            return 0
        if step <= self.unit.last:
            return step
        start_epoch = (
            next(iter(self._report_units.values())).start
            if self._report_units
            else max(0, self.reported_epoch - self.epoch_shift)
        )
        return max(
            (epochs for reported_step, epochs in self._epoch_by_step.items() if reported_step <= step),
            default=start_epoch,
        )

    def _format_metric_names(self) -> str:
        names = sorted({name for parser in self._parsers.values() for name in parser.names})
        rest_text = f" and {len(names) - _MAX_NAMES} more" if len(names) > _MAX_NAMES else ""
        return (
            (", ".join(f"`{name}`" for name in names[:_MAX_NAMES]) + rest_text)
            if names
            else "no metric at all (`hop.log(…)`, TensorBoard, or printed lines with `--metric-line`)"
        )
