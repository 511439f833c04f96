"""The metric stream: written records are read back, for any chunking."""

from __future__ import annotations

import math
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hopyard.domain.metric_records import (
    MAX_NAME_BYTES,
    NO_STEP,
    POINT,
    Point,
    Purge,
    complete_bytes,
    pack_definition,
    pack_point,
    pack_purge,
    read_point_blocks,
    read_records,
    series_id,
)
from hopyard.errors import IntegrityError

names = st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=40)
steps = st.integers(-(2**63), 2**63 - 1) | st.just(NO_STEP)
points = st.tuples(names, steps, st.floats(), st.floats())


def test_purge_is_one_record() -> None:
    head = pack_definition("a") + pack_point(POINT, series_id("a"), 5, 1.0, 2.0)
    data = head + pack_purge(series_id("a"), 3) + head
    records = list(read_records(data, {}))
    assert [record.step for record in records if isinstance(record, Point | Purge)] == [5, 3, 5]
    found: list[Any] = []
    seen: list[tuple[int, int]] = []
    for part in read_point_blocks(data, {}, on_purge=lambda *purge: seen.append(purge)):
        found += [part] if isinstance(part, int) else [step for _, _, step, _, _ in part]
    assert (found, seen) == ([5, 5, len(data)], [(series_id("a"), 3)])
    cut = data[: len(head) + 5]
    assert complete_bytes(data) == len(data) and complete_bytes(cut) == len(head)
    assert list(read_records(cut, {}))[-1] == [*read_point_blocks(cut, {})][-1] == len(head)


def write(items: list[tuple[str, int, float, float]]) -> bytes:
    known: set[str] = set()
    out = b""
    for name, step, time, value in items:
        if name not in known:
            out += pack_definition(name)
            known.add(name)
        out += pack_point(POINT, series_id(name), step, time, value)
    return out


def is_same_value(a: Point, b: Point) -> bool:
    return all(x == y or (math.isnan(x) and math.isnan(y)) for x, y in zip(a, b, strict=True))


@given(st.lists(points, max_size=20), st.lists(st.integers(1, 60), min_size=1))
def test_points_are_read_from_any_chunking(
    items: list[tuple[str, int, float, float]], cuts: list[int]
) -> None:
    data = write(items)
    result: list[Point] = []
    names_by_id: dict[int, str] = {}
    buffer, at, index = b"", 0, 0
    while at < len(data):
        size = cuts[index % len(cuts)]
        buffer, at, index = buffer + data[at : at + size], at + size, index + 1
        *new, used = read_records(memoryview(buffer), names_by_id)
        result += new
        buffer = buffer[used:]
    assert buffer == b""
    assert len(result) == len(items)
    for got, (name, *rest) in zip(result, items, strict=True):
        assert is_same_value(got, Point(series_id(name), *rest))
        assert names_by_id[got.series] == name


def outcome(stretches: bool, data: bytes) -> tuple[list[tuple], int | None, dict[int, str]]:
    """Reads `data` and returns the points, the consumed bytes (None if damaged) and the names."""
    result: list[tuple] = []
    names_by_id: dict[int, str] = {}
    used = None
    try:
        for item in read_point_blocks(data, names_by_id) if stretches else read_records(data, names_by_id):
            if isinstance(item, int):
                used = item
            else:
                result += [tuple(map(repr, p[1:])) for p in item] if stretches else [tuple(map(repr, item))]
    except IntegrityError:
        pass
    return result, used, names_by_id


@given(st.lists(points, max_size=20), st.integers(0, 40), st.binary(max_size=3))
def test_fast_reader_equals_the_plain_reader(
    items: list[tuple[str, int, float, float]], cut: int, noise: bytes
) -> None:
    data = write(items)
    data = data[: max(0, len(data) - cut)] + noise
    assert outcome(True, data) == outcome(False, data)


@given(st.binary(max_size=400))
def test_damaged_bytes_raise_integrity_error_within_bounds(data: bytes) -> None:
    try:
        *_, used = read_records(data, {})
    except IntegrityError:
        return
    assert 0 <= used <= len(data)


@given(st.lists(points, min_size=1, max_size=5), st.data())
def test_records_before_damage_are_read(
    items: list[tuple[str, int, float, float]], data: st.DataObject
) -> None:
    good = write(items)
    reader = read_records(good + bytes([data.draw(st.integers(4, 255))]), {})
    assert len([next(reader) for _ in items]) == len(items)
    with pytest.raises(IntegrityError):
        next(reader)


def test_metric_name_length_is_limited() -> None:
    for name in ("", "x" * (MAX_NAME_BYTES + 1)):
        with pytest.raises(ValueError, match="name of a metric"):
            pack_definition(name)
    with pytest.raises(IntegrityError):
        list(read_records(b"\x01" + bytes(8) + b"\xff\xff" + b"x", {}))


@given(st.lists(points, max_size=6), st.integers(0, 400), st.integers(0, 60))
def test_complete_bytes_end_before_a_partial_or_zero_record(
    items: list[tuple[str, int, float, float]], keep: int, zeros: int
) -> None:
    data = write(items)
    consumed = list(read_records(data[:keep], {}))[-1]
    assert isinstance(consumed, int)
    assert complete_bytes(data[:keep]) == consumed
    assert complete_bytes(data[:consumed] + bytes(zeros)) == consumed
