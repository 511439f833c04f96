"""The pages of a listing with a query, over more runs than are read together."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import cast

import pytest

from hopyard.domain.ids import RunId
from hopyard.domain.run_query import RunValues
from hopyard.errors import SpecError
from hopyard.interfaces.run_store import RunFilter, RunStore
from hopyard.server.select_runs import SortedListings, select_runs
from hopyard.testing.stores import time_at


@dataclass
class NumberedRuns:
    """Runs with the parameter `n`, the newest first. reads: the numbers of all rows that were read."""

    count: int
    reads: list[int] = field(default_factory=list)

    async def query_values(
        self, where: RunFilter, /, *, now: datetime | None
    ) -> Sequence[tuple[RunId, RunValues]]:
        assert now is None
        first = self.count if where.before is None else int(where.before)
        numbers = range(first - 1, max(-1, first - 1 - where.limit), -1)
        self.reads += numbers
        return [(RunId(str(n)), RunValues({}, {"n": n}, {}, {}, {})) for n in numbers]


def _pages(runs: NumberedRuns, query: str, limit: int) -> list[list[int]]:
    pages: list[list[int]] = []
    before = None
    while True:
        where = RunFilter(limit=limit, before=before)
        page = asyncio.run(select_runs(cast("RunStore", runs), where, query=query, sort=None, now=time_at(0)))
        pages.append([int(run) for run in page.ids])
        if not page.more:
            return pages
        before = page.ids[-1]


def test_pages_follow_each_other_and_read_only_what_they_need() -> None:
    runs = NumberedRuns(4000)
    wanted = [n for n in range(3999, -1, -1) if n < 600 or n == 3990]
    assert _pages(runs, "n < 600 or n = 3990", 250) == [wanted[:250], wanted[250:500], wanted[500:]]
    runs = NumberedRuns(4000)
    assert _pages(runs, "n > 3996", 10) == [[3999, 3998, 3997]]
    assert runs.reads == list(range(3999, -1, -1))
    runs = NumberedRuns(100_000)
    (first, *_) = _first_page(runs)
    assert (first, len(runs.reads)) == (99_999, 500)


def _first_page(runs: NumberedRuns) -> Sequence[int]:
    where = RunFilter(limit=50)
    page = asyncio.run(select_runs(cast("RunStore", runs), where, query="n > 5", sort=None, now=time_at(0)))
    return [int(run) for run in page.ids]


def test_mistyped_name_is_found_behind_the_first_rows() -> None:
    with pytest.raises(SpecError, match=r"no run has `params\.m`"):
        _pages(NumberedRuns(1000), "params.m > 0", 10)


def test_further_pages_of_sorted_listing_read_no_runs() -> None:
    runs, listings, numbers, before = NumberedRuns(2500), SortedListings(), [], None
    for page_number in range(3):
        page = asyncio.run(
            select_runs(
                cast("RunStore", runs),
                RunFilter(limit=1000, before=before),
                query="n != 7",
                sort="n",
                now=time_at(0),
                listings=listings,
            )
        )
        assert page.more is (page_number < 2)
        numbers += page.ids
        before = page.ids[-1]
    assert numbers == [str(n) for n in range(2500) if n != 7]
    assert len(runs.reads) == 2500
    other = RunFilter(limit=1000, before=RunId("2499"))
    store = cast("RunStore", runs)
    page = asyncio.run(
        select_runs(store, other, query="n != 7", sort="-n", now=time_at(0), listings=listings)
    )
    assert page.ids[0] == "2498" and len(runs.reads) == 5000
