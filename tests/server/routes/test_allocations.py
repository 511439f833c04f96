"""`GET /allocations`: what runs hold on the nodes, with the newest measured values."""

from __future__ import annotations

import json
from pathlib import Path

from tests.server.api_server import ApiServer, role, run_scenario

SAMPLE = {
    "t": 1.0,
    "cpu_percent": 50.0,
    "memory_bytes": 7,
    "gpus": [{"index": 0, "utilisation_percent": 80.0, "memory_bytes": 9, "temperature_celsius": 61.0}],
}


def test_allocations_show_gpus_with_their_measured_use(tmp_path: Path) -> None:
    async def scenario(api: ApiServer) -> None:
        half = await api.start_run(roles=[role(gpu_milli=500, cpu_milli=500)])
        run = await api.start_run(roles=[role(gpus=1, memory_bytes=1024)])
        held = (await api.request("GET", "/allocations"))["allocations"]
        assert {one["run"] for one in held} == {half["id"], run["id"]}
        assert all(gpu["temperature_celsius"] is None for one in held for gpu in one["gpus"])
        by_run = {one["run"]: one for one in held}
        index = by_run[half["id"]]["gpus"][0]["index"]
        assert by_run[half["id"]]["gpus"][0]["milli"] == 500
        sample = {**SAMPLE, "gpus": [{**SAMPLE["gpus"][0], "index": index}]}  # type: ignore[index]
        await api.sync(half, [("system", 0, json.dumps(sample).encode() + b"\n")])
        measured = (await api.request("GET", "/allocations", node="box"))["allocations"]
        (gpu,) = next(one for one in measured if one["run"] == half["id"])["gpus"]
        assert (gpu["utilisation_percent"], gpu["memory_bytes"], gpu["temperature_celsius"]) == (
            80.0,
            9,
            61.0,
        )
        assert (await api.request("GET", "/allocations", node="none"))["allocations"] == []
        first = await api.request("GET", "/allocations", limit=1)
        second = await api.request("GET", "/allocations", limit=1, after=first["next"])
        assert second["next"] is None
        assert first["allocations"] + second["allocations"] == measured

    run_scenario(tmp_path, scenario)
