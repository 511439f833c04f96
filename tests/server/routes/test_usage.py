"""`GET /usage`: usage of runs, including deleted ones."""

from __future__ import annotations

from pathlib import Path

from tests.server.api_server import ApiServer, role, run_scenario


def test_usage_is_grouped_by_keys_and_survives_deletion(tmp_path: Path) -> None:
    async def scenario(api: ApiServer) -> None:
        run = await api.start_run(project="vision", roles=[role(cpu_milli=2000, gpus=1)])
        live = await api.request("GET", "/usage", by="user,queue,project")
        assert [(row["user"], row["queue"], row["project"], row["attempts"]) for row in live["usage"]] == [
            ("alice", "default", "vision", 1)
        ]
        await api.finish(run)
        (ended,) = (await api.request("GET", "/usage", by="project", since=live["since"]))["usage"]
        assert (ended["user"], ended["queue"], ended["project"]) == (None, None, "vision")
        assert ended["gpu_s"] == ended["held_s"] and ended["cpu_s"] == 2 * ended["held_s"] > 0
        await api.request("DELETE", f"/runs/{run['id']}")
        (after,) = (await api.request("GET", "/usage", by="project", since=live["since"]))["usage"]
        assert after["gpu_s"] == ended["gpu_s"]

    run_scenario(tmp_path, scenario)


def test_usage_refuses_empty_ranges_too_many_buckets_and_unknown_keys(tmp_path: Path) -> None:
    async def scenario(api: ApiServer) -> None:
        empty = await api.request("GET", "/usage", since="2030-01-01T00:00:00Z", status=400)
        assert "must be before" in empty["error"]["message"] and empty["error"]["hints"]
        await api.request("GET", "/usage", since="1970-01-01T00:00:00Z", per="day", status=400)
        await api.request("GET", "/usage", by="user,colour", status=422)

    run_scenario(tmp_path, scenario, loops=False)
