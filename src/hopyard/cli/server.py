"""`hop up`, `down` and `status`: the server of this machine."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Literal

import click

from hopyard.cli.options import json_option
from hopyard.cli.terminal import console
from hopyard.config.home import ROOT_ERROR, ROOT_HINT, Home
from hopyard.errors import Conflict, ServerUnavailable

if TYPE_CHECKING:
    from hopyard.api_client import types as api


@click.command("up")
@json_option
def up(as_json: bool) -> None:
    """Start the server of this machine, if none runs. Other commands start it automatically."""
    from hopyard.api_client.local_server import check_own_server, find_server, start_server

    home = Home.default()
    check_own_server(home)
    before = find_server(home)
    server = before or start_server(home)
    if as_json:
        console.print_json(
            {
                "url": server.url,
                "pid": server.pid,
                "started": before is None,
                "warnings": _print_warnings(server.warning),
            }
        )
        return
    console.print_message(
        f"{'runs already' if before else 'started'}: {server.url}  (pid {server.pid}, home {home.root})"
    )
    console.print_message(f"web UI: {server.url}/  (`hop ui` opens it, logged in)")
    for warning in _print_warnings(server.warning):
        console.print_message(f"warning: {warning}")


def _print_warnings(server: str) -> list[str]:
    """Returns warnings for the owner of a server on this machine.
    A home's server runs as the user of the home, or not at all.
    """
    return list(filter(None, [server, f"{ROOT_ERROR}; {ROOT_HINT}" if os.geteuid() == 0 else ""]))


@click.command("down")
@click.option(
    "--keep-runs", "runs", flag_value="keep", help="Live runs continue; the next server adopts them."
)
@click.option("--stop-runs", "runs", flag_value="stop", help="End live runs first.")
def down(runs: Literal["keep", "stop"] | None) -> None:
    """Stop the server of this machine. Live runs need --keep-runs or --stop-runs."""
    from hopyard.api_client.local_server import check_own_server, stop_server

    home = Home.default()
    check_own_server(home)
    try:
        ended = stop_server(home, runs=runs or "refuse")
    except Conflict as error:
        hints = (
            "use --keep-runs to let them continue; the next server adopts them",
            "use --stop-runs to end them",
        )
        raise Conflict(error.message, hints=hints) from error
    console.print_message(
        f"the server of {home.root} has stopped" if ended else f"no server runs for {home.root}"
    )


@click.command("status")
@json_option
def status(as_json: bool) -> int | None:
    """Show whether a server runs, its resources and its runs.

    Starts no server; the exit code is 1 if none runs.
    """
    from hopyard.api_client.local_server import connect, find_server, is_server_alive, remote_url

    try:
        server_status = connect(start=False).get_status()
    except ServerUnavailable as error:
        url = remote_url(Home.default())
        # It answers, but cannot serve (its database is away), or it lives and does not answer.
        if url is None and (find_server(Home.default()) is not None or is_server_alive(Home.default())):
            raise
        if as_json:
            console.print_json(
                {"running": False, **({"url": url} if url else {"home": str(Home.default().root)})}
            )
        elif url:
            console.print_line(error.message)
            for hint in error.hints:
                console.print_message(f"hint: {hint}")
        else:
            console.print_line(f"no server runs for {Home.default().root}")
            console.print_message("hint: run `hop up`, or any command that needs it")
        return 1
    if as_json:
        console.print_json({"running": True, **server_status})
    else:
        console.print_lines(status_lines(server_status))
    return None


def status_lines(status: api.StatusOut) -> list[str]:
    """Returns the text for an answer of `/status`."""
    runs = {phase: count for phase, count in status["runs"].items() if count}
    lines = [
        (
            f"server     {status['url']}  version {status['version']}, pid {status['pid']}, up "
            f"{console.format_duration(status['uptime_s'])}"
        ),
        f"home       {status['home']}",
        f"runs       {', '.join(f'{count} {phase}' for phase, count in runs.items()) or 'none yet'}",
        f"blobs      {status['blobs']['count']:,} in {console.format_bytes(status['blobs']['bytes'])}",
    ]
    lines += [f"warning    {warning}" for warning in status.get("warnings", ())]
    return lines + [
        f"{'node' if i == 0 else '':<11}{_node_line(node)}" for i, node in enumerate(status["nodes"])
    ]


def _node_line(node: api.NodeOut) -> str:
    used = node.get("used") or {}
    cpus = f"CPU {used.get('cpu_milli', 0) / 1000:g} of {node['cpu_milli'] / 1000:g}"
    memory = (
        f"memory {console.format_bytes(used.get('memory_bytes', 0))} of "
        f"{console.format_bytes(node['memory_bytes'])}"
    )
    gpus = node.get("gpus") or []
    models = ", ".join(dict.fromkeys(gpu["model"] for gpu in gpus))
    graphics = f", GPU {sum(used.get('gpu_milli') or ()) / 1000:g} of {len(gpus)} ({models})" if gpus else ""
    return (
        f"{node['id']}  in use: {cpus}, {memory}{graphics}"
        + ("" if gpus else "; no GPU")
        + ("" if node.get("ready", True) else "  NOT READY")
        + ("  CORDONED" if node.get("cordoned") else "")
        + (f"  OUT OF SERVICE: {trouble}" if (trouble := node.get("trouble")) else "")
    )
