"""Where a simulation's workload and machines come from: files, or the server."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hopyard.cli import console
from hopyard.errors import SpecError

if TYPE_CHECKING:
    from hopyard.config.reserved import Asked
    from hopyard.domain.cluster import Node
    from hopyard.simulator.settings import Cluster
    from hopyard.simulator.workload import Workload

HISTORY, NODES = "@history", "@nodes"
_FINAL = ("succeeded", "failed", "cancelled")
_TOLD = 5  # queues that are named


def clusters_of(
    source: str, given: str | None, queues_file: Path | None, added: Sequence[str]
) -> list[tuple[str, Cluster]]:
    """The cluster, and the one with the machines that `--add` names, each with what to call it.
    Raises SpecError."""
    from hopyard.config.clusterfile import more_nodes, read_cluster
    from hopyard.config.queues import read_queues
    from hopyard.simulator.settings import Cluster
    from hopyard.simulator.traces.openb import read_nodes

    _check_source(source)
    tree = None
    asked: tuple[Asked, ...] = ()
    if given is None and source != HISTORY:
        raise SpecError(
            "--cluster: missing: on which machines?",
            hints=(f"a YAML file with pools, or {NODES} for those of your server",),
        )
    if given is None or given == NODES:
        nodes = _server_nodes()
    elif given.startswith("@"):
        raise SpecError(f"--cluster: there is no `{given}`", hints=(f"did you mean `{NODES}`?",))
    elif given.lower().endswith(".csv"):
        nodes = read_nodes(Path(given))
    else:
        found = read_cluster(Path(given))
        nodes, tree, asked = found.nodes, found.queues, found.reservations
    if queues_file is not None:
        tree = read_queues(queues_file)
    clusters = [("", Cluster(nodes, tree, asked=asked))]
    if added:
        more = nodes
        for text in added:
            more = (*more, *more_nodes(text, more))
        clusters.append((f"+ {' + '.join(added)}", Cluster(more, tree, asked=asked)))
    return clusters


def workload_of(
    source: str, format_: str | None, newest: int, replica_gpus: int, queue: str | None
) -> Workload:
    """Raises SpecError."""
    from hopyard.domain.ids import QueueName, check_name
    from hopyard.simulator.traces.formats import read_workload

    if source == HISTORY:
        workload = _server_history(newest)
    else:
        workload = read_workload(Path(source), format=format_, replica_gpus=replica_gpus)
    if queue is None:
        return workload
    name = QueueName(check_name(queue, what="--queue"))
    return replace(
        workload, runs=tuple(replace(run, spec=replace(run.spec, queue=name)) for run in workload.runs)
    )


def with_server_queues(
    workload: Workload, clusters: Sequence[tuple[str, Cluster]]
) -> list[tuple[str, Cluster]]:
    """The own history is played in the server's tree of queues, unless another was given.
    Queues that are gone by now are played as queues of their own, which is told."""
    from hopyard.config.queues import tree_of
    from hopyard.config.reader import Section
    from hopyard.domain.queue import Queue, QueueTree
    from hopyard.sdk.connect import connect

    if any(cluster.queues is not None for _, cluster in clusters):
        return [*clusters]
    tree = tree_of(Section("the server's queues", "", connect().get("/queues")["tree"]))
    gone = sorted(
        {run.spec.queue for run in workload.runs if run.spec.queue is not None} - tree.queues.keys()
    )
    if gone:
        console.say(
            "not in the server's tree of queues any more, and played as queues of their own: "
            f"{', '.join(gone[:_TOLD])}"
        )
        tree = QueueTree(
            {**tree.queues, **{name: Queue(name) for name in gone}}, tree.default, tree.half_life_s
        )
    return [(title, replace(cluster, queues=tree)) for title, cluster in clusters]


def _check_source(source: str) -> None:
    if source.startswith("@") and source != HISTORY:
        raise SpecError(f"there is no workload `{source}`", hints=(f"did you mean `{HISTORY}`?",))


def _server_history(newest: int) -> Workload:
    from hopyard.cli.ps import list_runs
    from hopyard.sdk.connect import connect
    from hopyard.simulator.traces.history import of_runs

    return of_runs(list_runs(connect(), phases=_FINAL, tags={}, limit=newest), name="history", source=HISTORY)


def _server_nodes() -> tuple[Node, ...]:
    from hopyard.sdk.connect import connect

    found: Sequence[Mapping[str, Any]] = connect().get("/nodes")["nodes"]
    nodes = tuple(_node(one) for one in found if one["ready"])
    if not nodes:
        raise SpecError(
            f"--cluster {NODES}: the server has no machine that is ready",
            hints=("`hop status` shows its machines",),
        )
    return nodes


def _node(told: Mapping[str, Any]) -> Node:
    """A node as the API tells it; what it does not tell is left as a node has it by itself."""
    from dataclasses import fields

    import msgspec

    from hopyard.config.clusterfile import ENGINE
    from hopyard.domain.cluster import Node

    known = {field.name for field in fields(Node)} - {"engine", "cordoned", "holds"}
    return msgspec.convert(
        {**{key: value for key, value in told.items() if key in known}, "engine": ENGINE}, Node
    )
