"""Converts tables of pandas, polars and plain Python into columns and rows of JSON values."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from hopyard.backports import zip
from hopyard.domain.metric_values import encode_value
from hopyard.errors import SpecError

MAX_ROWS, MAX_COLUMNS = 10_000, 200
_MAX_TEXT = 1000


def read_table(data: Any, columns: Sequence[str] | None) -> dict[str, Any]:
    """Returns columns, rows, and the number of rows that were left out. Raises SpecError if rows and columns
    differ in number."""
    names, rows = _split(data)
    names = [str(name) for name in columns] if columns is not None else names
    given = list(rows)
    kept = [[_to_cell(value) for value in row] for row in given[:MAX_ROWS]]
    width = max((len(row) for row in kept), default=len(names or ()))
    if names is None:
        names = [str(number) for number in range(width)]
    if width > MAX_COLUMNS:
        raise SpecError(f"a table of {width} columns", hints=(f"a table has at most {MAX_COLUMNS} columns",))
    for number, row in enumerate(kept):
        if len(row) != len(names):
            raise SpecError(
                f"row {number} of the table has {len(row)} cells, and there are {len(names)} columns"
            )
    return {"columns": names, "rows": kept, "omitted_rows": len(given) - len(kept)}


def _split(data: Any) -> tuple[list[str] | None, Any]:
    columns = getattr(data, "columns", None)
    if columns is not None and callable(getattr(data, "itertuples", None)):  # pandas
        return [str(name) for name in columns], data.itertuples(index=False, name=None)
    if columns is not None and callable(getattr(data, "rows", None)):  # polars
        return [str(name) for name in columns], data.rows()
    if isinstance(data, Mapping):  # columns by name
        return [str(name) for name in data], zip(*data.values(), strict=True)
    rows = list(data)
    if rows and all(isinstance(row, Mapping) for row in rows):
        names = list(dict.fromkeys(str(name) for row in rows for name in row))
        return names, [[row.get(name) for name in names] for row in rows]
    return None, rows


def _to_cell(value: Any) -> Any:
    if value is None or isinstance(value, bool):
        return value
    if isinstance(value, str):
        return value if len(value) <= _MAX_TEXT else value[:_MAX_TEXT] + "…"
    item = getattr(value, "item", None)
    if callable(item) and not getattr(value, "shape", None):
        value = item()
    if isinstance(value, int):
        return value if abs(value) < 2**53 else str(value)
    if isinstance(value, float):
        return value if math.isfinite(value) else encode_value(value)
    text = str(value)
    return text if len(text) <= _MAX_TEXT else text[:_MAX_TEXT] + "…"
