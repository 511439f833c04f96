"""`hop media`: lists, shows and fetches the images and other media of a run."""

from __future__ import annotations

import json
import math
import sys
from collections.abc import Iterator, Sequence
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from hopyard.api_client.client import Client
from hopyard.cli.options import json_option, last_run_argument
from hopyard.cli.terminal import console
from hopyard.client.media import list_media, media_paths, read_media, save_media
from hopyard.client.run_lookup import get_run
from hopyard.config.suggest import unknown_name_hints
from hopyard.domain.metric_values import decode_value
from hopyard.domain.text import escape
from hopyard.errors import NotFound, SpecError, UsageError

if TYPE_CHECKING:
    from hopyard.api_client import types as api

_MAX_SHOWN_ROWS, _MAX_SHOWN_STEPS, _MAX_SHOWN_IMAGES, _BAR_COLUMNS = 50, 20, 8, 48
_IMAGE_KINDS = ("image", "figure")


@click.command("media")
@last_run_argument()
@click.argument("name", required=False, metavar="[NAME]")
@click.option("--step", type=int, help="Only this step.  [default: the newest]")
@click.option("--index", type=click.IntRange(0), help="Only this item of a list that was logged, from 0.")
@click.option("--rank", type=click.IntRange(0), help="Only the media of the replica of this rank.")
@click.option(
    "-o",
    "--output",
    metavar="DEST",
    help="Fetch instead of showing: one item to the file DEST; several, or a NAME with `*`, to the folder. "
    "- prints it.",
)
@click.option("--force", is_flag=True, help="Replace files that exist.")
@json_option
def media(
    ref: str,
    name: str | None,
    step: int | None,
    index: int | None,
    rank: int | None,
    output: str | None,
    force: bool,
    as_json: bool,
) -> None:
    """List the media of RUN, or show those of NAME: images, figures, histograms, tables and texts.

    `*` in NAME is any text. A terminal shows images by the protocol of kitty or iTerm2, or as coloured
    blocks. With -o and without --step, all steps are fetched.
    """
    from hopyard.api_client.local_server import connect

    client = connect()
    run = client.get_run(get_run(client, ref)["id"])
    found = list_media(client, run, () if name is None else (name,), rank=rank)
    if name is not None and not found:
        names = sorted({item["name"] for item in list_media(client, run)})
        raise NotFound(
            f"{run['name']} has no media `{escape(name)}`",
            hints=unknown_name_hints(name, names) or ("list them with `hop media RUN`",),
        )
    steps = sorted({item["step"] for item in found})
    if step is not None and step not in steps:
        raise NotFound(f"{run['name']} has no media at step {step}", hints=(_steps_hint(steps),))
    selected = [
        item
        for item in found
        if (step is None or item["step"] == step) and (index is None or item["index"] == index)
    ]
    if index is not None and not selected:
        raise NotFound(f"{run['name']} has no media with index {index}", hints=("indexes count from 0",))
    if output is not None:
        _fetch(client, run, selected, output, is_pattern=name is None or "*" in name, force=force)
    elif as_json:
        console.print_json(selected)
    elif name is None and step is None:
        if found:
            console.print_lines(_name_table(found))
        else:
            console.print_message(f"{run['name']} has logged no media")
    elif console.is_terminal(sys.stdout):
        for line in _show(client, run, selected, step):
            console.print_line(line)
    else:
        console.print_lines(_item_table(selected))


def _steps_hint(steps: Sequence[int]) -> str:
    if not steps:
        return "it has logged no media"
    shown = ", ".join(map(str, steps[-10:]))
    return f"the steps are {'… ' if len(steps) > 10 else ''}{shown}"


def _name_table(items: Sequence[api.MediaItemOut]) -> list[str]:
    rows: list[list[str]] = []
    for (name, kind), group in groupby(
        sorted(items, key=lambda item: (item["name"], item["kind"])),
        lambda item: (item["name"], item["kind"]),
    ):
        same = list(group)
        steps = sorted({item["step"] for item in same})
        span = str(steps[0]) if len(steps) == 1 else f"{len(steps)}: {steps[0]} to {steps[-1]}"
        size = console.format_bytes(sum(item["size_bytes"] for item in same))
        rows.append([kind, span, str(len(same)), size, escape(name)])
    return console.format_table(["KIND", "STEPS", "ITEMS", "SIZE", "NAME"], rows, right=[2, 3])


def _item_table(items: Sequence[api.MediaItemOut]) -> list[str]:
    rows = [
        [
            str(item["step"]),
            str(item["rank"]),
            str(item["index"]),
            item["kind"],
            console.format_bytes(item["size_bytes"]),
            escape(item["name"]),
            _description(item),
        ]
        for item in items
    ]
    head = ["STEP", "RANK", "INDEX", "KIND", "SIZE", "NAME", "DESCRIPTION"]
    return console.format_table(head, rows, right=[0, 1, 2, 4])


def _description(item: api.MediaItemOut) -> str:
    details, parts = item["details"], []
    if "width" in details and "height" in details:
        parts.append(f"{details['width']:g}x{details['height']:g}")
    if "rows" in details and "columns" in details:
        parts.append(f"{details['rows']:g} rows, {details['columns']:g} columns")
    if "duration_s" in details:
        parts.append(f"{details['duration_s']:.1f} s")
    if item["caption"]:
        parts.append(escape(item["caption"]))
    return " ".join(parts)


def _show(
    client: Client, run: api.RunOut, items: Sequence[api.MediaItemOut], step: int | None
) -> Iterator[str]:
    """Yields lines for a terminal. Images are printed between them."""
    for (name, kind), group in groupby(
        sorted(items, key=lambda item: (item["name"], item["kind"])),
        lambda item: (item["name"], item["kind"]),
    ):
        same = list(group)
        if kind == "histogram":
            yield console.paint(escape(name), "bold")
            yield from _show_histograms(client, run, same)
            continue
        newest = max(item["step"] for item in same)
        shown = [item for item in same if item["step"] == newest]
        for item in shown[:_MAX_SHOWN_IMAGES]:
            number = f" [{item['index']}]" if len(shown) > 1 else ""
            head = f"{escape(name)}{number}  step {item['step']}  {_description(item)}".rstrip()
            yield console.paint(head, "bold")
            sys.stdout.flush()
            yield from _show_item(b"".join(read_media(client, run, item)), item)
        if len(shown) > _MAX_SHOWN_IMAGES:
            yield f"{len(shown) - _MAX_SHOWN_IMAGES} more: select one with --index"
        steps = sorted({item["step"] for item in same})
        if step is None and len(steps) > 1:
            yield console.paint(f"{len(steps)} steps: {_steps_hint(steps)}", "dim")


def _show_item(data: bytes, item: api.MediaItemOut) -> Iterator[str]:
    from hopyard.cli.terminal.terminal_image import print_image

    kind, width = item["kind"], console.terminal_width()
    if kind in _IMAGE_KINDS and print_image(data, item["type"], width=width):
        return
    if kind == "text":
        yield from data.decode("utf-8", "replace").split("\n")
    elif kind == "table":
        yield from _table_lines(data)
    else:
        yield f"{item['type']}, {console.format_bytes(item['size_bytes'])}: fetch it with -o FILE"


def _table_lines(data: bytes) -> Iterator[str]:
    table = _parse_json(data)
    columns, rows = table.get("columns"), table.get("rows")
    if not isinstance(columns, list) or not isinstance(rows, list):
        return
    cells = [["" if cell is None else str(cell) for cell in row] for row in rows if isinstance(row, list)]
    full = [row for row in cells if len(row) == len(columns)]
    yield from console.format_table([escape(str(name)) for name in columns], full[:_MAX_SHOWN_ROWS])
    omitted = table.get("omitted_rows")
    more = len(full) - _MAX_SHOWN_ROWS
    if more > 0:
        yield f"{more} more rows: fetch them with -o FILE"
    if isinstance(omitted, int) and omitted > 0:
        yield f"{omitted} rows were left out when the table was logged"


def _show_histograms(client: Client, run: api.RunOut, items: Sequence[api.MediaItemOut]) -> Iterator[str]:
    """Yields a row of bars for each step, all over the same range."""
    from hopyard.cli.terminal.block_image import draw_bars

    ordered = sorted(items, key=lambda item: (item["step"], item["rank"], item["index"]))
    # at most so many, evenly spread, with the first and the last one
    last = len(ordered) - 1
    count = min(len(ordered), _MAX_SHOWN_STEPS)
    chosen = [ordered[number * last // max(count - 1, 1)] for number in range(count)] if last else ordered
    counted = [(item, *_read_histogram(b"".join(read_media(client, run, item)))) for item in chosen]
    known = [edge for _, edges, _ in counted for edge in edges if math.isfinite(edge)]
    if not known:
        return
    low, high = min(known), max(known)
    unicode = console.supports_unicode(sys.stdout)
    width = len(str(max(item["step"] for item in chosen)))
    for item, edges, counts in counted:
        bars = draw_bars(edges, counts, low, high, columns=_BAR_COLUMNS, unicode=unicode)
        yield f"{item['step']:>{width}} |{bars}|"
    yield f"{'':{width}}  {low:<{_BAR_COLUMNS // 2}.4g}{high:>{_BAR_COLUMNS // 2}.4g}"


def _read_histogram(data: bytes) -> tuple[list[float], list[float]]:
    counted = _parse_json(data)
    edges, counts = counted.get("edges"), counted.get("counts")
    if not isinstance(edges, list) or not isinstance(counts, list) or len(edges) != len(counts) + 1:
        return [], []
    return [decode_value(edge) for edge in edges], [decode_value(count) for count in counts]


def _parse_json(data: bytes) -> dict[str, Any]:
    try:
        value = json.loads(data)
    except (ValueError, RecursionError):
        return {}
    return value if isinstance(value, dict) else {}


def _fetch(
    client: Client,
    run: api.RunOut,
    items: Sequence[api.MediaItemOut],
    output: str,
    *,
    is_pattern: bool,
    force: bool,
) -> None:
    """Fetches to a file, or into a folder. is_pattern: whether the number of items depends on the run, so
    that also one is fetched into a folder."""
    if not items:
        raise NotFound(f"{run['name']} has logged no media")
    if output == "-":
        if len(items) > 1:
            raise UsageError(
                f"-o - prints one item, and {len(items)} were selected",
                hints=("select one with --step, --rank and --index",),
            )
        for block in read_media(client, run, items[0]):
            sys.stdout.buffer.write(block)
        sys.stdout.flush()
        return
    dest = Path(output)
    if len(items) == 1 and not (is_pattern or dest.is_dir() or output.endswith("/")):
        target, folder, paths = dest, dest.parent, {dest.name: items[0]}
    else:
        target, folder, paths = dest, dest, media_paths(items)
    existing = [path for name in paths if (path := folder / name).exists() or path.is_symlink()]
    if existing and not force:
        more = f", and {len(existing) - 1} more" if existing[1:] else ""
        raise SpecError(
            f"{escape(str(existing[0]))} exists{more}",
            hints=("name another DEST, or replace it with --force",),
        )
    size = save_media(client, run, paths, folder)
    console.print_message(
        f"{len(paths):,} item{'' if len(paths) == 1 else 's'}, {console.format_bytes(size)}"
    )
    console.print_line(str(target))
