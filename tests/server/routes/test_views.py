"""Views that users keep."""

from __future__ import annotations

from pathlib import Path

from hopyard.server.authentication import hash_token
from tests.server.api_server import ApiServer, run_scenario

BOB = "hop_" + "b" * 43
VIEW = {"where": "acc > 0.9", "sort": "-acc", "columns": ["name", "acc"], "page": None}


def test_views_are_kept_shared_and_removed(tmp_path: Path) -> None:
    async def scenario(api: ApiServer) -> None:
        await api.services.access.add_token("bob", hash_token(BOB), now=api.services.now(), name="bob")
        made = await api.request("PUT", "/views/best runs", {"view": VIEW})
        assert (made["user"], made["name"], made["shared"], made["view"]) == (
            "alice",
            "best runs",
            False,
            VIEW,
        )
        assert await api.request("GET", "/views/best runs") == made
        await api.request("GET", "/views/best runs", user="alice", token=BOB, status=404)
        assert (await api.request("GET", "/views", token=BOB))["views"] == []
        await api.request("PUT", "/views/best runs", {"view": {}, "shared": True})
        seen = await api.request("GET", "/views/best runs", user="alice", token=BOB)
        assert seen["view"] == {}
        assert [each["user"] for each in (await api.request("GET", "/views", token=BOB))["views"]] == [
            "alice"
        ]
        await api.request("DELETE", "/views/best runs", token=BOB, status=404)
        await api.request("DELETE", "/views/best runs")
        await api.request("GET", "/views/best runs", status=404)
        actions = [record["action"] for record in (await api.request("GET", "/audit"))["records"]]
        assert {"view.apply", "view.delete"} <= set(actions)

    run_scenario(tmp_path, scenario, loops=False)


def test_lost_change_of_a_view_is_a_conflict(tmp_path: Path) -> None:
    async def scenario(api: ApiServer) -> None:
        made = await api.request("PUT", "/views/a", {"view": VIEW, "revision": 0})
        assert made["revision"] == 1
        mine = await api.request("PUT", "/views/a", {"view": {"sort": "acc"}, "revision": 1})
        refused = await api.request("PUT", "/views/a", {"view": {}, "revision": 1}, status=409)
        assert refused["error"]["code"] == "conflict" and "revision 2" in refused["error"]["message"]
        await api.request("DELETE", "/views/a", revision=1, status=409)
        assert (
            await api.request("GET", "/views/a") == mine == (await api.request("GET", "/views"))["views"][0]
        )
        assert (await api.request("PUT", "/views/a", {"view": {}}))["revision"] == 3, "without a revision"
        await api.request("DELETE", "/views/a", revision=3)
        await api.request("PUT", "/views/a", {"view": {}, "revision": 3}, status=409)

    run_scenario(tmp_path, scenario, loops=False)


def test_bad_views_are_refused(tmp_path: Path) -> None:
    async def scenario(api: ApiServer) -> None:
        for body in ({}, {"view": []}, {"view": {}, "more": 1}, {"view": {"a": "x" * 65536}}):
            assert (await api.send("PUT", "/views/a", body)).status_code in (400, 422), str(body)[:50]
        for name in (".hidden", "x" * 129):
            assert (await api.send("PUT", f"/views/{name}", {"view": {}})).status_code == 404, name
        fits = {"a": "x" * (65536 - len('{"a":""}'))}
        await api.request("PUT", "/views/a", {"view": fits})

    run_scenario(tmp_path, scenario, loops=False)
