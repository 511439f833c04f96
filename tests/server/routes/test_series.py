"""Series of several runs in one request: exact, downsampled, by rank, over other axes, and by cursor."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

from hopyard.domain.metric_records import POINT, pack_definition, pack_point, series_id
from tests.server.api_server import ApiServer, role, run_scenario


def points(name: str, *values: float, first: int = 0, every: int = 1) -> bytes:
    return pack_definition(name) + b"".join(
        pack_point(POINT, series_id(name), first + every * number, 1000.0 + first + number, value)
        for number, value in enumerate(values)
    )


class Shipper:
    """Ships metric and system streams of a run piece by piece."""

    def __init__(self, api: ApiServer, run: Any) -> None:
        self.api, self.run = api, run
        self.lengths: dict[tuple[str, int, int], int] = {}

    async def ship(self, data: bytes, *, stream: str = "metrics", rank: int = 0, attempt: int = 1) -> None:
        at = self.lengths.get((stream, rank, attempt), 0)
        await self.api.sync(self.run, [(stream, at, data)], rank=rank, attempt=attempt)
        self.lengths[stream, rank, attempt] = at + len(data)


async def series(api: ApiServer, runs: list[Any], name: str | list[str], **query: Any) -> Any:
    return await api.request("GET", "/series", run=[run["id"] for run in runs], name=name, **query)


def test_series_of_several_runs_share_their_buckets(tmp_path: Path) -> None:
    async def scenario(api: ApiServer) -> None:
        runs = [await api.start_run(roles=[role(cpu_milli=1)]) for _ in range(2)]
        await Shipper(api, runs[0]).ship(points("loss", 3.0, math.nan, 1.0, 2.0, math.inf, 5.0))
        await Shipper(api, runs[1]).ship(points("loss", 7.0, 8.0, 9.0) + points("acc", 1.0))
        missing = {"id": "unknownrun"}
        found = await series(
            api,
            [*runs, missing],
            "loss",
            buckets=3,
            columns="first,last,min,max,mean,counts,min_steps,max_steps,nan_counts,x_last",
        )
        assert [(each["run"], each["name"]) for each in found["series"]] == [
            (runs[0]["id"], "loss"),
            (runs[1]["id"], "loss"),
        ]
        assert found["unavailable"] == [{"run": "unknownrun", "message": "there is no run unknownrun"}]
        first, second = found["series"]
        assert first == {
            "run": runs[0]["id"],
            "name": "loss",
            "total": 6,
            "count": 6,
            "exact": False,
            "reset": True,
            "x": [0, 2, 4],
            "x_last": [1, 3, 5],
            "first": [3.0, 1.0, "Infinity"],
            "last": ["NaN", 2.0, 5.0],
            "min": [3.0, 1.0, 5.0],
            "max": [3.0, 2.0, "Infinity"],
            "mean": [3.0, 1.5, "Infinity"],
            "counts": [2, 2, 2],
            "min_steps": [0, 2, 5],
            "max_steps": [0, 3, 4],
            "nan_counts": [1, 0, 0],
        }
        assert (second["exact"], second["x"], second["values"]) == (True, [0, 1, 2], [7.0, 8.0, 9.0])
        zoomed = await series(api, runs[:1], "l*", begin=1, end=3, buckets=3, columns="steps,times")
        (part,) = zoomed["series"]
        assert (part["values"], part["steps"], part["times"]) == (
            ["NaN", 1.0, 2.0],
            [1, 2, 3],
            [1001.0, 1002.0, 1003.0],
        )
        assert (part["count"], part["total"], part["exact"]) == (3, 6, True)

    run_scenario(tmp_path, scenario)


def test_axes_are_time_elapsed_time_and_another_metric(tmp_path: Path) -> None:
    async def scenario(api: ApiServer) -> None:
        run = await api.start_run()
        epochs = points("epoch", 1.0, 2.0, first=2, every=2)  # steps 2 and 4
        await Shipper(api, run).ship(points("loss", 5.0, 4.0, 3.0, 2.0, 1.0) + epochs)

        async def read(x: str, **query: Any) -> Any:
            (part,) = (await series(api, [run], "loss", x=x, **query))["series"]
            return part["x"], part["values"]

        assert await read("time", begin=1002.5) == ([1003.0, 1004.0], [2.0, 1.0])
        elapsed, _ = await read("elapsed")
        assert [round(x - elapsed[0], 3) for x in elapsed] == [0, 1, 2, 3, 4]
        assert await read("metrics.epoch") == ([1.0, 1.0, 2.0], [3.0, 2.0, 1.0])
        assert await read("metrics.nothing") == ([], [])

    run_scenario(tmp_path, scenario)


def test_cursor_returns_only_later_points_and_all_after_a_change(tmp_path: Path) -> None:
    async def scenario(api: ApiServer) -> None:
        run = await api.start_run()
        shipper = Shipper(api, run)
        await shipper.ship(points("loss", 3.0, 2.0) + points("acc", 0.5))
        answer = await series(api, [run], ["loss", "acc"])
        assert all(part["reset"] for part in answer["series"])
        again = await series(api, [run], ["loss", "acc"], since=answer["cursor"])
        assert again["series"] == []
        reads = api.services.series.reads
        await shipper.ship(points("loss", 1.0, first=2))
        answer = await series(api, [run], ["loss", "acc"], since=answer["cursor"])
        (part,) = answer["series"]
        assert (part["name"], part["x"], part["values"], part["total"]) == ("loss", [2], [1.0], 3)
        assert "reset" not in part
        assert (api.services.series.reads, api.services.series.extensions) == (reads, 1)
        # another process of the script continues from its own checkpoint at step 1
        other = await series(api, [run], "loss", x="metrics.acc")
        await shipper.ship(points("acc", 0.7, first=1))
        other = await series(api, [run], "loss", x="metrics.acc", since=other["cursor"])
        assert [(part["reset"], part["x"]) for part in other["series"]] == [(True, [0.5, 0.7, 0.7])]
        removed = await series(api, [run], "acc", since=answer["cursor"])
        assert {
            (part["name"], part["total"], part["reset"])
            for part in removed["series"]
            if part["name"] == "loss"
        } == {("loss", 0, True)}
        refused = await api.request(
            "GET", "/series", run=run["id"], name="loss", since="nonsense", status=400
        )
        assert "cursor" in refused["error"]["message"]

    run_scenario(tmp_path, scenario)


def test_each_rank_is_a_series_and_usage_is_one_too(tmp_path: Path) -> None:
    async def scenario(api: ApiServer) -> None:
        run = await api.start_run(roles=[{**role(cpu_milli=1), "replicas": 2}])
        shipper = Shipper(api, run)
        for rank in (0, 1):
            await shipper.ship(points("loss", 1.0 + rank), rank=rank)
            samples = [{"t": 1000.0 + at, "cpu_percent": 50.0 + rank, "memory_bytes": 7} for at in (0, 10)]
            await shipper.ship(
                "".join(json.dumps(each) + "\n" for each in samples).encode(), stream="system", rank=rank
            )

        async def read(name: str, **query: Any) -> list[Any]:
            found = await series(api, [run], name, **query)
            return [(part.get("rank"), part["x"], part["values"]) for part in found["series"]]

        assert await read("loss") == [(None, [0], [1.0])]
        assert await read("loss", ranks="all") == [(0, [0], [1.0]), (1, [0], [2.0])]
        assert await read("loss", ranks="1") == [(1, [0], [2.0])]
        assert await read("sys/cpu", x="time", ranks="all") == [
            (0, [1000.0, 1010.0], [50.0, 50.0]),
            (1, [1000.0, 1010.0], [51.0, 51.0]),
        ]
        assert await read("sys/memory") == [(None, [0, 10], [7.0, 7.0])]
        assert await read("*") == [(None, [0], [1.0])]  # metrics only
        await shipper.ship(b'{"t": 1020.0, "cpu_percent": 1, "memory_bytes": 8}\n', stream="system")
        assert await read("sys/memory") == [(None, [0, 10, 20], [7.0, 7.0, 8.0])]
        refused = await api.request(
            "GET", "/series", run=run["id"], name="sys/cpu", x="metrics.loss", status=400
        )
        assert "sys/" in refused["error"]["message"]

    run_scenario(tmp_path, scenario)


def test_invalid_requests_are_refused(tmp_path: Path) -> None:
    async def scenario(api: ApiServer) -> None:
        run = (await api.submit(plan=0))["id"]
        for query, status in (
            ({"begin": 2, "end": 1}, 400),
            ({"begin": "nan"}, 422),
            ({"x": "weather"}, 422),
            ({"buckets": 0}, 422),
            ({"columns": "median"}, 422),
            ({"run": [run] * 101}, 422),
            ({"name": []}, 422),
        ):
            await api.request("GET", "/series", **{"run": run, "name": "loss", **query}, status=status)
        assert (await series(api, [{"id": run}], "loss"))["series"] == []

    run_scenario(tmp_path, scenario)
