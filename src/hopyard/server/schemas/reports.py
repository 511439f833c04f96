"""Reports: a title, and blocks of text, curves, tables, pictures and media."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated

from msgspec import Meta, Struct

from hopyard.config.schemas.fields import LINE, RUN_ID, TEXT, Name, RequestModel, full_match
from hopyard.domain.report import ReportAccess

MAX_BLOCKS = 200
MAX_BLOCK_RUNS = 100
_MAX_COLUMNS, _MAX_NAMES, _MAX_STEPS = 50, 24, 24
COLUMN = (
    r"(phase|name|user|project|number|label|submitted|started|ended|took|dataset|script|queue|priority"
    r"|reason|note|tags|(params|metrics|tags)\.[^\x00-\x1f\x7f]+)"
)
_RUNS = "ids of runs, in the order of their colours; a run that does not exist is omitted"
_COLUMN = (
    "a column of the table of runs: a field such as `phase`, or `params.lr`, `metrics.loss`, `tags.team`"
)

Title = Annotated[str, Meta(max_length=200, pattern=LINE)]
Runs = Annotated[
    tuple[Annotated[str, Meta(pattern=RUN_ID)], ...], Meta(max_length=MAX_BLOCK_RUNS, description=_RUNS)
]
ColumnName = Annotated[str, Meta(max_length=1024, pattern=full_match(f"({COLUMN})?"), description=_COLUMN)]
Columns = Annotated[
    tuple[Annotated[str, Meta(max_length=1024, pattern=full_match(COLUMN))], ...],
    Meta(max_length=_MAX_COLUMNS, description=_COLUMN),
]
MetricName = Annotated[str, Meta(min_length=1, max_length=1024, pattern=LINE)]


class TextBlock(RequestModel, tag_field="type", tag="text"):
    """Markdown (CommonMark with tables and strikethrough), with TeX between `$` or `$$`. HTML is shown as
    text."""

    text: Annotated[str, Meta(max_length=64 * 1024, pattern=TEXT)] = ""


class CurvesBlock(RequestModel, tag_field="type", tag="curves"):
    """A chart for each metric, with a curve for each run. smoothing: the weight of earlier values. group: a
    column; the curves of runs with an equal value become their mean and range."""

    title: Title = ""
    runs: Runs = ()
    metrics: Annotated[tuple[MetricName, ...], Meta(max_length=_MAX_NAMES)] = ()
    x: Annotated[
        str,
        Meta(max_length=1032, pattern=full_match(r"step|time|elapsed|metrics\.[^\x00-\x1f\x7f]+")),
    ] = "step"
    smoothing: Annotated[float, Meta(ge=0, le=0.99)] = 0.0
    log_x: bool = False
    log_y: bool = False
    group: ColumnName = ""


class TableBlock(RequestModel, tag_field="type", tag="table"):
    """A row for each run."""

    title: Title = ""
    runs: Runs = ()
    columns: Columns = ()


class ScatterBlock(RequestModel, tag_field="type", tag="scatter"):
    """A point for each run."""

    title: Title = ""
    runs: Runs = ()
    x: ColumnName = ""
    y: ColumnName = ""


class ParallelBlock(RequestModel, tag_field="type", tag="parallel"):
    """Parallel coordinates: a line for each run, over an axis for each column."""

    title: Title = ""
    runs: Runs = ()
    columns: Columns = ()


class MediaBlock(RequestModel, tag_field="type", tag="media"):
    """Media of runs side by side: a row for each name and step, a column for each run. steps: without any,
    the newest step of each run."""

    title: Title = ""
    runs: Runs = ()
    names: Annotated[tuple[MetricName, ...], Meta(max_length=_MAX_NAMES)] = ()
    steps: Annotated[
        tuple[Annotated[int, Meta(ge=-(2**53), le=2**53)], ...], Meta(max_length=_MAX_STEPS)
    ] = ()


class LeaderboardBlock(RequestModel, tag_field="type", tag="leaderboard"):
    """The best runs on a dataset. metric: "" takes the one of the dataset."""

    title: Title = ""
    dataset: Name | None = None
    metric: Annotated[str, Meta(max_length=1024, pattern=LINE)] = ""
    limit: Annotated[int, Meta(ge=1, le=100)] = 10


Block = TextBlock | CurvesBlock | TableBlock | ScatterBlock | ParallelBlock | MediaBlock | LeaderboardBlock
Blocks = Annotated[tuple[Block, ...], Meta(max_length=MAX_BLOCKS)]


class NewReport(RequestModel):
    """access: what other users may do: `private` nothing, `read`, or `write`."""

    title: Title = ""
    access: ReportAccess = ReportAccess.PRIVATE
    blocks: Blocks = ()


class ReportIn(NewReport, kw_only=True):
    """The whole content of a report. revision: the one that this content replaces."""

    revision: Annotated[int, Meta(ge=1, le=2**53)]


class ReportSummaryOut(Struct, frozen=True):
    """user: made the report. revision: counts the changes, from 1. updated_by: made the last change.
    may_write: whether the caller may change the report."""

    id: str
    user: str
    title: str
    access: ReportAccess
    revision: int
    created_at: datetime
    updated_at: datetime
    updated_by: str
    may_write: bool


class ReportOut(ReportSummaryOut, frozen=True):
    blocks: tuple[Block, ...]


class ReportsOut(Struct, frozen=True):
    """The last changed first. next: `after` of the next page; null at the end."""

    reports: list[ReportSummaryOut]
    next: str | None


class RevisionOut(Struct, frozen=True):
    revision: int
    title: str
    updated_at: datetime
    updated_by: str
    size_bytes: int


class RevisionsOut(Struct, frozen=True):
    """The current revision and the earlier ones that are kept, newest first."""

    revisions: list[RevisionOut]
