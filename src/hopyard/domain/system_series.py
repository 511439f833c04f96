"""The names of a run's resource usage as series, and their values in a sample."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

SYSTEM_PREFIX = "sys/"
CPU, MEMORY = f"{SYSTEM_PREFIX}cpu", f"{SYSTEM_PREFIX}memory"
READ, WRITE = f"{SYSTEM_PREFIX}disk_read", f"{SYSTEM_PREFIX}disk_write"
RECEIVED, SENT = f"{SYSTEM_PREFIX}host_network_in", f"{SYSTEM_PREFIX}host_network_out"


def sample_values(sample: Mapping[str, Any]) -> Iterator[tuple[str, float | None]]:
    """Yields the values of a sample of `GET /runs/{id}/system` by name; None is an unknown value.

    The names are `sys/cpu` in percent of a core, `sys/memory` in bytes, `sys/disk_read` and `sys/disk_write`
    in bytes per second, `sys/host_network_in` and `sys/host_network_out` in bytes per second of all processes
    of the host. For each GPU: `sys/gpu0` (percent), `sys/gpu0_memory`, and `sys/gpu0_temperature` in degrees
    Celsius if the GPU has a sensor.
    """
    yield CPU, sample["cpu_percent"]
    yield MEMORY, float(sample["memory_bytes"])
    yield READ, sample.get("read_bytes_per_s")
    yield WRITE, sample.get("write_bytes_per_s")
    yield RECEIVED, sample.get("host_received_bytes_per_s")
    yield SENT, sample.get("host_sent_bytes_per_s")
    for gpu in sample["gpus"]:
        yield f"{SYSTEM_PREFIX}gpu{gpu['index']}", gpu["utilisation_percent"]
        yield f"{SYSTEM_PREFIX}gpu{gpu['index']}_memory", float(gpu["memory_bytes"])
        if gpu.get("temperature_celsius") is not None:
            yield f"{SYSTEM_PREFIX}gpu{gpu['index']}_temperature", gpu["temperature_celsius"]
