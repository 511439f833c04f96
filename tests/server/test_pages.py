"""Listings are paged, for any number of items."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import msgspec

from hopyard.domain.checkpoint import Checkpoint
from hopyard.domain.ids import AttemptId, Digest, RunId
from hopyard.domain.metric_records import POINT, pack_definition, pack_point, series_id
from hopyard.domain.run import RunEvent, RunEventKind
from hopyard.interfaces.streams import Segment
from hopyard.server.api import all_endpoints
from hopyard.tracking.metrics import _SeriesSelection, downsample_together
from tests.server.api_server import ApiServer, run_scenario

NOW = datetime(2026, 11, 1, tzinfo=UTC)
# Listings that are bounded: by the nodes, by their own limits, or by the request.
BOUNDED = {
    "/nodes",
    "/pools",
    "/queues",
    "/secrets",
    "/usage",
    "/datasets/{name}/board",
    "/nodes/{node}",
    "/runs/{id}/system",
    "/runs/{id}/commands",  # MAX_COMMANDS
    "/runs/counts",  # the most frequent values and names
    "/runs/names",
    "/series",  # MAX_BUCKETS
    "/reports/{report}/revisions",  # MAX_REVISIONS
}


async def pages(api: ApiServer, path: str, rows: str, *, cursor: str = "after", **query: Any) -> list[Any]:
    """Returns all rows of a listing, read two at a time."""
    result: list[Any] = []
    begin = None
    while True:
        page = await api.request("GET", path, limit=2, **query, **({} if begin is None else {cursor: begin}))
        assert 0 < len(page[rows]) <= 2
        result += page[rows]
        begin = page["next"]
        if begin is None:
            return result


def test_pages_of_each_listing_contain_every_item_once(tmp_path: Path) -> None:
    async def scenario(api: ApiServer) -> None:
        parts, digest = api.services, Digest("0" * 64)
        for number in range(5):
            await parts.datasets.push(
                f"d{number}", digest, size_bytes=1, files=1, user="alice", message="m" * 5000, now=NOW
            )
            await parts.datasets.push(
                "many",
                Digest(f"{number:064}"),
                size_bytes=1,
                files=1,
                user="alice",
                message="m" * 5000,
                now=NOW,
            )
            await parts.access.add_token(f"user{number}", f"{number:064}", now=NOW, name="t")
            await parts.access.add_token(
                "alice", f"{number + 50:064}", now=NOW + timedelta(seconds=number), name=f"t{number}"
            )
        datasets = await pages(api, "/datasets", "datasets")
        assert [dataset["name"] for dataset in datasets] == ["d0", "d1", "d2", "d3", "d4", "many"]
        assert all(len(dataset["newest"]["message"]) == 256 for dataset in datasets)
        assert [
            item["number"]
            for item in await pages(api, "/datasets/many/versions", "versions", cursor="before")
        ] == [5, 4, 3, 2, 1]
        assert len((await api.request("GET", "/datasets/many/versions/3"))["message"]) == 5000
        assert [item["name"] for item in await pages(api, "/users", "users")] == [
            "alice",
            *(f"user{number}" for number in range(5)),
        ]
        assert [item["name"] for item in await pages(api, "/tokens", "tokens")] == [
            "t0",
            "t1",
            "t2",
            "t3",
            "t4",
            "home",
        ]
        assert len(await pages(api, "/tokens", "tokens", everybody=1)) == 11

        run = RunId((await api.submit(plan=0))["id"])
        saved = [Checkpoint(run, AttemptId(f"{run}.1"), 0, step, digest, 1, NOW) for step in (5, 1, 9, 7, 3)]
        for checkpoint in saved:
            await parts.runs.record_checkpoint(checkpoint)
        for number in range(105):
            await parts.runs.record_event(run, RunEvent(NOW, RunEventKind.PREEMPTED, f"{number}"))
        assert [item["step"] for item in await pages(api, f"/runs/{run}/checkpoints", "checkpoints")] == [
            5,
            1,
            9,
            7,
            3,
        ]
        events = await pages(api, f"/runs/{run}/events", "events")
        assert [event["detail"] for event in events] == [str(number) for number in range(105)]
        assert [event["detail"] for event in (await api.request("GET", f"/runs/{run}"))["events"]] == [
            str(number) for number in range(5, 105)
        ]
        refused = await api.request("GET", f"/runs/{run}/checkpoints", after=f"{run}.1:0:77", status=409)
        assert "again" in refused["error"]["hints"][0]

        attempt = AttemptId(f"{run}.1")
        for rank in range(3):
            await parts.streams.append(
                attempt, rank, [Segment("stdout", 0, b"x"), Segment("stderr", 0, b"x")]
            )
        listed = await pages(api, f"/runs/{run}/streams", "streams")
        assert [(listed_row["rank"], listed_row["stream"]) for listed_row in listed] == [
            (rank, stream) for rank in range(3) for stream in ("stderr", "stdout")
        ]

    run_scenario(tmp_path, scenario, loops=False)


def test_metrics_are_paged(tmp_path: Path) -> None:
    async def scenario(api: ApiServer) -> None:
        run = (await api.start_run())["id"]
        points = b"".join(
            pack_definition(f"m{number}") + pack_point(POINT, series_id(f"m{number}"), 1, 0.0, 0.0)
            for number in range(5)
        )
        await api.sync({"id": run}, [("metrics", 0, points)])
        for number in range(4):
            part = await api.request(
                "GET", f"/runs/{run}/metrics", limit=1, **({"after": f"m{number - 1}"} if number else {})
            )
            assert (list(part["series"]), part["next"], part["series"][f"m{number}"]["values"]) == (
                [f"m{number}"],
                f"m{number}",
                [0.0],
            )
        last = await api.request("GET", f"/runs/{run}/metrics", limit=1, after="m3")
        assert (list(last["series"]), last["next"]) == (["m4"], None)

    run_scenario(tmp_path, scenario)


def test_runs_are_found_by_several_tags(tmp_path: Path) -> None:
    async def scenario(api: ApiServer) -> None:
        both = await api.submit(plan=0, tags={"team": "a", "kind": "x=y"})
        await api.submit(plan=0, tags={"team": "a"})
        await api.submit(plan=0, tags={"kind": "x=y"})
        response = await api.request("GET", "/runs", tag=["team=a", "kind=x=y"])
        assert [run["id"] for run in response["runs"]] == [both["id"]]
        two = await api.request("GET", "/runs", tag=["team=a", "team=b"], status=400)
        assert "two values" in two["error"]["message"]
        twice = await api.send("GET", "/runs", limit=[1, 2])
        assert (twice.status_code, twice.json()["error"]["message"]) == (
            422,
            "the parameter `limit` is given twice",
        )

    run_scenario(tmp_path, scenario, loops=False)


def test_every_listing_is_paged_or_bounded(tmp_path: Path) -> None:
    """A new listing needs `next`, or an entry among the bounded ones."""

    def lists(kind: Any) -> bool:
        return (
            isinstance(kind, type)
            and issubclass(kind, msgspec.Struct)
            and kind.__name__.endswith("sOut")
            and "next" not in kind.__struct_fields__
        )

    async def scenario(api: ApiServer) -> None:
        result = {
            endpoint.path
            for endpoint in all_endpoints(api.services)
            if endpoint.method == "GET" and lists(endpoint.returns)
        }
        assert result - {"/status"} <= BOUNDED

    run_scenario(tmp_path, scenario, loops=False)


def test_metrics_keep_the_first_names_within_the_point_limit() -> None:
    columns = _SeriesSelection(None, "b", 2)
    reader = columns.reader()
    for name in ("z", "y", "a", "c", "d", "e"):
        reader.feed(pack_definition(name) + pack_point(POINT, series_id(name), 1, 0.0, 1.0))
        reader.feed(pack_point(POINT, series_id("z"), 2, 0.0, 1.0))
    assert {name: list(series.steps) for name, series in columns.series.items()} == {"c": [1], "d": [1]}
    for step in range(2, 90):
        reader.feed(pack_point(POINT, series_id("c"), step, 0.0, float(step)))
    before = len(columns.series["c"].values)
    downsample_together(list(columns.series.values()), 100)
    series = columns.series["c"]
    assert len(series.values) <= 25
    assert (series.count + len(series.values), series.steps[0], series.steps[-1]) == (before, 1, 89)
