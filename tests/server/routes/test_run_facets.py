"""Counts of runs by value, names of their values, several runs in one request, and the check of a query."""

from __future__ import annotations

from pathlib import Path

from hopyard.domain.metric_records import POINT, pack_definition, pack_point, series_id
from tests.server.api_server import ApiServer, run_scenario


def test_runs_are_counted_by_value_under_the_filters_of_the_listing(tmp_path: Path) -> None:
    async def scenario(api: ApiServer) -> None:
        for number, team in enumerate(("vision", "vision", "nlp")):
            tags = {"team": team} if number else {}
            await api.submit(params={"lr": 0.1, "flag": number == 2}, tags=tags, plan=0)
        other = await api.submit(label="base", plan=0)
        query = {"by": ["tags.team", "params.lr", "params.flag", "label", "dataset", "user"]}
        found = await api.request("GET", "/runs/counts", **query)
        assert found["total"] == 4
        facets = {
            facet["by"]: [(each["value"], each["count"]) for each in facet["values"]]
            for facet in found["facets"]
        }
        assert facets["tags.team"] == [(None, 2), ("nlp", 1), ("vision", 1)]
        assert facets["params.lr"] == [(0.1, 3), (None, 1)]
        assert facets["params.flag"] == [("false", 2), (None, 1), ("true", 1)]
        assert facets["label"] == [(None, 3), ("base", 1)]
        assert facets["dataset"] == [(None, 4)]
        assert [count for _, count in facets["user"]] == [4]

        found = await api.request("GET", "/runs/counts", by="tags.team", where="params.lr = 0.1", limit=1)
        assert found == {
            "total": 3,
            "facets": [{"by": "tags.team", "values": [{"value": None, "count": 1}], "distinct": 3}],
        }
        by_phase = await api.request("GET", "/runs/counts", by="phase", id=[other["id"]])
        assert by_phase["total"] == 1
        mistyped = await api.request("GET", "/runs/counts", by="phase", where="params.lrr > 1", status=400)
        assert mistyped["error"]["hints"] == ["did you mean `params.lr`?"]
        await api.request("GET", "/runs/counts", by="weather", status=422)
        await api.request("GET", "/runs/counts", status=422)

    run_scenario(tmp_path, scenario)


def test_names_have_the_number_of_runs_that_have_them(tmp_path: Path) -> None:
    async def scenario(api: ApiServer) -> None:
        run = await api.start_run(params={"lr": 0.1, "epochs": 3}, tags={"team": "nlp"})
        await api.submit(params={"lr": 0.2}, plan=0)
        points = pack_definition("loss") + pack_point(POINT, series_id("loss"), 1, 1.0, 0.5)
        await api.finish(run, segments=[("metrics", 0, points)])
        found = await api.request("GET", "/runs/names")
        assert (found["total"], found["has_more"]) == (2, False)
        assert "phase" in found["fields"]
        assert found["params"] == [{"name": "lr", "count": 2}, {"name": "epochs", "count": 1}]
        assert found["tags"] == [{"name": "team", "count": 1}]
        assert found["metrics"] == [{"name": "loss", "count": 1}]
        found = await api.request("GET", "/runs/names", where="tags.team = nlp", match="E", limit=1)
        assert (found["total"], found["params"]) == (1, [{"name": "epochs", "count": 1}])
        assert (await api.request("GET", "/runs/names", limit=1))["has_more"]

    run_scenario(tmp_path, scenario)


def test_several_runs_are_listed_by_id(tmp_path: Path) -> None:
    async def scenario(api: ApiServer) -> None:
        runs = [(await api.submit(plan=0))["id"] for _ in range(3)]
        listed = await api.request("GET", "/runs", id=[runs[0], runs[2], "unknownrun"], limit=1)
        assert [run["id"] for run in listed["runs"]] == [runs[2], runs[0]]
        assert listed["next"] is None
        listed = await api.request("GET", "/runs", id=runs, where="number > 2")
        assert [run["id"] for run in listed["runs"]] == [runs[2]]
        await api.request("GET", "/runs", id=["unknownrun"] * 101, status=422)
        refused = await api.request(
            "POST",
            "/runs",
            {"id": "counts", "spec": {"project": "p", "roles": [{"command": ["x"]}]}},
            status=400,
        )
        assert "reserved" in refused["error"]["message"]

    run_scenario(tmp_path, scenario)


def test_check_of_a_query_has_the_position_of_the_mistake(tmp_path: Path) -> None:
    async def scenario(api: ApiServer) -> None:
        async def check(where: str) -> tuple[int | None, str] | list[str]:
            found = await api.request("GET", "/runs/query/check", where=where)
            problem = found["problem"]
            if problem is None:
                return list(found["names"])
            assert problem["message"].startswith("where: ")
            assert problem["hints"] or problem["position"] is None
            start = problem["position"]
            return start, where[start or 0 : (start or 0) + problem["length"]]

        assert await check("val_acc > 0.9 and params.lr < 1e-3") == ["val_acc", "params.lr"]
        assert await check("loss < 1 and 3 > lr") == (13, "3")
        assert await check("phase = runing") == (8, "runing")
        assert await check("loss <") == (6, "")
        assert await check("loss < 'open text") == (7, "'open")
        assert await check("(" * 60 + "a" + ")" * 60) == (None, "")

    run_scenario(tmp_path, scenario)
