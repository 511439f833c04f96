"""Values of runs in the columns of tables, by the names of the table of runs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from html import escape

from hopyard.config.units import format_time
from hopyard.domain.run import Run
from hopyard.domain.run_query import TIME_FIELDS, QueryValue, RunValues, run_values
from hopyard.server.report_export.axes import PlotAxis, format_number
from hopyard.server.report_export.pictures import draw_legend, draw_parallel, draw_scatter
from hopyard.server.schemas.reports import ScatterBlock, TableBlock


class ReportRow:
    """A run with the values of its columns."""

    def __init__(self, run: Run, latest: Mapping[str, tuple[int, float]], *, now: datetime) -> None:
        self.run = run
        self._values: RunValues = run_values(run, latest, now=now)

    @property
    def label(self) -> str:
        return self.run.spec.label or str(self.run.name)

    def value(self, column: str) -> QueryValue:
        if column == "tags":
            return " ".join(f"{key}={value}" for key, value in self._values.tags.items()) or None
        return self._values.find(column)[1] if column else None

    def number(self, column: str) -> float | None:
        value = self.value(column)
        is_number = isinstance(value, (int, float)) and not isinstance(value, bool)
        return float(value) if is_number else None  # type: ignore[arg-type]


def column_title(column: str) -> str:
    prefix, dot, rest = column.partition(".")
    return rest if dot and prefix in ("params", "metrics", "tags") else column


def cell_text(column: str, value: QueryValue) -> str:
    """Returns the text of a cell; times are in UTC."""
    if value is None:
        return ""
    if column in TIME_FIELDS and isinstance(value, (int, float)):
        return datetime.fromtimestamp(value, UTC).strftime("%Y-%m-%d %H:%M UTC")
    if column == "took" and isinstance(value, (int, float)):
        return format_time(round(value) if value >= 1 else round(value, 2))
    if isinstance(value, float):
        return format_number(value)
    return str(value)


def html_table(head: Sequence[str], rows: Sequence[Sequence[str]], right: Sequence[bool]) -> str:
    """Returns a table. head, rows: texts. right: whether a column holds numbers."""

    right_class = ' class="right"'

    def cells(tag: str, texts: Sequence[str]) -> str:
        return "".join(
            f"<{tag}{right_class if is_right else ''}>{escape(text)}</{tag}>"
            for text, is_right in zip(texts, right, strict=True)
        )

    body = "".join(f"<tr>{cells('td', row)}</tr>" for row in rows)
    return f"<table><thead><tr>{cells('th', head)}</tr></thead><tbody>{body}</tbody></table>"


def table_html(block: TableBlock, rows: Sequence[ReportRow]) -> str:
    columns = list(block.columns) or ["name", "phase", "took"]
    right = [
        column == "took"
        or (column not in TIME_FIELDS and any(row.number(column) is not None for row in rows))
        for column in columns
    ]
    texts = [[cell_text(column, row.value(column)) for column in columns] for row in rows]
    return html_table([column_title(column) for column in columns], texts, right)


def scatter_html(block: ScatterBlock, rows: Sequence[ReportRow]) -> str:
    points = [
        (row.label, x, y)
        for row in rows
        if (x := row.number(block.x)) is not None and (y := row.number(block.y)) is not None
    ]
    x_label, y_label = column_title(block.x), column_title(block.y)
    picture = draw_scatter(points, label=f"{y_label} by {x_label}", x_label=x_label, y_label=y_label)
    return f"<figcaption>{escape(y_label)} by {escape(x_label)}</figcaption>{picture}" if picture else ""


def parallel_html(columns: Sequence[str], rows: Sequence[ReportRow]) -> str:
    """Returns parallel coordinates of the columns that have numbers, below the legend of the runs."""
    values = {column: [row.number(column) for row in rows] for column in columns}
    numeric = {
        column: shown
        for column, found in values.items()
        if (shown := [value for value in found if value is not None])
    }
    if not numeric:
        return ""
    axes = [PlotAxis(min(shown), max(shown)) for shown in numeric.values()]
    lines = [(row.label, [values[column][index] for column in numeric]) for index, row in enumerate(rows)]
    names = [column_title(column) for column in numeric]
    drawn = [
        (label, number)
        for number, (label, found) in enumerate(lines)
        if any(value is not None for value in found)
    ]
    return draw_legend(drawn) + draw_parallel(
        names, lines, axes, "parallel coordinates by " + ", ".join(names)
    )
