"""Reads the resource usage of a replica into series by name: `sys/cpu`, `sys/memory`, `sys/gpu0`."""

from __future__ import annotations

import asyncio
from collections.abc import Collection

from hopyard.domain.system_series import sample_values
from hopyard.interfaces.streams import StreamKey, Streams
from hopyard.tracking.json_lines import LineReader
from hopyard.tracking.live_run import parse_sample
from hopyard.tracking.metrics import Series, downsample_together

_READ_BYTES = 1024 * 1024
SYSTEM_STREAM = "system"


class UsageReader:
    """The resource usage of one replica in all attempts, and the samples of a live run that arrive later.
    Resource usage is never rolled back. The step of a sample is 0; `Series.times` has its time.

    max_total: more values are downsampled together; then `Series.count` is the number of omitted values.
    """

    def __init__(self, *, max_total: int) -> None:
        self.series: dict[str, Series] = {}
        self._max_total = max_total
        self._positions: dict[StreamKey, int] = {}
        self._lines: dict[StreamKey, LineReader] = {}

    @classmethod
    async def read(
        cls, streams: Streams, keys: Collection[StreamKey], *, rank: int | None, max_total: int
    ) -> UsageReader:
        """Reads the streams of this rank among `keys`; None is the lowest rank that has one."""
        system_keys = [key for key in keys if key.name == SYSTEM_STREAM]
        selected = min((key.rank for key in system_keys), default=0) if rank is None else rank
        reading = cls(max_total=max_total)
        for key in sorted(system_keys):
            if key.rank == selected:
                reading._positions[key], reading._lines[key] = 0, LineReader()
                await reading._read(streams, key)
        return reading

    @property
    def is_downsampled(self) -> bool:
        """Whether values are omitted, because there are more than `max_total`."""
        return any(series.count for series in self.series.values())

    async def extend(self, streams: Streams, grown: Collection[StreamKey]) -> bool:
        """Adds the samples that were appended to these streams. Returns False if the streams must be read
        again."""
        if self.is_downsampled or any(key not in self._positions for key in grown):
            return False
        for key in sorted(grown):
            await self._read(streams, key)
        return not self.is_downsampled

    def end_of(self, key: StreamKey) -> int | None:
        """Returns how many bytes of a stream were read; None for another stream."""
        return self._positions.get(key)

    async def _read(self, streams: Streams, key: StreamKey) -> None:
        while data := await streams.read(key, self._positions[key], _READ_BYTES):
            self._positions[key] += len(data)
            await asyncio.to_thread(self._feed, key, data)

    def _feed(self, key: StreamKey, data: bytes) -> None:
        for line in self._lines[key].feed(data):
            sample = parse_sample(line, key.rank)
            if sample is None:
                continue
            for name, value in sample_values(sample):
                if value is not None:
                    series = self.series.setdefault(name, Series())
                    series.steps.append(0)
                    series.values.append(value)
                    series.times.append(sample["t"])
        if sum(len(series.values) for series in self.series.values()) > self._max_total:
            downsample_together(list(self.series.values()), self._max_total)
