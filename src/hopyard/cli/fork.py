"""`hop fork`: runs again with changes."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any

import click

from hopyard.cli.address import Run, get_run
from hopyard.cli.options import (
    extras_option,
    gpu_memory_option,
    json_option,
    pool_option,
    preempt_option,
    priority_option,
    queue_option,
    run_argument,
    topology_option,
    where_option,
)
from hopyard.errors import SpecError
from hopyard.sdk.client import Client


@click.command("fork")
@run_argument()
@click.option("-p", "--param", "params", multiple=True, metavar="K=V", help="A parameter that changes (repeatable).")
@click.option("-e", "--env", multiple=True, metavar="K[=V]", help="An environment variable that changes (repeatable).")
@click.option("-n", "--name", "label", metavar="LABEL", help="A name of your own for the run.")
@click.option("--tag", "tags", multiple=True, metavar="K=V", help="A tag that changes (repeatable).")
@click.option("--cpus", metavar="N", help="CPUs of each replica.")
@click.option("--memory", metavar="8G", help="Memory of each replica.")
@click.option("--gpus", metavar="N|MODEL:N", help="GPUs of each replica.")
@gpu_memory_option
@extras_option
@click.option("--replicas", metavar="N|MIN-MAX", help="So many replicas; elastic 2-8: as many as fit.")
@topology_option
@pool_option
@where_option
@click.option("--time", metavar="2h", help="The run is ended after this long.")
@queue_option
@priority_option
@preempt_option
@click.option("--checkpoint", metavar="newest|STEP", help="Start from this checkpoint of RUN instead of from the beginning.")
@click.option("--detach", is_flag=True, help="Submit and return at once.")
@json_option
def fork(ref: str, checkpoint: str | None, detach: bool, as_json: bool, **options: Any) -> int:
    """Run again what RUN ran, with changes: its code, its versions of the data and its environment, whatever is here now.

    A study that is forked searches anew; `hop search resume` goes on with one.
    """
    from datetime import UTC, datetime

    from hopyard.cli.watch import finish
    from hopyard.domain.ids import new_run_id
    from hopyard.sdk.connect import connect

    changes = changes_of(options)
    changes["checkpoint"] = _checkpoint(checkpoint)
    client = connect()
    source = client.get(f"/runs/{get_run(client, ref)['id']}")
    if source["spec"].get("study") is not None:
        _check_study(client, source, options["params"], checkpoint)
    roles = _roles(source["spec"]["roles"], options)
    if roles is not None:
        changes["roles"] = roles
    changes["id"] = new_run_id(datetime.now(UTC), os.urandom(7))
    return finish(client, client.post(f"/runs/{source['id']}/fork", changes, plan=1), detach=detach, as_json=as_json)


def _check_study(client: Client, study: Run, params: Sequence[str], checkpoint: str | None) -> None:
    """A study that is forked searches anew, by its own file. Raises SpecError for what would change nothing of that."""
    name = study["name"]
    if params:
        raise SpecError(f"--param: {name} is a study: its parameters are those of its space", hints=("change the file, and start another: `hop search search.yaml -p K=V`",))
    if checkpoint is None:
        return
    from hopyard.cli.studyshow import read_journal
    from hopyard.studies.view.standing import StudyView

    best = StudyView.of(read_journal(client, study)).best()
    hints = [f"`hop search resume {name}` goes on with all of them"]
    if best is not None and best.run:
        hints.insert(0, f"the best one is a run: `hop fork {best.run_name or best.run} --checkpoint newest`")
    elif best is not None:
        hints.append(f"the best one's state: `hop.study({name!r}).best_state()` in Python, or `hop pull {name} --checkpoint`")
    raise SpecError(f"--checkpoint: {name} is a study, whose fork searches anew; checkpoints are of its trials", hints=hints)


def changes_of(options: dict[str, Any]) -> dict[str, Any]:
    """What of a run's spec the options change, roles excepted. Raises SpecError."""
    from hopyard.config import params
    from hopyard.config.runspec import parse_standing
    from hopyard.domain.ids import check_name

    changes: dict[str, Any] = {
        "params": params.parse_params(options["params"]),
        "env": params.parse_env(options["env"], os.environ),
        "tags": params.parse_tags(options["tags"]),
    }
    if options["label"]:
        changes["label"] = check_name(options["label"], what="--name")
    standing = parse_standing(options)
    if "topology" in standing:
        standing["topology"] = standing["topology"].spec()
    return changes | standing


def _roles(roles: list[dict[str, Any]], options: dict[str, Any]) -> list[dict[str, Any]] | None:
    """The run's roles with changed sizes and places; None where nothing changes. Raises SpecError."""
    from hopyard.config.runspec import parse_places, parse_sizes

    sizes, places = parse_sizes(options), parse_places(options)
    if not sizes and not places:
        return None
    placed = [{**role, "where": {**role["where"], **places}} for role in roles]
    if not sizes:
        return placed
    if len(roles) != 1:
        raise SpecError(f"the run has {len(roles)} roles, so it is not told whose size is meant", hints=("describe the gang in a hop.yaml and `hop run` it",))
    counts: dict[str, Any] = {key: sizes.pop(key) for key in ("replicas", "min_replicas") if key in sizes}
    return [{**placed[0], **counts, "resources": {**placed[0]["resources"], **sizes}}]


def _checkpoint(text: str | None) -> str | int | None:
    if text is None or text == "newest":
        return text
    if not text.isascii() or not text.isdecimal():
        raise SpecError(f"--checkpoint: `{text}` is neither `newest` nor a step", hints=("`hop info RUN` lists the checkpoints",))
    return int(text)
