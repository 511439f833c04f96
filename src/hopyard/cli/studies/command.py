"""`hop search`: studies: submits, shows, draws, resumes and replays them."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any

import click

from hopyard.cli.options import (
    REQUIREMENTS_PATH,
    PngPath,
    complete_dataset,
    cpus_option,
    detach_option,
    env_option,
    gpu_memory_option,
    gpus_option,
    json_option,
    last_study_argument,
    memory_option,
    metric_line_option,
    on_end_option,
    params_as_option,
    priority_option,
    queue_option,
    secret_option,
)
from hopyard.cli.script_command import ScriptCommand, module_option, with_module
from hopyard.cli.terminal import console
from hopyard.config import key_values
from hopyard.domain.suggest import closest_name
from hopyard.errors import SpecError, UsageError

_DEFAULT_LIMIT = 50


class SearchGroup(click.Group):
    """`hop search search.yaml` is `hop search run search.yaml`: a word that is not a command is a file."""

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        if args and self.get_command(ctx, args[0]) is None and not args[0].startswith("-"):
            args = ["run", *args]
        return super().resolve_command(ctx, args)

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Moves options of `run` that precede the file."""
        if args and args[0].startswith("-") and args[0] not in ctx.help_option_names:
            args = ["run", *args]
        return super().parse_args(ctx, args)


@click.group("search", cls=SearchGroup, no_args_is_help=False, invoke_without_command=True)
@click.pass_context
def search(ctx: click.Context) -> None:
    """Tune hyperparameters: `hop search search.yaml` starts a study and follows it.

    A study is a run: `hop ps`, `hop stop`, `hop logs`, `hop why` and `hop pull` work on it. Its trials are
    runs, or hop between the workers of one gang, each with its own partition of the data (`parallel: mop`).
    """
    if ctx.invoked_subcommand is None:
        click.echo(ctx.get_help())


@search.command(
    "run", cls=ScriptCommand, short_help="Start the study of a file, or of ranges on the command line."
)
@click.argument("what", metavar="FILE.yaml|SCRIPT|COMMAND", required=False)
@click.argument("arguments", nargs=-1, metavar="[-- ARGUMENT...]", type=click.UNPROCESSED)
@module_option
@click.option(
    "-p",
    "--param",
    "params",
    multiple=True,
    metavar="K=RANGE",
    help=(
        "A searched parameter: lr=log:1e-4..1e-1, dropout=0.0..0.5, layers=1..4, width=logint:16..256, "
        "batch_size=16,32,64; or one value for all trials (repeatable)."
    ),
)
@click.option("--metric", metavar="NAME", help="The metric that the script reports.")
@metric_line_option
@click.option(
    "--mode", type=click.Choice(["min", "max"]), help="The best value.  [default: by the metric's name]"
)
@click.option("--trials", type=click.IntRange(1), metavar="N", help="Maximum number of trials.")
@click.option(
    "--searcher",
    metavar="NAME",
    help="The searcher.  [default: random; grid if all combinations fit into --trials]",
)
@click.option("--epochs", type=click.IntRange(1), metavar="N", help="The largest budget of a trial.")
@click.option("--steps", type=click.IntRange(1), metavar="N", help="The same budget, in steps.")
@click.option("--concurrent", type=click.IntRange(1), metavar="N", help="Trials at a time.  [default: 4]")
@click.option("--seed", type=click.IntRange(0), metavar="N", help="Random seed, in place of the file's.")
@click.option("-n", "--name", "label", metavar="LABEL", help="A name for the study.")
@click.option(
    "-d",
    "--dataset",
    "datasets",
    multiple=True,
    metavar="NAME[:VERSION]",
    shell_complete=complete_dataset,
    help="A dataset that the script reads (repeatable).",
)
@on_end_option
@params_as_option
@env_option
@secret_option
@click.option("--tag", "tags", multiple=True, metavar="K=V", help="A tag to find it by (repeatable).")
@cpus_option
@memory_option
@gpus_option
@gpu_memory_option
@click.option("--time", metavar="2h", help="Time limit of each attempt of a trial.")
@click.option(
    "--requirements",
    type=REQUIREMENTS_PATH,
    metavar="FILE",
    help="Build the environment from this file, once (`pyproject.toml[EXTRA]:GROUP`).",
)
@click.option("--python", metavar="VERSION", help="Python version for --requirements.")
@click.option("--project", help="The project it belongs to.  [default: the folder's name]")
@queue_option
@priority_option
@click.option(
    "--dry-run",
    is_flag=True,
    help="Check the file and show the first trials, without submitting.",
)
@detach_option
@json_option
def run_study(
    what: str | None,
    arguments: tuple[str, ...],
    module: str | None,
    dry_run: bool,
    detach: bool,
    as_json: bool,
    **options: Any,
) -> int:
    """Start a study, and follow it until it ends: the study of FILE, or a study of a script.

    The current folder is packed and travels with the study; paths of scripts and trainables are relative to
    it. Ctrl-C stops following; the study continues.
    """
    from hopyard.cli.studies.run import preview_study, start_study

    what, arguments = with_module(module, what, arguments)
    if module is not None:
        options["label"] = options["label"] or module.rpartition(".")[2]
    if what is None:
        label = options["label"]
        named = (
            ((f"give a name with -n and the file as well: hop search FILE.yaml -n {label}"),) if label else ()
        )
        raise UsageError(
            "FILE.yaml: the study file is missing",
            hints=(*named, "run `hop search run --help` for its arguments"),
        )
    if module is None and not options["metric"] and not Path(what).is_file():
        raise SpecError(
            f"there is no file {what}" if not Path(what).exists() else f"{what} is a folder, not a file",
            hints=_search_file_hint(Path(what)),
        )
    if dry_run:
        preview_study(what, arguments, options, as_json=as_json)
        return 0
    return start_study(what, arguments, options, detach=detach, as_json=as_json)


@search.command("ls")
@click.option("-a", "--all", "everything", is_flag=True, help="Also ended studies.")
@click.option(
    "--limit",
    type=click.IntRange(1),
    help=("Maximum number of studies, the newest first.  [default: 50; with --json all]"),
)
@json_option
def list_studies(everything: bool, limit: int | None, as_json: bool) -> None:
    """List live studies, or all studies with -a; the newest first."""
    from hopyard.api_client.local_server import connect
    from hopyard.cli.ps import LIVE_PHASES
    from hopyard.cli.studies.table import failure_reason, searcher_name
    from hopyard.client.resume_study import previous_study_names
    from hopyard.client.run_lookup import fetch_runs, get_study_spec

    client = connect()
    studies = fetch_runs(
        client,
        phases=() if everything else LIVE_PHASES,
        tags={},
        limit=limit or (None if as_json else _DEFAULT_LIMIT),
        studies=1,
    )
    if as_json:
        console.print_json(studies)
        return
    if not studies:
        console.print_message(
            "no studies yet; `hop search search.yaml` starts one"
            if everything
            else "no live studies; `hop search ls -a` lists ended ones"
        )
        return
    rows = []
    names = previous_study_names(client, studies)
    for each in studies:
        study, summary = get_study_spec(each), each.get("summary") or {}
        best = summary.get(study["metric"])
        notes = [
            f"{study['metric']} {console.format_number(best)}" if best is not None else "",
            failure_reason(each),
            names.get(each["id"], ""),
            f"forked from {beginning['study']}" if (beginning := study.get("beginning")) else "",
        ]
        rows.append(
            [
                each["name"],
                each["spec"].get("label") or study["name"],
                console.paint_phase(each["phase"]),
                searcher_name(study).rpartition(":")[2],
                f"{summary.get('trials', 0):.0f}",
                console.format_age(console.seconds_since(each["submitted_at"])),
                "; ".join(filter(None, notes)),
            ]
        )
    width = console.terminal_width() if console.is_terminal(sys.stdout) else None
    console.print_lines(
        console.format_table(
            ["STUDY", "NAME", "PHASE", "SEARCHER", "TRIALS", "AGE", "BEST"], rows, right=(4, 5), width=width
        )
    )


@search.command("show", short_help="Show the state of a study: its trials, the best first.")
@last_study_argument()
@click.option("--trial", metavar="N", help="Show one trial: its parameters, its curve, its error.")
@json_option
def show_search(ref: str, trial: str | None, as_json: bool) -> None:
    """Show the state of a study: its trials, the best first, and the importance of its parameters.

    The default is your newest study.
    """
    from hopyard.cli.studies.show import show_study, show_trial

    if trial is None:
        show_study(ref, as_json=as_json)
    else:
        show_trial(ref, trial, as_json=as_json)


@search.command("gantt", short_help="Draw a chart of trials on workers over time.")
@last_study_argument()
@click.option("--epochs", metavar="A-B", help="Only these epochs, counted from 0: 0-2, or 3.")
@click.option(
    "--png", "file", type=PngPath(), metavar="FILE", help="Write a picture instead (needs matplotlib)."
)
@json_option
def show_gantt(ref: str, epochs: str | None, file: Path | None, as_json: bool) -> None:
    """Draw a chart of trials on workers over time, with the measured idle time."""
    from hopyard.cli.studies import gantt as drawing
    from hopyard.cli.studies.show import read_study
    from hopyard.client.run_lookup import get_study_spec
    from hopyard.studies.view.gantt import as_data
    from hopyard.studies.view.gantt import gantt as chart_of

    study, view = read_study(ref)
    if get_study_spec(study)["parallel"] != "mop" and not view.bars:
        raise SpecError(
            f"the trials of {study['name']} are separate runs, so they share no worker",
            hints=(f"list them with `hop ps -a --parent {study['name']}`",),
        )
    chart = chart_of(view, epochs=_parse_epochs(epochs))
    if epochs is not None and view.bars and not chart.rows:
        raise SpecError(
            f"--epochs: no unit of {epochs} has ended",
            hints=(
                (
                    f"choose from epochs {min((bar.epoch for bar in view.bars))} to "
                    f"{max((bar.epoch for bar in view.bars))}"
                ),
            ),
        )
    if as_json:
        console.print_json({"study": study["name"], **as_data(chart)})
    elif file is not None:
        drawing.write_png(chart, file, title=view.spec.get("name", ""))
        console.print_message(f"{file}: {drawing.summary_lines(chart)}")
    else:
        drawing.print_gantt(chart)


@search.command("resume", short_help="Continue an ended study.")
@last_study_argument()
@click.option(
    "--trials",
    type=click.IntRange(1),
    metavar="N",
    help="Maximum number of trials in total, if the searcher can propose more.",
)
@click.option(
    "--code",
    type=click.Path(exists=True, file_okay=False, path_type=Path),
    metavar="FOLDER",
    help="Use the code of this folder, not the study's.",
)
@click.option(
    "-q",
    "--queue",
    metavar="QUEUE",
    help="The queue of the new run.  [default: the study's]",
)
@click.option(
    "--priority", type=int, metavar="0..100", help=("Larger priorities start first.  [default: the study's]")
)
@env_option
@secret_option
@click.option(
    "--trust",
    is_flag=True,
    help=(
        "Load all objects of another user's states, which can run that user's code. By default only "
        "tensors, arrays and plain values are loaded."
    ),
)
@detach_option
@json_option
def resume_search(
    ref: str,
    code: Path | None,
    env: tuple[str, ...],
    secrets: tuple[str, ...],
    detach: bool,
    as_json: bool,
    **changed: Any,
) -> int:
    """Continue a study that was stopped, has failed, or has finished and gets more trials.

    The new run has the journal, the trials and the trained states of the ended one. Only unfinished units are
    repeated. A study that crashed resumes automatically.
    """
    from hopyard.api_client.local_server import connect
    from hopyard.cli.studies.run import attach_to_study
    from hopyard.cli.terminal.transfer_bar import TransferBar
    from hopyard.client.resume_study import resume_study as go_on
    from hopyard.client.study_lookup import get_study

    variables, names = key_values.parse_env(env, os.environ), key_values.parse_secrets(secrets)
    client = connect()
    client, run = go_on(
        client,
        get_study(client, ref),
        code=None if code is None else code.resolve(),
        env=variables,
        secrets=names,
        notify=console.print_message,
        on_progress=TransferBar,
        **changed,
    )
    return attach_to_study(client, run, detach=detach, as_json=as_json)


@search.command("stop", short_help="Stop a study, or one of its trials.")
@last_study_argument()
@click.option("--trial", metavar="N", help="Stop only this trial; its best value counts.")
@json_option
def stop_search(ref: str, trial: str | None, as_json: bool) -> None:
    """Stop a study with its trials, or one trial.

    A stopped trial is not a failure: its values count, and the searcher gets the next trial.
    """
    from hopyard.api_client.local_server import connect
    from hopyard.cli.studies.show import find_trial, read_study
    from hopyard.client.stop_trial import stop_trial

    study, view = read_study(ref)
    client = connect()
    if trial is None:
        stopped = client.stop_run(study["id"], {})
    else:
        stopped = stop_trial(client, study, find_trial(study, view, trial))
    if as_json:
        console.print_json(stopped)
    elif trial is not None and stopped["id"] == study["id"]:
        console.print_line(f"{stopped['name']}  trial {trial} stops, the study continues")
    else:
        console.print_line(f"{stopped['name']}  {stopped['phase']}")


@search.command("replay", short_help="Train trials again, and compare every state.")
@last_study_argument()
@click.option("--trial", "trials", multiple=True, metavar="N", help="Only this trial (repeatable).")
@json_option
def replay_search(ref: str, trials: tuple[str, ...], as_json: bool) -> int:
    """Train a study's trials again, in one process and in the recorded order, and compare every state with
    the recorded one.

    Code and data are those of the study. If a state differs, the exit code is 1 and the first one is named.
    """
    from hopyard.cli.studies.run import replay_study

    return replay_study(ref, trials, as_json=as_json)


def _search_file_hint(file: Path) -> tuple[str, ...]:
    """Returns hints for a missing file: a similar command, or an existing file."""
    meant = closest_name(str(file), search.commands) if not file.suffix else None
    if meant:
        return (f"did you mean `hop search {meant}`?",)
    there = [str(each) for each in sorted(file.parent.glob("*.y*ml"))] if file.parent.is_dir() else []
    near = closest_name(str(file), there)
    if near or there:
        return (f"did you mean `{near}`?" if near else f"there is {', '.join(there[:3])}",)
    return ("run `hop search --help` for the commands; docs/reference/search-file.md describes the file",)


def _parse_epochs(text: str | None) -> tuple[int, int] | None:
    if text is None:
        return None
    low, dash, high = text.partition("-")
    if not (low.isdecimal() and (high.isdecimal() if dash else True)) or (dash and int(high) < int(low)):
        raise SpecError(
            f"--epochs: `{text}` is not a range of epochs",
            hints=(("give a range or an epoch, counted from 0: 0-2, or 3"),),
        )
    return int(low), int(high if dash else low)
