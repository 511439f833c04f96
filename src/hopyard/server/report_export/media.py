"""Media of runs side by side, with the content in the page."""

from __future__ import annotations

import base64
import json
from collections.abc import Sequence
from html import escape
from typing import Any

from hopyard.config.units import format_bytes
from hopyard.domain.media import MediaKind
from hopyard.domain.metric_values import decode_value
from hopyard.errors import HopyardError
from hopyard.server.body_memory import MemoryLease
from hopyard.server.other_servers import check_stored_locally
from hopyard.server.report_export.axes import format_number
from hopyard.server.report_export.columns import ReportRow, html_table
from hopyard.server.report_export.pictures import draw_histogram
from hopyard.server.schemas.reports import MediaBlock
from hopyard.server.services import Services
from hopyard.tracking.media import MediaItem, list_media, read_content
from hopyard.tracking.media_index import MediaIndexes
from hopyard.tracking.run_history import load_history

_PICTURES = ("image/png", "image/jpeg", "image/gif", "image/webp")
_MAX_ITEM_BYTES = 8 * 2**20
_MAX_TEXT_BYTES = 256 * 1024
_MAX_ITEMS, _MAX_ROWS = 8, 100  # per cell, per table


class MediaExport:
    """Reads media for one page. max_bytes: of all of them."""

    def __init__(self, services: Services, lease: MemoryLease, *, max_bytes: int) -> None:
        self._services, self._lease, self._bytes_left = services, lease, max_bytes
        self._indexes = MediaIndexes(services.streams)
        self._reserved = 0

    async def html(self, block: MediaBlock, rows: Sequence[ReportRow]) -> str:
        """Returns a table with a column for each run, and a row for each name and step."""
        found = [(row, await self._list(row, block)) for row in rows]
        keys = {key for _, items in found for key in items}
        if not keys:
            return ""
        head = "".join(f"<th>{escape(row.label)}</th>" for row, _ in found)
        lines = []
        for name, step in sorted(keys, key=lambda key: (block.names.index(key[0]), key[1])):
            text = name if step < 0 and not block.steps else f"{name}, step {step}"
            cells = [await self._cell(items.get((name, step), [])) for _, items in found]
            lines.append(
                f"<tr><th>{escape(text)}</th>" + "".join(f"<td>{cell}</td>" for cell in cells) + "</tr>"
            )
        return f"<table><thead><tr><th></th>{head}</tr></thead><tbody>{''.join(lines)}</tbody></table>"

    async def _list(self, row: ReportRow, block: MediaBlock) -> dict[tuple[str, int], list[MediaItem]]:
        """Returns the items of a run by name and step; without chosen steps those of the newest one, at the
        step -1."""
        if not block.names:
            return {}
        try:
            await check_stored_locally(self._services, row.run)
            history = await load_history(self._services.runs, self._services.streams, row.run.id)
            items = await list_media(self._indexes, history, names=block.names)
        except HopyardError:
            return {}
        newest = {item.record.name: item.record.step for item in items}  # ordered by step
        chosen: dict[tuple[str, int], list[MediaItem]] = {}
        for item in items:
            name, step = item.record.name, item.record.step
            if block.steps and step in block.steps:
                chosen.setdefault((name, step), []).append(item)
            elif not block.steps and step == newest[name]:
                chosen.setdefault((name, -1), []).append(item)
        return chosen

    async def _cell(self, items: Sequence[MediaItem]) -> str:
        parts = [await self._item(item) for item in items[:_MAX_ITEMS]]
        more = len(items) - _MAX_ITEMS
        return "".join(parts) + (f'<p class="note">and {more} more</p>' if more > 0 else "")

    async def _item(self, item: MediaItem) -> str:
        record = item.record
        caption = f"<small>{escape(record.caption)}</small>" if record.caption else ""
        note = f'<p class="note">{escape(record.type)}, {format_bytes(record.size_bytes)}: not exported</p>'
        is_picture = record.type in _PICTURES
        is_text = record.kind in (MediaKind.TEXT, MediaKind.TABLE, MediaKind.HISTOGRAM)
        limit = _MAX_ITEM_BYTES if is_picture else _MAX_TEXT_BYTES
        if not (is_picture or is_text) or record.size_bytes > min(limit, self._bytes_left):
            return note + caption
        self._bytes_left -= record.size_bytes
        self._reserved += 2 * record.size_bytes
        await self._lease.reserve_response(self._reserved)
        data = b"".join([part async for part in read_content(self._services.streams, item)])
        if is_picture:
            small = ' class="small"' if 0 < record.details.get("width", 100) < 64 else ""
            name = escape(record.caption or f"{record.name}, step {record.step}")
            source = f"data:{record.type};base64,{base64.b64encode(data).decode()}"
            return f'<img src="{source}" alt="{name}"{small}>{caption}'
        if record.kind is MediaKind.TEXT:
            return f'<pre class="plain">{escape(data.decode("utf-8", "replace"))}</pre>{caption}'
        return (_structured(record.kind, record.name, data) or note) + caption


def _structured(kind: MediaKind, name: str, data: bytes) -> str:
    try:
        content = json.loads(data)
    except (ValueError, RecursionError):
        return ""
    if not isinstance(content, dict):
        return ""
    if kind is MediaKind.HISTOGRAM:
        edges, counts = content.get("edges"), content.get("counts")
        if not isinstance(edges, list) or not isinstance(counts, list):
            return ""
        try:
            return draw_histogram(
                [decode_value(edge) for edge in edges], [decode_value(count) for count in counts], name
            )
        except TypeError:
            return ""
    columns, rows = content.get("columns"), content.get("rows")
    if not isinstance(columns, list) or not isinstance(rows, list):
        return ""
    lines = [
        [_text(cell) for cell in row] for row in rows if isinstance(row, list) and len(row) == len(columns)
    ]
    more = len(lines) - _MAX_ROWS
    table = html_table([_text(column) for column in columns], lines[:_MAX_ROWS], [False] * len(columns))
    return table + (f'<p class="note">and {more} more rows</p>' if more > 0 else "")


def _text(cell: Any) -> str:
    if cell is None:
        return ""
    if isinstance(cell, float):
        return format_number(cell)
    return cell if isinstance(cell, str) else json.dumps(cell)
