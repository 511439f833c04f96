"""Microsoft's Philly cluster: `timestamp,duration,num_gpus,gpu_time,cluster`; the virtual cluster is the
queue.

Jeon et al., Analysis of Large-Scale Multi-Tenant GPU Clusters for DNN Training Workloads, USENIX ATC'19.
"""

from __future__ import annotations

from datetime import datetime
from pathlib import Path

from hopyard.domain.ids import slug
from hopyard.domain.resources import Resources
from hopyard.simulator.traces.run_spec import CPU_PER_GPU, MAX_GPUS, split_gpus, trace_run_spec
from hopyard.simulator.traces.table import TraceRow, read_table
from hopyard.simulator.workload import Workload, WorkloadRun, dated_workload

COLUMNS = ("timestamp", "duration", "num_gpus", "cluster")


def read_trace(file: Path, *, replica_gpus: int) -> Workload:
    """replica_gpus: a run with more GPUs becomes several replicas, each with at most this number."""
    table = read_table(file)
    table.require_columns(*COLUMNS)

    def convert(row: TraceRow) -> tuple[datetime, WorkloadRun]:
        gpus = row.integer("num_gpus", low=1, high=MAX_GPUS)
        replicas = split_gpus(gpus, replica_gpus)
        gpus_per_replica = gpus // replicas
        spec = trace_run_spec(
            "philly",
            Resources(CPU_PER_GPU * gpus_per_replica, 0, gpus_per_replica),
            replicas=replicas,
            queue=row.text("cluster"),
        )
        return row.time("timestamp"), WorkloadRun(
            spec, 0.0, row.seconds("duration"), slug(row.text("cluster")), row.line
        )

    runs, problems = table.convert_rows(convert)
    return dated_workload("philly", runs, problems)
