"""Why a run waits, through the API."""

from __future__ import annotations

from pathlib import Path

from tests.server.api_server import ApiServer, role, run_scenario


def test_pending_run_has_blockers_and_an_expected_start(tmp_path: Path) -> None:
    async def scenario(api: ApiServer) -> None:
        blocking = await api.start_run(roles=[role(gpus=1)], time_limit_s=3600.0)
        wide = await api.submit(roles=[role(gpus=2)], time_limit_s=600.0)
        response = await api.request("GET", f"/runs/{wide['id']}/why")
        assert (response["phase"], response["reason"], response["position"], response["waiting"]) == (
            "queued",
            "no-capacity",
            1,
            1,
        )
        assert response["detail"] and response["queue"] == "default"
        blocker = next(blocker for blocker in response["blocked_by"] if blocker["kind"] == "run")
        assert (blocker["name"], blocker["id"]) == (blocking["name"], blocking["id"]) and blocker["until"]
        assert (
            response["expected"]["low_at"]
            <= response["expected"]["mid_at"]
            <= response["expected"]["high_at"]
        )
        assert response["promised_at"] >= response["expected"]["mid_at"]
        assert "with 1 GPU: now" in [line["text"] for line in response["what_if"]]

    run_scenario(tmp_path, scenario)


def test_run_that_is_not_pending_has_its_state(tmp_path: Path) -> None:
    async def scenario(api: ApiServer) -> None:
        run = await api.start_run()
        response = await api.request("GET", f"/runs/{run['id']}/why")
        assert response["detail"] in (
            "it is not waiting: it is being prepared on box",
            "it is not waiting: it is running on box",
        )
        assert response["what_if"] == [] and response["expected"] is None
        other = await api.start_run()
        await api.request("GET", f"/runs/{run['id']}/why", token=api.run_token(other), status=403)
        await api.finish(run, code=3)
        ended = await api.request("GET", f"/runs/{run['id']}/why")
        assert ended["detail"] == "it is not waiting: it has ended (failed): exit code 3"
        await api.request("GET", f"/runs/{run['id']}/why", token=api.run_token(run), status=401)
        await api.request("GET", "/runs/0000000000/why", status=404)

    run_scenario(tmp_path, scenario)


def test_without_nodes_there_is_no_expected_start(tmp_path: Path) -> None:
    async def scenario(api: ApiServer) -> None:
        run = await api.submit(roles=[role(gpus=2)])
        response = await api.request("GET", f"/runs/{run['id']}/why")
        assert (response["phase"], response["reason"], response["expected"]) == ("queued", "no-nodes", None)

    run_scenario(tmp_path, scenario, loops=False)
