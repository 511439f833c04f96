"""Opens the page of a run that serves one: waits for it, prints a link or forwards the port."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from hopyard.api_client.client import Client
from hopyard.cli.attach import print_end, result_json
from hopyard.cli.options import (
    idle_option,
    pool_option,
    priority_option,
    queue_option,
    run_memory_option,
    where_option,
)
from hopyard.cli.run_text import address, exit_code, is_final, start_line
from hopyard.cli.submit_notices import print_notices
from hopyard.cli.terminal import console
from hopyard.domain.idle_rule import SESSION_IDLE_S

if TYPE_CHECKING:
    from hopyard.api_client import types as api
    from hopyard.config.run_request import RunRequest

_DISPLAYS = ("DISPLAY", "WAYLAND_DISPLAY", "BROWSER")  # variables of a session with a browser


def page_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Adds the options of a command that opens a page."""
    options = (
        click.option("--no-browser", is_flag=True, help="Print the link, and open no browser."),
        click.option("--print", "print_only", is_flag=True, help="Print only the link, on stdout."),
    )
    for option in reversed(options):
        command = option(command)
    return command


def server_options(product: str) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Returns a decorator with the options of a command that starts a server which needs little, or opens the
    page of one. product: the server's name."""
    options = (
        click.option("--cpus", metavar="N", help="CPUs, also fractions; a limit if given.  [default: 0.1]"),
        run_memory_option,
        click.option(
            "--python", metavar="PATH", help=f"An interpreter with {product}.  [default: the caller's]"
        ),
        idle_option,
        queue_option,
        priority_option,
        pool_option,
        where_option,
        page_options,
    )

    def add(command: Callable[..., Any]) -> Callable[..., Any]:
        for option in reversed(options):
            command = option(command)
        return command

    return add


def apply_server_options(request: RunRequest, options: dict[str, Any]) -> RunRequest:
    """Returns the request with the values of `server_options`, all but the interpreter. Raises SpecError."""
    from hopyard.client.build_run import apply_options
    from hopyard.config.run_request import parse_placement, parse_sizes

    sizes, placement = parse_sizes(options), parse_placement(options)
    roles = tuple(replace(role, **sizes, **placement) for role in request.roles)
    return replace(apply_options(request, options), roles=roles)


def submit_server(
    request: RunRequest, folder: Path, port: str, *, print_only: bool, no_browser: bool, as_json: bool
) -> int:
    """Submits a run that serves a page, and opens this once it is served. Returns the exit code of the
    command; the run continues."""
    from hopyard.cli.terminal.transfer_bar import TransferBar
    from hopyard.client.submit import submit_run

    client, run = submit_run(
        replace(request, idle_s=request.idle_s or SESSION_IDLE_S),
        folder,
        interpreter=request.interpreter or None,
        notify=console.print_message,
        on_progress=TransferBar,
    )
    print_notices(run)
    console.print_message(f"run {run['name']}  {address(client, run)}  {start_line(run)}")
    return open_served(client, run, port, print_only=print_only, no_browser=no_browser, as_json=as_json)


def open_served(
    client: Client, run: api.RunOut, port: str, *, print_only: bool, no_browser: bool, as_json: bool
) -> int:
    """Waits until a run serves a port, and opens it. Returns the exit code of the command."""
    from hopyard.cli.status_line import StatusLine
    from hopyard.client.ready_port import wait_until_served

    line = StatusLine()
    line.start()
    try:
        served = wait_until_served(client, run, port, on_change=line.show_run)
    except KeyboardInterrupt:
        line.close()
        console.print_message(
            f"{run['name']} continues.  Its page: hop port {run['name']} {port} --print   "
            f"Stop it: hop stop {run['name']}"
        )
        return 130
    finally:
        line.close()
    if is_final(served):
        print_end(client, served)
        return exit_code(served) or 1
    link = client.create_run_port(run["id"], {"port": port})["link"]
    if as_json:
        console.print_json({**result_json(client, served), "link": link})
        return 0
    if not link:
        return _forward(client, served, port)
    if print_only or not console.is_terminal(sys.stdout):
        console.print_line(link)
    else:
        console.print_line(f"open within a minute: {link}")
    if not (print_only or no_browser) and has_browser():
        import webbrowser

        webbrowser.open(link)
    console.print_message(
        f"a new link: hop port {run['name']} {port} --print   end it: hop stop {run['name']}"
    )
    return 0


def has_browser() -> bool:
    """Returns whether a browser can open on this machine."""
    return sys.platform == "darwin" or any(os.environ.get(name) for name in _DISPLAYS)


def _forward(client: Client, run: api.RunOut, port: str) -> int:
    """Forwards the port, where the server has no host name for it."""
    import asyncio

    from hopyard.client.port_forward import LOCAL_HOST, PortForward, listen_locally

    opened = client.create_run_port(run["id"], {"port": port})
    with listen_locally(opened["number"], is_required=False) as listener:
        own_port = listener.getsockname()[1]
        console.print_line(f"http://{LOCAL_HOST}:{own_port}/")
        console.print_message(f"Ctrl-C ends the forwarding; end the run: hop stop {run['name']}")
        asyncio.run(PortForward(client, opened["path"], notify=console.print_message).run(listener))
    return 0
