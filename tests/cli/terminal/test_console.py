"""Durations, sizes and tables as users read them."""

from __future__ import annotations

import io
import time
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta, timezone

import pytest

from hopyard.cli.terminal import console, times


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0.42, "0.42 s"),
        (3.14, "3.1 s"),
        (12, "12 s"),
        (59.7, "1 min"),
        (200, "3 min 20 s"),
        (3600, "1 h"),
        (7500, "2 h 5 min"),
        (90000, "1 d 1 h"),
        (0, "0.00 s"),
    ],
)
def test_format_duration(seconds: float, text: str) -> None:
    assert console.format_duration(seconds) == text


@pytest.fixture
def three_hours_east(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setenv("TZ", "Etc/GMT-3")
    time.tzset()
    yield
    monkeypatch.undo()
    time.tzset()


def test_times_in_messages_are_localised(three_hours_east: None) -> None:
    text = "starts at 2031-01-02 23:15:08 UTC or earlier; box is reserved at 2031-02-01 06:00 UTC: exam"
    assert (
        times.localise_times(text)
        == "starts at 2031-01-03 02:15 or earlier; box is reserved at 2031-02-01 09:00: exam"
    )
    east = datetime(2031, 1, 3, 2, 15, tzinfo=timezone(timedelta(hours=3)))
    assert times.format_clock(east.isoformat()) == "2031-01-03 02:15"
    assert times.localise_times("nothing at 12:00") == "nothing at 12:00"


@pytest.mark.parametrize(
    ("minutes", "has_seconds"),
    [(-11, False), (-9, True), (0, True), (9, True), (11, False), (60 * 50, False)],
)
def test_near_times_have_seconds(minutes: float, has_seconds: bool) -> None:
    at = datetime.now().astimezone() + timedelta(minutes=minutes)
    exact, coarse = f"{at:%H:%M:%S}", f"{at:%H:%M}"
    assert times.format_clock(at.isoformat()).split(" ")[-1] == (exact if has_seconds else coarse)
    assert times.localise_times(f"by {at.astimezone(UTC):%Y-%m-%d %H:%M:%S} UTC").split(" ")[-1] == (
        exact if has_seconds else coarse
    )
    assert times.localise_times(f"by {at.astimezone(UTC):%Y-%m-%d %H:%M} UTC").split(" ")[-1] == coarse, (
        "no seconds are invented"
    )


def test_times_in_one_minute_have_seconds() -> None:
    at = (datetime.now().astimezone() + timedelta(hours=30)).replace(second=5, microsecond=0)
    low, mid, high = ((at + timedelta(seconds=more)).isoformat() for more in (0, 10, 50))
    assert [result.rpartition(":")[2] for result in times.format_clocks(low, mid, high)] == ["05", "15", "55"]
    assert times.format_clocks(low, mid, (at + timedelta(minutes=5)).isoformat())[0] == times.format_clock(
        low
    )


@pytest.mark.parametrize(
    ("seconds", "text"), [(17.6, "18 s"), (59.7, "1 min"), (61, "1 min"), (3599.7, "1 h"), (90000, "1 d")]
)
def test_age_is_rounded_like_a_duration(seconds: float, text: str) -> None:
    assert console.format_age(seconds) == text
    assert console.format_duration(seconds).startswith(text)


@pytest.mark.parametrize(
    ("amount", "text"),
    [
        (0, "0 B"),
        (1023, "1023 B"),
        (1536, "1.5 KiB"),
        (5 * 2**30, "5.0 GiB"),
        (200 * 2**20, "200 MiB"),
        (3 * 2**40, "3.0 TiB"),
    ],
)
def test_format_bytes(amount: int, text: str) -> None:
    assert console.format_bytes(amount) == text


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_table_is_aligned_by_display_width(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.delenv("NO_COLOR", raising=False)
    lines = console.format_table(
        ["NAME", "N"], [[console.paint("red", "red", Terminal()), "1"], ["日本", "22"]], right=(1,)
    )
    assert [console.display_width(line) for line in lines] == [8, 8, 8]
    assert lines[2] == "日本  22"


@pytest.mark.parametrize(("sink", "cell"), [(io.StringIO(), "a\x1b[2Jb"), (Terminal(), "a\\x1b[2Jb")])
def test_csv_is_escaped_on_terminals_and_exact_in_files(
    monkeypatch: pytest.MonkeyPatch, sink: io.StringIO, cell: str
) -> None:
    monkeypatch.setattr("sys.stdout", sink)
    console.print_csv(["name", "n"], [["a\x1b[2Jb", 1]])
    assert sink.getvalue() == f"name,n\n{cell},1\n"


def test_last_column_is_truncated_to_fit() -> None:
    lines = console.format_table(["A", "B"], [["x", "y" * 200]], width=40)
    assert console.display_width(lines[1]) == 40
    assert lines[1].endswith("…")


def test_text_is_truncated_to_columns() -> None:
    assert console.truncate("short", 5) == "short"
    assert console.truncate("longer", 5) == "long…"
    assert console.truncate("日本語日本語", 6) == "日本…"
