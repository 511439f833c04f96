"""`hop pool …`: machines of one kind, together."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

import click

from hopyard.cli.node import cpu_text, extras_text, memory_text
from hopyard.cli.options import json_option
from hopyard.cli.terminal import console

if TYPE_CHECKING:
    from hopyard.api_client import types as api


@click.group("pool", no_args_is_help=False, invoke_without_command=True)
@click.pass_context
def pool(ctx: click.Context) -> None:
    """List pools: nodes of one kind. `hop run --pool NAME` runs on the nodes of a pool."""
    if ctx.invoked_subcommand is None:
        click.echo(ctx.get_help())


@pool.command("ls")
@json_option
def list_pools(as_json: bool) -> None:
    """List pools with the total usage of their nodes."""
    from hopyard.api_client.local_server import connect

    pools = connect().get_pools()["pools"]
    if as_json:
        console.print_json(pools)
    elif not pools:
        console.print_message("no pools: no node has registered yet")
    else:
        console.print_lines(pool_table(pools))


def pool_table(pools: list[api.PoolOut]) -> list[str]:
    """Returns the lines of the table, head first. Columns for reserved nodes, extras and nodes that are not
    ready appear if any pool has them.
    """
    from hopyard.cli.terminal.times import localise_times

    extras, reserved = any(pool["extras"] for pool in pools), any(pool["reserved"] for pool in pools)
    closed = any(pool["not_ready"] for pool in pools)
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
            pool["name"],
            str(pool["nodes"]),
            str(pool["open"]),
            *[str(pool["reserved"])] * reserved,
            cpu_text(pool),
            memory_text(pool),
            _gpu_text(pool),
            *[extras_text(pool)] * extras,
            *["; ".join(f"{node}: {localise_times(why)}" for node, why in pool["not_ready"].items())]
            * closed,
        ]
        for pool in pools
    ]
    width = console.terminal_width() if console.is_terminal(sys.stdout) else None
    return console.format_table(head, rows, right=range(1, 5 + reserved), width=width)


def _gpu_text(pool: api.PoolOut) -> str:
    return (
        ", ".join(
            f"{cards['model']} {cards['used_milli'] / 1000:g}/{cards['milli'] / 1000:g}"
            for cards in pool["gpus"]
        )
        or "-"
    )
