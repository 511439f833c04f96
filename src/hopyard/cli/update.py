"""`hop update`: changes waiting runs, and the names, tags and notes of all runs."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, cast

import click

from hopyard.api_client.client import Client
from hopyard.cli.batch import apply_to_each, unique
from hopyard.cli.options import (
    json_option,
    resource_options,
    run_argument,
)
from hopyard.cli.terminal import console
from hopyard.client.run_lookup import get_run
from hopyard.errors import Conflict, NotFound, SpecError

if TYPE_CHECKING:
    from hopyard.api_client import types as api

NO_LIMIT = "none"


@click.command("update")
@run_argument("refs", nargs=-1, metavar="[RUN]...")
@click.option("-q", "--queue", metavar="QUEUE", help="Let it wait in this queue.")
@click.option("--priority", type=int, metavar="0..100", help="Larger goes first.")
@click.option("--time", metavar="2h|none", help="Time limit of each attempt; none: it has no limit.")
@resource_options
@click.option("--hold", is_flag=True, help="Hold it in the queue; it keeps its place.")
@click.option("--release", is_flag=True, help="Release a held run.")
@click.option("-n", "--name", "label", metavar="LABEL", help="A name for the run; an empty name removes it.")
@click.option("--tag", "tags", multiple=True, metavar="K=V", help="A tag to add or change (repeatable).")
@click.option("--untag", multiple=True, metavar="K", help="A tag to remove (repeatable).")
@click.option(
    "--note", metavar="TEXT", help="A note on the run, visible to all users; an empty note removes it."
)
@click.option("--archive", is_flag=True, help="Hide an ended run from listings.")
@click.option("--unarchive", is_flag=True, help="List an archived run again.")
@click.option("--star", is_flag=True, help="Star it, for yourself: see `hop ps --starred`.")
@click.option("--unstar", is_flag=True, help="Remove your star.")
@click.option(
    "--from-queue", metavar="QUEUE", help="Instead of RUN: all waiting runs of this queue, of all users."
)
@json_option
def update(refs: tuple[str, ...], from_queue: str | None, as_json: bool, **options: Any) -> None:
    """Change the requests of waiting runs, hold or release them; change names, tags and notes at any time.

    Changed runs keep their place in the queue. `hop info` lists the changes and their users. If a change of
    one run is refused, the others are still changed; the exit code is then 1.
    """
    from hopyard.api_client.local_server import connect

    if bool(refs) == (from_queue is not None):
        raise SpecError(
            "no run is given" if not refs else "--from-queue: cannot be combined with runs",
            hints=("give runs, or all waiting runs of a queue: `--from-queue QUEUE`",),
        )
    changes = _spec_changes(options)
    client = connect()
    if from_queue is not None:
        _update_queue(client, from_queue, changes, options, as_json=as_json)
        return
    try:
        runs = [get_run(client, ref) for ref in refs]  # all names are looked up before anything is changed
    except NotFound as error:
        others = ("nothing was changed: leave it out to change the others",) if len(refs) > 1 else ()
        raise NotFound(error.message, hints=(*others, *error.hints)) from None
    apply_to_each(
        unique(runs),
        lambda run: _update(client, run, changes, options),
        format_result=_change_line,
        as_json=as_json,
    )


def _change_line(run: api.RunOut, response: api.UpdatedOut) -> str:
    return f"{run['name']}  {'; '.join(response['changes']) or 'no changes'}"


def _update_queue(
    client: Client, queue: str, changes: api.UpdateIn, options: dict[str, Any], *, as_json: bool
) -> None:
    from hopyard.client.run_lookup import fetch_runs
    from hopyard.config.suggest import closest_name

    queues = [listed_queue["name"] for listed_queue in client.get_queues()["queues"]]
    if queue not in queues:
        closest = closest_name(queue, queues)
        raise NotFound(
            f"--from-queue: there is no queue `{queue}`",
            hints=(f"did you mean `{closest}`?" if closest else f"queues: {', '.join(queues[:20])}",),
        )
    waiting = [
        run
        for run in fetch_runs(client, phases=("queued",), tags={}, limit=None, trials=1)
        if run["spec"]["queue"] == queue
    ]
    started: list[api.RunOut] = []

    def change(run: api.RunOut) -> api.UpdatedOut | None:
        try:
            return _update(client, run, changes, options)
        except Conflict:  # it has started meanwhile
            started.append(run)
            return None

    if not (waiting or as_json):
        console.print_message(f"no run waits in queue {queue}")
    try:
        apply_to_each(waiting[::-1], change, format_result=_change_line, as_json=as_json)  # the oldest first
    finally:
        if started:
            console.print_message(f"{len(started)} started in the meantime, and are unchanged")


def _update(
    client: Client, run: api.RunOut, changes: api.UpdateIn, options: dict[str, Any]
) -> api.UpdatedOut:
    from hopyard.cli.fork import changed_roles
    from hopyard.config.run_request import parse_sizes

    roles = (
        changed_roles(client.get_run(run["id"])["spec"]["roles"], options) if parse_sizes(options) else None
    )
    if options["star"] or options["unstar"]:
        (client.put_run_star if options["star"] else client.delete_run_star)(run["id"])
        if not changes and roles is None:
            return {"run": run, "changes": ["starred" if options["star"] else "star removed"]}
    return client.update_run(run["id"], changes if roles is None else {**changes, "roles": roles})


def _spec_changes(options: dict[str, Any]) -> api.UpdateIn:
    """Returns the changes of the options, except sizes. Raises SpecError."""
    from hopyard.config import key_values
    from hopyard.config.run_request import parse_scheduling, parse_sizes
    from hopyard.domain.ids import check_label, check_name

    unlimited = options["time"] == NO_LIMIT
    changes = parse_scheduling({**options, "time": None if unlimited else options["time"]})
    if unlimited:
        changes["time_limit_s"] = None
    if options["tags"]:
        changes["tags"] = key_values.parse_tags(options["tags"])
    if options["untag"]:
        changes["untag"] = list(options["untag"])
    if options["label"] is not None:
        changes["label"] = (
            check_label(check_name(options["label"], subject="--name"), subject="--name")
            if options["label"]
            else ""
        )
    if options["hold"] and options["release"]:
        raise SpecError("--hold: excludes --release", hints=("give only one of the two",))
    if options["hold"] or options["release"]:
        changes["hold"] = options["hold"]
    if options["note"] is not None:
        changes["note"] = options["note"]
    if options["archive"] and options["unarchive"]:
        raise SpecError("--archive: excludes --unarchive", hints=("give only one of the two",))
    if options["archive"] or options["unarchive"]:
        changes["archived"] = options["archive"]
    if options["star"] and options["unstar"]:
        raise SpecError("--star: excludes --unstar", hints=("give only one of the two",))
    if not changes and not parse_sizes(options) and not (options["star"] or options["unstar"]):
        raise SpecError(
            "no change is given",
            hints=("give a change, for example `--priority 70`; run `hop update --help` for the options",),
        )
    return cast("api.UpdateIn", changes)  # the options have the names of the fields
