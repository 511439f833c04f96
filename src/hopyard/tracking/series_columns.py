"""Decoded series as numpy columns, and the memory that keeps the newest of them."""

from __future__ import annotations

import zlib
from collections import OrderedDict
from collections.abc import Hashable
from typing import Generic, Protocol, TypeVar

import numpy as np
import numpy.typing as npt

from hopyard.tracking.metrics import Series
from hopyard.tracking.series_buckets import Floats

_BYTES_PER_POINT = 24
_BYTES_PER_SERIES = 1024


class Columns:
    """The points of one series; they never change. steps, values and times (unix seconds) have equal lengths.
    count: the number of points that were logged; more than the length if the series was downsampled."""

    __slots__ = ("_checksums", "count", "steps", "times", "values")

    def __init__(self, steps: npt.NDArray[np.int64], values: Floats, times: Floats, count: int) -> None:
        self.steps, self.values, self.times, self.count = steps, values, times, count
        self._checksums: dict[int, int] = {}

    @classmethod
    def of_series(cls, series: Series) -> Columns:
        """Copies a series whose `count` is the number of omitted points."""
        steps = np.array(series.steps, dtype=np.int64)
        values, times = np.array(series.values, dtype=np.float64), np.array(series.times, dtype=np.float64)
        return cls(steps, values, times, series.count + len(values))

    @classmethod
    def of_usage(cls, series: Series) -> Columns:
        """Copies samples in order of time. Steps are whole seconds since the first sample."""
        times, values = np.array(series.times, dtype=np.float64), np.array(series.values, dtype=np.float64)
        order = np.argsort(times, kind="stable")
        times, values = times[order], values[order]
        steps = np.rint(times - times[0]).astype(np.int64)
        return cls(steps, values, times, series.count + len(values))

    def __len__(self) -> int:
        return len(self.values)

    @property
    def is_downsampled(self) -> bool:
        return self.count > len(self.values)

    @property
    def size_bytes(self) -> int:
        return len(self.values) * _BYTES_PER_POINT + _BYTES_PER_SERIES

    def checksum(self, length: int) -> int:
        """Returns the checksum of the first points: two series with equal ones begin with equal points."""
        found = self._checksums.get(length)
        if found is None:
            found = 0
            for column in (self.steps, self.values, self.times):
                found = zlib.crc32(column[:length].data, found)
            if len(self._checksums) >= 4:  # of the few clients that follow the series
                self._checksums.clear()
            self._checksums[length] = found
        return found


class Sized(Protocol):
    """An entry of a bounded memory."""

    @property
    def size_bytes(self) -> int: ...


K = TypeVar("K", bound=Hashable)
E = TypeVar("E", bound=Sized)


class BoundedMemory(Generic[K, E]):
    """Keeps entries up to a total size. The ones that were not used for the longest time are removed first;
    the newest stays in any case."""

    def __init__(self, max_bytes: int) -> None:
        self.max_bytes, self.used_bytes = max_bytes, 0
        self._entries: OrderedDict[K, E] = OrderedDict()
        self._sizes: dict[K, int] = {}

    def __len__(self) -> int:
        return len(self._entries)

    def find(self, key: K) -> E | None:
        entry = self._entries.get(key)
        if entry is not None:
            self._entries.move_to_end(key)
        return entry

    def put(self, key: K, entry: E) -> None:
        """Adds an entry, or counts the size of one that has changed."""
        size = entry.size_bytes
        self.used_bytes += size - self._sizes.get(key, 0)
        self._entries[key], self._sizes[key] = entry, size
        self._entries.move_to_end(key)
        while self.used_bytes > self.max_bytes and len(self._entries) > 1:
            oldest, _ = self._entries.popitem(last=False)
            self.used_bytes -= self._sizes.pop(oldest)
