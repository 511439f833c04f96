"""The inbox of a user: alerts and ends of the user's runs."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from hopyard.server.authentication import hash_token
from tests.server.api_server import ApiServer, run_scenario

BOB = "hop_" + "b" * 43


async def inbox(api: ApiServer, **query: Any) -> dict[str, Any]:
    result: dict[str, Any] = await api.request("GET", "/inbox", **query)
    return result


def test_alerts_are_listed_unread_until_they_are_read(tmp_path: Path) -> None:
    async def scenario(api: ApiServer) -> None:
        await api.services.access.add_token("bob", hash_token(BOB), now=api.services.now(), name="bob")
        run = await api.submit()
        assert await inbox(api) == {"entries": [], "unread": 0, "read_at": None, "next": None}
        for text in ("loss is NaN", "<b>still</b>"):
            body = {"text": text, "title": "diverged", "level": "error"}
            await api.request("POST", f"/runs/{run['id']}/alerts", body, status=201)
        first = await inbox(api, limit=1)
        second = await inbox(api, limit=1, before=first["next"])
        entries = [*first["entries"], *second["entries"]]
        assert {entry["text"] for entry in entries} == {"loss is NaN", "<b>still</b>"}
        assert second["next"] is None
        for entry in entries:
            assert (entry["kind"], entry["level"], entry["title"]) == ("alert", "error", "diverged")
            assert (entry["run"], entry["name"], entry["unread"]) == (run["id"], run["name"], True)
        assert first["unread"] == 2

        # of another user: they may be read, and have a mark of their own
        assert (await inbox(api, token=BOB))["entries"] == []
        assert (await inbox(api, token=BOB, user="alice"))["unread"] == 2
        newest = first["entries"][0]["at"]
        await api.request("PUT", "/inbox/read", {"until": newest}, token=BOB)
        assert (await inbox(api))["unread"] == 2
        marked = await api.request("PUT", "/inbox/read", {"until": newest})
        seen = await inbox(api)
        assert (seen["unread"], seen["read_at"]) == (0, marked["read_at"])
        assert not any(entry["unread"] for entry in seen["entries"])

        # a mark in the future would hide what comes
        later = await api.request("PUT", "/inbox/read", {"until": "2999-01-01T00:00:00Z"})
        assert later["read_at"] < "2999"

    run_scenario(tmp_path, scenario, loops=False)


def test_bad_cursors_and_times_are_refused(tmp_path: Path) -> None:
    async def scenario(api: ApiServer) -> None:
        for before in ("x", "1/../end", "1/abcdefgh/other", f"{'9' * 17}/abcdefgh/end"):
            await api.request("GET", "/inbox", before=before, status=422)
        assert (await inbox(api, before=f"{'9' * 16}/abcdefgh/end"))["entries"] == []
        await api.request("GET", "/inbox", limit=201, status=422)
        await api.request("PUT", "/inbox/read", {"until": "yesterday"}, status=422)

    run_scenario(tmp_path, scenario, loops=False)
