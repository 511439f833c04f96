"""What one run may have of parameters, summary values and latest metrics: they are kept for every run, and
count to no quota."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

MAX_RUN_VALUES = 10_000
MAX_RUN_VALUE_BYTES = 4 * 2**20  # of names and texts


def merge_values(before: Mapping[str, Any], updates: Mapping[str, Any]) -> dict[str, Any]:
    """`before` with the values of `updates`; a value for which there is no room is left out, and the one
    before it stays."""
    merged = dict(before)
    size = sum(_size(name, value) for name, value in merged.items())
    for name, value in updates.items():
        known = name in merged
        grown = size + _size(name, value) - (_size(name, merged[name]) if known else 0)
        if grown <= max(size, MAX_RUN_VALUE_BYTES) and (known or len(merged) < MAX_RUN_VALUES):
            merged[name], size = value, grown
    return merged


def _size(name: str, value: object) -> int:
    return len(name) + (len(value) if isinstance(value, str) else 8)
