"""`hop ui`: opens the web UI in a browser, logged in."""

from __future__ import annotations

import sys

import click

from hopyard.cli.options import json_option
from hopyard.cli.server_run import has_browser, page_options
from hopyard.cli.terminal import console


@click.command("ui")
@page_options
@json_option
def ui(print_only: bool, no_browser: bool, as_json: bool) -> None:
    """Open the web UI in a browser. The link logs the browser in, once, within a minute.

    Without a server, the server of this machine is started. The session lasts a week, and has the rights of
    the token that this command uses: it ends with that token. With --json, address, link and the time when
    the link expires are printed, and no browser opens.
    """
    from hopyard.api_client.local_server import connect

    link = connect().create_session_link()
    if as_json:
        console.print_json(link)
        return
    if print_only or not console.is_terminal(sys.stdout):
        console.print_line(link["link"])
    else:
        console.print_line(f"open within a minute: {link['link']}")
    if not (print_only or no_browser) and has_browser():
        import webbrowser

        webbrowser.open(link["link"])
