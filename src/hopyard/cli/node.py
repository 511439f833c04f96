"""`hop node …`: machines, what is in use of them, and taking them out of service."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

import click
from click.shell_completion import CompletionItem

from hopyard.cli import console
from hopyard.cli.options import json_option
from hopyard.cli.reserve import brief

Node = dict[str, Any]


def complete_node(_ctx: click.Context, _parameter: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """Names of nodes, when a server is there to ask."""
    from hopyard.errors import HopyardError
    from hopyard.sdk.connect import connect

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
    from hopyard.sdk.connect import connect

    found = [one for one in connect().get("/nodes")["nodes"] if pool in (None, one["pool"])]
    if as_json:
        console.out_json(found)
    elif not found:
        console.say("no nodes" if pool is None else f"no nodes in pool {pool}; `hop pool ls` lists the pools")
    else:
        console.out_lines(table_of(found))


@node.command("info")
@node_argument
@json_option
def tell(name: str, as_json: bool) -> None:
    """Tell what NODE has, what is in use and reserved of it, and which runs are on it."""
    from hopyard.sdk.connect import connect

    found = connect().get(f"/nodes/{_address(name)}")
    if as_json:
        console.out_json(found)
    else:
        console.out_lines(lines_of(found["node"], found["runs"], found["reservations"]))


@node.command("cordon")
@node_argument
@click.option(
    "--reason",
    default="",
    metavar="TEXT",
    help="Shown with the node.  [default: the one it is cordoned for already]",
)
@json_option
def cordon(name: str, reason: str, as_json: bool) -> None:
    """Let nothing new start on NODE; what runs there goes on."""
    _tell_state(_post(name, "cordon", {"reason": reason}), as_json)


@node.command("uncordon")
@node_argument
@json_option
def uncordon(name: str, as_json: bool) -> None:
    """Let runs start on NODE again."""
    _tell_state(_post(name, "uncordon"), as_json)


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
def drain(name: str, reason: str, everything: bool, as_json: bool) -> None:
    """Cordon NODE, and ask its runs to save a checkpoint and go on elsewhere."""
    answer = _post(name, "drain", {"reason": reason, "all": everything})
    if as_json:
        console.out_json(answer)
        return
    console.say(f"{name} is cordoned")
    for run in answer["asked"]:
        console.out(f"{run}  is asked to save a checkpoint and to leave")
    for run in answer["left"]:
        console.out(f"{run}  stays until it ends: it asked never to make room; --all asks it as well")
    if not (answer["asked"] or answer["left"]):
        console.say("nothing runs on it")


@node.command("rm")
@node_argument
@click.option(
    "--force",
    is_flag=True,
    help="Also where runs are live there by record: its server is gone for good, so they are lost.",
)
@json_option
def remove(name: str, force: bool, as_json: bool) -> None:
    """Forget NODE, which is gone for good. Refused while it is there, or holds something of a run.

    With --force, where its server has been away for 15 seconds, all runs of that server are lost: they wait
    again, and start elsewhere from their newest checkpoints, or end where that was asked for. Should that
    server come back, it ends what it still has of them.
    """
    from hopyard.sdk.connect import connect

    answer = connect().call("DELETE", f"/nodes/{_address(name)}", query={"force": int(force)})
    if as_json:
        console.out_json(answer)
        return
    for run in answer["lost"]:
        console.out(f"{run}  is lost there")
    console.say(f"{name} is forgotten")


def _post(name: str, what: str, body: dict[str, Any] | None = None) -> Any:
    from hopyard.sdk.connect import connect

    return connect().post(f"/nodes/{_address(name)}/{what}", body or {})


def _address(name: str) -> str:
    from hopyard.domain.ids import check_name

    return check_name(name, what="node")


def _tell_state(told: Node, as_json: bool) -> None:
    if as_json:
        console.out_json(told)
    else:
        console.say(f"{told['id']} is {state_of(told)}")


def state_of(one: Node) -> str:
    """In a few words whether something may start there."""
    return (
        ", ".join(words)
        if (
            words := [
                *["not ready"] * (not one["ready"]),
                *["cordoned"] * one["cordoned"],
                *["out of service"] * bool(one["trouble"]),
            ]
        )
        else "open"
    )


def reason_of(one: Node) -> str:
    """Why nothing starts there: what an administrator said, what the node itself lacks, and what is with its
    server."""
    from hopyard.cli.times import localised

    return "; ".join(filter(None, [one["cordon_reason"], one["trouble"], localised(one["not_ready"])]))


def table_of(nodes: list[Node]) -> list[str]:
    """The lines of the table, head first. What only some nodes have is told where any does: extras, who has
    reserved something of them now, why they are cordoned."""
    told = [
        ("NODE", [one["id"] for one in nodes]),
        ("POOL", [one["pool"] for one in nodes]),
        ("STATE", [state_of(one) for one in nodes]),
        ("CPU", [cpus_of(one) for one in nodes]),
        ("MEMORY", [memory_of(one) for one in nodes]),
        ("GPU", [gpus_of(one) for one in nodes]),
        ("MODEL", [models_of(one) for one in nodes]),
    ]
    some = [
        ("EXTRAS", [extras_of(one) for one in nodes]),
        ("RESERVED", [", ".join(one["reserved"]) for one in nodes]),
        ("REASON", [reason_of(one) for one in nodes]),
    ]
    told += [(name, cells) for name, cells in some if any(cells)]
    head, rows = (
        [name for name, _ in told],
        [list(row) for row in zip(*(cells for _, cells in told), strict=True)],
    )
    width = console.terminal_width() if console.is_terminal(sys.stdout) else None
    return console.table(head, rows, right=(3, 4, 5), width=width)


def lines_of(one: Node, runs: list[dict[str, Any]], reservations: list[dict[str, Any]]) -> list[str]:
    """All that is to be said of one node."""
    told = [
        ("node", one["id"]),
        ("state", state_of(one) + (f": {reason}" if (reason := reason_of(one)) else "")),
        ("pool", one["pool"]),
        ("engine", one["engine"]),
        ("labels", "  ".join(f"{key}={value}" for key, value in sorted(one["labels"].items()))),
        ("CPU", f"{cpus_of(one)} in use"),
        ("memory", f"{memory_of(one)} in use"),
        ("extras", extras_of(one)),
        *(("GPU" if at == 0 else "", line) for at, line in enumerate(_cards(one))),
        *(("reserved" if at == 0 else "", brief(found)) for at, found in enumerate(reservations)),
        *(("runs" if at == 0 else "", _run(run)) for at, run in enumerate(runs)),
    ]
    return [f"{console.paint(label.ljust(9), 'dim')}{text}" for label, text in told if text]


def _cards(one: Node) -> list[str]:
    used = dict(zip(one["used"]["gpus"], one["used"]["gpu_milli"], strict=True))
    return [
        f"{card['index']}  {card['model']}"
        + (f"  {console.bytes_text(card['memory_bytes'])}" if card["memory_bytes"] else "")
        + f"  {used.get(card['index'], 0) / 1000:g} in use"
        for card in one["gpus"]
    ]


def _run(run: dict[str, Any]) -> str:
    ranks = "" if run["ranks"] == [0] else f", replicas {', '.join(map(str, run['ranks']))}"
    return f"{run['name']}  queue {run['queue']}{ranks}" + ("  is asked to end" if run["stopping"] else "")


def cpus_of(one: Node) -> str:
    """In use and in all."""
    return f"{one['used']['cpu_milli'] / 1000:g}/{one['cpu_milli'] / 1000:g}"


def memory_of(one: Node) -> str:
    return f"{console.bytes_text(one['used']['memory_bytes'])}/{console.bytes_text(one['memory_bytes'])}"


def gpus_of(one: Node) -> str:
    return f"{sum(one['used']['gpu_milli']) / 1000:g}/{len(one['gpus'])}" if one["gpus"] else "-"


def models_of(one: Node) -> str:
    return ", ".join(dict.fromkeys(gpu["model"] for gpu in one["gpus"]))


def extras_of(one: dict[str, Any]) -> str:
    used = one["used"]["extras"]
    return "  ".join(f"{name} {used.get(name, 0)}/{count}" for name, count in sorted(one["extras"].items()))
