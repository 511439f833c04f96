"""Reads the resource usage of runs: CPU, memory and GPUs over time."""

from __future__ import annotations

import asyncio
from typing import Any

from hopyard.interfaces.streams import StreamKey, Streams
from hopyard.tracking.downsampling import peak_positions
from hopyard.tracking.json_lines import LineReader
from hopyard.tracking.live_run import parse_sample
from hopyard.tracking.run_history import RunHistory

_READ_BYTES = 1024 * 1024
MAX_SAMPLES = 100_000  # of all replicas together; at most twice as many are in memory


async def read_system(
    streams: Streams, history: RunHistory, *, max_points: int | None = None
) -> list[dict[str, Any]]:
    """Returns the samples of all replicas in order of time. Resource usage is never rolled back.

    max_points: at most so many per replica; each bucket keeps the sample with the most memory. Very many
    samples are always downsampled.
    """
    by_rank: dict[int, list[dict[str, Any]]] = {}
    for key in await streams.list(history.run.id):
        if key.name == "system":
            by_rank.setdefault(key.rank, []).extend(await _read_samples(streams, key))
            if sum(map(len, by_rank.values())) > 2 * MAX_SAMPLES:
                samples_per_rank = max(1, MAX_SAMPLES // len(by_rank))
                by_rank = {rank: _downsample(samples, samples_per_rank) for rank, samples in by_rank.items()}
    selected: list[dict[str, Any]] = []
    for samples in by_rank.values():
        samples.sort(key=lambda sample: float(sample["t"]))
        selected += samples if max_points is None else _downsample(samples, max_points)
    return sorted(selected, key=lambda sample: (float(sample["t"]), int(sample["rank"])))


async def _read_samples(streams: Streams, key: StreamKey) -> list[dict[str, Any]]:
    parsed: list[dict[str, Any]] = []
    lines, position = LineReader(), 0

    def parse(data: bytes) -> None:
        nonlocal parsed
        parsed += [
            sample for line in lines.feed(data) if (sample := parse_sample(line, key.rank)) is not None
        ]
        if len(parsed) > 2 * MAX_SAMPLES:
            parsed = _downsample(parsed, MAX_SAMPLES)

    while data := await streams.read(key, position, _READ_BYTES):
        position += len(data)
        await asyncio.to_thread(parse, data)
    return parsed


def _downsample(samples: list[dict[str, Any]], max_points: int) -> list[dict[str, Any]]:
    memory = [int(sample["memory_bytes"]) for sample in samples]
    return [samples[position] for position in peak_positions(memory, max_points)]
