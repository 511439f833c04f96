"""`hop node …`: machines, what is in use of them, and taking them out of service."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

import click
from click.shell_completion import CompletionItem

from hopyard.cli.options import json_option
from hopyard.cli.reserve import brief_text
from hopyard.cli.terminal import console

Node = dict[str, Any]


def complete_node(_ctx: click.Context, _parameter: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """Names of nodes, when a server is there to ask."""
    from hopyard.api_client.local_server import connect
    from hopyard.errors import HopyardError

    try:
        found = connect(start=False).get("/nodes")["nodes"]
    except HopyardError:
        return []
    return [CompletionItem(one["id"]) for one in found if one["id"].startswith(incomplete)]


node_argument: Callable[[Any], Any] = click.argument("name", metavar="NODE", shell_complete=complete_node)


@click.group("node", no_args_is_help=False, invoke_without_command=True)
@click.pass_context
def node(ctx: click.Context) -> None:
    """Look at machines, and take them out of service for a while.

    Cordoned, a machine gets nothing new; drained, its runs are asked to save a checkpoint as well, and go on
    elsewhere.
    """
    if ctx.invoked_subcommand is None:
        click.echo(ctx.get_help())


@node.command("ls")
@click.option("--pool", metavar="NAME", help="Only nodes of this pool.")
@json_option
def list_nodes(pool: str | None, as_json: bool) -> None:
    """List nodes: their state, what is in use of what they have, and for which reservation something of it is
    kept now."""
    from hopyard.api_client.local_server import connect

    found = [one for one in connect().get("/nodes")["nodes"] if pool in (None, one["pool"])]
    if as_json:
        console.print_json(found)
    elif not found:
        console.print_message(
            "no nodes" if pool is None else f"no nodes in pool {pool}; `hop pool ls` lists the pools"
        )
    else:
        console.print_lines(node_table(found))


@node.command("info")
@node_argument
@json_option
def show_node(name: str, as_json: bool) -> None:
    """Tell what NODE has, what is in use and reserved of it, and which runs are on it."""
    from hopyard.api_client.local_server import connect

    found = connect().get(f"/nodes/{_node_path(name)}")
    if as_json:
        console.print_json(found)
    else:
        console.print_lines(node_lines(found["node"], found["runs"], found["reservations"]))


@node.command("cordon")
@node_argument
@click.option(
    "--reason",
    default="",
    metavar="TEXT",
    help="Shown with the node.  [default: the one it is cordoned for already]",
)
@json_option
def cordon_node(name: str, reason: str, as_json: bool) -> None:
    """Let nothing new start on NODE; what runs there goes on."""
    _print_state(_post_node_action(name, "cordon", {"reason": reason}), as_json)


@node.command("uncordon")
@node_argument
@json_option
def uncordon_node(name: str, as_json: bool) -> None:
    """Let runs start on NODE again."""
    _print_state(_post_node_action(name, "uncordon"), as_json)


@node.command("drain")
@node_argument
@click.option(
    "--reason",
    default="",
    metavar="TEXT",
    help="Shown with the node, and told to the runs that are asked to leave.",
)
@click.option("--all", "everything", is_flag=True, help="Also runs that asked never to make room.")
@json_option
def drain_node(name: str, reason: str, everything: bool, as_json: bool) -> None:
    """Cordon NODE, and ask its runs to save a checkpoint and go on elsewhere."""
    answer = _post_node_action(name, "drain", {"reason": reason, "all": everything})
    if as_json:
        console.print_json(answer)
        return
    console.print_message(f"{name} is cordoned")
    for run in answer["asked"]:
        console.print_line(f"{run}  is asked to save a checkpoint and to leave")
    for run in answer["left"]:
        console.print_line(f"{run}  stays until it ends: it asked never to make room; --all asks it as well")
    if not (answer["asked"] or answer["left"]):
        console.print_message("nothing runs on it")


@node.command("rm")
@node_argument
@click.option(
    "--force",
    is_flag=True,
    help="Also where runs are live there by record: its server is gone for good, so they are lost.",
)
@json_option
def remove_node(name: str, force: bool, as_json: bool) -> None:
    """Forget NODE, which is gone for good. Refused while it is there, or holds something of a run.

    With --force, where its server has been away for 15 seconds, all runs of that server are lost: they wait
    again, and start elsewhere from their newest checkpoints, or end where that was asked for. Should that
    server come back, it ends what it still has of them.
    """
    from hopyard.api_client.local_server import connect

    answer = connect().call("DELETE", f"/nodes/{_node_path(name)}", query={"force": int(force)})
    if as_json:
        console.print_json(answer)
        return
    for run in answer["lost"]:
        console.print_line(f"{run}  is lost there")
    console.print_message(f"{name} is forgotten")


def _post_node_action(name: str, what: str, body: dict[str, Any] | None = None) -> Any:
    from hopyard.api_client.local_server import connect

    return connect().post(f"/nodes/{_node_path(name)}/{what}", body or {})


def _node_path(name: str) -> str:
    from hopyard.domain.ids import check_name

    return check_name(name, subject="node")


def _print_state(nodes: Node, as_json: bool) -> None:
    if as_json:
        console.print_json(nodes)
    else:
        console.print_message(f"{nodes['id']} is {state_text(nodes)}")


def state_text(node: Node) -> str:
    """In a few words whether something may start there."""
    return (
        ", ".join(words)
        if (
            words := [
                *["not ready"] * (not node["ready"]),
                *["cordoned"] * node["cordoned"],
                *["out of service"] * bool(node["trouble"]),
            ]
        )
        else "open"
    )


def reason_text(node: Node) -> str:
    """Why nothing starts there: what an administrator said, what the node itself lacks, and what is with its
    server."""
    from hopyard.cli.terminal.times import localise_times

    return "; ".join(
        filter(None, [node["cordon_reason"], node["trouble"], localise_times(node["not_ready"])])
    )


def node_table(nodes: list[Node]) -> list[str]:
    """The lines of the table, head first. What only some nodes have is told where any does: extras, who has
    reserved something of them now, why they are cordoned."""
    told = [
        ("NODE", [one["id"] for one in nodes]),
        ("POOL", [one["pool"] for one in nodes]),
        ("STATE", [state_text(one) for one in nodes]),
        ("CPU", [cpu_text(one) for one in nodes]),
        ("MEMORY", [memory_text(one) for one in nodes]),
        ("GPU", [gpu_usage_text(one) for one in nodes]),
        ("MODEL", [gpu_model_text(one) for one in nodes]),
    ]
    some = [
        ("EXTRAS", [extras_text(one) for one in nodes]),
        ("RESERVED", [", ".join(one["reserved"]) for one in nodes]),
        ("REASON", [reason_text(one) for one in nodes]),
    ]
    told += [(name, cells) for name, cells in some if any(cells)]
    head, rows = (
        [name for name, _ in told],
        [list(row) for row in zip(*(cells for _, cells in told), strict=True)],
    )
    width = console.terminal_width() if console.is_terminal(sys.stdout) else None
    return console.format_table(head, rows, right=(3, 4, 5), width=width)


def node_lines(node: Node, runs: list[dict[str, Any]], reservations: list[dict[str, Any]]) -> list[str]:
    """All that is to be said of one node."""
    told = [
        ("node", node["id"]),
        ("state", state_text(node) + (f": {reason}" if (reason := reason_text(node)) else "")),
        ("pool", node["pool"]),
        ("engine", node["engine"]),
        ("labels", "  ".join(f"{key}={value}" for key, value in sorted(node["labels"].items()))),
        ("CPU", f"{cpu_text(node)} in use"),
        ("memory", f"{memory_text(node)} in use"),
        ("extras", extras_text(node)),
        *(("GPU" if at == 0 else "", line) for at, line in enumerate(_gpu_text(node))),
        *(("reserved" if at == 0 else "", brief_text(found)) for at, found in enumerate(reservations)),
        *(("runs" if at == 0 else "", _run_text(run)) for at, run in enumerate(runs)),
    ]
    return [f"{console.paint(label.ljust(9), 'dim')}{text}" for label, text in told if text]


def _gpu_text(node: Node) -> list[str]:
    used = dict(zip(node["used"]["gpus"], node["used"]["gpu_milli"], strict=True))
    return [
        f"{card['index']}  {card['model']}"
        + (f"  {console.format_bytes(card['memory_bytes'])}" if card["memory_bytes"] else "")
        + f"  {used.get(card['index'], 0) / 1000:g} in use"
        for card in node["gpus"]
    ]


def _run_text(run: dict[str, Any]) -> str:
    ranks = "" if run["ranks"] == [0] else f", replicas {', '.join(map(str, run['ranks']))}"
    return f"{run['name']}  queue {run['queue']}{ranks}" + ("  is asked to end" if run["stopping"] else "")


def cpu_text(node: Node) -> str:
    """In use and in all."""
    return f"{node['used']['cpu_milli'] / 1000:g}/{node['cpu_milli'] / 1000:g}"


def memory_text(node: Node) -> str:
    return (
        f"{console.format_bytes(node['used']['memory_bytes'])}/{console.format_bytes(node['memory_bytes'])}"
    )


def gpu_usage_text(node: Node) -> str:
    return f"{sum(node['used']['gpu_milli']) / 1000:g}/{len(node['gpus'])}" if node["gpus"] else "-"


def gpu_model_text(node: Node) -> str:
    return ", ".join(dict.fromkeys(gpu["model"] for gpu in node["gpus"]))


def extras_text(node: dict[str, Any]) -> str:
    used = node["used"]["extras"]
    return "  ".join(f"{name} {used.get(name, 0)}/{count}" for name, count in sorted(node["extras"].items()))
