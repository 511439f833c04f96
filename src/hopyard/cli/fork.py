"""`hop fork`: runs again with changes."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import click

from hopyard.api_client.client import Client
from hopyard.cli.options import (
    changed_tag_option,
    detach_option,
    env_option,
    json_option,
    max_metrics_option,
    max_output_option,
    metric_line_option,
    name_option,
    pool_option,
    preempt_option,
    priority_option,
    private_folders_option,
    resource_options,
    run_argument,
    secret_option,
    topology_option,
    where_option,
)
from hopyard.cli.run_text import fork_source_text
from hopyard.cli.terminal import console
from hopyard.client.checkpoint_lookup import BEST, CheckpointChoice, parse_choice
from hopyard.client.run_lookup import get_run, get_study_spec
from hopyard.errors import SpecError

if TYPE_CHECKING:
    from hopyard.api_client import types as api


@click.command("fork")
@run_argument(metavar="RUN[@CHECKPOINT]")
@click.argument("arguments", nargs=-1, metavar="[-- ARGUMENT...]", type=click.UNPROCESSED)
@click.option(
    "-p", "--param", "params", multiple=True, metavar="K=V", help="A parameter to change (repeatable)."
)
@env_option
@secret_option
@name_option
@changed_tag_option
@resource_options
@click.option("--replicas", metavar="N|MIN-MAX", help="Number of replicas; elastic 2-8: as many as fit.")
@private_folders_option
@topology_option
@pool_option
@where_option
@click.option(
    "--time",
    metavar="2h",
    help="Time limit of each attempt; a lost or preempted run gets the full limit again.",
)
@max_output_option
@max_metrics_option
@metric_line_option
@click.option("-q", "--queue", metavar="QUEUE", help="The queue of the run.  [default: that of RUN]")
@priority_option
@preempt_option
@click.option("--project", help="The project of the run.  [default: that of RUN]")
@click.option(
    "--checkpoint",
    metavar="newest|STEP|best",
    help="Start from this checkpoint of RUN, not from the beginning; best: by the metric of RUN, or the best "
    "model of a study.",
)
@click.option(
    "--epochs",
    type=click.IntRange(1),
    metavar="N",
    help="With --checkpoint best: train N more epochs.  [default: the study's]",
)
@click.option(
    "--files",
    is_flag=True,
    help=(
        "Begin with the checkpoints that the script of RUN wrote itself: its $HOPYARD_RUN_DIR, and kept "
        "files of its working folder."
    ),
)
@click.option(
    "--trust",
    is_flag=True,
    help=(
        "Load all objects of another user's checkpoint, which can run that user's code. By default "
        "only tensors, arrays and plain values are loaded."
    ),
)
@click.option(
    "--code",
    type=click.Path(exists=True, file_okay=False, path_type=Path),
    metavar="FOLDER",
    help="Take the code from this folder, not from RUN: `--code .` continues with mended code.",
)
@detach_option
@json_option
def fork(
    ref: str,
    arguments: tuple[str, ...],
    checkpoint: str | None,
    epochs: int | None,
    files: bool,
    trust: bool,
    code: Path | None,
    detach: bool,
    as_json: bool,
    **options: Any,
) -> int:
    """Run RUN again with changes: same code, dataset versions and environment, independent of the current
    folder unless --code names it. Arguments after `--` replace those of RUN.

    RUN@STEP, RUN@newest and RUN@best are RUN with --checkpoint. Without --name the new run takes the name of
    RUN, and the name then refers to the new run. A forked study searches from the beginning; with
    --checkpoint best it continues the training of its best model, in a study of one trial (`parallel: mop`).
    `hop search resume` continues a study.
    """
    from dataclasses import asdict
    from datetime import UTC, datetime

    from hopyard.api_client.local_server import connect
    from hopyard.cli.attach import attach_to_run
    from hopyard.cli.terminal.transfer_bar import TransferBar
    from hopyard.client.build_run import check_code_folder
    from hopyard.client.fork_code import fork_run
    from hopyard.client.param_forms import fork_trial_form
    from hopyard.domain.ids import new_run_id

    ref, choice = _split_reference(ref, checkpoint)
    changes = spec_changes(options)
    changes["checkpoint"], changes["epochs"], changes["trust"] = choice, epochs, trust
    changes["files"] = files
    if epochs is not None and choice != BEST:
        raise SpecError(
            "--epochs: only the best model of a study can be trained for more epochs",
            hints=(
                (
                    "use `hop fork STUDY --checkpoint best --epochs N`; for a script, change its "
                    "parameter: `-p epochs=N`"
                ),
            ),
        )
    client = connect()
    source = client.get_run(get_run(client, ref)["id"])
    study = source["spec"].get("study")
    if study is None and epochs is not None:
        raise SpecError(
            f"--epochs: {source['name']} is not a study",
            hints=("change the parameter of the script: `-p epochs=N`",),
        )
    if study is not None:
        _check_study(client, source, options["params"], choice)
    roles = changed_roles(source["spec"]["roles"], options)
    if roles is not None:
        changes["roles"] = roles
    if study is None:
        from hopyard.config.key_values import param_texts

        texts = param_texts(options["params"])
        _change_arguments(client, changes, source, arguments, code, texts)
        if code is None:
            _warn_undeclared(source, changes.get("params") or {}, arguments)
    elif arguments:
        raise SpecError(
            f"{source['name']} is a study, so it has no script with arguments",
            hints=("change its file, and start it again with `hop search`",),
        )
    elif code is not None:
        trial_form = fork_trial_form(study, code.resolve(), notify=console.print_message)
        if trial_form is not None:
            changes["param_format"] = cast("api.ParamFormatIn", asdict(trial_form))
    changes["id"] = new_run_id(datetime.now(UTC), os.urandom(7))
    saved = list(client.iterate_run_checkpoints(source["id"])) if choice == "newest" else []
    if code is not None:
        check_code_folder(code.resolve())
    client, run = fork_run(
        client,
        source,
        changes,
        code=None if code is None else code.resolve(),
        notify=console.print_message,
        on_progress=TransferBar,
    )
    if ref != source["name"]:
        label = run["spec"]["label"]
        console.print_message(
            f"forks {source['name']}"
            + (
                f"; `{label}` now refers to {run['name']} (use `--name` for another name)"
                if label and label == source["spec"]["label"]
                else ""
            )
        )
    resume = run["spec"]["resume"]
    if saved and study is None and resume is not None and resume["step"] < saved[-1]["step"]:
        console.print_message(
            f"warning: the checkpoint of step {saved[-1]['step']} of {source['name']} cannot be read: "
            f"the fork starts from the one of step {resume['step']}"
        )
    if study is None:
        return attach_to_run(client, run, detach=detach, as_json=as_json, folder=code)
    _announce_source(source, run)
    from hopyard.cli.studies.run import attach_to_study

    return attach_to_study(client, run, detach=detach, as_json=as_json)


def _change_arguments(
    client: Client,
    changes: api.ForkIn,
    source: api.RunOut,
    arguments: Sequence[str],
    code: Path | None,
    texts: Mapping[str, str],
) -> None:
    """Adds the changes of parameters and arguments. texts: of values, as typed. Raises SpecError."""
    from dataclasses import asdict

    from hopyard.cli.run_text import param_form
    from hopyard.client.param_forms import fork_changes, fork_form
    from hopyard.client.param_types import folder_reader
    from hopyard.client.run_files import code_reader

    spec = source["spec"]
    roles = changes.get("roles") or cast("list[api.RoleIn]", spec["roles"])
    form, params = param_form(spec), spec.get("params") or {}
    new_form = None
    if code is not None:
        form = new_form = fork_form(
            roles, form, params, code.resolve(), notify=console.print_message, arguments=arguments
        )
    changed = fork_changes(
        roles,
        form,
        params,
        changes.get("params") or {},
        arguments,
        texts=texts,
        read=code_reader(client, source) if code is None else folder_reader(code.resolve()),
    )
    new_form = changed.form or new_form
    if new_form is not None:
        changes["param_format"] = cast("api.ParamFormatIn", asdict(new_form))
    changes["params"] = dict(changed.params)
    changes["removed_params"] = list(changed.removed)
    if changed.roles is not None:
        changes["roles"] = changed.roles


def _warn_undeclared(source: api.RunOut, names: Iterable[str], arguments: Sequence[str]) -> None:
    """Warns about parameters that the script of the run has not declared with `hop.params`."""
    from hopyard.cli.run_text import param_form
    from hopyard.domain.command_template import placeholder_names
    from hopyard.domain.param_format import ParamStyle
    from hopyard.domain.suggest import closest_name

    form, declared, given = param_form(source["spec"]), source["params"], source["spec"].get("params") or {}
    if form is not None and form.style is not ParamStyle.SDK:
        return
    # a script that ended early may have declared none yet
    if len(declared) == len(given) and source["phase"] != "succeeded":
        return
    for name in names:
        if name in declared or name in placeholder_names(arguments) or not declared:
            continue
        close = closest_name(name, declared)
        console.print_message(
            f"warning: -p {name}: the script of {source['name']} has no parameter `{name}`; "
            + (f"did you mean `{close}`?" if close else f"it has {', '.join(declared)}")
        )


def _split_reference(ref: str, checkpoint: str | None) -> tuple[str, CheckpointChoice]:
    """Returns the run and the checkpoint that its `@` or the option names. Raises SpecError."""
    run, at, behind = ref.partition("@")
    if at and checkpoint is not None and behind != checkpoint:
        raise SpecError(
            f"--checkpoint: `{checkpoint}`, but {ref} names `{behind}`", hints=("give only one of the two",)
        )
    if not at:
        return run, parse_choice(checkpoint, what="--checkpoint")
    return run, parse_choice(behind, what=ref)


def _announce_source(source: api.RunOut, run: api.RunOut) -> None:
    begin = get_study_spec(run).get("beginning")
    if begin is None or run["spec"]["resume"] is None:
        console.print_message(
            f"{source['name']} starts its search from the beginning"
            + (
                "; use `--checkpoint best` to continue the training of its best model"
                if get_study_spec(source)["parallel"] == "mop"
                else ""
            )
        )
        return
    lives = (
        ""
        if source["phase"] in ("succeeded", "failed", "cancelled")
        else ", the best model that it has saved so far; it continues"
    )
    console.print_message(f"from {fork_source_text(begin, get_study_spec(run))}{lives}")


def _check_study(
    client: Client, study: api.RunOut, params: Sequence[str], checkpoint: CheckpointChoice
) -> None:
    """Checks options that a study does not take; only the journal has some of the facts. Raises SpecError."""
    name, hops = study["name"], get_study_spec(study)["parallel"] == "mop"
    if checkpoint == BEST and hops:
        return
    if checkpoint is None:
        if params:
            hints = ["change the file and start another study: `hop search search.yaml -p K=V`"]
            hints += [
                f"use `hop fork {name} --checkpoint best -p K=V` to continue its best model with changes"
            ] * hops
            raise SpecError(f"--param: {name} is a study: its parameters are those of its space", hints=hints)
        return
    if hops:
        hints = [
            f"use `hop fork {name} --checkpoint best` to continue its best model",
            f"use `hop search resume {name}` to continue all trials",
        ]
        raise SpecError(
            f"--checkpoint: {name} is a study, whose checkpoints hold the states of its trials", hints=hints
        )
    from hopyard.client.study_lookup import read_journal
    from hopyard.studies.view.study_view import StudyView

    best = StudyView.from_records(read_journal(client, study)).best()
    hints = [f"use `hop search resume {name}` to continue all trials"]
    if best is not None and best.run:
        hints.insert(
            0, f"fork the run of its best trial: `hop fork {best.run_name or best.run} --checkpoint newest`"
        )
    raise SpecError(
        f"--checkpoint: {name} is a study; its fork starts the search from the beginning, and only its "
        "trials have checkpoints",
        hints=hints,
    )


def spec_changes(options: dict[str, Any]) -> api.ForkIn:
    """Returns the changes of a run's spec, except roles. Raises SpecError."""
    from hopyard.config import key_values
    from hopyard.config.run_request import parse_scheduling
    from hopyard.domain.ids import check_label, check_name

    changes: api.ForkIn = {
        "params": key_values.parse_params(options["params"], prefixes=key_values.NEW_KEY_MARKS),
        "env": key_values.parse_env(options["env"], os.environ),
        "secrets": key_values.parse_secrets(options["secrets"]),
        "tags": key_values.parse_tags(options["tags"]),
    }
    if options["label"]:
        changes["label"] = check_label(check_name(options["label"], subject="--name"), subject="--name")
    if options["project"]:
        changes["project"] = check_name(options["project"], subject="--project")
    standing = parse_scheduling(options)
    if "topology" in standing:
        standing["topology"] = standing["topology"].spec()
    return cast("api.ForkIn", {**changes, **standing})  # the options have the names of the fields


def changed_roles(roles: list[api.RoleSpec], options: dict[str, Any]) -> list[api.RoleIn] | None:
    """Returns the run's roles with changed sizes and places; None for no change. Raises SpecError."""
    from hopyard.config.run_request import parse_placement, parse_sizes

    sizes, places = parse_sizes(options), parse_placement(options)
    if not sizes and not places:
        return None
    placed = [{**role, "where": {**role["where"], **places}} for role in roles]
    if not sizes:
        return cast("list[api.RoleIn]", placed)
    if len(roles) != 1:
        raise SpecError(
            f"the run has {len(roles)} roles, so a size for one role is ambiguous",
            hints=("describe the gang in a hop.yaml, then `hop run` the file",),
        )
    counts: dict[str, Any] = {key: sizes.pop(key) for key in ("replicas", "min_replicas") if key in sizes}
    changed = {**placed[0], **counts, "resources": {**roles[0]["resources"], **sizes}}
    return [cast("api.RoleIn", changed)]
