"""Options and arguments that several commands share, with one spelling and one help text."""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import click
from click.shell_completion import CompletionItem

from hopyard.config.requirements_path import parse_requirements_path
from hopyard.domain.launcher import Launcher
from hopyard.domain.run_network import RunNetwork
from hopyard.errors import SpecError

F = TypeVar("F", bound=Callable[..., Any])
_PLAIN_WORD = re.compile(r"[\w.+:@/][\w.+:@/-]*")  # a word that every shell takes as it is


class _RequirementsPath(click.Path):
    """A file, with extras or groups of a project: `pyproject.toml[plot]:dev`."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Path:
        super().convert(parse_requirements_path(Path(value)).file, param, ctx)
        return Path(value)


REQUIREMENTS_PATH = _RequirementsPath(exists=True, dir_okay=False, path_type=Path)
env_option = click.option(
    "-e",
    "--env",
    multiple=True,
    metavar="K[=V]",
    help="An environment variable; K alone takes the value from this shell (repeatable).",
)
param_option = click.option(
    "-p",
    "--param",
    "params",
    multiple=True,
    metavar="K=V",
    help="A parameter, given as the script takes it (repeatable).",
)
params_as_option = click.option(
    "--params-as",
    metavar="FORM",
    help=(
        "How the script takes its parameters: args, hydra, env, json, file:PATH, sdk or none.  [default: as "
        "the script shows]"
    ),
)
secret_option = click.option(
    "--secret",
    "secrets",
    multiple=True,
    metavar="NAME",
    help="A secret of `hop secret set NAME`, as the variable NAME (repeatable).",
)
name_option = click.option("-n", "--name", "label", metavar="LABEL", help="A name for the run.")
cpus_option = click.option("--cpus", metavar="N", help="CPUs per replica.")
memory_option = click.option("--memory", metavar="8G", help="Memory limit per replica.")
gpus_option = click.option("--gpus", metavar="N|MODEL:N", help="GPUs per replica.")
detach_option = click.option("--detach", is_flag=True, help="Submit and return without following.")
json_option = click.option("--json", "as_json", is_flag=True, help="Print JSON on stdout.")

gpu_memory_option = click.option(
    "--gpu-memory", metavar="20G", help="Memory of one GPU; other runs can use the rest of the GPU."
)
extras_option = click.option(
    "--resource",
    "extras",
    multiple=True,
    metavar="NAME=N",
    help="Other countable resources of a node, by name (repeatable).",
)
pool_option = click.option("--pool", metavar="NAME,...", help="Only nodes of these pools.")
where_option = click.option(
    "--where",
    multiple=True,
    metavar="LABEL=VALUE",
    help="Only nodes with this label (repeatable: all must match).",
)
private_folders_option = click.option(
    "--private-folders",
    is_flag=True,
    help="Give each replica a working folder of its own.  [default: one for those on a node]",
)
launcher_option = click.option(
    "--launcher",
    type=click.Choice([each.value for each in Launcher]),
    help="How the processes of the replicas are started; torchrun and mpi start several in each.",
)
processes_option = click.option(
    "--processes",
    type=int,
    metavar="N",
    help="Processes that the launcher starts in each replica.  [default: one per GPU, at least one]",
)
checkpoints_option = click.option(
    "--checkpoints",
    "checkpoint_files",
    multiple=True,
    metavar="GLOB",
    help=(
        "Files of the working folder that the next attempt begins with, such as 'model-*.pt' (repeatable). "
        "Names with ckpt, checkpoint or snapshot are kept anyway."
    ),
)
topology_option = click.option(
    "--topology",
    metavar="RULE:LEVEL",
    help=(
        "Placement of replicas: same, near, balanced or spread, by node or a label: same:node, "
        "spread:rack; in slices same:rack/4."
    ),
)


def complete_queue(_ctx: click.Context, _parameter: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """Returns the names of queues, if a server runs."""
    from hopyard.api_client.local_server import connect
    from hopyard.errors import HopyardError

    try:
        queues = connect(start=False).get_queues()["queues"]
    except HopyardError:
        return []
    return [CompletionItem(queue["name"]) for queue in queues if queue["name"].startswith(incomplete)]


queue_option = click.option(
    "-q",
    "--queue",
    metavar="QUEUE",
    shell_complete=complete_queue,
    help="The queue of the run.  [default: the server's]",
)
priority_option = click.option(
    "--priority", type=int, metavar="0..100", help="Larger priorities start first.  [default: the queue's]"
)
max_output_option = click.option(
    "--max-output",
    metavar="SIZE",
    help=(
        "Size limit of stdout and of stderr: 50M; beyond it only the newest output is kept. At most "
        "the server's limit."
    ),
)
max_metrics_option = click.option(
    "--max-metrics",
    metavar="SIZE",
    help=(
        "Size limit of each replica's metrics: 50M; beyond it only the newest values are kept. At most "
        "the server's limit."
    ),
)
outputs_option = click.option(
    "--outputs",
    multiple=True,
    metavar="GLOB",
    help="Keep only these files of the run; `!GLOB` excludes (repeatable).  [default: all it wrote]",
)
metric_line_option = click.option(
    "--metric-line",
    "metric_lines",
    multiple=True,
    metavar="TEXT",
    help=(
        "Read metrics from lines of the output: 'epoch {step}: val loss {val_loss}'; names in braces are "
        "numbers (repeatable)."
    ),
)
ports_option = click.option(
    "--port",
    "ports",
    multiple=True,
    metavar="[NAME=]PORT",
    help=(
        "A port at which the script serves, to reach with `hop port` (repeatable). The script finds its "
        "real number in $PORT, or by {port:PORT} in arguments."
    ),
)
on_end_option = click.option(
    "--on-end",
    "on_end",
    multiple=True,
    metavar="[EVENT,…=]TARGET",
    help=(
        "Notify of the end and of alerts: an e-mail address, the address of a webhook, or a target of the "
        "server (repeatable). failed=TARGET: only of a failure."
    ),
)
resume_argument_option = click.option(
    "--resume-arg",
    "resume_arguments",
    multiple=True,
    metavar="TEXT",
    help=(
        "Arguments of attempts that begin with a checkpoint of the script: '--resume {checkpoint}', with "
        "its path; or '-p NAME=VALUE' (repeatable)."
    ),
)
keep_option = click.option(
    "--keep",
    "retention",
    metavar="RULE",
    help=(
        "Which checkpoints are kept: last=3,best=2,every=10,metric=max:val_acc (any of these; every=10: "
        "steps that are multiples of 10).  [default: the last 3 and the best one]"
    ),
)
preempt_option = click.option(
    "--no-preempt",
    "preemptible",
    flag_value=False,
    default=None,
    help="Never preempt the run for another run.",
)


changed_tag_option = click.option(
    "--tag", "tags", multiple=True, metavar="K=V", help="A tag to change (repeatable)."
)


def resource_options(command: F) -> F:
    """Adds the options for the resources of each replica."""
    for option in (extras_option, gpu_memory_option, gpus_option, memory_option, cpus_option):
        command = option(command)
    return command


class PngPath(click.Path):
    """Converts the path of a PNG, whose name ends in .png."""

    def __init__(self) -> None:
        super().__init__(dir_okay=False, path_type=Path)

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Path:
        file = Path(os.fsdecode(super().convert(value, param, ctx)))
        if not file.name:
            raise SpecError(
                "--png: the file name is empty", hints=(("give a file name, for example --png plot.png"),)
            )
        if file.suffix.lower() != ".png":
            raise SpecError(
                f"--png: {file} does not end in .png",
                hints=(f"use {file.with_suffix('.png')}: the output is a PNG",),
            )
        if not file.parent.is_dir():  # checked before any slow work
            raise SpecError(
                f"--png: {file} cannot be written: there is no folder {file.parent}",
                hints=("create the folder first",),
            )
        return file


def run_argument(name: str = "ref", **settings: Any) -> Callable[[F], F]:
    """The argument for a run."""
    return click.argument(
        name, metavar=settings.pop("metavar", "RUN"), shell_complete=complete_run, **settings
    )


def last_run_argument(name: str = "ref") -> Callable[[F], F]:
    """The argument for a run, by default the newest run."""
    return run_argument(name, default="last", required=False, metavar="[RUN]")


def last_study_argument(name: str = "ref") -> Callable[[F], F]:
    """The argument for a study, by default the newest study of the user."""
    return click.argument(name, default="", required=False, metavar="[STUDY]", shell_complete=complete_study)


def complete_study(_ctx: click.Context, _parameter: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """Returns the names of recent studies, if a server runs."""
    from hopyard.api_client.local_server import connect
    from hopyard.client.run_lookup import get_study_spec
    from hopyard.errors import HopyardError

    try:
        runs = list(connect(start=False).iterate_runs(studies=1, max_rows=100))
    except HopyardError:
        return []
    return [
        CompletionItem(run["name"], help=get_study_spec(run)["name"])
        for run in runs
        if run["name"].startswith(incomplete)
    ]


def complete_run(_ctx: click.Context, _parameter: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """Returns the names and labels of recent runs, if a server runs."""
    from hopyard.api_client.local_server import connect
    from hopyard.errors import HopyardError

    try:
        runs = list(connect(start=False).iterate_runs(max_rows=100))
    except HopyardError:
        return []
    items = [CompletionItem(run["name"], help=run["phase"]) for run in runs]
    # another user's label must not become a part of a command
    labels = dict.fromkeys(run["spec"].get("label") or "" for run in runs)
    items += [CompletionItem(label, help="label") for label in labels if _PLAIN_WORD.fullmatch(label)]
    items.append(CompletionItem("last", help="the newest run"))
    return [item for item in items if str(item.value).startswith(incomplete)]


def complete_dataset(
    _ctx: click.Context, _parameter: click.Parameter, incomplete: str
) -> list[CompletionItem]:
    """Returns the names of datasets, if a server runs."""
    from hopyard.api_client.local_server import connect
    from hopyard.errors import HopyardError

    try:
        datasets = list(connect(start=False).iterate_datasets())
    except HopyardError:
        return []
    return [CompletionItem(dataset["name"]) for dataset in datasets if dataset["name"].startswith(incomplete)]


datasets_option = click.option(
    "-d",
    "--dataset",
    "datasets",
    multiple=True,
    metavar="NAME[:VERSION][=PATH]",
    shell_complete=complete_dataset,
    help=(
        "A dataset that the script reads (repeatable). Where the script looks for it: mnist=../data, "
        "relative to the working folder, or mnist:/data/mnist. {dataset:mnist} in arguments is its folder."
    ),
)
run_cpus_option = click.option(
    "--cpus",
    metavar="N",
    help=("CPUs per replica, also fractions; a limit if given.  [default: 1, and idle CPUs]"),
)
run_memory_option = click.option(
    "--memory",
    metavar="8G",
    help=("Memory limit per replica. A run that exceeds it is killed (out of memory)."),
)
run_gpus_option = click.option(
    "--gpus",
    metavar="N|MODEL:N",
    help="GPUs per replica: 2, a share of one 0.5, of a model A100:8, of one of two A100|H100:2.",
)
idle_option = click.option(
    "--idle",
    metavar="30m",
    help="End the run after so long without use of CPU or GPU, and without an open port or console.",
)
time_option = click.option(
    "--time",
    metavar="2h",
    help="Time limit of each attempt: 2h, 90m, 3600. A lost or preempted run gets the full limit again.",
)
image_option = click.option(
    "--image",
    metavar="REF",
    help="Run each replica in a container of this image, through Docker or Podman.",
)
container_option = click.option(
    "--container",
    is_flag=True,
    help="Run in a container of an image with the --requirements, built once from --image.",
)
network_option = click.option(
    "--network",
    type=click.Choice([network.value for network in RunNetwork]),
    help="none: the replicas, in containers, reach only each other.  [default: default]",
)
requirements_option = click.option(
    "--requirements",
    type=REQUIREMENTS_PATH,
    metavar="FILE",
    help="Build the environment from this file, once (`pyproject.toml[EXTRA]:GROUP`).",
)
python_option = click.option(
    "--python", metavar="VERSION|PATH", help="Python version for --requirements, or an interpreter to use."
)
no_preflight_option = click.option(
    "--no-preflight",
    is_flag=True,
    help="Start the script without the checks of nodes, data and connections before it.",
)
project_option = click.option("--project", help="The project it belongs to.  [default: the folder's name]")


def session_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Adds the options of a run that a person works in: resources, data, environment, queue."""
    options = (
        datasets_option,
        run_cpus_option,
        run_memory_option,
        run_gpus_option,
        gpu_memory_option,
        time_option,
        idle_option,
        requirements_option,
        image_option,
        container_option,
        python_option,
        env_option,
        secret_option,
        name_option,
        queue_option,
        priority_option,
        pool_option,
        where_option,
        project_option,
    )
    for option in reversed(options):
        command = option(command)
    return command
