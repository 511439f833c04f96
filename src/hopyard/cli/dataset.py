"""`hop dataset`: named, versioned data."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from hopyard.cli.options import complete_dataset, json_option
from hopyard.cli.terminal import console
from hopyard.client.feedback import notify_of_skipped_homes
from hopyard.domain.dataset import MAX_DESCRIPTION_LENGTH
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
@click.option(
    "--from",
    "derived_from",
    metavar="NAME[:VERSION]",
    help="The version of a dataset that this data was made from.",
)
@json_option
def push_dataset(
    name: str, path: Path, message: str, metric: str | None, derived_from: str | None, as_json: bool
) -> None:
    """Make a version of the folder or file PATH; only missing data is uploaded.

    All files of a folder belong to the version, except `.git` and the names in its `.hopignore`. A repeated
    push continues an interrupted one.
    """
    import time

    from hopyard.api_client.local_server import connect
    from hopyard.cli.terminal.transfer_bar import TransferBar
    from hopyard.config.home import Home
    from hopyard.config.run_request import parse_dataset
    from hopyard.datasets.pack import DATA_RULES, pack_tree

    began = time.monotonic()
    check_name(name, subject="dataset")
    if derived_from is not None:
        parse_dataset(derived_from, what="--from")
    client = connect()
    with TransferBar() as bar:
        home = Home.default()
        tree = pack_tree(path, rules=DATA_RULES, cache=home.pack_cache, excluded=home.root, progress=bar)
        notify_of_skipped_homes(tree.homes, console.print_message)
        if not tree.files:
            raise SpecError(
                f"`{path}` holds no files", hints=("check its `.hopignore` file, which may exclude too much",)
            )
        body: api.PushIn = {"manifest": tree.digest, "message": message, "metric": metric}
        if derived_from is not None:
            body["derived_from"] = derived_from
        answer, sent = _push_version(client, name, tree, body, bar)
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
        ("made from", version.get("derived_from", "")),
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
        ("runs", f"{about['runs']:,}" if about.get("runs") else ""),
        ("use it", f"hop run SCRIPT -d {ref}"),
    ]
    console.print_lines(f"{label:<9} {text}" for label, text in lines if text)
    if description := about.get("description"):
        console.print_lines(["", *_indented(description)])


@dataset.command("describe")
@name_argument
@click.argument("text", metavar="[TEXT]", required=False)
@click.option(
    "-F",
    "--file",
    "file",
    metavar="FILE",
    type=click.Path(path_type=Path, allow_dash=True),
    help="Read the text from a file; `-`: from the standard input.",
)
@json_option
def describe_dataset(name: str, text: str | None, file: Path | None, as_json: bool) -> None:
    """Set the description of a dataset, in Markdown. An empty TEXT removes it; without a text, it is shown.

    The page of the dataset and `hop dataset info` show it. It takes a user that pushed a version, or the
    owner of the server, to change it.
    """
    from hopyard.api_client.local_server import connect

    if text is not None and file is not None:
        raise UsageError("TEXT and --file are both given", hints=("leave one of them out",))
    name = check_name(name, subject="dataset")
    if file is not None:
        text = _read_description(file)
    client = connect()
    if text is None:
        about = client.get_dataset(name)
        if not as_json:
            description = about.get("description", "")
            if not description:
                console.print_message(f"{name} has no description")
            console.print_lines(_indented(description))
            return
    else:
        if len(text) > MAX_DESCRIPTION_LENGTH:
            raise SpecError(
                f"the description has {len(text):,} characters, more than {MAX_DESCRIPTION_LENGTH:,}",
                hints=("shorten it, and push long documents with the data",),
            )
        about = client.put_dataset_description(name, {"description": text})
        if not as_json:
            console.print_message(f"the description of {name} is {'set' if text else 'removed'}")
            return
    console.print_json(about)


def _indented(description: str) -> list[str]:
    """Returns the lines of a description, none of which looks like a line of this program."""
    return [f"  {line}".rstrip() for line in description.rstrip().splitlines()]


def _read_description(file: Path) -> str:
    """Raises SpecError for a file that cannot be read, or is no text."""
    name = "the standard input" if str(file) == "-" else str(file)
    limit = 4 * MAX_DESCRIPTION_LENGTH + 1  # in UTF-8, a character has at most 4 bytes
    try:
        if str(file) == "-":
            data = sys.stdin.buffer.read(limit)
        else:
            with file.open("rb") as stream:
                data = stream.read(limit)
    except OSError as error:
        raise SpecError(
            f"cannot read {name}: {error.strerror}", hints=("name a file with Markdown",)
        ) from error
    try:
        return data.decode()
    except UnicodeDecodeError as error:
        raise SpecError(f"{name} is no text in UTF-8", hints=("convert it to UTF-8",)) from error


@dataset.command("files")
@reference_argument
@click.argument("folder", metavar="[FOLDER]", required=False, default="")
@click.option("--contains", metavar="TEXT", help="List all files with TEXT in their path, in any case.")
@click.option(
    "--limit",
    type=click.IntRange(1, 1_000_000),
    default=1000,
    show_default=True,
    help="Maximum number of rows.",
)
@json_option
def list_files(ref: str, folder: str, contains: str | None, limit: int, as_json: bool) -> None:
    """List what FOLDER of a version contains; by default the top folder."""
    from itertools import islice

    from hopyard.api_client.local_server import connect

    name, number = _parse_reference(ref)
    found = list(
        islice(
            connect().iterate_dataset_version_files(
                name, number, folder=folder or None, contains=contains, max_rows=limit + 1
            ),
            limit + 1,
        )
    )
    rows = found[:limit]
    if as_json:
        console.print_json(rows)
        return
    cells = [
        [
            console.format_bytes(row["size_bytes"]) if row["kind"] != "link" else "-",
            f"{row['files']:,}" if row["kind"] == "folder" else "",
            _entry_text(row),
        ]
        for row in rows
    ]
    if cells:
        head = ["SIZE", "FILES", "PATH"]
        console.print_lines(console.format_table(head, cells, right=(0, 1), width=_terminal_width()))
    else:
        console.print_message(f"no file of {ref} has such a path" if contains else f"{ref} has no files")
    if len(found) > limit:
        console.print_message(f"only the first {limit:,}; use --limit, or --contains TEXT")


def _entry_text(row: api.DatasetEntryOut) -> str:
    if row["kind"] == "link":
        return f"{row['path']} -> {row['target']}"
    return f"{row['path']}/" if row["kind"] == "folder" else row["path"]


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
        freed = client.get_dataset_deletion(name, version=number if is_version else None)["frees_bytes"]
        if not click.confirm(f"delete {what}? this frees about {console.format_bytes(freed)}", err=True):
            console.print_message("nothing was deleted")
            return
    answer = client.delete_dataset(name, version=number if is_version else None)
    freed = answer["frees_bytes"]
    console.print_message(
        f"deleted {what}" + (f"; the next sweep frees about {console.format_bytes(freed)}" if freed else "")
    )


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
