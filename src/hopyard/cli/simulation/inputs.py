"""Where a simulation's workload and machines come from: files, or the server."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hopyard.cli.terminal import console
from hopyard.errors import SpecError

if TYPE_CHECKING:
    from hopyard.config.cluster_reservations import ReservationSection
    from hopyard.domain.cluster import Node
    from hopyard.simulator.settings import SimulatedCluster
    from hopyard.simulator.workload import Workload

HISTORY_SOURCE, NODES_SOURCE = "@history", "@nodes"
_FINAL_PHASES = ("succeeded", "failed", "cancelled")
_MAX_PROBLEMS_SHOWN = 5  # queues that are named


def load_clusters(
    source: str, options: str | None, queues_file: Path | None, added: Sequence[str]
) -> list[tuple[str, SimulatedCluster]]:
    """The cluster, and the one with the machines that `--add` names, each with what to call it.
    Raises SpecError."""
    from hopyard.config.cluster_file import added_nodes, read_cluster
    from hopyard.config.queues.queue_file import read_queues
    from hopyard.simulator.settings import SimulatedCluster
    from hopyard.simulator.traces.openb import read_nodes

    _check_source(source)
    tree = None
    asked: tuple[ReservationSection, ...] = ()
    if options is None and source != HISTORY_SOURCE:
        raise SpecError(
            "--cluster: missing: on which machines?",
            hints=(f"a YAML file with pools, or {NODES_SOURCE} for those of your server",),
        )
    if options is None or options == NODES_SOURCE:
        nodes = _fetch_nodes()
    elif options.startswith("@"):
        raise SpecError(f"--cluster: there is no `{options}`", hints=(f"did you mean `{NODES_SOURCE}`?",))
    elif options.lower().endswith(".csv"):
        nodes = read_nodes(Path(options))
    else:
        found = read_cluster(Path(options))
        nodes, tree, asked = found.nodes, found.queues, found.reservations
    if queues_file is not None:
        tree = read_queues(queues_file)
    clusters = [("", SimulatedCluster(nodes, tree, requested_reservations=asked))]
    if added:
        more = nodes
        for text in added:
            more = (*more, *added_nodes(text, more))
        clusters.append(
            (f"+ {' + '.join(added)}", SimulatedCluster(more, tree, requested_reservations=asked))
        )
    return clusters


def load_workload(
    source: str, format_: str | None, newest: int, replica_gpus: int, queue: str | None
) -> Workload:
    """Raises SpecError."""
    from hopyard.domain.ids import QueueName, check_name
    from hopyard.simulator.traces.formats import read_workload

    if source == HISTORY_SOURCE:
        workload = _fetch_history(newest)
    else:
        workload = read_workload(Path(source), format=format_, replica_gpus=replica_gpus)
    if queue is None:
        return workload
    name = QueueName(check_name(queue, subject="--queue"))
    return replace(
        workload, runs=tuple(replace(run, spec=replace(run.spec, queue=name)) for run in workload.runs)
    )


def add_server_queues(
    workload: Workload, clusters: Sequence[tuple[str, SimulatedCluster]]
) -> list[tuple[str, SimulatedCluster]]:
    """The own history is played in the server's tree of queues, unless another was given.
    Queues that are gone by now are played as queues of their own, which is told."""
    from hopyard.api_client.local_server import connect
    from hopyard.config.queues.queue_file import queue_tree_from
    from hopyard.config.yaml_section import YamlSection
    from hopyard.domain.queue import Queue, QueueTree

    if any(cluster.queues is not None for _, cluster in clusters):
        return [*clusters]
    tree = queue_tree_from(YamlSection("the server's queues", "", connect().get("/queues")["tree"]))
    gone = sorted(
        {run.spec.queue for run in workload.runs if run.spec.queue is not None} - tree.queues.keys()
    )
    if gone:
        console.print_message(
            "not in the server's tree of queues any more, and played as queues of their own: "
            f"{', '.join(gone[:_MAX_PROBLEMS_SHOWN])}"
        )
        tree = QueueTree(
            {**tree.queues, **{name: Queue(name) for name in gone}}, tree.default, tree.half_life_s
        )
    return [(title, replace(cluster, queues=tree)) for title, cluster in clusters]


def _check_source(source: str) -> None:
    if source.startswith("@") and source != HISTORY_SOURCE:
        raise SpecError(f"there is no workload `{source}`", hints=(f"did you mean `{HISTORY_SOURCE}`?",))


def _fetch_history(newest: int) -> Workload:
    from hopyard.api_client.local_server import connect
    from hopyard.client.run_lookup import fetch_runs
    from hopyard.simulator.traces.hopyard_runs import workload_of_runs

    return workload_of_runs(
        fetch_runs(connect(), phases=_FINAL_PHASES, tags={}, limit=newest),
        name="history",
        source=HISTORY_SOURCE,
    )


def _fetch_nodes() -> tuple[Node, ...]:
    from hopyard.api_client.local_server import connect

    found: Sequence[Mapping[str, Any]] = connect().get("/nodes")["nodes"]
    nodes = tuple(_node_from_json(one) for one in found if one["ready"])
    if not nodes:
        raise SpecError(
            f"--cluster {NODES_SOURCE}: the server has no machine that is ready",
            hints=("`hop status` shows its machines",),
        )
    return nodes


def _node_from_json(row: Mapping[str, Any]) -> Node:
    """A node as the API tells it; what it does not tell is left as a node has it by itself."""
    from dataclasses import fields

    import msgspec

    from hopyard.config.cluster_file import ENGINE
    from hopyard.domain.cluster import Node

    known = {field.name for field in fields(Node)} - {"engine", "cordoned", "holds"}
    return msgspec.convert(
        {**{key: value for key, value in row.items() if key in known}, "engine": ENGINE}, Node
    )
