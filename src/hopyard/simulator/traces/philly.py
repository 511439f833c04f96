"""Microsoft's Philly cluster: `timestamp,duration,num_gpus,gpu_time,cluster`; the virtual cluster is the
queue.

Jeon et al., Analysis of Large-Scale Multi-Tenant GPU Clusters for DNN Training Workloads, USENIX ATC'19.
"""

from __future__ import annotations

from datetime import datetime
from pathlib import Path

from hopyard.domain.ids import slug
from hopyard.domain.resources import Resources
from hopyard.simulator.traces.shape import CPU_PER_GPU, MOST_GPUS, spec_of, split_gpus
from hopyard.simulator.traces.table import Row, read_table
from hopyard.simulator.workload import Submission, Workload, dated

COLUMNS = ("timestamp", "duration", "num_gpus", "cluster")


def read(file: Path, *, replica_gpus: int) -> Workload:
    """replica_gpus: a run of more GPUs comes as several replicas of at most so many."""
    table = read_table(file)
    table.need(*COLUMNS)

    def make(row: Row) -> tuple[datetime, Submission]:
        gpus = row.whole("num_gpus", low=1, high=MOST_GPUS)
        replicas = split_gpus(gpus, replica_gpus)
        each = gpus // replicas
        spec = spec_of(
            "philly", Resources(CPU_PER_GPU * each, 0, each), replicas=replicas, queue=row.text("cluster")
        )
        return row.moment("timestamp"), Submission(
            spec, 0.0, row.seconds("duration"), slug(row.text("cluster")), row.line
        )

    made, problems = table.each(make)
    return dated("philly", made, problems)
