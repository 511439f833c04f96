"""`hop simulate`: simulates a workload on a cluster."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from hopyard.cli.options import PngPath, json_option
from hopyard.cli.simulation.inputs import (
    HISTORY_SOURCE,
    NODES_SOURCE,
    add_server_queues,
    load_clusters,
    load_workload,
)
from hopyard.cli.simulation.progress import SimulationProgressLine
from hopyard.cli.simulation.skipped_rows import count_text, print_skipped_rows, too_large_lines
from hopyard.cli.terminal import console
from hopyard.config import units
from hopyard.errors import SpecError

if TYPE_CHECKING:
    from hopyard.simulator.report import SimulationReport
    from hopyard.simulator.settings import SimulatedCluster, SimulationSettings
    from hopyard.simulator.workload import Workload


class DurationParam(click.ParamType[float]):
    """zero_hint: the hint for an invalid 0."""

    name = "TIME"

    def __init__(self, zero_hint: str = "") -> None:
        self._zero_hint = zero_hint

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:  # noqa: ARG002
        text, option = str(value), param.opts[0] if param is not None else "time"
        if text not in ("0", "0.0"):
            return units.parse_time(text, what=option)
        if self._zero_hint:
            raise SpecError(f"{option}: must be greater than 0", hints=(self._zero_hint,))
        return 0.0


@click.command("simulate")
@click.argument("source", metavar="WORKLOAD")
@click.option(
    "--cluster",
    "cluster_from",
    metavar="FILE",
    help=f"The nodes: YAML, openb's list of nodes, or {NODES_SOURCE} (those of your server).",
)
@click.option(
    "--policy",
    "policies",
    multiple=True,
    metavar="NAME",
    help=(
        "The policy (repeatable: one column each): hopyard, fifo, capacity, best-fit, las or fgd.  "
        "[default: hopyard]"
    ),
)
@click.option(
    "--add",
    "added",
    multiple=True,
    metavar="NODES",
    help='Also simulate with more nodes: "2 x A100:8", "3 x POOL" (repeatable: together).',
)
@click.option(
    "--format",
    "format_",
    metavar="NAME",
    help="csv, yaml, sacct, hopyard, philly, openb or pollux.  [default: detected]",
)
@click.option("--queue", metavar="NAME", help="Put all runs into this queue.")
@click.option(
    "--queues",
    "queues_file",
    type=click.Path(dir_okay=False, path_type=Path),
    metavar="FILE",
    help="The tree of queues, in the format of `hop queue apply`.",
)
@click.option(
    "--replica-gpus",
    type=click.IntRange(1),
    metavar="N",
    help=(
        "Maximum GPUs per replica, for traces with only a total per run.  [default: those of the "
        "largest node]"
    ),
)
@click.option(
    "--newest",
    type=click.IntRange(1),
    default=10_000,
    show_default=True,
    help=f"Of {HISTORY_SOURCE}: the maximum number of runs.",
)
@click.option("--limits", is_flag=True, help="Give the time limits of runs to the policy.")
@click.option(
    "--start",
    type=DurationParam(),
    default="0",
    help=("Delay from a placement to the start of the script.  [default: 0]"),
)
@click.option(
    "--save",
    type=DurationParam(),
    default="0",
    help="Duration of a checkpoint on preemption.  [default: 0]",
)
@click.option(
    "--restore", type=DurationParam(), default="0", help=("Duration of restoring a checkpoint.  [default: 0]")
)
@click.option(
    "--checkpoint-every",
    type=DurationParam(),
    default="0",
    help="Interval of periodic checkpoints.  [default: none]",
)
@click.option(
    "--mtbf",
    type=DurationParam("leave it out to lose no node"),
    help="Mean time between losses of one node.  [default: no losses]",
)
@click.option(
    "--repair", type=DurationParam(), default="1h", show_default=True, help="Time until a lost node returns."
)
@click.option(
    "--until",
    type=DurationParam("leave it out to simulate to the end, or give a duration: --until 2h"),
    metavar="TIME",
    help="End after this time of the workload.",
)
@click.option(
    "--seed", type=click.IntRange(0), default=0, show_default=True, help="Random seed of node losses."
)
@click.option(
    "--store",
    default="memory",
    show_default=True,
    metavar="NAME",
    help="memory, or sqlite as on the server.",
)
@click.option(
    "--speed",
    type=click.FloatRange(0, min_open=True),
    metavar="X",
    help="Simulate X seconds per second, to watch.  [default: as fast as possible]",
)
@click.option(
    "--png",
    type=PngPath(),
    metavar="FILE",
    help="Also write curves as a PNG (needs `hopyard[plot]`).",
)
@click.option(
    "--progress/--no-progress", default=None, help="Show progress on stderr.  [default: on a terminal]"
)
@json_option
def simulate(
    source: str,
    cluster_from: str | None,
    policies: tuple[str, ...],
    added: tuple[str, ...],
    format_: str | None,
    queue: str | None,
    queues_file: Path | None,
    replica_gpus: int | None,
    newest: int,
    limits: bool,
    mtbf: float | None,
    until: float | None,
    seed: int,
    store: str,
    speed: float | None,
    png: Path | None,
    progress: bool | None,
    as_json: bool,
    **spans: float,
) -> None:
    """Play WORKLOAD on a cluster with the real controller and policy; print waits and idle resources.

    WORKLOAD is a file (a CSV or YAML of our own, `sacct -P`, `hop ps -a --json`, or a published trace), or
    @history: the runs of your server. Nothing is started, and no server is needed for a file.

    \b
    hop simulate runs.csv --cluster cluster.yaml --policy fifo --policy hopyard
    hop simulate @history --add "2 x A100:8"
    """
    from hopyard.config.cluster_file import max_node_gpus
    from hopyard.simulator.policies import DEFAULT_POLICY, new_policy
    from hopyard.simulator.settings import SimulationSettings, TimeCosts

    names = policies or (DEFAULT_POLICY,)
    for name in names:
        new_policy(name)  # an unknown policy is refused before the slow steps
    clusters = load_clusters(source, cluster_from, queues_file, added)
    workload = load_workload(
        source, format_, newest, replica_gpus or max_node_gpus(clusters[0][1].nodes), queue
    )
    print_skipped_rows(workload)
    if source == HISTORY_SOURCE:
        clusters = add_server_queues(workload, clusters)
    settings = SimulationSettings(
        seed=seed,
        costs=TimeCosts(spans["start"], spans["save"], spans["restore"], spans["checkpoint_every"]),
        mtbf_s=mtbf or 0.0,
        repair_s=spans["repair"],
        know_time_limits=limits,
        until_s=until,
        speed=speed or 0.0,
        store=store,
    )
    line = SimulationProgressLine(progress)
    settings = replace(settings, on_progress=line.show if line.is_active else None)
    plays = [
        (f"{name} {title}".strip(), name, title, cluster) for title, cluster in clusters for name in names
    ]
    reports = [
        _simulate_once(workload, cluster, name, settings, line.set_title(title))
        for title, name, _, cluster in plays
    ]
    titles = [title for title, *_ in plays]
    if as_json:
        console.print_json(_reports_json(workload, clusters, titles, reports))
    else:
        _print_reports(workload, clusters[0][1], [(name, added) for _, name, added, _ in plays], reports)
    if png is not None:
        from hopyard.simulator.plots import write_png

        write_png(reports, titles, png)
        console.print_message(f"wrote {png}")


def _simulate_once(
    workload: Workload,
    cluster: SimulatedCluster,
    policy: str,
    settings: SimulationSettings,
    line: SimulationProgressLine,
) -> SimulationReport:
    from hopyard.simulator.simulate import simulate as play

    with line:
        return play(workload, cluster, policy, settings)


def _print_reports(
    workload: Workload,
    cluster: SimulatedCluster,
    names: Sequence[tuple[str, str]],
    reports: Sequence[SimulationReport],
) -> None:
    """names: policy and cluster of each report."""
    from hopyard.cli.simulation.tables import ReportColumn, queue_table, report_table

    gpus, runs = sum(len(node.gpus) for node in cluster.nodes), count_text(len(workload.runs), "run")
    console.print_line(
        f"{workload.name}: {runs} on {count_text(len(cluster.nodes), 'node')} with {count_text(gpus, 'GPU')}"
    )
    columns = [
        ReportColumn(policy, added, report) for (policy, added), report in zip(names, reports, strict=True)
    ]
    width = console.terminal_width()
    # what fits does not depend on the policy
    each_cluster = {column.added: column.report for column in columns}
    too_large = [too_large_lines(workload, added, report) for added, report in each_cluster.items()]
    for lines in (report_table(columns, width), *too_large, queue_table(columns, width)):
        if lines:
            console.print_lines(["", *lines])


def _reports_json(
    workload: Workload,
    clusters: Sequence[tuple[str, SimulatedCluster]],
    titles: Sequence[str],
    reports: Sequence[SimulationReport],
) -> dict[str, Any]:
    return {
        "workload": {
            "name": workload.name,
            "runs": len(workload.runs),
            "begin": workload.begin.isoformat(),
            "not_played": [
                {"line": problem.line, **({"run": problem.name} if problem.name else {}), "why": problem.text}
                for problem in workload.problems
            ],
        },
        "clusters": [
            {"name": name, "nodes": len(cluster.nodes), "gpus": sum(len(node.gpus) for node in cluster.nodes)}
            for name, cluster in clusters
        ],
        "reports": [
            {"title": title, **report.to_json()} for title, report in zip(titles, reports, strict=True)
        ],
    }
