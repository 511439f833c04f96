"""`hop queue …`: the tree of queues, its limits and their usage."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING

import click

from hopyard.cli.options import complete_queue, json_option
from hopyard.cli.terminal import console

if TYPE_CHECKING:
    from hopyard.api_client import types as api
    from hopyard.api_client.client import Client

STDIN = "<stdin>"


@click.group("queue", no_args_is_help=False, invoke_without_command=True)
@click.pass_context
def queue(ctx: click.Context) -> None:
    """Share the cluster between teams with a tree of queues, each with a guarantee and limits.

    A run waits in a queue (`hop run --queue NAME`). Other queues can borrow an idle guarantee until its queue
    reclaims it. docs/guides/queues.md describes the rules.
    """
    if ctx.invoked_subcommand is None:
        click.echo(ctx.get_help())


@queue.command("apply")
@click.argument("file", metavar="FILE", type=click.Path(path_type=Path))
@click.option("--dry-run", is_flag=True, help="Check the file and show the changes, without applying them.")
@json_option
def apply_queues(file: Path, dry_run: bool, as_json: bool) -> None:
    """Replace the tree of queues with the one in FILE (`-`: stdin), all of it or nothing.

    The server's owner may change all queues, administrators those below their own. Refused if a removed queue
    has waiting runs. Running runs continue.
    """
    from hopyard.api_client.local_server import connect
    from hopyard.config.queues.queue_file import queue_tree_from
    from hopyard.config.yaml_section import read_yaml, read_yaml_text

    piped = str(file) == "-"
    section = read_yaml_text(sys.stdin.buffer.read(), STDIN) if piped else read_yaml(file)
    queue_tree_from(section)  # errors of the file are reported without a server
    body: api.TreeIn = {"tree": dict(section.values), "file": section.file}
    answer = connect().put_queues(body, dry_run=int(dry_run))
    if as_json:
        console.print_json(answer)
        return
    for change in answer["changes"]:
        console.print_line(change_line(change))
    for warning in answer["warnings"]:
        console.print_message(f"warning: {warning}")
    changed = len(answer["changes"])
    console.print_message(
        "no changes"
        if not changed
        else "dry run: nothing was changed"
        if dry_run
        else f"applied {changed} change{'s' * (changed != 1)}"
    )


@queue.command("ls")
@json_option
def list_queues(as_json: bool) -> None:
    """List the queues: guarantee, usage, borrowed and lent amounts, running and waiting runs.

    SHARE is the share of the cluster that a queue uses, of its dominant resource. LENT is the part of its
    guarantee that other queues use.
    """
    from hopyard.api_client.local_server import connect
    from hopyard.cli.queue_table import queue_table

    listing = connect().get_queues()
    if as_json:
        console.print_json(listing)
    else:
        console.print_lines(queue_table(listing))


@queue.command("info")
@click.argument("name", metavar="QUEUE", shell_complete=complete_queue)
@json_option
def show_queue(name: str, as_json: bool) -> None:
    """Show all details of a queue: its limits, its users and administrators, and the order of its users."""
    from hopyard.api_client.local_server import connect
    from hopyard.cli.queue_table import queue_lines
    from hopyard.domain.ids import check_name

    client = connect()
    details = client.get_queue(check_name(name, subject="queue"))
    if as_json:
        console.print_json(details)
    else:
        listing = client.get_queues()
        console.print_lines(queue_lines(details, half_life_s=listing["half_life_s"], owner=listing["owner"]))


@queue.command("waiting")
@click.argument("name", metavar="[QUEUE]", required=False, shell_complete=complete_queue)
@click.option(
    "-l", "--limit", type=click.IntRange(min=1), default=50, show_default=True, help="At most so many runs."
)
@json_option
def list_waiting(name: str | None, limit: int, as_json: bool) -> None:
    """List waiting runs in their order: why each waits, and when it is expected to start.

    Without QUEUE, the first runs of all queues come first. `hop why RUN` explains one of them.
    """
    from hopyard.api_client.local_server import connect
    from hopyard.cli.queue_table import waiting_table
    from hopyard.domain.ids import check_name

    client = connect()
    where = None if name is None else _query_below(client, check_name(name, subject="queue"))
    rows = list(client.iterate_runs(phase="queued", sort="position", where=where, max_rows=limit))
    if as_json:
        console.print_json(rows)
    elif not rows:
        console.print_message("no run waits")
    else:
        console.print_lines(waiting_table(rows))


@queue.command("export")
@json_option
def export_queues(as_json: bool) -> None:
    """Print the tree of queues as YAML for `hop queue apply`."""
    from hopyard.api_client.local_server import connect
    from hopyard.config.queues.export import mapping_text

    tree = connect().get_queues()["tree"]
    if as_json:
        console.print_json(tree)
    else:
        console.print_lines(mapping_text(tree).splitlines())


def _query_below(client: Client, name: str) -> str:
    """Returns the query for runs of a queue and of all below it. Raises NotFound for an unknown queue."""
    below = [client.get_queue(name)["name"]]
    for queue in client.get_queues()["queues"]:  # parents before their children
        if queue["parent"] in below:
            below.append(queue["name"])
    names = ", ".join(f'"{each}"' for each in below)
    return f"queue in ({names})"


def change_line(change: api.ChangeOut) -> str:
    """`+ vision below research`, `- nlp`, `~ prod: weight: 1 → 2`."""
    sign = {"added": "+", "removed": "-"}.get(change["kind"], "~")
    if change["queue"] is None:
        return f"{sign} {change['detail']}"
    joint = ": " if sign == "~" else " "
    return f"{sign} {change['queue']}" + (joint + change["detail"] if change["detail"] else "")
