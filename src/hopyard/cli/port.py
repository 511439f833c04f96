"""`hop port`: reaches a port of a run, from this machine or with a browser."""

from __future__ import annotations

import click

from hopyard.cli.options import run_argument
from hopyard.cli.terminal import console
from hopyard.domain.run import MAX_REPLICAS
from hopyard.domain.run_port import MAX_PORT_NUMBER, parse_port_name


@click.command("port")
@run_argument("ref", metavar="RUN")
@click.argument("port", metavar="PORT")
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
def port(ref: str, port: str, local: int | None, rank: int, print_link: bool) -> None:
    """Forward a port of this machine to PORT of RUN, a number or name that the run was given with --port.

    Ctrl-C ends it. With --print, the link opens the port in a browser by way of the server.
    """
    from hopyard.api_client.local_server import connect
    from hopyard.client.run_lookup import get_run
    from hopyard.errors import UsageError

    name = parse_port_name(port, what="PORT")
    client = connect()
    run = get_run(client, ref)
    opened = client.create_run_port(run["id"], {"port": name, "rank": rank})
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
