"""`GET /usage`: sums of what runs held, also of those that are gone."""

from __future__ import annotations

from pathlib import Path

from tests.server.stage import Stage, play, role


def test_usage_is_summed_by_what_is_asked_for_and_survives_removal(tmp_path: Path) -> None:
    async def scene(stage: Stage) -> None:
        run = await stage.started(project="vision", roles=[role(cpu_milli=2000, gpus=1)])
        live = await stage.ask("GET", "/usage", by="user,queue,project")
        assert [(one["user"], one["queue"], one["project"], one["attempts"]) for one in live["usage"]] == [
            ("alice", "default", "vision", 1)
        ]
        await stage.finish(run)
        (ended,) = (await stage.ask("GET", "/usage", by="project", since=live["since"]))["usage"]
        assert (ended["user"], ended["queue"], ended["project"]) == (None, None, "vision")
        assert ended["gpu_s"] == ended["held_s"] and ended["cpu_s"] == 2 * ended["held_s"] > 0
        await stage.ask("DELETE", f"/runs/{run['id']}")
        (after,) = (await stage.ask("GET", "/usage", by="project", since=live["since"]))["usage"]
        assert after["gpu_s"] == ended["gpu_s"]

    play(tmp_path, scene)


def test_usage_refuses_empty_spans_too_many_pieces_and_unknown_keys(tmp_path: Path) -> None:
    async def scene(stage: Stage) -> None:
        empty = await stage.ask("GET", "/usage", since="2030-01-01T00:00:00Z", status=400)
        assert "must be before" in empty["error"]["message"] and empty["error"]["hints"]
        await stage.ask("GET", "/usage", since="1970-01-01T00:00:00Z", per="day", status=400)
        await stage.ask("GET", "/usage", by="user,colour", status=422)

    play(tmp_path, scene, loops=False)
