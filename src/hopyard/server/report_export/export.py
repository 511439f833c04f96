"""Exports a report: reads what its blocks show, and writes one page."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from html import escape

from hopyard.domain.ids import RunId
from hopyard.domain.report import Report
from hopyard.errors import NotFound
from hopyard.interfaces.run_store import RunFilter
from hopyard.server.body_memory import MemoryLease
from hopyard.server.rank_dataset import rank_dataset
from hopyard.server.report_export.axes import format_number
from hopyard.server.report_export.columns import (
    ReportRow,
    html_table,
    parallel_html,
    scatter_html,
    table_html,
)
from hopyard.server.report_export.curves import curves_html
from hopyard.server.report_export.markdown import markdown_to_html
from hopyard.server.report_export.media import MediaExport
from hopyard.server.report_export.page import make_page
from hopyard.server.schemas.reports import (
    Block,
    CurvesBlock,
    LeaderboardBlock,
    MediaBlock,
    ParallelBlock,
    ScatterBlock,
    TableBlock,
    TextBlock,
)
from hopyard.server.services import Services
from hopyard.tracking.best_values import BestValues

_MAX_MEDIA_BYTES = 32 * 2**20  # of a page
_IDS_PER_QUERY = 500
_NO_CONTENT = '<p class="note">Nothing to show: the runs are gone, or have no such values.</p>'


class ReportExport:
    """Writes pages that need neither a server nor a network."""

    def __init__(self, services: Services) -> None:
        self._services = services
        self._best_values = BestValues(services.runs, services.streams)

    async def export(self, report: Report, blocks: Sequence[Block], lease: MemoryLease) -> bytes:
        """Returns the page. A block without runs has a note in its place."""
        rows = await self._load_rows(blocks)
        media = MediaExport(self._services, lease, max_bytes=_MAX_MEDIA_BYTES)
        sections = [await self._section(block, rows, media) for block in blocks]
        at = report.updated_at.strftime("%Y-%m-%d %H:%M UTC")
        about = f"By {report.user}. Revision {report.revision}, changed {at} by {report.updated_by}."
        page = make_page(report.title, about, sections).encode()
        await lease.reserve_response(len(page))
        return page

    async def _load_rows(self, blocks: Sequence[Block]) -> dict[RunId, ReportRow]:
        ids = [
            RunId(run) for run in dict.fromkeys(run for block in blocks for run in getattr(block, "runs", ()))
        ]
        services, now, rows = self._services, self._services.now(), dict[RunId, ReportRow]()
        for first in range(0, len(ids), _IDS_PER_QUERY):
            part = frozenset(ids[first : first + _IDS_PER_QUERY])
            runs = await services.runs.list(RunFilter(ids=part, limit=len(part)))
            stored = await services.runs.latest_metrics([run.id for run in runs])
            latest = services.ingest.latest_metrics(stored)
            rows |= {run.id: ReportRow(run, latest[run.id], now=now) for run in runs}
        return rows

    async def _section(self, block: Block, rows: dict[RunId, ReportRow], media: MediaExport) -> str:
        if isinstance(block, TextBlock):
            return await asyncio.to_thread(markdown_to_html, block.text)
        title = f"<h2>{escape(block.title)}</h2>" if block.title else ""
        if isinstance(block, LeaderboardBlock):
            content = await self._leaderboard(block)
        else:
            ids = dict.fromkeys(map(RunId, block.runs))
            content = await self._pictures(block, [rows[run] for run in ids if run in rows], media)
        return f"<section>{title}{content or _NO_CONTENT}</section>"

    async def _pictures(
        self,
        block: CurvesBlock | TableBlock | ScatterBlock | ParallelBlock | MediaBlock,
        rows: Sequence[ReportRow],
        media: MediaExport,
    ) -> str:
        if isinstance(block, CurvesBlock):
            return await curves_html(self._services, block, rows)
        if isinstance(block, TableBlock):
            return table_html(block, rows) if rows else ""
        if isinstance(block, ScatterBlock):
            return scatter_html(block, rows)
        if isinstance(block, ParallelBlock):
            return parallel_html(block.columns, rows)
        return await media.html(block, rows)

    async def _leaderboard(self, block: LeaderboardBlock) -> str:
        dataset = None if block.dataset is None else await self._services.datasets.find(block.dataset)
        if dataset is None:
            return ""
        try:
            board = await rank_dataset(
                self._services, self._best_values, dataset, metric=block.metric, limit=block.limit
            )
        except NotFound:
            return ""
        ids = frozenset(row.run.id for row in board.rows)
        runs = await self._services.runs.list(RunFilter(ids=ids, limit=len(ids), brief=True)) if ids else ()
        names = {run.id: run.name for run in runs}
        lines = [
            [
                str(row.rank),
                str(names[row.run.id]),
                names[row.run.id].user,
                format_number(row.value),
                row.run.submitted_at.strftime("%Y-%m-%d"),
            ]
            for row in board.rows
            if row.run.id in names
        ]
        caption = f"<figcaption>{escape(dataset.name)} by {escape(board.metric)}</figcaption>"
        head = ["Rank", "Run", "User", board.metric, "Submitted"]
        return caption + html_table(head, lines, [True, False, False, True, False]) if lines else ""
