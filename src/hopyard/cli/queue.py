"""`hop queue …`: the tree of queues, what it lets whom use, and what they use of it."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import click
from click.shell_completion import CompletionItem

from hopyard.cli.options import json_option
from hopyard.cli.terminal import console

STDIN = "<stdin>"


def complete_queue(_ctx: click.Context, _parameter: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """Names of queues, when a server is there to ask."""
    from hopyard.api_client.local_server import connect
    from hopyard.errors import HopyardError

    try:
        found = connect(start=False).get("/queues")["queues"]
    except HopyardError:
        return []
    return [CompletionItem(one["name"]) for one in found if one["name"].startswith(incomplete)]


@click.group("queue", no_args_is_help=False, invoke_without_command=True)
@click.pass_context
def queue(ctx: click.Context) -> None:
    """Share the cluster between teams: a tree of queues, each with what it is guaranteed and what it may use
    at most.

    A run waits in a queue (`hop run --queue NAME`). What is guaranteed to one and idle, others may borrow
    until it is wanted back. The rules are told in docs/guides/queues.md.
    """
    if ctx.invoked_subcommand is None:
        click.echo(ctx.get_help())


@queue.command("apply")
@click.argument("file", metavar="FILE", type=click.Path(path_type=Path))
@click.option("--dry-run", is_flag=True, help="Check it and tell what would change; change nothing.")
@json_option
def apply_queues(file: Path, dry_run: bool, as_json: bool) -> None:
    """Put the tree of queues in FILE (`-`: on stdin) in the place of the one that stands, whole or not at
    all.

    The server's owner may change everything, administrators what is below their queue. Refused while runs
    wait in a queue that would be gone. What runs goes on.
    """
    from hopyard.api_client.local_server import connect
    from hopyard.config.queues.queue_file import queue_tree_from
    from hopyard.config.yaml_section import read_yaml, read_yaml_text

    piped = str(file) == "-"
    given = read_yaml_text(sys.stdin.buffer.read(), STDIN) if piped else read_yaml(file)
    queue_tree_from(given)  # what is wrong with the file is told without a server
    body = {"tree": dict(given.values), "file": given.file}
    answer: dict[str, Any] = connect().call("PUT", "/queues", json_body=body, query={"dry_run": int(dry_run)})
    if as_json:
        console.print_json(answer)
        return
    for change in answer["changes"]:
        console.print_line(change_line(change))
    for warning in answer["warnings"]:
        console.print_message(f"warning: {warning}")
    changed = len(answer["changes"])
    console.print_message(
        "nothing differs"
        if not changed
        else "nothing was changed: a dry run"
        if dry_run
        else f"applied {changed} change{'s' * (changed != 1)}"
    )


@queue.command("ls")
@json_option
def list_queues(as_json: bool) -> None:
    """List the queues: what each is guaranteed, uses, borrows and lends, and how many runs run and wait.

    SHARE is how much of the cluster it uses, of the resource of which that is most. LENT is what others use
    of its guarantee.
    """
    from hopyard.api_client.local_server import connect
    from hopyard.cli.queue_table import queue_table

    found = connect().get("/queues")
    if as_json:
        console.print_json(found)
    else:
        console.print_lines(queue_table(found))


@queue.command("info")
@click.argument("name", metavar="QUEUE", shell_complete=complete_queue)
@json_option
def show_queue(name: str, as_json: bool) -> None:
    """Tell everything about a queue: its limits, who may use and change it, and its users in the order in
    which they come next."""
    from hopyard.api_client.local_server import connect
    from hopyard.cli.queue_table import queue_lines
    from hopyard.domain.ids import check_name

    client = connect()
    found = client.get(f"/queues/{check_name(name, subject='queue')}")
    if as_json:
        console.print_json(found)
    else:
        whole = client.get("/queues")
        console.print_lines(queue_lines(found, half_life_s=whole["half_life_s"], owner=whole["owner"]))


@queue.command("export")
@json_option
def export_queues(as_json: bool) -> None:
    """Print the tree of queues as the YAML that `hop queue apply` takes."""
    from hopyard.api_client.local_server import connect
    from hopyard.config.queues.export import mapping_text

    tree = connect().get("/queues")["tree"]
    if as_json:
        console.print_json(tree)
    else:
        console.print_lines(mapping_text(tree).splitlines())


def change_line(change: dict[str, Any]) -> str:
    """`+ vision below research`, `- nlp`, `~ prod: weight: 1 → 2`."""
    sign = {"added": "+", "removed": "-"}.get(change["kind"], "~")
    if change["queue"] is None:
        return f"{sign} {change['detail']}"
    joint = ": " if sign == "~" else " "
    return f"{sign} {change['queue']}" + (joint + change["detail"] if change["detail"] else "")
