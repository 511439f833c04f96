"""`hop ps`: the list of runs."""

from __future__ import annotations

import sys
import time
from contextlib import suppress
from typing import TYPE_CHECKING

import click

from hopyard.cli import aliases
from hopyard.cli.options import complete_dataset, json_option
from hopyard.cli.run_columns import (
    column_table,
    listed_params,
    params_text,
    parse_columns,
    script_text,
    unknown_columns,
)
from hopyard.cli.run_text import (
    duration_s,
    is_final,
    last_eviction_text,
    metrics_line,
    queue_line,
    sync_text,
    unstored_text,
)
from hopyard.cli.terminal import console
from hopyard.client.run_lookup import fetch_runs, get_run
from hopyard.config.key_values import split_pair
from hopyard.config.resource_requests import GpuRequest, format_gpus, format_replicas
from hopyard.config.suggest import unknown_name_hints
from hopyard.config.units import format_memory
from hopyard.domain.metric_values import MetricValue
from hopyard.domain.text import first_line
from hopyard.errors import SpecError

if TYPE_CHECKING:
    from hopyard.api_client import types as api

LIVE_PHASES = ("queued", "starting", "running", "paused", "stopping")
ALL_PHASES = (*LIVE_PHASES, "succeeded", "failed", "cancelled")
_DEFAULT_LIMIT = 50
_WATCH_INTERVAL_S = 1.0
_WIDE = 120  # columns of a terminal that has room for scripts and params
_MAX_SCRIPT, _MAX_PARAMS = 24, 40  # characters


@click.command("ps")
@click.option("-a", "--all", "everything", is_flag=True, help="Also ended runs.")
@click.option(
    "--phase",
    "phases",
    multiple=True,
    metavar="PHASE",
    help="Only this phase (repeatable, or comma-separated).",
)
@click.option("--user", help="Only runs of this user.")
@click.option("--project", help="Only runs of this project.")
@click.option("-n", "--name", "label", help="Only runs with this label.")
@click.option(
    "--tag",
    "tags",
    multiple=True,
    metavar="K=V",
    help="Only runs with this tag (repeatable: all must match).",
)
@click.option("-d", "--dataset", shell_complete=complete_dataset, help="Only runs that use this dataset.")
@click.option("--parent", metavar="STUDY", help="Only the trials of this study.")
@click.option("--trials", is_flag=True, help="Also the runs of trials, which are only counted otherwise.")
@click.option("--archived", is_flag=True, help="Only archived runs.")
@click.option(
    "--starred", is_flag=True, help="Only runs that you have starred, also archived ones. Implies -a."
)
@click.option(
    "--where",
    metavar="QUERY",
    help="Only runs that fulfil a query: 'val_acc > 0.9 and params.lr < 1e-3'. Implies -a.",
)
@click.option("--sort", metavar="NAME", help="Sort by a column or value; -NAME for the largest first.")
@click.option(
    "--columns",
    multiple=True,
    metavar="NAMES",
    help="Show these columns: name,phase,script,age,params.lr,val_acc,tags.team.",
)
@click.option(
    "--limit",
    type=click.IntRange(1),
    help=("Maximum number of runs, the newest first.  [default: 50; with --json all]"),
)
@click.option("--watch", is_flag=True, help="Redraw every second until Ctrl-C.")
@json_option
def ps(
    everything: bool,
    phases: tuple[str, ...],
    tags: tuple[str, ...],
    parent: str | None,
    trials: bool,
    limit: int | None,
    watch: bool,
    as_json: bool,
    user: str | None,
    project: str | None,
    label: str | None,
    dataset: str | None,
    where: str | None,
    sort: str | None,
    columns: tuple[str, ...],
    archived: bool,
    starred: bool,
) -> None:
    """List live runs, or all runs with -a; the newest first.

    The last column shows why a run waits, its latest metrics, or how it ended. A query compares fields
    (phase, user, took, …), metrics, params and tags, with and, or, not, in (…) and ~ for a part of a text.
    """
    from hopyard.api_client.local_server import connect

    everything = everything or where is not None or archived or starred
    selected = _selected_phases(phases, everything)
    names = parse_columns(columns)
    pairs: dict[str, str] = {}
    for key, value in (split_pair(tag, what="--tag", example="team=vision") for tag in tags):
        if pairs.setdefault(key, value) != value:
            raise SpecError(
                f"--tag: `{key}` has two values",
                hints=("give each tag once: no run has two values of one tag",),
            )
    client = connect()
    nothing = _print_empty(
        filtered=bool(
            phases or tags or parent or user or project or label or dataset or where or archived or starred
        ),
        everything=everything,
    )
    study = None if parent is None else str(get_run(client, parent)["id"])
    shown = int(trials or bool(tags) or study is not None)

    def fetch(limit: int | None) -> list[api.RunOut]:
        return fetch_runs(
            client,
            phases=selected,
            tags=pairs,
            limit=limit,
            user=user,
            project=project,
            label=label,
            dataset=dataset,
            parent=study,
            trials=shown,
            where=where,
            sort=sort,
            archived="only" if archived else None,
            starred=starred,
        )

    def table(runs: list[api.RunOut]) -> list[str]:
        if not names or not runs:
            return run_table(runs)
        width = console.terminal_width() if console.is_terminal(sys.stdout) else None
        return column_table(runs, names, width=width)

    order = "newest" if sort is None else "first"

    def show() -> None:
        if as_json:
            console.print_json(fetch(limit))
            sys.stdout.flush()
            return
        shown_limit = limit or _DEFAULT_LIMIT
        fetched = fetch(shown_limit + 1)
        runs = fetched[:shown_limit]
        if watch and console.supports_cursor(sys.stdout):
            sys.stdout.write(
                "\x1b[H\x1b[2J" + "\n".join(map(console.render_styles, table(runs) or [nothing])) + "\n"
            )
        elif runs:
            console.print_lines(table(runs))
            for sentence in unknown_columns(runs, names):
                console.print_message(sentence)
            if len(fetched) > shown_limit and limit is None:
                console.print_message(
                    f"there are more than the {order} {shown_limit} shown here; use --limit N to show N"
                )
        else:
            console.print_message(nothing)
        sys.stdout.flush()

    show()
    with suppress(KeyboardInterrupt):
        while watch:
            time.sleep(_WATCH_INTERVAL_S)
            show()


def _selected_phases(names: tuple[str, ...], everything: bool) -> tuple[str, ...]:
    words = tuple(word.strip() for text in names for word in text.split(","))
    for word in words:
        if word not in ALL_PHASES:
            raise SpecError(
                f"--phase: `{word}` is not a phase",
                hints=unknown_name_hints(aliases.resolve_phase(word), ALL_PHASES),
            )
    return words or (() if everything else LIVE_PHASES)


def _print_empty(*, filtered: bool, everything: bool) -> str:
    if filtered:
        return "no run matches" + ("" if everything else "; use `-a` to include ended runs")
    return (
        "no runs yet; `hop run train.py` starts one"
        if everything
        else "no live runs; `hop ps -a` lists ended ones"
    )


def run_table(runs: list[api.RunOut]) -> list[str]:
    """Returns the lines of the table, head first; none without runs."""
    if not runs:
        return []
    labels = any(run["spec"].get("label") for run in runs)
    gpus = {run["id"]: gpu_request_text(run) for run in runs}
    queues = len({run["spec"].get("queue") for run in runs}) > 1
    width = console.terminal_width() if console.is_terminal(sys.stdout) else None
    # a label is not worth more of a narrow terminal
    longest = max(8, width // 8) if width is not None else sys.maxsize
    wide = width is None or width >= _WIDE
    scripts = {run["id"]: script_text(run) for run in runs} if wide else {}
    params = {run["id"]: params_text(listed_params(run)) for run in runs} if wide else {}
    head = [
        "RUN",
        *["LABEL"] * labels,
        *["SCRIPT"] * any(scripts.values()),
        *["PARAMS"] * any(params.values()),
        *["QUEUE"] * queues,
        *["GPUS"] * any(gpus.values()),
        "PHASE",
        "AGE",
        "TIME",
        "",
    ]
    rows = []
    for run in runs:
        more = (
            [console.truncate(run["spec"].get("label") or "", longest)] * labels
            + [console.truncate(scripts.get(run["id"], ""), _MAX_SCRIPT)] * any(scripts.values())
            + [console.truncate(params.get(run["id"], ""), _MAX_PARAMS)] * any(params.values())
            + [run["spec"].get("queue") or ""] * queues
            + [gpus[run["id"]]] * any(gpus.values())
        )
        took = console.format_duration(duration_s(run)) if run.get("started_at") else ""
        # read after the duration and rounded alike, so that it is never less
        age = console.format_duration(console.seconds_since(run["submitted_at"]))
        rows.append([run["name"], *more, console.paint_phase(run["phase"]), age, took, detail_text(run)])
    numbers = (len(head) - 3, len(head) - 2)
    return console.format_table(head, rows, right=numbers, width=width)


def gpu_request_text(run: api.RunOut) -> str:
    """Returns the requested GPUs: `8`, `0.5`, `2-8x A100:1`; of several roles with a plus between.
    A started elastic run shows its number of replicas: `4x A100:1`.
    """
    texts = []
    attempt = run.get("attempt") if run["phase"] != "queued" else None
    placed = attempt.get("counts") if attempt else None
    for i, role in enumerate(run["spec"]["roles"]):
        resources = role["resources"]
        if not (resources["gpus"] or resources["gpu_milli"] or resources["gpu_memory_bytes"]):
            continue
        gpus = GpuRequest(resources["gpus"], resources["gpu_milli"], tuple(resources["gpu_models"]))
        replica_text = (
            f"{format_memory(resources['gpu_memory_bytes'])} of one"
            if resources["gpu_memory_bytes"]
            else format_gpus(gpus)
        )
        times = str(placed[i]) if placed else format_replicas(role["min_replicas"], role["replicas"])
        texts.append(replica_text if times == "1" else f"{times}x {replica_text}")
    return " + ".join(texts)


def detail_text(run: api.RunOut) -> str:
    """Returns why a run waits, its progress, or its result."""
    text = "  ".join(
        filter(None, [_phase_detail(run), f"warning: {lost}" if (lost := unstored_text(run)) else ""])
    )
    trials = sum((run.get("trials") or {}).values())
    if not trials:
        return text
    live = sum(count for phase, count in run["trials"].items() if phase in LIVE_PHASES)
    counted = f"{trials} {'run' if trials == 1 else 'runs'} of its trials" + (
        f", {live} alive" if live else ""
    )
    return f"{counted}  {text}" if text else counted


def _phase_detail(run: api.RunOut) -> str:
    if synced := sync_text(run):
        return synced
    if run["phase"] == "queued":
        return "; ".join(filter(None, [queue_line(run) or "waits in its queue", last_eviction_text(run)]))
    if (
        run["phase"] == "stopping"
        and (attempt := run.get("attempt"))
        and (makes_room := attempt.get("preempt_reason"))
    ):
        return f"is preempted: {first_line(makes_room)}"
    if run["phase"] == "paused":
        values = metrics_line(_latest_metrics(run), limit=4)
        return "; ".join(filter(None, ["`hop resume` continues it", values]))
    if is_final(run):
        values = metrics_line(run.get("summary") or {}, limit=3)
        exit_ = run.get("exit")
        if run["phase"] != "succeeded" and exit_:
            return first_line(exit_["reason"]) + (f"  {values}" if values else "")
        return values or metrics_line(_latest_metrics(run), limit=3)
    return metrics_line(_latest_metrics(run), limit=4)


def _latest_metrics(run: api.RunOut) -> dict[str, MetricValue]:
    return {name: pair[1] for name, pair in (run.get("latest") or {}).items()}
