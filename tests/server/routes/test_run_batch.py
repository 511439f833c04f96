"""One request that changes many runs."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from hopyard.server.authentication import hash_token
from tests.server.api_server import ApiServer, run_scenario

BOB = "hop_" + "b" * 43


async def batch(api: ApiServer, runs: list[Any], action: str, **fields: Any) -> Any:
    body = {"runs": [run["id"] for run in runs], "action": action, **fields}
    return await api.request("POST", "/runs/batch", body)


def test_each_run_has_a_result_and_an_audit_record(tmp_path: Path) -> None:
    async def scenario(api: ApiServer) -> None:
        first, second = [await api.submit(plan=0, tags={"old": "1"}) for _ in range(2)]
        missing = {"id": first["id"][:-1] + ("0" if first["id"][-1] != "0" else "1")}
        answer = await batch(
            api, [first, missing, first, second], "tag", tags={"team": "a"}, untag=["old", "none"]
        )
        assert [(each["name"], each["done"]) for each in answer["results"]] == [
            (first["name"], True),
            (None, False),
            (second["name"], True),
        ]
        assert answer["results"][1]["error"]["code"] == "not_found"
        tags = [(await api.request("GET", f"/runs/{run['id']}"))["spec"]["tags"] for run in (first, second)]
        assert tags == [{"team": "a"}] * 2
        assert (await batch(api, [first], "archive"))["results"][0]["error"]["code"] == "conflict"
        stopped = await batch(api, [first, second], "stop")
        assert [each["changes"] for each in stopped["results"]] == [["stopped"]] * 2
        again = await batch(api, [first, second], "stop")
        assert [(each["done"], each["changes"]) for each in again["results"]] == [(True, [])] * 2
        await batch(api, [first], "archive")
        records = (await api.request("GET", "/audit"))["records"]
        seen = {(record["action"], record["target"]) for record in records}
        assert {("run.stop", first["name"]), ("run.stop", second["name"])} <= seen
        assert ("run.update", first["name"]) in seen

    run_scenario(tmp_path, scenario, loops=False)


def test_refused_runs_do_not_stop_the_others(tmp_path: Path) -> None:
    async def scenario(api: ApiServer) -> None:
        await api.services.access.add_token("bob", hash_token(BOB), now=api.services.now(), name="bob")
        mine = await api.submit(plan=0)
        body = {"spec": {"project": "p", "roles": [{"command": ["true"]}]}}
        of_bob = await api.request("POST", "/runs", body, token=BOB)
        runs = {"runs": [mine["id"], of_bob["id"]], "action": "stop"}
        answer = await api.request("POST", "/runs/batch", runs, token=BOB)
        assert [each["done"] for each in answer["results"]] == [False, True]
        assert answer["results"][0]["error"]["code"] == "forbidden"
        for body in (
            {"runs": [], "action": "stop"},
            {"runs": ["x"] * 1001, "action": "stop"},
            {"runs": [mine["id"]], "action": "eat"},
            {"runs": [mine["id"]], "action": "stop", "tags": {"a": "b"}},
            {"runs": [mine["id"]], "action": "tag"},
            {"runs": [mine["id"]], "action": "stop", "dry_run": True},
        ):
            assert (await api.send("POST", "/runs/batch", body)).status_code in (400, 422), body

    run_scenario(tmp_path, scenario, loops=False)


def test_deletion_tells_what_it_frees(tmp_path: Path) -> None:
    async def scenario(api: ApiServer) -> None:
        shared, own = await api.put_tree({"a": b"s" * 1000}), await api.put_tree({"a": b"o" * 500})
        first = await api.start_run(code=shared)
        await api.finish(first, segments=[("stdout", 0, b"x" * 70)])
        second = await api.start_run(code=own)
        await api.finish(second, segments=[("stdout", 0, b"x" * 7)])
        third = await api.submit(code=shared)

        async def frees(*runs: Any) -> int:
            answer = await batch(api, list(runs), "delete", dry_run=True)
            return int(answer["frees_bytes"])

        assert await frees(first) == 70, "the third run still needs its code"
        assert await frees(first, second) == 577
        live = await batch(api, [third], "delete", dry_run=True)
        assert (live["results"][0]["error"]["code"], live["frees_bytes"]) == ("conflict", 0)
        assert (await api.request("GET", f"/runs/{first['id']}"))["name"] == first["name"]
        deleted = await batch(api, [first, second, third], "delete")
        assert [each["done"] for each in deleted["results"]] == [True, True, False]
        await api.request("GET", f"/runs/{first['id']}", status=404)

    run_scenario(tmp_path, scenario)


def test_archived_runs_are_listed_on_request_and_stars_are_private(tmp_path: Path) -> None:
    async def scenario(api: ApiServer) -> None:
        await api.services.access.add_token("bob", hash_token(BOB), now=api.services.now(), name="bob")
        kept, archived = [await api.submit(plan=0, label=label) for label in ("kept", "archived")]
        await batch(api, [kept, archived], "stop")

        async def listed(token: str | None = None, **query: Any) -> list[str]:
            more = {} if token is None else {"token": token}
            page = await api.request("GET", "/runs", **more, **query)
            return [run["spec"]["label"] for run in page["runs"]]

        changed = await api.request("PATCH", f"/runs/{archived['id']}", {"archived": True})
        assert (changed["changes"], changed["run"]["archived"]) == (["archived"], True)
        assert await listed() == ["kept"]
        assert await listed(archived="only") == ["archived"]
        assert await listed(archived="any") == ["archived", "kept"]
        assert await listed(where="archived = true") == ["archived"]
        assert await listed(where="phase = cancelled") == ["kept"]
        await api.request("PUT", f"/runs/{archived['id']}/star")
        assert await listed(starred=1) == ["archived"]
        assert await listed(starred=1, token=BOB) == []
        assert (await api.request("GET", f"/runs/{archived['id']}"))["starred"] is True
        assert (await api.request("GET", f"/runs/{archived['id']}", token=BOB))["starred"] is False
        await api.request("DELETE", f"/runs/{archived['id']}/star")
        assert await listed(starred=1) == []
        await api.request("PUT", f"/runs/{'0' * 26}/star", status=404)
        await batch(api, [archived], "unarchive")
        assert await listed() == ["archived", "kept"]

    run_scenario(tmp_path, scenario, loops=False)
