"""`GET /timeline` and `GET /calendar`: what ran, what is promised, and occurrences of reservations."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from tests.server.api_server import ApiServer, role, run_scenario

START = datetime(2031, 3, 3, 9, tzinfo=UTC)


def test_timeline_lists_ended_live_and_promised_runs(tmp_path: Path) -> None:
    async def scenario(api: ApiServer) -> None:
        ended = await api.start_run(roles=[role(gpus=1)])
        await api.finish(ended)
        # the engine of the tests holds its GPU until then
        await api.wait_until(lambda: f"{ended['id']}.1" in api.engine.forgotten)
        live = await api.start_run(roles=[role(gpus=2)], time_limit_s=3600)
        waits = await api.submit(roles=[role(gpus=2)], time_limit_s=3600)

        async def is_settled() -> bool:
            promised = (await api.request("GET", f"/runs/{waits['id']}"))["promised_at"]
            phase = (await api.request("GET", f"/runs/{live['id']}"))["phase"]
            return bool(promised) and phase == "running"

        await api.wait_until(is_settled)
        spans = (await api.request("GET", "/timeline"))["spans"]
        assert [(span["run"], span["state"], span["attempt"]) for span in spans] == [
            (waits["id"], "promised", None),
            (live["id"], "live", 1),
            (ended["id"], "ended", 1),
        ]
        assert [span["total_gpu_milli"] for span in spans] == [2000, 2000, 1000]
        assert (spans[1]["nodes"], spans[1]["gpu_milli"], spans[1]["phase"]) == (["box"], [2000], "running")
        assert spans[1]["end_at"] > spans[1]["start_at"]
        first = await api.request("GET", "/timeline", limit=1)
        rest = await api.request("GET", "/timeline", limit=1, after=first["next"])
        assert [span["run"] for span in rest["spans"]] == [ended["id"]] and rest["next"] is None
        assert (await api.request("GET", "/timeline", node="other"))["spans"] == []
        assert len((await api.request("GET", "/timeline", queue="default"))["spans"]) == 3

    run_scenario(tmp_path, scenario)


def test_calendar_lists_each_occurrence_in_pages(tmp_path: Path) -> None:
    async def scenario(api: ApiServer) -> None:
        for name, start, every in (("daily", START, 86400), ("once", START + timedelta(days=1), 0)):
            await api.request(
                "POST",
                "/reservations",
                {
                    "name": name,
                    "users": ["alice"],
                    "every_s": every,
                    "resources": {"cpu_milli": 1000},
                    "start_at": start.isoformat(),
                    "end_at": (start + timedelta(hours=1)).isoformat(),
                },
            )
        span = {"since": START.isoformat(), "until": (START + timedelta(days=3)).isoformat()}
        found: list[tuple[str, str]] = []
        after: dict[str, Any] = {}
        while True:
            page = await api.request("GET", "/calendar", limit=2, **span, **after)
            found += [(each["reservation"], each["start_at"][:10]) for each in page["occurrences"]]
            if page["next"] is None:
                break
            after = {"after": page["next"]}
        assert found == [
            ("daily", "2031-03-03"),
            ("daily", "2031-03-04"),
            ("once", "2031-03-04"),
            ("daily", "2031-03-05"),
        ]

    run_scenario(tmp_path, scenario)


def test_ranges_cursors_and_queues_are_checked(tmp_path: Path) -> None:
    async def scenario(api: ApiServer) -> None:
        for path in ("/timeline", "/calendar"):
            empty = {"since": "2030-01-02T00:00:00Z", "until": "2030-01-01T00:00:00Z"}
            await api.request("GET", path, status=400, **empty)
            long = {"since": "2030-01-01T00:00:00Z", "until": "2032-01-01T00:00:00Z"}
            assert "400 days" in (await api.request("GET", path, status=400, **long))["error"]["message"]
            await api.request("GET", path, after="yesterday", status=400)
        answer = await api.request("GET", "/timeline", queue="defualt", status=404)
        assert answer["error"]["hints"] == ["did you mean `default`?"]

    run_scenario(tmp_path, scenario, loops=False)
