"""`hop dataset`: named, versioned data."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from hopyard.cli.options import complete_dataset, json_option
from hopyard.cli.terminal import console
from hopyard.client.feedback import notify_of_skipped_homes
from hopyard.domain.ids import Digest, check_name
from hopyard.errors import MissingBlobs, SpecError, UsageError

if TYPE_CHECKING:
    from hopyard.api_client import types as api
    from hopyard.api_client.client import Client
    from hopyard.datasets.packed_tree import PackedTree

_UPLOAD_ATTEMPTS = 5  # of uploads: blobs may be found damaged between the answer and the next try

reference_argument = click.argument("ref", metavar="NAME[:VERSION]", shell_complete=complete_dataset)
name_argument = click.argument("name", metavar="NAME", shell_complete=complete_dataset)


class DatasetGroup(click.Group):
    """The leaderboard's command is a room of its own, imported when it is used."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return [*super().list_commands(ctx), "board"]

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name == "board":
            from hopyard.cli.leaderboard import board

            return board
        return super().get_command(ctx, cmd_name)


@click.group("dataset", cls=DatasetGroup, no_args_is_help=False, invoke_without_command=True)
@click.pass_context
def dataset(ctx: click.Context) -> None:
    """Push, list, pull and remove datasets; show their leaderboards.

    A version of a dataset never changes: a push of changed data makes a new one. `hop run -d NAME` gives a
    script the newest version, `-d NAME:3` version 3.
    """
    if ctx.invoked_subcommand is None:
        click.echo(ctx.get_help())


@dataset.command("push")
@click.argument("name", metavar="NAME")
@click.argument("path", metavar="PATH", type=click.Path(path_type=Path))
@click.option("-m", "--message", default="", help="A note on this version.")
@click.option("--metric", help="Rank the dataset's leaderboard by this metric.")
@json_option
def push_dataset(name: str, path: Path, message: str, metric: str | None, as_json: bool) -> None:
    """Make a version of the folder or file PATH; only missing data is uploaded.

    All files of a folder belong to the version, except `.git` and the names in its `.hopignore`. A repeated
    push continues an interrupted one.
    """
    import time

    from hopyard.api_client.local_server import connect
    from hopyard.cli.terminal.transfer_bar import TransferBar
    from hopyard.config.home import Home
    from hopyard.datasets.pack import DATA_RULES, pack_tree

    began = time.monotonic()
    check_name(name, subject="dataset")
    client = connect()
    with TransferBar() as bar:
        home = Home.default()
        tree = pack_tree(path, rules=DATA_RULES, cache=home.pack_cache, excluded=home.root, progress=bar)
        notify_of_skipped_homes(tree.homes, console.print_message)
        if not tree.files:
            raise SpecError(
                f"`{path}` holds no files", hints=("check its `.hopignore` file, which may exclude too much",)
            )
        answer, sent = _push_version(
            client, name, tree, {"manifest": tree.digest, "message": message, "metric": metric}, bar
        )
    if as_json:
        console.print_json({**answer, "uploaded_bytes": sent})
        return
    version, took = answer["version"], console.format_duration(time.monotonic() - began)
    if not answer["created"]:
        mended = f" (repaired: uploaded {console.format_bytes(sent)})" if sent else ""
        console.print_message(f"{name}: unchanged, still version {version['number']}{mended}")
        return
    amount = f"{_count_text(version['files'], 'file')}, {console.format_bytes(version['size_bytes'])}"
    console.print_message(
        f"{name} version {version['number']}: {amount}, uploaded {console.format_bytes(sent)} in {took}"
    )


def _push_version(
    client: Client, name: str, tree: PackedTree, body: api.PushIn, bar: Any
) -> tuple[api.PushOut, int]:
    """Returns the server's answer and the number of bytes sent.
    Asks the server first: an unchanged tree needs only this request.
    """
    sent = 0
    for retries in range(_UPLOAD_ATTEMPTS, -1, -1):
        try:
            return client.create_dataset_version(name, body), sent
        except MissingBlobs:
            if not retries:
                raise
            from hopyard.datasets.transfer import push_tree as push_tree

            sent += push_tree(tree, client, bar).size_bytes
    raise AssertionError("unreachable")


@dataset.command("ls")
@json_option
def list_datasets(as_json: bool) -> None:
    """List all datasets."""
    from hopyard.api_client.local_server import connect

    datasets = list(connect().iterate_datasets())
    if as_json:
        console.print_json(datasets)
        return
    if not datasets:
        console.print_message("no datasets yet; `hop dataset push NAME PATH` creates one")
        return
    rows = []
    for entry in datasets:
        newest = entry["newest"]
        rows.append(
            [
                entry["name"],
                str(newest["number"]) if newest else "-",
                *_version_columns(newest),
                entry["metric"] or "-",
                newest["message"] if newest else "",
            ]
        )
    head = ["NAME", "VERSION", "FILES", "SIZE", "PUSHED", "METRIC", "MESSAGE"]
    console.print_lines(console.format_table(head, rows, right=(1, 2, 3), width=_terminal_width()))


@dataset.command("versions")
@name_argument
@json_option
def list_versions(name: str, as_json: bool) -> None:
    """List the versions of a dataset, the newest first."""
    from hopyard.api_client.local_server import connect

    versions = list(connect().iterate_dataset_versions(check_name(name, subject="dataset")))
    if as_json:
        console.print_json(versions)
        return
    rows = [
        [
            str(version["number"]),
            *_version_columns(version),
            version["created_by"],
            version["manifest"][:12],
            version["message"],
        ]
        for version in versions
    ]
    head = ["VERSION", "FILES", "SIZE", "PUSHED", "BY", "MANIFEST", "MESSAGE"]
    console.print_lines(console.format_table(head, rows, right=(0, 1, 2), width=_terminal_width()))


@dataset.command("info")
@reference_argument
@json_option
def show_dataset(ref: str, as_json: bool) -> None:
    """Show all details of a dataset or one of its versions."""
    from hopyard.api_client.local_server import connect

    client = connect()
    name, number = _parse_reference(ref)
    about, version = client.get_dataset(name), client.get_dataset_version(name, number)
    if as_json:
        console.print_json({**about, "version": version})
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
            f"{version['damaged']}; run `hop dataset push` with the same data to repair it"
            if version.get("damaged")
            else "",
        ),
        ("files", f"{version['files']:,}"),
        ("size", console.format_bytes(version["size_bytes"])),
        ("pushed", f"{_time_text(version['created_at'])} by {version['created_by']}"),
        ("manifest", version["manifest"]),
        ("metric", f"{about['metric']}{direction}" if about["metric"] else ""),
        ("use it", f"hop run SCRIPT -d {ref}"),
    ]
    console.print_lines(f"{label:<9} {text}" for label, text in lines if text)


@dataset.command("pull")
@reference_argument
@click.argument("dest", metavar="[DEST]", required=False, type=click.Path(path_type=Path))
@click.option(
    "--force", is_flag=True, help="Merge into an existing DEST: files of the same name are replaced."
)
def pull_dataset(ref: str, dest: Path | None, force: bool) -> None:
    """Download a version to the folder DEST, by default ./NAME; all of it or nothing.
    With --force, other files in DEST are kept.

    A repeated pull continues an interrupted one.
    """
    import time

    from hopyard.api_client.local_server import connect
    from hopyard.cli.terminal.transfer_bar import TransferBar
    from hopyard.datasets.transfer import pull_tree as pull_tree

    began = time.monotonic()
    client = connect()
    name, number = _parse_reference(ref)
    version = client.get_dataset_version(name, number)
    dest = dest or Path(name)
    with TransferBar() as bar:
        pull_tree(Digest(version["manifest"]), dest, client, bar, merge=force)
    amount = f"{_count_text(version['files'], 'file')}, {console.format_bytes(version['size_bytes'])}"
    console.print_message(
        f"{name} version {version['number']}: {amount}, in "
        f"{console.format_duration(time.monotonic() - began)}"
    )
    console.print_line(str(dest))


@dataset.command("path")
@reference_argument
def show_path(ref: str) -> None:
    """Print the folder of a version on this machine; download the version first if necessary.

    The folder is read-only and shared with runs. It stays until the cache needs its space.
    """
    from hopyard.api_client.local_server import connect
    from hopyard.cli.terminal.transfer_bar import TransferBar
    from hopyard.config.home import Home
    from hopyard.datasets.tree_cache import TreeCache

    client = connect()
    name, number = _parse_reference(ref)
    version = client.get_dataset_version(name, number)
    with (
        TransferBar() as bar,
        TreeCache(Home.default().trees).open_tree(
            Digest(version["manifest"]), client.fetch, progress=bar
        ) as folder,
    ):
        path = folder
    console.print_line(str(path))


@dataset.command("rm")
@reference_argument
@click.option("-y", "--yes", is_flag=True, help="Delete without confirmation.")
def remove_dataset(ref: str, yes: bool) -> None:
    """Delete a dataset with all its versions, or one version. This cannot be undone.

    Runs that used it stay. Blobs without another reference are deleted by the next sweep.
    """
    from hopyard.api_client.local_server import connect

    client = connect()
    name, number = _parse_reference(ref)
    is_version = ":" in ref
    if is_version and not number:
        number = client.get_dataset_version(name, "newest")["number"]
    about = client.get_dataset(name)
    what = (
        f"version {number} of {name}"
        if is_version
        else f"{name} with {_count_text(about['versions'], 'version')}"
    )
    if not yes:
        if not sys.stdin.isatty():
            raise UsageError(
                "stdin is not a terminal, so the deletion cannot be confirmed",
                hints=("use -y to delete without a question",),
            )
        if not click.confirm(f"delete {what}?", err=True):
            console.print_message("nothing was deleted")
            return
    client.delete_dataset(name, version=number if is_version else None)
    console.print_message(f"deleted {what}")


def _parse_reference(ref: str) -> tuple[str, int]:
    from hopyard.config.run_request import parse_dataset

    return parse_dataset(ref, what="dataset")


def _version_columns(version: api.DatasetVersion | None) -> list[str]:
    """Returns FILES, SIZE and PUSHED of a row."""
    if not version:
        return ["-", "-", "-"]
    return [
        f"{version['files']:,}",
        console.format_bytes(version["size_bytes"]),
        f"{console.format_duration(console.seconds_since(version['created_at']))} ago",
    ]


def _count_text(amount: int, what: str) -> str:
    return f"{amount:,} {what}{'' if amount == 1 else 's'}"


def _time_text(text: str) -> str:
    from datetime import datetime

    return datetime.fromisoformat(text).astimezone().strftime("%Y-%m-%d %H:%M:%S")


def _terminal_width() -> int | None:
    return console.terminal_width() if console.is_terminal(sys.stdout) else None
