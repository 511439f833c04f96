"""Pagination of listings: at most `limit` rows, and a cursor of the next page."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Annotated, TypeVar

from msgspec import Meta

from hopyard.config.schemas.fields import TEXT, RequestModel

T = TypeVar("T")
MAX_ROWS = 1000

Limit = Annotated[int, Meta(ge=1, le=MAX_ROWS)]


class PageQuery(RequestModel):
    """after: `next` of the previous page."""

    limit: Limit = MAX_ROWS
    after: (
        Annotated[
            str,
            Meta(
                max_length=512,
                pattern=TEXT,
                description="`next` of the previous page; default: the first page",
            ),
        ]
        | None
    ) = None


def paginate(
    rows: Sequence[T], query: PageQuery, *, key: Callable[[T], str]
) -> tuple[Sequence[T], str | None]:
    """Returns a page of rows that are in memory, ordered by `key`, and the cursor of the next page (None at
    the end). Removing a row between two requests does not shift the others."""
    after = query.after
    ordered = sorted(((key(row), row) for row in rows), key=lambda pair: pair[0])
    remaining = ordered if after is None else [pair for pair in ordered if pair[0] > after]
    page = remaining[: query.limit]
    return [row for _, row in page], page[-1][0] if len(remaining) > len(page) else None
