"""The header `Range`."""

from __future__ import annotations

import pytest

from hopyard.server.byte_range import ByteRange, parse_range


@pytest.mark.parametrize(
    ("header", "expected"),
    [
        (None, (0, 10)),
        ("bytes=0-3", (0, 4)),
        ("Bytes=2-", (2, 10)),
        ("bytes=-3", (7, 10)),
        ("bytes=-30", (0, 10)),
        ("bytes=9-99", (9, 10)),
        ("bytes=10-", None),
        ("bytes=-0", None),
        # no single valid range: the standard has such a header ignored
        ("bytes=3-2", (0, 10)),
        ("bytes=-", (0, 10)),
        ("bytes=0-1,4-5", (0, 10)),
        ("lines=0-1", (0, 10)),
        ("bytes=\u0661-2", (0, 10)),
    ],
)
def test_header_selects_bytes(header: str | None, expected: tuple[int, int] | None) -> None:
    assert parse_range(header, 10) == (None if expected is None else ByteRange(*expected))


def test_empty_content_has_no_range() -> None:
    assert parse_range(None, 0) == ByteRange(0, 0)
    assert parse_range("bytes=0-", 0) is None
