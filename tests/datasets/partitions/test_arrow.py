"""Columns of Arrow as arrays: the values of Arrow itself, for every type, also in slices."""

from __future__ import annotations

import datetime
import decimal
import math
from typing import Any

import numpy as np
import pytest

from hopyard.datasets.partitions.arrow import rows_to_array, to_array

pa = pytest.importorskip("pyarrow")

COLUMNS = {
    "whole": (pa.array(range(9), pa.int16()), "i2"),
    "unsigned": (pa.array(range(9), pa.uint64()), "u8"),
    "half": (pa.array(np.arange(9, dtype=np.float16)), "f2"),
    "single": (pa.array([None, *range(8)], pa.float32()), "f4"),
    "double": (pa.array([*range(8), None], pa.float64()), "f8"),
    "truth": (pa.array([True, False, True, True, False, False, True, False, True]), "?"),
    "words": (pa.array(["a", None, "c"] * 3), "O"),
    "bytes": (pa.array([b"a", b"", b"c"] * 3), "O"),
    "coded": (pa.array(["a", "b", "a"] * 3).dictionary_encode(), "O"),
    "money": (pa.array([decimal.Decimal("1.5")] * 9), "f8"),
    "time": (pa.array([datetime.datetime(2026, 1, 1, at) for at in range(9)]), "M8[us]"),
    "fixed": (pa.array([[at, at + 1] for at in range(9)], pa.list_(pa.float32(), 2)), "f4"),
    "lists": (pa.array([[at, at + 1, 0] for at in range(9)], pa.list_(pa.int64())), "i8"),
    "large": (pa.array([[at, at + 1, 0] for at in range(9)], pa.large_list(pa.int64())), "i8"),
    "pictures": (
        pa.array([[[at, 0], [1, 2], [3, 4]] for at in range(9)], pa.list_(pa.list_(pa.uint8()))),
        "u1",
    ),
    "ragged": (pa.array([[0.5] * (at % 2) for at in range(9)], pa.list_(pa.float32())), "O"),
    "lacking": (pa.array([[0.5] if at % 2 else None for at in range(9)], pa.list_(pa.float32())), "O"),
    "structs": (pa.array([{"a": at} for at in range(9)]), "O"),
}


@pytest.mark.parametrize("name", COLUMNS)
def test_values_equal_those_of_arrow(name: str) -> None:
    column, dtype = COLUMNS[name]
    for begin, count in ((0, 9), (3, 5), (8, 1), (2, 0)):
        part = column.slice(begin, count)
        array = to_array(part, "f", name)
        assert len(array) == count
        if count > 1:
            assert array.dtype == np.dtype(dtype)
        assert same(array.tolist(), part.to_pylist())
        some = np.arange(0, count, 2)
        assert same(rows_to_array(part, some, "f", name).tolist(), part.to_pylist()[::2])


def same(one: Any, other: Any) -> bool:
    if isinstance(one, np.ndarray):
        one = one.tolist()
    if one == [] and other is None:
        return True
    if isinstance(one, list) and isinstance(other, list):
        return len(one) == len(other) and all(same(a, b) for a, b in zip(one, other, strict=True))
    if isinstance(one, float) and math.isnan(one):
        return other is None
    return bool(one == other) or (isinstance(other, decimal.Decimal) and one == float(other))
