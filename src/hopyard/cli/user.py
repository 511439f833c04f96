"""`hop user …`: the users of this server besides its owner."""

from __future__ import annotations

import click

from hopyard.cli.options import json_option
from hopyard.cli.terminal import console

_MAX_NAMES_SHOWN = 5  # runs that are named


@click.group("user", no_args_is_help=False, invoke_without_command=True)
@click.pass_context
def user(ctx: click.Context) -> None:
    """Let other users use this server under their own names. Only for its owner.

    A token allows its user to view everything, and to submit runs where queues permit.
    docs/operating/users.md describes further rights.
    """
    if ctx.invoked_subcommand is None:
        click.echo(ctx.get_help())


@user.command("add")
@click.argument("name", metavar="NAME")
@click.option(
    "--returning",
    is_flag=True,
    help="NAME was removed and is the same person: the user regains their runs, datasets and rights.",
)
@json_option
def add_user(name: str, returning: bool, as_json: bool) -> None:
    """Make the user NAME, and print their token. It is printed only once: the server stores its hash.
    The name of a removed user is not assigned to another user.

    \b
    They set two variables, and every command is theirs:
    export HOPYARD_URL=… HOPYARD_TOKEN=…
    """
    from hopyard.api_client.local_server import connect
    from hopyard.domain.ids import check_name

    client = connect()
    created = client.create_user({"name": check_name(name, subject="NAME"), "returning": returning})
    if as_json:
        console.print_json({**created, "url": client.url})
        return
    console.print_line(created["token"])
    console.print_message(f"{name} is now a user. This token is not shown again; the user connects with:")
    console.print_message(f"  export HOPYARD_URL={client.url} HOPYARD_TOKEN=…")


@user.command("ls")
@json_option
def list_users(as_json: bool) -> None:
    """List all users with a token."""
    from hopyard.api_client.local_server import connect
    from hopyard.cli.terminal.times import format_clock

    users = list(connect().iterate_users())
    if as_json:
        console.print_json(users)
    else:
        rows = [
            [entry["name"], "owner" if entry["owner"] else "", format_clock(entry["created_at"])]
            for entry in users
        ]
        console.print_lines(console.format_table(["NAME", "ROLE", "SINCE"], rows))


@user.command("rm")
@click.argument("name", metavar="NAME")
@click.option("--stop-runs", is_flag=True, help="End the live runs of NAME, too.")
@json_option
def remove_user(name: str, stop_runs: bool, as_json: bool) -> None:
    """Revoke the tokens of NAME and delete their secrets.
    Their runs stay, and live ones continue; the owner cannot be removed.
    """
    from hopyard.api_client.local_server import connect
    from hopyard.domain.ids import check_name

    removed = connect().delete_user(check_name(name, subject="NAME"), stop_runs=1 if stop_runs else None)
    if as_json:
        console.print_json(removed)
    else:
        console.print_message(f"{name} is no longer a user")
        if removed["live_runs"]:
            what = (
                "requested to end"
                if stop_runs
                else (
                    "live runs that continue, each with its own token until it ends (use `hop stop` to "
                    "end them)"
                )
            )
            more = " …" if len(removed["live_runs"]) > _MAX_NAMES_SHOWN else ""
            console.print_message(f"{what}: {', '.join(removed['live_runs'][:_MAX_NAMES_SHOWN])}{more}")
