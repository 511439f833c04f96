"""Limits on the parameters, summary values, latest metrics and packages of one run: they are kept for every
run, and count towards no quota."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from hopyard.domain.dataset_paths import names_dataset

MAX_RUN_VALUES = 10_000
MAX_RUN_VALUE_BYTES = 4 * 2**20  # of names and texts
MAX_PACKAGE_BYTES = 256 * 1024  # of the packages in JSON
_JSON_MARKS = 6  # quotes, colon and comma of an entry


def merge_values(before: Mapping[str, Any], updates: Mapping[str, Any]) -> dict[str, Any]:
    """Returns `before` with the values of `updates`. A value that does not fit is dropped, and the previous
    value stays. So does `{dataset:mnist}`: a script reports the folder that the node has in its place."""
    merged = dict(before)
    size = sum(_size(name, value) for name, value in merged.items())
    for name, value in updates.items():
        is_update = name in merged
        if is_update and names_dataset(merged[name]):
            continue
        new_size = size + _size(name, value) - (_size(name, merged[name]) if is_update else 0)
        if new_size <= max(size, MAX_RUN_VALUE_BYTES) and (is_update or len(merged) < MAX_RUN_VALUES):
            merged[name], size = value, new_size
    return merged


def limit_packages(packages: Mapping[str, str]) -> dict[str, str]:
    """Returns the packages of an environment, as many as a spec may hold."""
    kept: dict[str, str] = {}
    size = 2
    for name, version in packages.items():
        size += len(f"{name}{version}".encode()) + _JSON_MARKS
        if size > MAX_PACKAGE_BYTES:
            break
        kept[name] = version
    return kept


def _size(name: str, value: object) -> int:
    return len(name) + (len(value) if isinstance(value, str) else 8)
