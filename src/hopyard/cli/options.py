"""Options and arguments that several commands share, so that they are spelled and explained the same
everywhere."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import click
from click.shell_completion import CompletionItem

from hopyard.errors import SpecError

F = TypeVar("F", bound=Callable[..., Any])

env_option = click.option(
    "-e",
    "--env",
    multiple=True,
    metavar="K[=V]",
    help="An environment variable; K alone passes on the one set here (repeatable).",
)
secret_option = click.option(
    "--secret",
    "secrets",
    multiple=True,
    metavar="NAME",
    help="A secret kept by `hop secret set NAME`, as the variable NAME (repeatable).",
)
name_option = click.option("-n", "--name", "label", metavar="LABEL", help="A name for the run.")
cpus_option = click.option("--cpus", metavar="N", help="CPUs per replica.")
memory_option = click.option("--memory", metavar="8G", help="Memory limit per replica.")
gpus_option = click.option("--gpus", metavar="N|MODEL:N", help="GPUs per replica.")
detach_option = click.option("--detach", is_flag=True, help="Submit and return without following.")
json_option = click.option("--json", "as_json", is_flag=True, help="Print JSON on stdout.")

gpu_memory_option = click.option(
    "--gpu-memory", metavar="20G", help="So much memory of one GPU; the rest of it is for others."
)
extras_option = click.option(
    "--resource",
    "extras",
    multiple=True,
    metavar="NAME=N",
    help="Other countable things of a node, by name (repeatable).",
)
pool_option = click.option("--pool", metavar="NAME,...", help="Only nodes of these pools.")
where_option = click.option(
    "--where",
    multiple=True,
    metavar="LABEL=VALUE",
    help="Only nodes with this label (repeatable: all must match).",
)
topology_option = click.option(
    "--topology",
    metavar="RULE:LEVEL",
    help=(
        "How close replicas are: same, near, balanced or spread, of node or a label: same:node, "
        "spread:rack; in slices same:rack/4."
    ),
)
queue_option = click.option(
    "-q", "--queue", metavar="QUEUE", help="Where it waits, and whose share it uses.  [default: the server's]"
)
priority_option = click.option(
    "--priority", type=int, metavar="0..100", help="Larger goes first.  [default: the queue's]"
)
max_output_option = click.option(
    "--max-output",
    metavar="SIZE",
    help=(
        "Keep so much of each of stdout and stderr, and the newest part of what follows: 50M. At most "
        "what the server keeps."
    ),
)
max_metrics_option = click.option(
    "--max-metrics",
    metavar="SIZE",
    help=(
        "Keep so much of the metrics of each replica, and the newest values of what follows: 50M. At "
        "most what the server keeps."
    ),
)
preempt_option = click.option(
    "--no-preempt",
    "preemptible",
    flag_value=False,
    default=None,
    help="Never asked to make room for another run.",
)


class PngPath(click.Path):
    """Where a PNG goes: a name that says so."""

    def __init__(self) -> None:
        super().__init__(dir_okay=False, path_type=Path)

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Path:
        file = Path(os.fsdecode(super().convert(value, param, ctx)))
        if not file.name:
            raise SpecError("--png: it names no file", hints=("for example --png plot.png",))
        if file.suffix.lower() != ".png":
            raise SpecError(
                f"--png: {file} does not end in .png",
                hints=(f"it is a PNG that is written: {file.with_suffix('.png')}",),
            )
        if not file.parent.is_dir():  # told before anything takes time
            raise SpecError(
                f"--png: {file} cannot be written: there is no folder {file.parent}", hints=("make it first",)
            )
        return file


def run_argument(name: str = "ref", **settings: Any) -> Callable[[F], F]:
    """The argument that names a run."""
    return click.argument(
        name, metavar=settings.pop("metavar", "RUN"), shell_complete=complete_run, **settings
    )


def last_run_argument(name: str = "ref") -> Callable[[F], F]:
    """The argument that names a run, the newest one where it is left out."""
    return run_argument(name, default="last", required=False, metavar="[RUN]")


def last_study_argument(name: str = "ref") -> Callable[[F], F]:
    """The argument that names a study, the newest of one's own where it is left out."""
    return click.argument(name, default="", required=False, metavar="[STUDY]", shell_complete=complete_study)


def complete_study(_ctx: click.Context, _parameter: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """Names of recent studies, when a server is there to ask."""
    from hopyard.api_client.local_server import connect
    from hopyard.errors import HopyardError

    try:
        runs = connect(start=False).get("/runs", studies=1, limit=100)["runs"]
    except HopyardError:
        return []
    return [
        CompletionItem(run["name"], help=run["spec"]["study"]["name"])
        for run in runs
        if run["name"].startswith(incomplete)
    ]


def complete_run(_ctx: click.Context, _parameter: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """Names of recent runs, when a server is there to ask."""
    from hopyard.api_client.local_server import connect
    from hopyard.errors import HopyardError

    try:
        runs = connect(start=False).get("/runs", limit=100)["runs"]
    except HopyardError:
        return []
    return [
        CompletionItem(run["name"], help=run["phase"]) for run in runs if run["name"].startswith(incomplete)
    ]


def complete_dataset(
    _ctx: click.Context, _parameter: click.Parameter, incomplete: str
) -> list[CompletionItem]:
    """Names of datasets, when a server is there to ask."""
    from hopyard.api_client.local_server import connect
    from hopyard.errors import HopyardError

    try:
        found = list(connect(start=False).iterate_pages("/datasets", "datasets"))
    except HopyardError:
        return []
    return [CompletionItem(dataset["name"]) for dataset in found if dataset["name"].startswith(incomplete)]
