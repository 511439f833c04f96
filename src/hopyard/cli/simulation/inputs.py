"""Reads a simulation's workload and nodes from files or the server."""

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
    """Returns the cluster and its variants with the nodes of `--add`, each with a title.
    Raises SpecError.
    """
    from hopyard.config.cluster_file import added_nodes, read_cluster
    from hopyard.config.queues.queue_file import read_queues
    from hopyard.simulator.settings import SimulatedCluster
    from hopyard.simulator.traces.openb import read_nodes

    _check_source(source)
    tree = None
    reservations: tuple[ReservationSection, ...] = ()
    if options is None and source != HISTORY_SOURCE:
        raise SpecError(
            "--cluster: missing; the simulation needs nodes",
            hints=(f"give a YAML file with pools, or {NODES_SOURCE} for the nodes of your server",),
        )
    if options is None or options == NODES_SOURCE:
        nodes = _fetch_nodes()
    elif options.startswith("@"):
        raise SpecError(
            f"--cluster: file `{options}` does not exist", hints=(f"did you mean `{NODES_SOURCE}`?",)
        )
    elif options.lower().endswith(".csv"):
        nodes = read_nodes(Path(options))
    else:
        loaded = read_cluster(Path(options))
        nodes, tree, reservations = loaded.nodes, loaded.queues, loaded.reservations
    if queues_file is not None:
        tree = read_queues(queues_file)
    clusters = [("", SimulatedCluster(nodes, tree, requested_reservations=reservations))]
    if added:
        extended = nodes
        for text in added:
            extended = (*extended, *added_nodes(text, extended))
        clusters.append(
            (f"+ {' + '.join(added)}", SimulatedCluster(extended, tree, requested_reservations=reservations))
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
    """Returns the tree of queues: the given one, or for @history the server's.
    Removed queues become top-level queues, with a note.
    """
    from hopyard.api_client.local_server import connect
    from hopyard.config.queues.queue_file import queue_tree_from
    from hopyard.config.yaml_section import YamlSection
    from hopyard.domain.queue import Queue, QueueTree

    if any(cluster.queues is not None for _, cluster in clusters):
        return [*clusters]
    tree = queue_tree_from(YamlSection("the server's queues", "", connect().get_queues()["tree"]))
    removed = sorted(
        {run.spec.queue for run in workload.runs if run.spec.queue is not None} - tree.queues.keys()
    )
    if removed:
        console.print_message(
            "no longer in the server's tree of queues, simulated as top-level queues: "
            f"{', '.join(removed[:_MAX_PROBLEMS_SHOWN])}"
        )
        tree = QueueTree(
            {**tree.queues, **{name: Queue(name) for name in removed}}, tree.default, tree.half_life_s
        )
    return [(title, replace(cluster, queues=tree)) for title, cluster in clusters]


def _check_source(source: str) -> None:
    if source.startswith("@") and source != HISTORY_SOURCE:
        raise SpecError(f"workload `{source}` does not exist", hints=(f"did you mean `{HISTORY_SOURCE}`?",))


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

    records: Sequence[Mapping[str, Any]] = connect().get_nodes()["nodes"]
    nodes = tuple(_node_from_json(node) for node in records if node["ready"])
    if not nodes:
        raise SpecError(
            f"--cluster {NODES_SOURCE}: the server has no ready node",
            hints=("run `hop status` to list its nodes",),
        )
    return nodes


def _node_from_json(row: Mapping[str, Any]) -> Node:
    """Returns a node from its API record; missing fields keep their defaults."""
    from dataclasses import fields

    import msgspec

    from hopyard.config.cluster_file import ENGINE
    from hopyard.domain.cluster import Node

    known_fields = {field.name for field in fields(Node)} - {"engine", "cordoned", "holds"}
    return msgspec.convert(
        {**{key: value for key, value in row.items() if key in known_fields}, "engine": ENGINE}, Node
    )
