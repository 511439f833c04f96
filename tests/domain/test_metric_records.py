"""The metric stream: whatever is written comes back, however the bytes are cut."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hopyard.domain.metric_records import (
    MAX_NAME_BYTES,
    NO_STEP,
    POINT,
    Point,
    complete_bytes,
    pack_definition,
    pack_point,
    read_point_blocks,
    read_records,
    series_id,
)
from hopyard.errors import IntegrityError

names = st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=40)
steps = st.integers(-(2**63), 2**63 - 1) | st.just(NO_STEP)
points = st.tuples(names, steps, st.floats(), st.floats())


def write(items: list[tuple[str, int, float, float]]) -> bytes:
    known: set[str] = set()
    out = b""
    for name, step, time, value in items:
        if name not in known:
            out += pack_definition(name)
            known.add(name)
        out += pack_point(POINT, series_id(name), step, time, value)
    return out


def same(a: Point, b: Point) -> bool:
    return all(x == y or (math.isnan(x) and math.isnan(y)) for x, y in zip(a, b, strict=True))


@given(st.lists(points, max_size=20), st.lists(st.integers(1, 60), min_size=1))
def test_points_come_back_however_the_bytes_are_cut(
    items: list[tuple[str, int, float, float]], cuts: list[int]
) -> None:
    data = write(items)
    found: list[Point] = []
    known: dict[int, str] = {}
    kept, at, turn = b"", 0, 0
    while at < len(data):
        size = cuts[turn % len(cuts)]
        kept, at, turn = kept + data[at : at + size], at + size, turn + 1
        *new, used = read_records(memoryview(kept), known)
        found += new
        kept = kept[used:]
    assert kept == b""
    assert len(found) == len(items)
    for got, (name, *rest) in zip(found, items, strict=True):
        assert same(got, Point(series_id(name), *rest))
        assert known[got.series] == name


def outcome(stretches: bool, data: bytes) -> tuple[list[tuple], int | None, dict[int, str]]:
    """What a reader tells of `data`: the points, how much it used (None when it found damage), the names."""
    found: list[tuple] = []
    known: dict[int, str] = {}
    used = None
    try:
        for item in read_point_blocks(data, known) if stretches else read_records(data, known):
            if isinstance(item, int):
                used = item
            else:
                found += [tuple(map(repr, p[1:])) for p in item] if stretches else [tuple(map(repr, item))]
    except IntegrityError:
        pass
    return found, used, known


@given(st.lists(points, max_size=20), st.integers(0, 40), st.binary(max_size=3))
def test_the_fast_reader_reads_what_the_plain_one_reads(
    items: list[tuple[str, int, float, float]], cut: int, noise: bytes
) -> None:
    data = write(items)
    data = data[: max(0, len(data) - cut)] + noise
    assert outcome(True, data) == outcome(False, data)


@given(st.binary(max_size=400))
def test_damage_is_one_error_and_never_more_bytes_than_there_are(data: bytes) -> None:
    try:
        *_, used = read_records(data, {})
    except IntegrityError:
        return
    assert 0 <= used <= len(data)


@given(st.lists(points, min_size=1, max_size=5), st.data())
def test_what_stood_before_the_damage_is_read(
    items: list[tuple[str, int, float, float]], data: st.DataObject
) -> None:
    good = write(items)
    reader = read_records(good + bytes([data.draw(st.integers(3, 255))]), {})
    assert len([next(reader) for _ in items]) == len(items)
    with pytest.raises(IntegrityError):
        next(reader)


def test_names_have_a_length() -> None:
    for bad in ("", "x" * (MAX_NAME_BYTES + 1)):
        with pytest.raises(ValueError, match="name of a metric"):
            pack_definition(bad)
    with pytest.raises(IntegrityError):
        list(read_records(b"\x01" + bytes(8) + b"\xff\xff" + b"x", {}))


@given(st.lists(points, max_size=6), st.integers(0, 400), st.integers(0, 60))
def test_whole_bytes_end_where_a_record_is_cut_off_or_reads_as_zeros(
    items: list[tuple[str, int, float, float]], keep: int, zeros: int
) -> None:
    data = write(items)
    consumed = list(read_records(data[:keep], {}))[-1]
    assert isinstance(consumed, int)
    assert complete_bytes(data[:keep]) == consumed
    assert complete_bytes(data[:consumed] + bytes(zeros)) == consumed
