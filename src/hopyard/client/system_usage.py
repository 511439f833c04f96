"""The resource usage of a run: CPU, memory, disk and GPUs, as series and as a summary."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from hopyard.api_client.client import Client
from hopyard.domain.byte_text import format_bytes
from hopyard.domain.system_series import READ, RECEIVED, SENT, SYSTEM_PREFIX, WRITE, sample_values
from hopyard.errors import HopyardError

if TYPE_CHECKING:
    from hopyard.api_client import types as api

_MAX_SAMPLES = 2000


def load_system_series(
    client: Client, run: api.RunOut, *, rank: int | None = None, max_points: int | None = _MAX_SAMPLES
) -> dict[str, api.SeriesOut]:
    """Returns the usage of one rank by name, by default of the lowest one.

    The names are those of `domain.system_series`. Steps are whole seconds since the first sample.
    """
    samples = client.get_run_system(run["id"], max_points=max_points)["samples"]
    ranks = {sample["rank"] for sample in samples}
    selected = min(ranks, default=0) if rank is None else rank
    return _to_series([sample for sample in samples if sample["rank"] == selected])


def describe_system_usage(client: Client, run: api.RunOut) -> list[str]:
    """Returns a line for each rank with the mean and the peak of its usage; none without samples, and if they
    cannot be read."""
    try:
        samples = client.get_run_system(run["id"], max_points=_MAX_SAMPLES)["samples"]
    except HopyardError:  # another server stores them, or the id is damaged: the rest is shown
        return []
    ranks = sorted({sample["rank"] for sample in samples})
    return [
        (f"rank {rank}: " if len(ranks) > 1 else "")
        + _usage_text([sample for sample in samples if sample["rank"] == rank])
        for rank in ranks
    ]


def _usage_text(samples: Sequence[api.SampleOut]) -> str:
    texts = []
    for name, series in _to_series(samples).items():
        values = [float(value) for value in series["values"]]
        if values:
            mean, peak = sum(values) / len(values), max(values)
            label = (
                name.removeprefix(SYSTEM_PREFIX)
                .replace("_", " ")
                .replace("cpu", "CPU")
                .replace("gpu", "GPU ")
            )
            if name.endswith("memory"):
                texts.append(f"{label} {format_bytes(round(mean))}, peak {format_bytes(round(peak))}")
            elif name in (READ, WRITE, RECEIVED, SENT):
                rates = format_bytes(round(mean)), format_bytes(round(peak))
                texts.append(f"{label} {rates[0]}/s, peak {rates[1]}/s")
            else:
                texts.append(f"{label} {mean:.0f}%, peak {peak:.0f}%")
    return "; ".join(texts)


def _to_series(samples: Sequence[api.SampleOut]) -> dict[str, api.SeriesOut]:
    series: dict[str, api.SeriesOut] = {}
    for sample in samples:
        step = round(sample["t"] - samples[0]["t"])
        for name, value in sample_values(sample):
            if value is None:
                continue
            one = series.setdefault(name, {"steps": [], "values": [], "times": [], "count": 0})
            one["steps"].append(step)
            one["values"].append(value)
            one["times"].append(sample["t"])
            one["count"] += 1
    return series
