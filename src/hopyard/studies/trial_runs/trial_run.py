"""The run of one trial up to one budget, as its study sees it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, TypedDict

from hopyard.domain.ids import RunId, TrialId
from hopyard.domain.run import RunPhase
from hopyard.studies.trainer import BudgetReached, EpochReported, TrainerEvent, TrialFailed
from hopyard.studies.trial_runs.epoch_reports import EpochCounter, MetricReport, MetricStreamParser

if TYPE_CHECKING:
    from hopyard.api_client import types as api

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

    reports_at_end: its budget is not counted in epochs, so its last value is reported when it has ended.
    last_epoch: the script's epoch at which the trial has reached its budget. epoch_shift: from the script's
    epochs to the trial's, which differ if it resumed from another trial's checkpoint.
    """

    run: RunId
    trial: TrialId
    budget: int
    metric: str
    last_epoch: int
    epoch_shift: int = 0
    reports_at_end: bool = False
    name: str = ""
    phase: RunPhase | None = None
    exit_reason: str = ""
    end_requested: bool = False  # it was requested to end, and its reports are ignored
    over_budget: bool = False  # it continues beyond its budget
    stop_requested: bool = False  # it was requested to stop at its next safe point because of that
    is_finished: bool = False  # it has ended, and all its output was read
    reported_epoch: int = 0  # the largest epoch of the trial that was reported
    cursors: dict[StreamId, int] = field(default_factory=dict)
    _parsers: dict[StreamId, MetricStreamParser] = field(default_factory=dict)
    _epoch_counters: dict[str, EpochCounter] = field(default_factory=dict)  # by attempt
    # by the script's step, if steps are not epochs
    _epoch_by_step: dict[int, int] = field(default_factory=dict)
    _metric_source: tuple[int, str] | None = None  # the rank and stream that report the metric
    _latest_metrics: Mapping[str, float] | None = None

    def update(self, status: TrialStatus) -> None:
        """Applies the server's record of the run."""
        self.name, self.phase = str(status["name"]), RunPhase(status["phase"])
        exit = status["exit"]
        self.exit_reason = str(exit["reason"]) if exit else ""
        attempt = status["attempt"]
        if attempt is not None and attempt not in self._epoch_counters:
            self._epoch_counters[attempt] = EpochCounter(
                self._epochs_at_step(status["resumed_from_step"]), self.last_epoch
            )

    def add_data(self, stream: StreamId, offset: int, data: bytes) -> list[TrainerEvent]:
        """Adds data of one of its metric streams; returns the resulting events."""
        cursor = self.cursors.get(stream, 0)
        if offset > cursor or offset + len(data) <= cursor:
            return []
        data = data[cursor - offset :]
        self.cursors[stream] = cursor + len(data)
        reports = self._parsers.setdefault(stream, MetricStreamParser(self.metric)).parse(data)
        attempt, rank, name = stream
        if reports and self._metric_source is None:
            self._metric_source = rank, name
        if self._metric_source != (rank, name):
            return []
        return [event for report in reports for event in self._report(attempt, report)]

    def finish(self) -> list[TrainerEvent]:
        """Called when the run has ended and all its metrics were read."""
        self.is_finished = True
        if self.end_requested:
            return []
        if self.phase is RunPhase.FAILED:
            return [TrialFailed(self.trial, f"run {self.name}: {self.exit_reason or 'it failed'}")]
        if self.phase is RunPhase.CANCELLED and not self._has_reached_budget:
            return [
                TrialFailed(self.trial, f"run {self.name} was stopped: {self.exit_reason or 'by request'}")
            ]
        if self._latest_metrics is None and not self.reported_epoch:
            return [
                TrialFailed(
                    self.trial,
                    f"run {self.name} ended, and never reported `{self.metric}`; it reported "
                    f"{self._format_metric_names()}",
                )
            ]
        events: list[TrainerEvent] = []
        # it reports only some epochs, or ended earlier
        if not self._has_reached_budget and self._latest_metrics is not None:
            events.append(EpochReported(self.trial, self.budget, self._latest_metrics))
        return [*events, BudgetReached(self.trial, self.budget)]

    @property
    def _has_reached_budget(self) -> bool:
        return self.reported_epoch >= self.budget

    def _report(self, attempt: str, report: MetricReport) -> list[TrainerEvent]:
        self._latest_metrics = report.metrics
        if self.reports_at_end:
            return []
        script_epoch = self._epoch_counters.setdefault(attempt, EpochCounter(0, self.last_epoch)).epoch_of(
            report.step
        )
        if report.step is not None and report.step > self.last_epoch:
            self._epoch_by_step[report.step] = script_epoch
        epoch = script_epoch + self.epoch_shift
        if epoch > self.budget:
            self.over_budget = True
        if epoch <= self.reported_epoch or epoch > self.budget or epoch < 1:
            return []
        self.reported_epoch = epoch
        return [EpochReported(self.trial, epoch, report.metrics)]

    def _epochs_at_step(self, step: int | None) -> int:
        """Returns the script's completed epochs at a checkpoint. A step beyond the last epoch counts batches;
        then the epochs reported up to that step were completed."""
        if step is None:
            return 0
        if step <= self.last_epoch:
            return step
        start_epoch = (
            next(iter(self._epoch_counters.values())).start_epoch
            if self._epoch_counters
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
            else "no metric at all (`hop.log(…)`, or TensorBoard)"
        )
