"""`hop dataset`: named, versioned data."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from hopyard.cli import console
from hopyard.cli.options import complete_dataset, json_option
from hopyard.domain.ids import check_name
from hopyard.errors import MissingBlobs, SpecError, UsageError

if TYPE_CHECKING:
    from hopyard.datasets.tree import PackedTree
    from hopyard.sdk.client import Client

_ROUNDS = 5  # of uploads: blobs may be found damaged between the answer and the next try

reference_argument = click.argument("ref", metavar="NAME[:VERSION]", shell_complete=complete_dataset)
name_argument = click.argument("name", metavar="NAME", shell_complete=complete_dataset)


class DatasetGroup(click.Group):
    """The leaderboard's command is a room of its own, imported when it is used."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return [*super().list_commands(ctx), "board"]

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name == "board":
            from hopyard.cli.board import board

            return board
        return super().get_command(ctx, cmd_name)


@click.group("dataset", cls=DatasetGroup, no_args_is_help=False, invoke_without_command=True)
@click.pass_context
def dataset(ctx: click.Context) -> None:
    """Push, list, pull and remove datasets; their leaderboards.

    A dataset has versions that never change: pushing changed data makes a new one. `hop run -d NAME` gives a
    script the newest, `-d NAME:3` a certain one.
    """
    if ctx.invoked_subcommand is None:
        click.echo(ctx.get_help())


@dataset.command("push")
@click.argument("name", metavar="NAME")
@click.argument("path", metavar="PATH", type=click.Path(path_type=Path))
@click.option("-m", "--message", default="", help="What this version is, or what changed.")
@click.option("--metric", help="Rank the dataset's leaderboard by this metric.")
@json_option
def push(name: str, path: Path, message: str, metric: str | None, as_json: bool) -> None:
    """Make a version of the folder or file PATH; only what the server lacks is sent.

    Everything in a folder counts, except what a `.hopignore` file in it names, and `.git`. A push that was
    broken off goes on where it was when it is repeated.
    """
    import time

    from hopyard.cli.transferbar import TransferBar
    from hopyard.config.home import Home
    from hopyard.datasets.pack import DATA, pack
    from hopyard.sdk.connect import connect

    began = time.monotonic()
    check_name(name, what="dataset")
    client = connect()
    with TransferBar() as bar:
        home = Home.default()
        tree = pack(path, rules=DATA, cache=home.pack_cache, without=home.root, progress=bar)
        console.say_homes(tree.homes)
        if not tree.files:
            raise SpecError(
                f"`{path}` holds no files", hints=("a `.hopignore` file in it may leave out too much",)
            )
        answer, sent = _push_version(
            client, name, tree, {"manifest": tree.digest, "message": message, "metric": metric}, bar
        )
    if as_json:
        console.out_json({**answer, "uploaded_bytes": sent})
        return
    version, took = answer["version"], console.span(time.monotonic() - began)
    if not answer["created"]:
        mended = f" (mended: uploaded {console.bytes_text(sent)})" if sent else ""
        console.say(f"{name}: unchanged, still version {version['number']}{mended}")
        return
    amount = f"{_count(version['files'], 'file')}, {console.bytes_text(version['size_bytes'])}"
    console.say(
        f"{name} version {version['number']}: {amount}, uploaded {console.bytes_text(sent)} in {took}"
    )


def _push_version(
    client: Client, name: str, tree: PackedTree, body: dict[str, Any], bar: Any
) -> tuple[dict[str, Any], int]:
    """The server's answer and how many bytes were sent.
    Asks first: an unchanged tree needs this one request."""
    sent = 0
    for left in range(_ROUNDS, -1, -1):
        try:
            answer: dict[str, Any] = client.post(f"/datasets/{name}/versions", body)
            return answer, sent
        except MissingBlobs:
            if not left:
                raise
            from hopyard.datasets.transfer import push as push_tree

            sent += push_tree(tree, client, bar).size_bytes
    raise AssertionError("unreachable")


@dataset.command("ls")
@json_option
def ls(as_json: bool) -> None:
    """List all datasets."""
    from hopyard.sdk.connect import connect

    found = list(connect().pages("/datasets", "datasets"))
    if as_json:
        console.out_json(found)
        return
    if not found:
        console.say("no datasets yet; `hop dataset push NAME PATH` makes one")
        return
    rows = []
    for one in found:
        newest = one["newest"] or {}
        rows.append(
            [
                one["name"],
                str(newest.get("number", "-")),
                *_amounts(newest),
                one["metric"] or "-",
                newest.get("message", ""),
            ]
        )
    head = ["NAME", "VERSION", "FILES", "SIZE", "PUSHED", "METRIC", "MESSAGE"]
    console.out_lines(console.table(head, rows, right=(1, 2, 3), width=_width()))


@dataset.command("versions")
@name_argument
@json_option
def versions(name: str, as_json: bool) -> None:
    """List the versions of a dataset, the newest first."""
    from hopyard.sdk.connect import connect

    found = list(
        connect().pages(f"/datasets/{check_name(name, what='dataset')}/versions", "versions", cursor="before")
    )
    if as_json:
        console.out_json(found)
        return
    rows = [
        [str(one["number"]), *_amounts(one), one["created_by"], one["manifest"][:12], one["message"]]
        for one in found
    ]
    head = ["VERSION", "FILES", "SIZE", "PUSHED", "BY", "MANIFEST", "MESSAGE"]
    console.out_lines(console.table(head, rows, right=(0, 1, 2), width=_width()))


@dataset.command("info")
@reference_argument
@json_option
def describe(ref: str, as_json: bool) -> None:
    """Tell everything about a dataset or one of its versions."""
    from hopyard.sdk.connect import connect

    client = connect()
    name, number = _parse(ref)
    about, version = client.get(f"/datasets/{name}"), client.get(f"/datasets/{name}/versions/{number}")
    if as_json:
        console.out_json({**about, "version": version})
        return
    direction = {True: " (higher is better)", False: " (lower is better)", None: ""}[
        about["higher_is_better"]
    ]
    lines = [
        ("dataset", name),
        (
            "version",
            f"{version['number']} of {about['versions']}"
            if about["versions"] != 1
            else str(version["number"]),
        ),
        ("message", version["message"]),
        (
            "damaged",
            f"{version['damaged']}; `hop dataset push` of the same data mends it"
            if version.get("damaged")
            else "",
        ),
        ("files", f"{version['files']:,}"),
        ("size", console.bytes_text(version["size_bytes"])),
        ("pushed", f"{_moment(version['created_at'])} by {version['created_by']}"),
        ("manifest", version["manifest"]),
        ("metric", f"{about['metric']}{direction}" if about["metric"] else ""),
        ("use it", f"hop run SCRIPT -d {ref}"),
    ]
    console.out_lines(f"{label:<9} {text}" for label, text in lines if text)


@dataset.command("pull")
@reference_argument
@click.argument("dest", metavar="[DEST]", required=False, type=click.Path(path_type=Path))
@click.option("--force", is_flag=True, help="Replace what is at DEST.")
def pull(ref: str, dest: Path | None, force: bool) -> None:
    """Put a version into the folder DEST, by default ./NAME; whole or not at all.

    A pull that was broken off goes on where it was when it is repeated.
    """
    import time

    from hopyard.cli.transferbar import TransferBar
    from hopyard.datasets.transfer import pull as pull_tree
    from hopyard.sdk.connect import connect

    began = time.monotonic()
    client = connect()
    name, number = _parse(ref)
    version = client.get(f"/datasets/{name}/versions/{number}")
    dest = dest or Path(name)
    with TransferBar() as bar:
        pull_tree(version["manifest"], dest, client, bar, replace=force)
    amount = f"{_count(version['files'], 'file')}, {console.bytes_text(version['size_bytes'])}"
    console.say(f"{name} version {version['number']}: {amount}, in {console.span(time.monotonic() - began)}")
    console.out(str(dest))


@dataset.command("path")
@reference_argument
def path_command(ref: str) -> None:
    """Print a folder on this machine that holds a version; it is filled first where need be.

    The folder is read-only and shared with runs. It stays until the cache needs its room.
    """
    from hopyard.cli.transferbar import TransferBar
    from hopyard.config.home import Home
    from hopyard.datasets.cache import TreeCache
    from hopyard.sdk.connect import connect

    client = connect()
    name, number = _parse(ref)
    version = client.get(f"/datasets/{name}/versions/{number}")
    with (
        TransferBar() as bar,
        TreeCache(Home.default().trees).use(version["manifest"], client.fetch, progress=bar) as folder,
    ):
        found = folder
    console.out(str(found))


@dataset.command("rm")
@reference_argument
@click.option("-y", "--yes", is_flag=True, help="Do not ask.")
def rm(ref: str, yes: bool) -> None:
    """Delete a dataset with all its versions, or the one version that is named. This cannot be undone.

    Runs that used it stay; bytes that nothing else refers to go with the next sweep.
    """
    from hopyard.sdk.connect import connect

    client = connect()
    name, number = _parse(ref)
    one = ":" in ref
    if one and not number:
        number = client.get(f"/datasets/{name}/versions/newest")["number"]
    about = client.get(f"/datasets/{name}")
    what = f"version {number} of {name}" if one else f"{name} with {_count(about['versions'], 'version')}"
    if not yes:
        if not sys.stdin.isatty():
            raise UsageError("nobody is here to ask", hints=("-y deletes without asking",))
        if not click.confirm(f"delete {what}?", err=True):
            console.say("nothing was deleted")
            return
    client.delete(f"/datasets/{name}", version=number if one else None)
    console.say(f"deleted {what}")


def _parse(ref: str) -> tuple[str, int]:
    from hopyard.config.runspec import parse_dataset

    return parse_dataset(ref, what="dataset")


def _amounts(version: dict[str, Any]) -> list[str]:
    """FILES, SIZE, PUSHED of a row."""
    if not version:
        return ["-", "-", "-"]
    return [
        f"{version['files']:,}",
        console.bytes_text(version["size_bytes"]),
        f"{console.span(console.seconds_since(version['created_at']))} ago",
    ]


def _count(amount: int, what: str) -> str:
    return f"{amount:,} {what}{'' if amount == 1 else 's'}"


def _moment(text: str) -> str:
    from datetime import datetime

    return datetime.fromisoformat(text).astimezone().strftime("%Y-%m-%d %H:%M:%S")


def _width() -> int | None:
    return console.terminal_width() if console.is_terminal(sys.stdout) else None
