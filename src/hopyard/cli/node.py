"""`hop node …`: lists nodes and their usage; cordons, drains and uncordons them."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import click
from click.shell_completion import CompletionItem

from hopyard.cli.options import json_option
from hopyard.cli.reserve import brief_text
from hopyard.cli.terminal import console

if TYPE_CHECKING:
    from hopyard.api_client import types as api


def complete_node(_ctx: click.Context, _parameter: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """Returns the names of nodes, if a server runs."""
    from hopyard.api_client.local_server import connect
    from hopyard.errors import HopyardError

    try:
        nodes = connect(start=False).get_nodes()["nodes"]
    except HopyardError:
        return []
    return [CompletionItem(node["id"]) for node in nodes if node["id"].startswith(incomplete)]


node_argument: Callable[[Any], Any] = click.argument("name", metavar="NODE", shell_complete=complete_node)


@click.group("node", no_args_is_help=False, invoke_without_command=True)
@click.pass_context
def node(ctx: click.Context) -> None:
    """List nodes, and take them out of service for a while.

    A cordoned node starts no new run. A drained node also requests its runs to save a checkpoint and continue
    on other nodes.
    """
    if ctx.invoked_subcommand is None:
        click.echo(ctx.get_help())


@node.command("ls")
@click.option("--pool", metavar="NAME", help="Only nodes of this pool.")
@json_option
def list_nodes(pool: str | None, as_json: bool) -> None:
    """List nodes: their state, their usage, and the reservations that hold some of them now."""
    from hopyard.api_client.local_server import connect

    nodes = [entry for entry in connect().get_nodes()["nodes"] if pool in (None, entry["pool"])]
    if as_json:
        console.print_json(nodes)
    elif not nodes:
        console.print_message(
            "no nodes" if pool is None else f"no nodes in pool {pool}; `hop pool ls` lists the pools"
        )
    else:
        console.print_lines(node_table(nodes))


@node.command("info")
@node_argument
@json_option
def show_node(name: str, as_json: bool) -> None:
    """Show the resources of NODE, their usage and reservations, and the runs on it."""
    from hopyard.api_client.local_server import connect

    details = connect().get_node(_node_path(name))
    if as_json:
        console.print_json(details)
    else:
        console.print_lines(node_lines(details["node"], details["runs"], details["reservations"]))


@node.command("gpus")
@click.argument("name", metavar="[NODE]", required=False, shell_complete=complete_node)
@json_option
def list_gpus(name: str | None, as_json: bool) -> None:
    """List the GPUs of all nodes, or of NODE: which runs hold them, their use and temperature."""
    from hopyard.api_client.local_server import connect

    client = connect()
    nodes = client.get_nodes()["nodes"] if name is None else [client.get_node(_node_path(name))["node"]]
    allocations = list(client.iterate_allocations(node=name))
    if as_json:
        console.print_json(allocations)
    elif not any(node["gpus"] for node in nodes):
        console.print_message("no GPUs")
    else:
        console.print_lines(gpu_table(nodes, allocations))


@node.command("cordon")
@node_argument
@click.option(
    "--reason",
    default="",
    metavar="TEXT",
    help="The reason, shown with the node.  [default: the present reason]",
)
@json_option
def cordon_node(name: str, reason: str, as_json: bool) -> None:
    """Start no new run on NODE; its runs continue."""
    from hopyard.api_client.local_server import connect

    _print_state(connect().cordon_node(_node_path(name), {"reason": reason}), as_json)


@node.command("uncordon")
@node_argument
@json_option
def uncordon_node(name: str, as_json: bool) -> None:
    """Allow runs to start on NODE again."""
    from hopyard.api_client.local_server import connect

    _print_state(connect().uncordon_node(_node_path(name)), as_json)


@node.command("drain")
@node_argument
@click.option(
    "--reason",
    default="",
    metavar="TEXT",
    help="The reason, shown with the node and to its runs.",
)
@click.option("--all", "everything", is_flag=True, help="Also evict runs that are not preemptible.")
@json_option
def drain_node(name: str, reason: str, everything: bool, as_json: bool) -> None:
    """Cordon NODE, and request its runs to save a checkpoint and continue on other nodes."""
    from hopyard.api_client.local_server import connect

    answer = connect().drain_node(_node_path(name), {"reason": reason, "all": everything})
    if as_json:
        console.print_json(answer)
        return
    console.print_message(f"{name} is cordoned")
    for run in answer["asked"]:
        console.print_line(f"{run}  is requested to save a checkpoint and end")
    for run in answer["left"]:
        console.print_line(
            f"{run}  continues until it ends: it is not preemptible; use --all to evict it as well"
        )
    if not (answer["asked"] or answer["left"]):
        console.print_message("no run is on it")


@node.command("rm")
@node_argument
@click.option(
    "--force",
    is_flag=True,
    help="Also remove a node with live runs on record: its server is gone for good, and its runs are lost.",
)
@json_option
def remove_node(name: str, force: bool, as_json: bool) -> None:
    """Remove NODE for good. Refused while the node is alive or holds resources of a run.

    With --force, all runs of a server that has been away for 15 seconds are lost. They are queued again and
    start on other nodes from their newest checkpoints, unless they are set to end when lost. A server that
    comes back ends its processes of these runs.
    """
    from hopyard.api_client.local_server import connect

    answer = connect().delete_node(_node_path(name), force=int(force))
    if as_json:
        console.print_json(answer)
        return
    for run in answer["lost"]:
        console.print_line(f"{run}  is lost there")
    console.print_message(f"{name} is removed")


def _node_path(name: str) -> str:
    from hopyard.domain.ids import check_name

    return check_name(name, subject="node")


def _print_state(node: api.NodeOut, as_json: bool) -> None:
    if as_json:
        console.print_json(node)
    else:
        console.print_message(f"{node['id']} is {state_text(node)}")


def state_text(node: api.NodeOut) -> str:
    """Returns in a few words whether runs can start on a node."""
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


def reason_text(node: api.NodeOut) -> str:
    """Returns why no run starts on a node: the administrator's reason, missing resources, trouble of its
    server."""
    from hopyard.cli.terminal.times import localise_times

    return "; ".join(
        filter(None, [node["cordon_reason"], node["trouble"], localise_times(node["not_ready"])])
    )


def node_table(nodes: list[api.NodeOut]) -> list[str]:
    """Returns the lines of the table, head first. Columns of only some nodes (extras, reservations, cordon
    reasons) appear if any node has them.
    """
    columns = [
        ("NODE", [node["id"] for node in nodes]),
        ("POOL", [node["pool"] for node in nodes]),
        ("STATE", [state_text(node) for node in nodes]),
        ("CPU", [cpu_text(node) for node in nodes]),
        ("MEMORY", [memory_text(node) for node in nodes]),
        ("GPU", [gpu_usage_text(node) for node in nodes]),
        ("MODEL", [gpu_model_text(node) for node in nodes]),
    ]
    some = [
        ("EXTRAS", [extras_text(node) for node in nodes]),
        ("RESERVED", [", ".join(node["reserved"]) for node in nodes]),
        ("REASON", [reason_text(node) for node in nodes]),
    ]
    columns += [(name, cells) for name, cells in some if any(cells)]
    head, rows = (
        [name for name, _ in columns],
        [list(row) for row in zip(*(cells for _, cells in columns), strict=True)],
    )
    width = console.terminal_width() if console.is_terminal(sys.stdout) else None
    return console.format_table(head, rows, right=(3, 4, 5), width=width)


def gpu_table(nodes: list[api.NodeOut], allocations: list[api.AllocationOut]) -> list[str]:
    """Returns the lines of the table, head first: a row for each run on each GPU, and for each free GPU."""
    held: dict[tuple[str, int], list[tuple[api.AllocationOut, api.HeldGpuOut]]] = {}
    for allocation in allocations:
        for gpu in allocation["gpus"]:
            held.setdefault((allocation["node"], gpu["index"]), []).append((allocation, gpu))
    rows = []
    for node in nodes:
        for card in node["gpus"]:
            start = [node["id"], str(card["index"]), card["model"]]
            rows += [
                [
                    *start,
                    _measured_text(gpu["utilisation_percent"], "%"),
                    _measured_text(gpu["temperature_celsius"], " °C"),
                    f"{gpu['milli'] / 1000:g}",
                    allocation["name"],
                    allocation["queue"],
                ]
                for allocation, gpu in held.get((node["id"], card["index"]), ())
            ] or [[*start, "-", "-", "0", state_text(node) if state_text(node) != "open" else "free", ""]]
    width = console.terminal_width() if console.is_terminal(sys.stdout) else None
    head = ["NODE", "GPU", "MODEL", "USE", "TEMPERATURE", "HELD", "RUN", "QUEUE"]
    return console.format_table(head, rows, right=(1, 3, 4, 5), width=width)


def _measured_text(value: float | None, unit: str) -> str:
    return "-" if value is None else f"{value:.0f}{unit}"


def node_lines(
    node: api.NodeOut, runs: list[api.OnNodeOut], reservations: list[api.ReservationOut]
) -> list[str]:
    """Returns all details of one node."""
    lines = [
        ("node", node["id"]),
        ("state", state_text(node) + (f": {reason}" if (reason := reason_text(node)) else "")),
        ("pool", node["pool"]),
        ("engine", node["engine"]),
        ("labels", "  ".join(f"{key}={value}" for key, value in sorted(node["labels"].items()))),
        ("CPU", f"{cpu_text(node)} in use"),
        ("memory", f"{memory_text(node)} in use"),
        ("extras", extras_text(node)),
        *(("GPU" if at == 0 else "", line) for at, line in enumerate(_gpu_text(node))),
        *(
            ("reserved" if at == 0 else "", brief_text(reservation))
            for at, reservation in enumerate(reservations)
        ),
        *(("runs" if at == 0 else "", _run_text(run)) for at, run in enumerate(runs)),
    ]
    return [f"{console.paint(label.ljust(9), 'dim')}{text}" for label, text in lines if text]


def _gpu_text(node: api.NodeOut) -> list[str]:
    used = dict(zip(node["used"]["gpus"], node["used"]["gpu_milli"], strict=True))
    return [
        f"{card['index']}  {card['model']}"
        + (f"  {console.format_bytes(card['memory_bytes'])}" if card["memory_bytes"] else "")
        + f"  {used.get(card['index'], 0) / 1000:g} in use"
        for card in node["gpus"]
    ]


def _run_text(run: api.OnNodeOut) -> str:
    ranks = "" if run["ranks"] == [0] else f", replicas {', '.join(map(str, run['ranks']))}"
    return f"{run['name']}  queue {run['queue']}{ranks}" + (
        "  is requested to end" if run["stopping"] else ""
    )


def cpu_text(node: api.NodeOut | api.PoolOut) -> str:
    """Returns the used and the total amounts."""
    return f"{node['used']['cpu_milli'] / 1000:g}/{node['cpu_milli'] / 1000:g}"


def memory_text(node: api.NodeOut | api.PoolOut) -> str:
    return (
        f"{console.format_bytes(node['used']['memory_bytes'])}/{console.format_bytes(node['memory_bytes'])}"
    )


def gpu_usage_text(node: api.NodeOut) -> str:
    return f"{sum(node['used']['gpu_milli']) / 1000:g}/{len(node['gpus'])}" if node["gpus"] else "-"


def gpu_model_text(node: api.NodeOut) -> str:
    return ", ".join(dict.fromkeys(gpu["model"] for gpu in node["gpus"]))


def extras_text(node: api.NodeOut | api.PoolOut) -> str:
    used = node["used"]["extras"]
    return "  ".join(f"{name} {used.get(name, 0)}/{count}" for name, count in sorted(node["extras"].items()))
