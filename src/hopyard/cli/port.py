"""`hop port`: reaches a port of a run, from this machine or with a browser."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from hopyard.cli.options import json_option, run_argument
from hopyard.cli.terminal import console
from hopyard.domain.run import MAX_REPLICAS
from hopyard.domain.run_port import MAX_PORT_NUMBER, parse_port_name
from hopyard.domain.text import escape
from hopyard.errors import SpecError

if TYPE_CHECKING:
    from hopyard.api_client import types as api


@click.command("port")
@run_argument("ref", metavar="RUN")
@click.argument("port", required=False, metavar="[[LOCAL:]PORT]")
@click.option(
    "--local",
    type=click.IntRange(1, MAX_PORT_NUMBER),
    metavar="PORT",
    help="The port of this machine.  [default: the same, or a free one]",
)
@click.option(
    "--rank", type=click.IntRange(0, MAX_REPLICAS - 1), default=0, help="The replica.  [default: 0]"
)
@click.option("--print", "print_link", is_flag=True, help="Print a link for a browser, valid once, and end.")
@json_option
def port(ref: str, port: str | None, local: int | None, rank: int, print_link: bool, as_json: bool) -> None:
    """Forward a port of this machine to PORT of RUN, a number or name that the run was given with --port.

    6007:6006 forwards the port 6007 of this machine. Without PORT, the ports of the run are listed. Ctrl-C
    ends the forwarding. With --print, the link opens the port in a browser by way of the server. With --json,
    number, path and link of the port are printed.
    """
    from hopyard.api_client.local_server import connect
    from hopyard.client.run_lookup import get_run
    from hopyard.errors import UsageError

    if port is None:
        _list_ports(get_run(connect(), ref), as_json=as_json)
        return
    own, colon, port = port.rpartition(":")
    if colon:
        local = _own_port(own)
    name = parse_port_name(port, what="PORT")
    client = connect()
    run = get_run(client, ref)
    opened = client.create_run_port(run["id"], {"port": name, "rank": rank})
    if as_json:
        console.print_json(opened)
        return
    if print_link:
        if not opened["link"]:
            raise UsageError(
                "a browser reaches a port by a host name, and this server has an address in digits",
                hints=("connect to the server by its name, or forward the port without `--print`",),
            )
        console.print_line(opened["link"])
        return
    import asyncio

    from hopyard.client.port_forward import LOCAL_HOST, PortForward, listen_locally

    with listen_locally(local or opened["number"], is_required=local is not None) as listener:
        own_port = listener.getsockname()[1]
        console.print_message(
            f"http://{LOCAL_HOST}:{own_port} leads to port {port} of {run['name']}; Ctrl-C ends"
        )
        forward = PortForward(client, opened["path"], notify=console.print_message)
        asyncio.run(forward.run(listener))


def _own_port(text: str) -> int:
    """Returns the port of this machine. Raises SpecError."""
    if not text.isascii() or not text.isdecimal() or not 1 <= int(text[:6]) <= MAX_PORT_NUMBER:
        raise SpecError(
            f"PORT: `{escape(text)}` is not a port of this machine", hints=("for example `6007:6006`",)
        )
    return int(text)


def _list_ports(run: api.RunOut, *, as_json: bool) -> None:
    ports = run["spec"].get("ports") or {}
    if as_json:
        console.print_json([{"name": name, "number": number} for name, number in ports.items()])
        return
    if not ports:
        console.print_message(f"{run['name']} has no ports; name them when you submit it: `hop run --port`")
    for name, number in ports.items():
        console.print_line(str(number) if name == str(number) else f"{number} {name}")
