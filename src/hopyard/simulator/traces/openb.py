"""Alibaba's openb cluster: the list of pods with the times of their creation and deletion, and the list of
nodes.

Weng et al., Beware of Fragmentation, USENIX ATC'23.
"""

from __future__ import annotations

from pathlib import Path

from hopyard.config.units import MIB
from hopyard.domain.cluster import Node
from hopyard.domain.ids import NodeId
from hopyard.domain.resources import WHOLE_GPU, Gpu, Resources
from hopyard.simulator.traces.run_spec import trace_run_spec
from hopyard.simulator.traces.table import InvalidRow, TraceRow, raise_first_problem, read_table
from hopyard.simulator.workload import Workload, WorkloadRun, sorted_workload

COLUMNS = ("cpu_milli", "memory_mib", "num_gpu", "gpu_milli")
NODE_COLUMNS = ("sn", "cpu_milli", "memory_mib", "gpu", "model")


def read_trace(file: Path, *, replica_gpus: int) -> Workload:  # noqa: ARG001
    """Reads pods with a creation and a deletion. A list without these columns is for placement alone and is
    refused."""
    table = read_table(file)
    table.require_columns(*COLUMNS)
    table.require_columns(
        "creation_time", "deletion_time", hint="a list without times says what is placed, not for how long"
    )

    def convert(row: TraceRow) -> WorkloadRun:
        began, ended = row.number("scheduled_time", row.number("creation_time")), row.number("deletion_time")
        if ended <= began:
            raise InvalidRow("it was deleted before it was scheduled")
        spec = trace_run_spec("openb", resources_of(row), queue="", script=row.text("qos", "pod"))
        return WorkloadRun(spec, row.number("creation_time"), ended - began, line=row.line)

    runs, problems = table.convert_rows(convert)
    first_s = min(run.at_s for run in runs)
    return sorted_workload("openb", (run.relative_to(first_s) for run in runs), problems=problems)


def resources_of(row: TraceRow) -> Resources:
    """Returns the request of a pod: CPU, memory, whole GPUs or a share of one, and the allowed GPU models."""
    count, milli = row.integer("num_gpu"), row.integer("gpu_milli")
    if count > 1 or milli >= WHOLE_GPU:
        gpus, share = count, 0
    else:
        gpus, share = 0, milli if count else 0
    models = (
        tuple(sorted(model for model in row.values.get("gpu_spec", "").split("|") if model)) if count else ()
    )
    return Resources(row.integer("cpu_milli"), row.integer("memory_mib") * MIB, gpus, models, gpu_milli=share)


def read_nodes(file: Path) -> tuple[Node, ...]:
    table = read_table(file)
    table.require_columns(
        *NODE_COLUMNS,
        hint=(
            "a .csv is openb's list of nodes; machines of our own are described in YAML "
            "(docs/guides/simulator.md)"
        ),
    )

    def convert(row: TraceRow) -> Node:
        gpus = tuple(Gpu(index, row.text("model")) for index in range(row.integer("gpu")))
        return Node(
            NodeId(row.text("sn")),
            "simulated",
            row.integer("cpu_milli"),
            row.integer("memory_mib") * MIB,
            gpus,
        )

    nodes, problems = table.convert_rows(convert)
    raise_first_problem(str(file), problems)  # a cluster with a node less is another cluster
    return tuple(nodes)
