"""The workloads of Pollux: `name,time,application,num_replicas,batch_size`. The duration of a run follows
from measurements of its application, in the folder `applications` beside the folder of the workload.

Qiao et al., Pollux: Co-adaptive Cluster Scheduling for Goodput-Optimized Deep Learning, OSDI'21.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from functools import cache
from math import ceil
from pathlib import Path

from hopyard.domain.resources import Resources
from hopyard.domain.run import MAX_REPLICAS
from hopyard.errors import SpecError
from hopyard.simulator.traces.run_spec import CPU_PER_GPU, trace_run_spec
from hopyard.simulator.traces.table import InvalidRow, TraceRow, raise_first_problem, read_table
from hopyard.simulator.workload import Workload, WorkloadRun, sorted_workload

COLUMNS = ("name", "time", "application", "num_replicas", "batch_size")
Times = Sequence[tuple[int, float]]  # seconds of a step by the batch size of one replica, sorted


def read_trace(file: Path, *, replica_gpus: int) -> Workload:  # noqa: ARG001
    """Each replica has one GPU; a rigid run of the batch size and replicas that the workload names."""
    table = read_table(file)
    table.require_columns(*COLUMNS)
    folder = file.resolve().parent.parent / "applications"
    if not folder.is_dir():
        raise SpecError(
            f"{file}: there is no folder {folder}",
            hints=("it holds what was measured of each application, and runs take as long as that says",),
        )
    profiles = Profiles(folder)

    def convert(row: TraceRow) -> WorkloadRun:
        replicas = row.integer("num_replicas", low=1, high=MAX_REPLICAS)
        duration_s = profiles.duration_s(row.text("application"), replicas, row.integer("batch_size", low=1))
        spec = trace_run_spec(
            "pollux", Resources(CPU_PER_GPU, 0, 1), replicas=replicas, script=row.text("application")
        )
        return WorkloadRun(spec, row.number("time"), duration_s, line=row.line)

    runs, problems = table.convert_rows(convert)
    return sorted_workload(f"pollux {file.stem}", runs, problems=problems)


class Profiles:
    """The measurements: iterations until an application is trained, and seconds of one iteration."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self.iterations = cache(self._iterations)
        self.times = cache(self._times)

    def duration_s(self, application: str, replicas: int, batch_size: int) -> float:
        """Raises InvalidRow for an application or batch size that was not measured."""
        if not (self._folder / application / "scalability.csv").is_file():
            raise InvalidRow(f"nothing was measured of the application `{application}`")
        return self.iterations(application, batch_size) * step_s(
            self.times(application, replicas), batch_size / replicas
        )

    def _iterations(self, application: str, batch_size: int) -> int:
        """Returns the iterations until the application is trained with this batch size."""
        file = self._folder / application / f"validation-{batch_size}.csv"
        if not file.is_file():
            raise InvalidRow(f"`{application}` was not measured with a batch size of {batch_size}")
        iterations, problems = read_table(file).convert_rows(lambda row: row.integer("iteration"))
        raise_first_problem(str(file), problems)
        return max(iterations)

    def _times(self, application: str, replicas: int) -> Times:
        """Returns the times on the smallest measured number of nodes, for the measured number of replicas
        that is nearest."""
        measurements = [*self._placements(application), *self._scaling(application)]
        nearest = min((row[0] for row in measurements), key=lambda count: (abs(count - replicas), count))
        nodes = min(row[1] for row in measurements if row[0] == nearest)
        return sorted(
            {
                batch: step
                for count, node_count, batch, step in measurements
                if (count, node_count) == (nearest, nodes)
            }.items()
        )

    def _placements(self, application: str) -> list[tuple[int, int, int, float]]:
        """Returns replicas, nodes, batch size of a replica, and seconds of a step. A placement is written
        with a digit per node."""
        file = self._folder / application / "placements.csv"

        def convert(row: TraceRow) -> tuple[int, int, int, float]:
            digits = [int(digit) for digit in row.text("placement") if digit.isdecimal()]
            return sum(digits), len(digits), row.integer("local_bsz"), row.number("step_time")

        measurements, problems = read_table(file).convert_rows(convert)
        raise_first_problem(str(file), problems)
        return measurements

    def _scaling(self, application: str) -> list[tuple[int, int, int, float]]:
        file = self._folder / application / "scalability.csv"
        measurements, problems = read_table(file).convert_rows(
            lambda row: (
                row.integer("num_replicas"),
                row.integer("num_nodes"),
                row.integer("local_bsz"),
                row.number("step_time"),
            )
        )
        raise_first_problem(str(file), problems)
        return measurements


def step_s(times: Times, batch: float) -> float:
    """Returns the seconds of a step with this batch size per replica, linear between the measurements. A
    larger batch is done in parts."""
    parts = max(1, ceil(batch / times[-1][0]))
    batch /= parts
    index = bisect_left(times, (batch, 0.0))
    if index == 0:
        return parts * times[0][1]
    if index == len(times):
        return parts * times[-1][1]
    (low, low_s), (high, high_s) = times[index - 1], times[index]
    return parts * (low_s + (high_s - low_s) * (batch - low) / (high - low))
