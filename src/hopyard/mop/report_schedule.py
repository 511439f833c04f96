"""When trials are evaluated: after whole epochs, or after some visits within an epoch."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class ReportSchedule:
    """partition_count: the visits of an epoch. unit: the visits of one unit of a budget: 1 for steps,
    otherwise an epoch. every: the units from one report to the next. A trial has a report at its budget, too.
    """

    partition_count: int
    unit: int
    every: int = 1

    @property
    def report_visits(self) -> int:
        """The visits from one report to the next."""
        return self.unit * self.every

    def split(self, units: int) -> tuple[int, int]:
        """Returns the full epochs in these units, and the visits of one more epoch."""
        return divmod(units * self.unit, self.partition_count)

    def epochs(self, units: int) -> int:
        """Returns the epochs in these units; one that is not full counts."""
        return -(-units * self.unit // self.partition_count)

    def units(self, epochs: int, visits: int) -> int:
        """Returns the full units in these epochs and these visits of one more epoch."""
        return (epochs * self.partition_count + visits) // self.unit

    def is_report(self, epochs: int, visits: int, budget: int) -> bool:
        """Returns whether a trial with this budget is evaluated at this position."""
        total_visits = epochs * self.partition_count + visits
        return total_visits % self.report_visits == 0 or total_visits == budget * self.unit

    def next_report(self, units: int, budget: int) -> int:
        """Returns the units at the first report after these."""
        return min((units // self.every + 1) * self.every, budget)
