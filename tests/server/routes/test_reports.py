"""Reports over the API: stored, shared, changed by several users, and exported."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from hopyard.domain.metric_records import POINT, pack_definition, pack_point, series_id
from hopyard.server.authentication import hash_token
from tests.server.api_server import ApiServer, run_scenario

BOB = "hop_" + "b" * 43
TEXT = {"type": "text", "text": "# Loss\n\nIt falls."}
HOSTILE = "<script>alert(1)</script>\"'><img src=x onerror=alert(1)>"


def content(report: Any, **changes: Any) -> dict[str, Any]:
    return {key: report[key] for key in ("title", "access", "blocks", "revision")} | changes


async def add_bob(api: ApiServer) -> None:
    await api.services.access.add_token("bob", hash_token(BOB), now=api.services.now(), name="bob")


def test_report_is_created_changed_listed_and_removed(tmp_path: Path) -> None:
    async def scenario(api: ApiServer) -> None:
        made = await api.request(
            "POST", "/reports", {"title": "Loss", "blocks": [TEXT, {"type": "curves"}]}, status=201
        )
        assert (made["user"], made["revision"], made["access"], made["may_write"]) == (
            "alice",
            1,
            "private",
            True,
        )
        assert made["blocks"][1]["x"] == "step"  # as it was stored, with the defaults
        path = f"/reports/{made['id']}"
        assert await api.request("GET", path) == made
        changed = await api.request("PUT", path, content(made, title="Loss 2"))
        assert (changed["revision"], changed["title"]) == (2, "Loss 2")
        await api.request("POST", "/reports", {"title": "Other"})
        page = await api.request("GET", "/reports", search="loss")
        assert [each["title"] for each in page["reports"]] == ["Loss 2"]
        assert "blocks" not in page["reports"][0]
        first = await api.request("GET", "/reports", limit=1)
        second = await api.request("GET", "/reports", limit=1, after=first["next"])
        assert [each["title"] for each in first["reports"] + second["reports"]] == ["Other", "Loss 2"]
        assert second["next"] is None
        await api.request("DELETE", path)
        await api.request("GET", path, status=404)
        actions = [record["action"] for record in (await api.request("GET", "/audit"))["records"]]
        assert {"report.create", "report.apply", "report.delete"} <= set(actions)

    run_scenario(tmp_path, scenario, loops=False)


def test_two_editors_never_overwrite_each_other(tmp_path: Path) -> None:
    async def scenario(api: ApiServer) -> None:
        await add_bob(api)
        made = await api.request("POST", "/reports", {"access": "write", "blocks": [TEXT]})
        path = f"/reports/{made['id']}"
        theirs = await api.request("PUT", path, content(made, title="of bob"), token=BOB)
        error = await api.request("PUT", path, content(made, title="of alice"), status=409)
        assert "revision 2 by bob" in error["error"]["message"]
        assert (await api.request("GET", path))["title"] == "of bob"
        # the response was lost, and the client repeats the request
        assert await api.request("PUT", path, content(made, title="of bob"), token=BOB) == theirs
        mine = await api.request("PUT", path, content(made, title="of alice", revision=2))
        found = (await api.request("GET", path + "/revisions"))["revisions"]
        assert [(each["revision"], each["updated_by"]) for each in found] == [
            (3, "alice"),
            (2, "bob"),
            (1, "alice"),
        ]
        assert mine["revision"] == 3
        assert (await api.request("GET", path + "/revisions/2"))["title"] == "of bob"
        await api.request("GET", path + "/revisions/9", status=404)

    run_scenario(tmp_path, scenario, loops=False)


def test_access_of_other_users(tmp_path: Path) -> None:
    async def scenario(api: ApiServer) -> None:
        await add_bob(api)
        made = await api.request("POST", "/reports", {"title": "mine", "blocks": [TEXT]})
        path = f"/reports/{made['id']}"
        for suffix in ("", "/revisions", "/revisions/1", "/export"):
            await api.request("GET", path + suffix, token=BOB, status=404)
        await api.request("PUT", path, content(made), token=BOB, status=404)
        await api.request("DELETE", path, token=BOB, status=404)
        assert (await api.request("GET", "/reports", token=BOB))["reports"] == []
        made = await api.request("PUT", path, content(made, access="read"))
        seen = await api.request("GET", path, token=BOB)
        assert (seen["may_write"], seen["blocks"]) == (False, made["blocks"])
        await api.request("PUT", path, content(made, title="x"), token=BOB, status=403)
        made = await api.request("PUT", path, content(made, access="write"))
        made = await api.request("PUT", path, content(made, title="by bob"), token=BOB)
        assert (made["user"], made["updated_by"], made["may_write"]) == ("alice", "bob", True)
        await api.request("PUT", path, content(made, access="private"), token=BOB, status=403)
        await api.request("DELETE", path, token=BOB, status=403)
        of_bob = await api.request("POST", "/reports", {"access": "read"}, token=BOB)
        await api.request("DELETE", f"/reports/{of_bob['id']}")  # alice owns the server

    run_scenario(tmp_path, scenario, loops=False)


def test_invalid_reports_are_refused(tmp_path: Path) -> None:
    async def scenario(api: ApiServer) -> None:
        for block in (
            {"type": "nothing"},
            {"type": "text", "html": "<b>"},
            {"type": "text", "text": "x" * 65537},
            {"type": "curves", "runs": ["../etc"]},
            {"type": "curves", "x": "moon"},
            {"type": "curves", "smoothing": 1},
            {"type": "table", "columns": ["a.b"]},
            {"type": "leaderboard", "dataset": "../x"},
        ):
            answer = await api.send("POST", "/reports", {"blocks": [block]})
            assert answer.status_code == 422, block
            assert "blocks.0" in answer.json()["error"]["message"], answer.text
        long = [{"type": "text", "text": "x" * 60000}] * 5
        assert (await api.send("POST", "/reports", {"blocks": long})).status_code == 400
        many = [
            {"type": "table", "runs": [f"run{first + number:06}" for number in range(100)]}
            for first in range(0, 1100, 100)
        ]
        assert (await api.send("POST", "/reports", {"blocks": many})).status_code == 400
        assert (await api.send("POST", "/reports", {"title": "a\nb"})).status_code == 422
        for name in ("0" * 16, "x"):
            assert (await api.send("GET", f"/reports/{name}")).status_code == 404, name

    run_scenario(tmp_path, scenario, loops=False)


def test_export_is_one_page_without_scripts(tmp_path: Path) -> None:
    async def scenario(api: ApiServer) -> None:
        run = await api.start_run(label="<b>bold</b>", params={"lr": 0.1, "name": HOSTILE})
        points = [
            pack_point(POINT, series_id("loss"), step, 1000.0 + step, 1 / (step + 1)) for step in range(5)
        ]
        await api.sync(run, [("metrics", 0, pack_definition("loss") + b"".join(points))])
        blocks = [
            {"type": "text", "text": f"# Head\n\n$x^2$ {HOSTILE} [a](javascript:alert(1))"},
            {"type": "curves", "title": HOSTILE, "runs": [run["id"]], "metrics": ["loss", HOSTILE]},
            {"type": "table", "runs": [run["id"]], "columns": ["name", "label", "params.name"]},
            {"type": "scatter", "runs": [run["id"]], "x": "params.lr", "y": "metrics.loss"},
            {"type": "parallel", "runs": [run["id"]], "columns": ["params.lr", "metrics.loss"]},
            {"type": "media", "runs": [run["id"]], "names": ["picture"]},
            {"type": "leaderboard", "dataset": "nothing"},
            {"type": "table", "runs": ["gone-run"], "columns": ["name"]},
        ]
        made = await api.request("POST", "/reports", {"title": HOSTILE, "blocks": blocks})
        answer = await api.send("GET", f"/reports/{made['id']}/export")
        page = answer.text
        assert answer.headers["content-security-policy"].startswith("sandbox")
        assert answer.headers["content-disposition"].startswith("attachment")
        assert "default-src 'none'" in page.partition("<style>")[0]
        for refused in ("<script", "<img", "onerror=alert(1)>", 'javascript:alert(1)"', "<b>bold"):
            assert refused not in page, refused
        assert "<msup><mi>x</mi><mn>2</mn></msup>" in page
        assert 'aria-label="loss"' in page
        assert page.count('<ul class="legend">') == 2  # of the curves and of the parallel coordinates
        assert "&lt;b&gt;bold&lt;/b&gt;" in page
        assert page.count("Nothing to show") == 3

    run_scenario(tmp_path, scenario)
