"""`hop report`: pages of text, curves, tables and media of chosen runs."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
from click.shell_completion import CompletionItem

from hopyard.cli.batch import apply_to_each, unique
from hopyard.cli.options import json_option
from hopyard.cli.terminal import console
from hopyard.domain.report import REPORT_ID_PATTERN
from hopyard.domain.text import escape
from hopyard.errors import SpecError, UsageError

if TYPE_CHECKING:
    from hopyard.api_client.client import Client

_BLOCK_BYTES = 1024 * 1024
_UNTITLED = "(without a title)"


@click.group("report")
def report() -> None:
    """List, show, export and remove reports. They are written in the web UI, which `hop ui` opens."""


def complete_report(
    _ctx: click.Context, _parameter: click.Parameter, incomplete: str
) -> list[CompletionItem]:
    """Returns the ids of reports with their titles, if a server runs."""
    from hopyard.api_client.local_server import connect
    from hopyard.errors import HopyardError

    try:
        reports = list(connect(start=False).iterate_reports(max_rows=200))
    except HopyardError:
        return []
    return [
        CompletionItem(each["id"], help=escape(each["title"]))
        for each in reports
        if each["id"].startswith(incomplete)
    ]


_id_argument = click.argument("report_id", metavar="ID", shell_complete=complete_report)


@report.command("ls")
@click.option("--user", metavar="NAME", help="Only reports of this user.")
@click.option("--search", metavar="TEXT", default="", help="Only reports with this text in the title.")
@json_option
def list_reports(user: str | None, search: str, as_json: bool) -> None:
    """List the reports that you may read, the last changed first."""
    from hopyard.api_client.local_server import connect
    from hopyard.cli.terminal.times import format_clock
    from hopyard.domain.ids import check_name

    if user is not None:
        check_name(user, subject="--user")
    reports = list(connect().iterate_reports(user=user, search=search))
    if as_json:
        console.print_json(reports)
        return
    if not reports:
        hint = "" if user or search else "; write one in the web UI, which `hop ui` opens"
        console.print_message(f"no reports{hint}")
        return
    rows = [
        [
            each["id"],
            escape(each["user"]),
            escape(each["access"]),
            format_clock(each["updated_at"]),
            escape(each["title"]) or _UNTITLED,
        ]
        for each in reports
    ]
    width = console.terminal_width() if console.is_terminal(sys.stdout) else None
    console.print_lines(console.format_table(["ID", "USER", "ACCESS", "CHANGED", "TITLE"], rows, width=width))


@report.command("show")
@_id_argument
@click.option("--revision", type=click.IntRange(1), help="An earlier revision.  [default: the current one]")
@json_option
def show_report(report_id: str, revision: int | None, as_json: bool) -> None:
    """Show a report: its text, and a line for each other block."""
    from hopyard.api_client.local_server import connect
    from hopyard.cli.terminal.times import format_clock

    client, report_id = connect(), _check_id(report_id)
    found = (
        client.get_report(report_id)
        if revision is None
        else client.get_report_revision(report_id, str(revision))
    )
    if as_json:
        console.print_json(found)
        return
    console.print_line(console.paint(escape(found["title"]) or _UNTITLED, "bold"))
    about = f"by {escape(found['user'])}, access {escape(found['access'])}, revision {found['revision']}"
    changed = f"changed {format_clock(found['updated_at'])} by {escape(found['updated_by'])}"
    console.print_line(console.paint(f"{about}, {changed}", "dim"))
    for block in found["blocks"]:
        console.print_line()
        console.print_lines(_block_lines(block))


@report.command("export")
@_id_argument
@click.option(
    "-o", "--output", metavar="FILE", help="The file to write; - prints it.  [default: report-ID.html]"
)
@click.option("--force", is_flag=True, help="Replace a file that exists.")
def export_report(report_id: str, output: str | None, force: bool) -> None:
    """Export a report as one HTML file, which needs neither a server nor a network."""
    from hopyard.api_client.local_server import connect
    from hopyard.private_files import write_atomically

    report_id = _check_id(report_id)
    path = Path(f"report-{report_id}.html" if output is None else output)
    if output == "-":
        sys.stdout.buffer.write(_read_export(connect(), report_id))
        sys.stdout.flush()
        return
    if path.is_dir():
        raise SpecError(f"-o: {escape(str(path))} is a folder", hints=("name a file in it",))
    if not path.parent.is_dir():
        raise SpecError(
            f"-o: there is no folder {escape(str(path.parent))}", hints=("make it, or name another file",)
        )
    if path.exists() and not force:
        raise SpecError(
            f"{escape(str(path))} exists", hints=("name another file with -o, or replace it with --force",)
        )
    content = _read_export(connect(), report_id)
    try:
        write_atomically(path, content)
    except OSError as error:
        raise UsageError(f"cannot write {escape(str(path))}: {error.strerror}") from error
    console.print_message(f"{console.format_bytes(len(content))}; open it in a browser")
    console.print_line(escape(str(path)))


@report.command("rm")
@click.argument("ids", metavar="ID...", nargs=-1, required=True, shell_complete=complete_report)
@json_option
def remove_reports(ids: tuple[str, ...], as_json: bool) -> None:
    """Remove reports with their earlier revisions."""
    from hopyard.api_client.local_server import connect

    client = connect()
    for each in ids:  # all are checked before any is removed
        _check_id(each)
    apply_to_each(
        unique([{"id": each, "name": each} for each in ids]),
        lambda item: _remove(client, item),
        format_result=lambda item, _: f"removed {item['id']}",
        as_json=as_json,
    )


def _remove(client: Client, item: Mapping[str, str]) -> Mapping[str, str]:
    client.delete_report(item["id"])
    return {"id": item["id"]}


def _read_export(client: Client, report_id: str) -> bytes:
    with client.open("GET", f"/reports/{report_id}/export") as response:
        return b"".join(iter(lambda: response.read(_BLOCK_BYTES), b""))


def _check_id(text: str) -> str:
    if re.fullmatch(REPORT_ID_PATTERN, text) is None:
        raise SpecError(
            f"ID: `{escape(text[:80])}` is not the id of a report",
            hints=("list the ids with `hop report ls`", "it is the last part of the report's address"),
        )
    return text


def _block_lines(block: Mapping[str, Any]) -> Iterator[str]:
    if block["type"] == "text":
        # indented: a line of the text must not look like one of this program
        yield from (f"  {escape(line)}".rstrip() for line in block["text"].split("\n"))
        return
    title = f" {escape(block['title'])}" if block["title"] else ""
    yield f"[{block['type']}]{title}: {escape(_block_text(block))}"


def _block_text(block: Mapping[str, Any]) -> str:
    if block["type"] == "leaderboard":
        by = f" by {block['metric']}" if block["metric"] else ""
        return f"dataset {block['dataset'] or 'not chosen'}{by}"
    runs = len(block["runs"])
    names = {
        "curves": block.get("metrics"),
        "media": block.get("names"),
        "scatter": [name for name in (block.get("x"), block.get("y")) if name],
    }.get(block["type"], block.get("columns"))
    return f"{runs} run{'' if runs == 1 else 's'}; {', '.join(names or ()) or 'nothing chosen'}"
