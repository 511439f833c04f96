"""`hop pool …`: machines of one kind, together."""

from __future__ import annotations

import sys
from typing import Any

import click

from hopyard.cli import console
from hopyard.cli.node import cpus_of, extras_of, memory_of
from hopyard.cli.options import json_option


@click.group("pool", no_args_is_help=False, invoke_without_command=True)
@click.pass_context
def pool(ctx: click.Context) -> None:
    """Look at pools: machines of one kind. `hop run --pool NAME` runs in one of them."""
    if ctx.invoked_subcommand is None:
        click.echo(ctx.get_help())


@pool.command("ls")
@json_option
def list_pools(as_json: bool) -> None:
    """List pools with what is in use of what their nodes have together."""
    from hopyard.sdk.connect import connect

    found = connect().get("/pools")["pools"]
    if as_json:
        console.out_json(found)
    elif not found:
        console.say("no pools: the server has seen no node yet")
    else:
        console.out_lines(table_of(found))


def table_of(pools: list[dict[str, Any]]) -> list[str]:
    """The lines of the table, head first. RESERVED, of how many nodes something is reserved now, extras, and
    why nodes are not ready: where there are any."""
    from hopyard.cli.times import localised

    extras, reserved = any(one["extras"] for one in pools), any(one["reserved"] for one in pools)
    closed = any(one["not_ready"] for one in pools)
    head = [
        "POOL",
        "NODES",
        "OPEN",
        *["RESERVED"] * reserved,
        "CPU",
        "MEMORY",
        "GPU",
        *["EXTRAS"] * extras,
        *["REASON"] * closed,
    ]
    rows = [
        [
            one["name"],
            str(one["nodes"]),
            str(one["open"]),
            *[str(one["reserved"])] * reserved,
            cpus_of(one),
            memory_of(one),
            _gpus(one),
            *[extras_of(one)] * extras,
            *["; ".join(f"{node}: {localised(why)}" for node, why in one["not_ready"].items())] * closed,
        ]
        for one in pools
    ]
    width = console.terminal_width() if console.is_terminal(sys.stdout) else None
    return console.table(head, rows, right=range(1, 5 + reserved), width=width)


def _gpus(one: dict[str, Any]) -> str:
    return (
        ", ".join(
            f"{cards['model']} {cards['used_milli'] / 1000:g}/{cards['milli'] / 1000:g}"
            for cards in one["gpus"]
        )
        or "-"
    )
