"""`hop files`: lists and fetches the files that a run wrote."""

from __future__ import annotations

import os
import sys
from dataclasses import replace
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING

import click

from hopyard.api_client.client import Client
from hopyard.cli.options import json_option, last_run_argument
from hopyard.cli.terminal import console
from hopyard.client.run_files import (
    RunFile,
    fetch_run_files,
    file_names,
    is_ended,
    list_run_files,
    read_run_file,
)
from hopyard.client.run_lookup import get_run
from hopyard.domain.encoded_path import encode_path
from hopyard.domain.text import escape
from hopyard.errors import NotFound, SpecError, UsageError

if TYPE_CHECKING:
    from hopyard.api_client import types as api

_HINT_NAMES = 5


@click.command("files")
@last_run_argument()
@click.argument("patterns", nargs=-1, metavar="[PATH]...")
@click.option(
    "-o",
    "--output",
    metavar="DEST",
    help="Fetch instead of listing: a file to the file DEST, several into the folder DEST; - prints it.",
)
@click.option("--force", is_flag=True, help="Replace files that exist.")
@click.option(
    "--run-dir",
    is_flag=True,
    help="The files of $HOPYARD_RUN_DIR, as stored last, not of the working folder.",
)
@json_option
def files(
    ref: str, patterns: tuple[str, ...], output: str | None, force: bool, run_dir: bool, as_json: bool
) -> None:
    """List the files that RUN wrote, or fetch them with -o; also while the run is live.

    PATH is a file, a folder or a glob; a PATH with `!` excludes. `*` is any text.
    """
    from hopyard.api_client.local_server import connect

    client = connect()
    run = client.get_run(get_run(client, ref)["id"])
    found = list_run_files(client, run, patterns, is_run_dir=run_dir)
    if patterns and not found:
        hints = _name_hints(list_run_files(client, run, is_run_dir=run_dir))
        raise NotFound(f"{run['name']} has no file {_pattern_text(patterns)}", hints=hints)
    if output is not None:
        _fetch(client, run, found, patterns, output, force=force, run_dir=run_dir)
    elif as_json:
        console.print_json([_file_json(file) for file in found])
    elif found:
        console.print_lines(_file_table(found))
    else:
        text = f"{run['name']} has written no file" + ("" if is_ended(run) else " so far")
        if not run_dir and list_run_files(client, run, is_run_dir=True):
            text += " into its working folder; --run-dir lists those of $HOPYARD_RUN_DIR"
        console.print_message(text)


def _pattern_text(patterns: tuple[str, ...]) -> str:
    return " ".join(f"`{escape(pattern)}`" for pattern in patterns)


def _name_hints(files: list[RunFile]) -> tuple[str, ...]:
    every = [escape(file.path) for file in files]
    if not every:
        return ("it has written no file",)
    more = f" and {len(every) - _HINT_NAMES} more" if len(every) > _HINT_NAMES else ""
    return (f"it has: {', '.join(every[:_HINT_NAMES])}{more}",)


def _file_json(file: RunFile) -> dict[str, object]:
    return {
        "path": file.path,
        "encoded": file.encoded,
        "rank": file.rank,
        "size_bytes": file.size_bytes,
        "modified_at": file.modified_at,
        "target": file.target
        if file.target is None or file.target.isprintable()
        else encode_path(file.target),
    }


def _file_table(found: list[RunFile]) -> list[str]:
    from hopyard.cli.terminal.times import format_clock

    several_ranks = len({file.rank for file in found}) > 1
    rows = [
        [
            *([str(file.rank)] if several_ranks else []),
            "link" if file.target is not None else console.format_bytes(file.size_bytes),
            format_clock(file.modified_at) if file.modified_at else "-",
            escape(file.path) + (f" -> {escape(file.target)}" if file.target is not None else ""),
        ]
        for file in found
    ]
    head = [*(["RANK"] if several_ranks else []), "SIZE", "MODIFIED", "NAME"]
    return console.format_table(head, rows, right=[len(head) - 3])


def _fetch(
    client: Client,
    run: api.RunOut,
    found: list[RunFile],
    patterns: tuple[str, ...],
    output: str,
    *,
    force: bool,
    run_dir: bool,
) -> None:
    from hopyard.cli.terminal.transfer_bar import TransferBar

    if not found:
        raise NotFound(f"{run['name']} has written no file")
    is_single = len(found) == 1 and patterns in ((found[0].path,), (found[0].name,))
    if found[0].target is not None and (is_single or (len(found) == 1 and output == "-")):
        found = [_linked_file(client, run, found[0], run_dir=run_dir)]
    if output == "-":
        if len(found) > 1:
            raise UsageError(
                f"-o - prints one file, and {len(found)} were selected", hints=("name one file, or a folder",)
            )
        for block in read_run_file(client, run, found[0]):
            sys.stdout.buffer.write(block)
        sys.stdout.flush()
        return
    dest = Path(output)
    if is_single and not (dest.is_dir() or output.endswith("/")):
        target, dest, names = dest, dest.parent, [dest.name]
    else:
        target, names = dest, file_names(found)
    existing = [path for name in names if (path := dest / name).exists() or path.is_symlink()]
    if existing and not force:
        raise SpecError(
            f"{escape(str(existing[0]))} exists"
            + (f", and {len(existing) - 1} more" if existing[1:] else ""),
            hints=("name another DEST, or replace it with --force",),
        )
    fetch_run_files(client, run, dict(zip(names, found, strict=True)), dest, on_progress=TransferBar)
    size = console.format_bytes(sum(file.size_bytes for file in found))
    console.print_message(f"{len(found):,} file{'' if len(found) == 1 else 's'}, {size}")
    console.print_line(str(target))


def _linked_file(client: Client, run: api.RunOut, link: RunFile, *, run_dir: bool) -> RunFile:
    """Returns the file that a link leads to, at the path of the link. Raises NotFound for a link to a folder,
    which stays a link among other files only."""
    found = list_run_files(client, run, is_run_dir=run_dir)
    files = {file.name: file for file in found if file.rank == link.rank}
    path, seen = link, {link.name}
    while path.target is not None:
        name = os.path.normpath(PurePosixPath(path.name).parent / path.target)
        linked = files.get(name)
        if linked is None or name in seen:
            raise NotFound(
                f"`{escape(link.path)}` is a link to `{escape(link.target or '')}`, which is no file",
                hints=("list the files of a folder with `hop files RUN FOLDER`",),
            )
        path = linked
        seen.add(name)
    return replace(path, path=link.path, encoded=link.encoded)
