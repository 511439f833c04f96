"""Determines the epoch (or the step of a budget in steps) that a report of a trial completes. Pure.

The unit of reports, in this order:

1. A budget in steps: the step of a report is its unit.
2. `steps_per_epoch` is set: a step is converted to epochs.
3. The first step is the number of an epoch: within the completed epochs if the script counts from 0, one more
   if it counts from 1. A script that resumes from its own files counts as in its first run.
4. Other steps and reports without a step are held. The position of the script's `hop.loop` over the epochs
   releases the last report before each end of an epoch. Without such a loop, no report counts before the run
   ends.
5. Reports of a script that takes no budget are counted: one report, one epoch. There is no other unit.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from hopyard.studies.trial_runs.metric_reports import MetricReport
from hopyard.studies.trial_runs.run_events import LoopProgressEvent


@dataclass(frozen=True, slots=True)
class UnitSettings:
    """last: the last unit that the script must do. counts_steps: the budget is in steps. steps_per_epoch: 0
    if it is unknown. steps_are_epochs: False if the steps of another trial exceeded the last epoch. offset:
    from steps to epochs, as an earlier run of the script has shown: 1 if it counts from 0."""

    last: int
    counts_steps: bool = False
    steps_per_epoch: int = 0
    steps_are_epochs: bool = True
    offset: int | None = None


@dataclass(slots=True)
class ReportUnit:
    """The unit of the reports of one attempt. start: completed units at its start."""

    start: int
    settings: UnitSettings
    _count: int = 0
    _offset: int | None = None  # from steps to epochs, if steps are epochs
    shown_offset: int | None = None  # as in `UnitSettings`, if this attempt has begun without a checkpoint
    _is_other_unit: bool | None = None  # whether steps are no epochs; None before the first report
    _held: list[MetricReport] = field(default_factory=list)
    _positions: list[LoopProgressEvent] = field(default_factory=list)

    @property
    def is_held(self) -> bool:
        """Whether reports wait for the end of the run or for the position of a loop."""
        return bool(self._held)

    def add(self, report: MetricReport, *, takes_budget: bool | None) -> list[tuple[int, MetricReport]]:
        """Returns the reports that are certain now, with their units, which may exceed the last one.

        takes_budget: whether the script takes the parameter of the budget; None if it is unknown.
        """
        settings = self.settings
        if self._is_other_unit is None:
            self._determine_unit(report.step)
        if not self._is_other_unit and report.step is not None:
            if settings.counts_steps:
                return [(report.step, report)]
            if settings.steps_per_epoch:
                return [((report.step + 1) // settings.steps_per_epoch, report)]
            return [(report.step + (self._offset or 0), report)]
        self._held.append(report)
        return self.release(takes_budget=takes_budget)

    def release(self, *, takes_budget: bool | None) -> list[tuple[int, MetricReport]]:
        """Returns the held reports that have a certain unit now."""
        if not self._held:
            return []
        if takes_budget is False and not self.settings.counts_steps:
            released = [
                (self.start + self._count + number, report) for number, report in enumerate(self._held, 1)
            ]
            self._count += len(self._held)
            self._held = []
            return released
        return self._release_before_positions()

    def add_positions(self, positions: Sequence[LoopProgressEvent]) -> None:
        """Adds the positions of the outermost loop. A loop of another length does not count epochs."""
        self._positions += [
            position for position in positions if position.total == self.settings.last and position.done
        ]

    def _determine_unit(self, step: int | None) -> None:
        settings = self.settings
        if step is None:
            self._is_other_unit = True
        elif settings.counts_steps or settings.steps_per_epoch:
            self._is_other_unit = False
        else:
            self._offset = settings.offset
            if self._offset is None:
                self._offset = 1 if step <= self.start else 0
            self._is_other_unit = not settings.steps_are_epochs or step + self._offset > settings.last
            if self.start == 0 and step <= 1 and not self._is_other_unit:
                self.shown_offset = 1 - step

    def _release_before_positions(self) -> list[tuple[int, MetricReport]]:
        """A later report shows that all reports before the position have arrived."""
        released = []
        while self._positions and self._positions[0].time < self._held[-1].time:
            position = self._positions.pop(0)
            earlier = [report for report in self._held if report.time <= position.time]
            if earlier:
                released.append((position.done, earlier[-1]))
                self._held = self._held[len(earlier) :]
        return released
