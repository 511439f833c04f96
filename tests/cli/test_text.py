"""Spans, sizes, tables: what people read."""

from __future__ import annotations

import pytest

from hopyard.cli import console


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(0.42, "0.42 s"), (3.14, "3.1 s"), (12, "12 s"), (59.7, "1 min"), (200, "3 min 20 s"), (3600, "1 h"), (7500, "2 h 5 min"), (90000, "1 d 1 h"), (0, "0.00 s")],
)
def test_span(seconds: float, text: str) -> None:
    assert console.span(seconds) == text


@pytest.mark.parametrize(("amount", "text"), [(0, "0 B"), (1023, "1023 B"), (1536, "1.5 KiB"), (5 * 2**30, "5.0 GiB"), (200 * 2**20, "200 MiB"), (3 * 2**40, "3.0 TiB")])
def test_bytes(amount: int, text: str) -> None:
    assert console.bytes_text(amount) == text


def test_a_table_is_aligned_by_what_shows() -> None:
    lines = console.table(["NAME", "N"], [["\x1b[31mred\x1b[0m", "1"], ["日本", "22"]], right=(1,))
    assert [console.shown_width(line) for line in lines] == [8, 8, 8]
    assert lines[2] == "日本  22"


def test_the_last_column_is_cut_to_fit() -> None:
    lines = console.table(["A", "B"], [["x", "y" * 200]], width=40)
    assert console.shown_width(lines[1]) == 40
    assert lines[1].endswith("…")
