"""Resource usage as series and as a summary, for samples of several ranks and GPUs."""

from __future__ import annotations

from typing import Any, cast

from hopyard.api_client.client import Client
from hopyard.client.system_usage import describe_system_usage, load_system_series


class SampledRun:
    """Answers with fixed samples of two ranks."""

    def get_run_system(self, run: str, *, max_points: int | None = None) -> dict[str, Any]:
        gpu = {"index": 1, "utilisation_percent": 50.0, "memory_bytes": 2**31}
        disk = {"read_bytes_per_s": 0.0, "write_bytes_per_s": 2.0**20}
        disk |= {"host_received_bytes_per_s": 1024.0, "host_sent_bytes_per_s": 0.0}
        return {
            "samples": [
                {"rank": 0, "t": 10.0, "cpu_percent": 100.0, "memory_bytes": 2**30, "gpus": [gpu]},
                {
                    "rank": 1,
                    "t": 10.5,
                    "cpu_percent": None,
                    "memory_bytes": 2**20,
                    "gpus": [],
                    **disk,
                },
                {"rank": 0, "t": 12.1, "cpu_percent": 300.0, "memory_bytes": 3 * 2**30, "gpus": [gpu]},
            ]
        }


CLIENT, RUN = cast("Client", SampledRun()), cast("Any", {"id": "x"})


def test_series_of_a_rank() -> None:
    series = load_system_series(CLIENT, RUN)
    assert set(series) == {"sys/cpu", "sys/memory", "sys/gpu1", "sys/gpu1_memory"}
    assert (series["sys/cpu"]["steps"], series["sys/cpu"]["values"]) == ([0, 2], [100.0, 300.0])
    assert load_system_series(CLIENT, RUN, rank=1)["sys/memory"]["values"] == [2.0**20]
    assert load_system_series(CLIENT, RUN, rank=2) == {}


def test_summary_has_mean_and_peak() -> None:
    assert describe_system_usage(CLIENT, RUN) == [
        (
            "rank 0: CPU 200%, peak 300%; memory 2.0 GiB, peak 3.0 GiB; GPU 1 50%, peak 50%; "
            "GPU 1 memory 2.0 GiB, peak 2.0 GiB"
        ),
        (
            "rank 1: memory 1.0 MiB, peak 1.0 MiB; disk read 0 B/s, peak 0 B/s; "
            "disk write 1.0 MiB/s, peak 1.0 MiB/s; "
            "host network in 1.0 KiB/s, peak 1.0 KiB/s; host network out 0 B/s, peak 0 B/s"
        ),
    ]
