"""Finds the changes between two snapshots without reading unchanged parts."""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from itertools import chain
from typing import TypeVar

from hopyard.domain.persistent_sequence import PersistentSequence

T = TypeVar("T")
K = TypeVar("K", bound=Hashable)
V = TypeVar("V")

MAX_SHIFT = 64  # items by which two sequences may be shifted against each other at one place
FIRST_STRIDE = 64


def diff_sequences(old: Sequence[T], new: Sequence[T]) -> tuple[list[T], list[T]]:
    """Returns the items that are only in `old`, and the items that are only in `new`. Equal items are
    unchanged, even at another position.

    Made for long tuples that share nearly all objects in nearly the same order. Slices are compared in C,
    which checks identity first. For chunked sequences only differing chunks are compared.
    """
    if isinstance(old, PersistentSequence) and isinstance(new, PersistentSequence):
        old, new = _without_moved(_unshared_items(old, new), _unshared_items(new, old))
    removed: list[T] = []
    added: list[T] = []
    i = j = 0
    while True:
        common_length = _common_length(old, i, new, j)
        i, j = i + common_length, j + common_length
        if i == len(old) or j == len(new):
            break
        offsets = _next_common_position(old, i, new, j)
        if offsets is None:
            break
        removed += old[i : i + offsets[0]]
        added += new[j : j + offsets[1]]
        i, j = i + offsets[0], j + offsets[1]
    return _without_moved(removed + list(old[i:]), added + list(new[j:]))


def _unshared_items(left: PersistentSequence[T], right: PersistentSequence[T]) -> list[T]:
    """Returns the items of chunks that the other sequence does not have."""
    shared = {id(chunk) for chunk in right.chunks}
    return list(chain.from_iterable(chunk for chunk in left.chunks if id(chunk) not in shared))


def _common_length(old: Sequence[T], i: int, new: Sequence[T], j: int) -> int:
    """Returns the number of identical items from `i` and `j` on, compared in strides that double, then
    shrink."""
    maximum = min(len(old) - i, len(new) - j)
    length, stride = 0, FIRST_STRIDE
    while length < maximum:
        stride = min(stride, maximum - length)
        if _are_identical(old, i + length, new, j + length, stride):
            length += stride
            stride *= 2
        elif stride == 1:
            break
        else:
            stride = max(1, stride // 4)
    return length


def _are_identical(old: Sequence[T], i: int, new: Sequence[T], j: int, count: int) -> bool:
    return old[i : i + count] == new[j : j + count]


def _next_common_position(old: Sequence[T], i: int, new: Sequence[T], j: int) -> tuple[int, int] | None:
    """Returns the number of items to skip in each sequence until they are identical again; None if that is
    not near."""
    old_positions = {
        id(item): old_offset for old_offset, item in reversed(list(enumerate(old[i : i + MAX_SHIFT])))
    }
    best: tuple[int, int] | None = None
    for new_offset, item in enumerate(new[j : j + MAX_SHIFT]):
        old_offset = old_positions.get(id(item))
        if old_offset is not None and (best is None or old_offset + new_offset < sum(best)):
            best = old_offset, new_offset
    return best


def _without_moved(removed: list[T], added: list[T]) -> tuple[list[T], list[T]]:
    """Removes items that are in both sequences: they only moved."""
    if not removed or not added:
        return removed, added
    before, after = {*map(id, removed)}, {*map(id, added)}
    return [item for item in removed if id(item) not in after], [
        item for item in added if id(item) not in before
    ]


def changed_keys(old: Mapping[K, V], new: Mapping[K, V]) -> list[K]:
    """Returns the keys whose values are different objects, and the keys that only one mapping has."""
    if old is new:
        return []
    changed = [key for key, value in new.items() if old.get(key) is not value]
    changed += [key for key in old if key not in new]
    return changed
