"""Why a run waits, through the API."""

from __future__ import annotations

from pathlib import Path

from tests.server.stage import Stage, play, role


def test_a_waiting_run_says_what_it_waits_for_and_when_it_starts(tmp_path: Path) -> None:
    async def scene(stage: Stage) -> None:
        blocking = await stage.started(roles=[role(gpus=1)], time_limit_s=3600.0)
        wide = await stage.submit(roles=[role(gpus=2)], time_limit_s=600.0)
        told = await stage.ask("GET", f"/runs/{wide['id']}/why")
        assert (told["phase"], told["reason"], told["position"], told["waiting"]) == (
            "queued",
            "no-capacity",
            1,
            1,
        )
        assert told["detail"] and told["queue"] == "default"
        blocker = next(one for one in told["blocked_by"] if one["kind"] == "run")
        assert (blocker["name"], blocker["id"]) == (blocking["name"], blocking["id"]) and blocker["until"]
        assert told["expected"]["low_at"] <= told["expected"]["mid_at"] <= told["expected"]["high_at"]
        assert told["promised_at"] >= told["expected"]["mid_at"]
        assert "with 1 GPU: now" in [line["text"] for line in told["what_if"]]

    play(tmp_path, scene)


def test_a_run_that_does_not_wait_says_where_it_stands(tmp_path: Path) -> None:
    async def scene(stage: Stage) -> None:
        run = await stage.started()
        told = await stage.ask("GET", f"/runs/{run['id']}/why")
        assert told["detail"] in (
            "it is not waiting: it is being prepared on box",
            "it is not waiting: it is running on box",
        )
        assert told["what_if"] == [] and told["expected"] is None
        other = await stage.started()
        await stage.ask("GET", f"/runs/{run['id']}/why", token=stage.token_of(other), status=403)
        await stage.finish(run, code=3)
        ended = await stage.ask("GET", f"/runs/{run['id']}/why")
        assert ended["detail"] == "it is not waiting: it has ended (failed): exit code 3"
        await stage.ask("GET", f"/runs/{run['id']}/why", token=stage.token_of(run), status=401)
        await stage.ask("GET", "/runs/0000000000/why", status=404)

    play(tmp_path, scene)


def test_without_a_node_nothing_is_expected(tmp_path: Path) -> None:
    async def scene(stage: Stage) -> None:
        run = await stage.submit(roles=[role(gpus=2)])
        told = await stage.ask("GET", f"/runs/{run['id']}/why")
        assert (told["phase"], told["reason"], told["expected"]) == ("queued", "no-nodes", None)

    play(tmp_path, scene, loops=False)
