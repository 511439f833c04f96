"""`hop simulate`: play a workload on a cluster, before anybody waits for it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from hopyard.cli import console
from hopyard.cli.options import PngFile, json_option
from hopyard.cli.simprogress import SimulationLine
from hopyard.cli.simrows import counted, tell_problems, too_large_lines
from hopyard.cli.simsource import HISTORY, NODES, clusters_of, with_server_queues, workload_of
from hopyard.config import units
from hopyard.errors import SpecError

if TYPE_CHECKING:
    from hopyard.simulator.report import Report
    from hopyard.simulator.settings import Cluster, Settings
    from hopyard.simulator.workload import Workload


class Span(click.ParamType[float]):
    """without: what to do in the place of 0, where that makes no sense."""

    name = "TIME"

    def __init__(self, without: str = "") -> None:
        self._without = without

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:  # noqa: ARG002
        text, what = str(value), param.opts[0] if param is not None else "time"
        if text not in ("0", "0.0"):
            return units.parse_time(text, what=what)
        if self._without:
            raise SpecError(f"{what}: it has to be more than 0", hints=(self._without,))
        return 0.0


@click.command("simulate")
@click.argument("source", metavar="WORKLOAD")
@click.option(
    "--cluster",
    "cluster_from",
    metavar="FILE",
    help=f"The machines: YAML, openb's list of nodes, or {NODES} (those of your server).",
)
@click.option(
    "--policy",
    "policies",
    multiple=True,
    metavar="NAME",
    help=(
        "Play this policy (repeatable: a column for each): hopyard, fifo, capacity, best-fit, las or "
        "fgd.  [default: hopyard]"
    ),
)
@click.option(
    "--add",
    "added",
    multiple=True,
    metavar="NODES",
    help='Play also with more machines: "2 x A100:8", "3 x POOL" (repeatable: together).',
)
@click.option(
    "--format",
    "format_",
    metavar="NAME",
    help="csv, yaml, sacct, hopyard, philly, openb or pollux; found out by default.",
)
@click.option("--queue", metavar="NAME", help="Put all runs into this queue.")
@click.option(
    "--queues",
    "queues_file",
    type=click.Path(dir_okay=False, path_type=Path),
    metavar="FILE",
    help="The tree of queues, as `hop queue apply` takes it.",
)
@click.option(
    "--replica-gpus",
    type=click.IntRange(1),
    metavar="N",
    help=(
        "Most GPUs of a replica, of traces that say only how many a run had; by default those of the "
        "largest machine."
    ),
)
@click.option(
    "--newest",
    type=click.IntRange(1),
    default=10_000,
    show_default=True,
    help=f"Of {HISTORY}: at most so many runs.",
)
@click.option("--limits", is_flag=True, help="Tell the policy the time limits that runs had.")
@click.option("--start", type=Span(), default="0", help="From a placement until a script runs.  [default: 0]")
@click.option(
    "--save", type=Span(), default="0", help="A checkpoint, when a run is asked to make room.  [default: 0]"
)
@click.option("--restore", type=Span(), default="0", help="Reading a checkpoint back.  [default: 0]")
@click.option(
    "--checkpoint-every",
    type=Span(),
    default="0",
    help="Runs save one by themselves that often.  [default: never]",
)
@click.option(
    "--mtbf",
    type=Span("leave it out, and no machine is lost"),
    help="Mean time between two losses of one machine.  [default: none is lost]",
)
@click.option(
    "--repair", type=Span(), default="1h", show_default=True, help="How long a lost machine is away."
)
@click.option(
    "--until",
    type=Span("leave it out to play to the end, or say how much: --until 2h"),
    metavar="TIME",
    help="End after so much of the workload's time.",
)
@click.option(
    "--seed", type=click.IntRange(0), default=0, show_default=True, help="Of the losses of machines."
)
@click.option(
    "--store",
    default="memory",
    show_default=True,
    metavar="NAME",
    help="memory, or sqlite as the server has it.",
)
@click.option(
    "--speed",
    type=click.FloatRange(0, min_open=True),
    metavar="X",
    help="Play X seconds in one, to watch; as fast as possible by default.",
)
@click.option(
    "--png",
    type=PngFile(),
    metavar="FILE",
    help="Write curves as a PNG too (needs `hopyard[plot]`).",
)
@click.option(
    "--progress/--no-progress", default=None, help="Tell how far it is, on stderr; by default on a terminal."
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
    """Play WORKLOAD on a cluster with the real controller and policy, and tell how long runs waited and what
    stood idle.

    WORKLOAD is a file (a CSV or YAML of our own, `sacct -P`, `hop ps -a --json`, or a published trace), or
    @history: the runs of your server. Nothing is started, and no server is needed for a file.

    \b
    hop simulate runs.csv --cluster cluster.yaml --policy fifo --policy hopyard
    hop simulate @history --add "2 x A100:8"
    """
    from hopyard.config.clusterfile import largest_gpus
    from hopyard.simulator.policies import DEFAULT, new_policy
    from hopyard.simulator.settings import Costs, Settings

    names = policies or (DEFAULT,)
    for name in names:
        new_policy(name)  # a wrong one is refused before anything takes time
    clusters = clusters_of(source, cluster_from, queues_file, added)
    workload = workload_of(source, format_, newest, replica_gpus or largest_gpus(clusters[0][1].nodes), queue)
    tell_problems(workload)
    if source == HISTORY:
        clusters = with_server_queues(workload, clusters)
    settings = Settings(
        seed=seed,
        costs=Costs(spans["start"], spans["save"], spans["restore"], spans["checkpoint_every"]),
        mtbf_s=mtbf or 0.0,
        repair_s=spans["repair"],
        limits=limits,
        until_s=until,
        speed=speed or 0.0,
        store=store,
    )
    line = SimulationLine(progress)
    settings = replace(settings, watch=line.show if line.active else None)
    plays = [
        (f"{name} {title}".strip(), name, title, cluster) for title, cluster in clusters for name in names
    ]
    reports = [_play(workload, cluster, name, settings, line.of(title)) for title, name, _, cluster in plays]
    titles = [title for title, *_ in plays]
    if as_json:
        console.out_json(_json(workload, clusters, titles, reports))
    else:
        _show(workload, clusters[0][1], [(name, added) for _, name, added, _ in plays], reports)
    if png is not None:
        from hopyard.simulator.plots import write_png

        write_png(reports, titles, png)
        console.say(f"wrote {png}")


def _play(
    workload: Workload, cluster: Cluster, policy: str, settings: Settings, line: SimulationLine
) -> Report:
    from hopyard.simulator.simulate import simulate as play

    with line:
        return play(workload, cluster, policy, settings)


def _show(
    workload: Workload, cluster: Cluster, names: Sequence[tuple[str, str]], reports: Sequence[Report]
) -> None:
    """names: policy and cluster of each report."""
    from hopyard.cli.simtable import Column, queue_table, table_of

    gpus, runs = sum(len(node.gpus) for node in cluster.nodes), counted(len(workload.runs), "run")
    console.out(
        f"{workload.name}: {runs} on {counted(len(cluster.nodes), 'node')} with {counted(gpus, 'GPU')}"
    )
    columns = [Column(policy, added, report) for (policy, added), report in zip(names, reports, strict=True)]
    width = console.terminal_width()
    # what fits does not depend on the policy
    each_cluster = {column.added: column.report for column in columns}
    too_large = [too_large_lines(workload, added, report) for added, report in each_cluster.items()]
    for lines in (table_of(columns, width), *too_large, queue_table(columns, width)):
        if lines:
            console.out_lines(["", *lines])


def _json(
    workload: Workload,
    clusters: Sequence[tuple[str, Cluster]],
    titles: Sequence[str],
    reports: Sequence[Report],
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
            {"name": name, "nodes": len(one.nodes), "gpus": sum(len(node.gpus) for node in one.nodes)}
            for name, one in clusters
        ],
        "reports": [
            {"title": title, **report.to_json()} for title, report in zip(titles, reports, strict=True)
        ],
    }
