"""Commands to live runs: accepted, delivered with the sync, answered by an event of the script."""

from __future__ import annotations

import asyncio
import json
import math
import time
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from hopyard.server.authentication import hash_token
from tests.server.api_server import ApiServer, run_scenario


def event(**fields: Any) -> bytes:
    return json.dumps({"t": 1_700_000_000.0, **fields}).encode() + b"\n"


def answer(number: int, step: int, state: str = "applied", **fields: Any) -> bytes:
    return event(kind="command", number=number, state=state, step=step, answer="done", **fields)


class Script:
    """A replica with a script that answers commands."""

    def __init__(self, api: ApiServer, run: Any, attempt: int = 1) -> None:
        self.api, self.run, self.attempt, self.offset, self.known = api, run, attempt, 0, 0
        self.token = api.engine.launches[f"{run['id']}.{attempt}"].replicas[0].token  # type: ignore[index]

    async def sync(self, *events: bytes) -> list[tuple[int, str]]:
        """Ships the events; returns the numbers and kinds of the commands that it lacked."""
        data = b"".join(events)
        segments = [("events", self.offset, data)] if data else []
        self.offset += len(data)
        response = await self.api.sync(
            self.run, segments, token=self.token, attempt=self.attempt, commands=self.known
        )
        new = [(each["number"], each["kind"]) for each in response["commands"]]
        self.known = max([self.known, *(number for number, _ in new)])
        return new


def test_commands_are_delivered_once_and_answered(tmp_path: Path) -> None:
    async def scenario(api: ApiServer) -> None:
        run = await api.start_run()
        script, path = Script(api, run), f"/runs/{run['id']}/commands"
        undeclared = await api.request("POST", path, {"kind": "set", "params": {"lr": 1}}, status=409)
        assert "has declared no parameters so far, so it has no `lr`" in undeclared["error"]["message"]
        assert await script.sync(event(kind="params", values={"lr": 0.1, "epochs": 5})) == []
        early = await api.request("POST", path, {"kind": "pause"}, status=409)
        assert "has no safe point so far" in early["error"]["message"]
        for name in ("lr", "not_declared_yet"):
            begins = await api.request("POST", path, {"kind": "set", "params": {name: 1}}, status=409)
            assert "has no safe point so far" in begins["error"]["message"]
        assert await script.sync(event(kind="safe-points")) == []
        unknown = await api.request("POST", path, {"kind": "set", "params": {"lrr": 1}}, status=400)
        assert "did you mean `lr`?" in unknown["error"]["message"]
        wrong = await api.request("POST", path, {"kind": "set", "params": {"epochs": "many"}}, status=400)
        assert wrong["error"]["message"] == "epochs=many: `epochs` is an int"
        await api.request("POST", path, {"kind": "resume"}, status=409)
        first = await api.request("POST", path, {"kind": "set", "params": {"lr": "0.01"}})
        assert (first["number"], first["arguments"], first["state"]) == (1, {"lr": 0.01}, "pending")
        await api.request("POST", path, {"kind": "pause"})
        assert await script.sync() == [(1, "set"), (2, "pause")]
        assert await script.sync() == []
        assert await script.sync(answer(1, 3, changes={"lr": [0.1, 0.01]}), answer(2, 3)) == []
        done = await api.request("GET", f"{path}/2", wait=30)
        assert (done["state"], done["step"], done["user"]) == ("applied", 3, "alice")
        shown = await api.request("GET", f"/runs/{run['id']}")
        assert (shown["phase"], shown["paused_at"] is not None) == ("paused", True)
        assert [each["detail"] for each in shown["events"]] == [
            "alice set lr 0.1 -> 0.01 at step 3",
            "paused by alice at step 3",
        ]
        await api.request("POST", path, {"kind": "pause"}, status=409)
        await api.request("POST", path, {"kind": "resume"})
        assert await script.sync() == [(3, "resume")]
        await script.sync(answer(3, 3, state="refused"))
        assert (await api.request("GET", f"{path}/3", wait=30))["state"] == "refused"
        assert (await api.request("GET", f"/runs/{run['id']}"))["phase"] == "paused"
        assert [each["number"] for each in (await api.request("GET", path))["commands"]] == [1, 2, 3]
        await api.request("GET", f"{path}/4", status=404)

    run_scenario(tmp_path, scenario)


def test_command_waits_for_what_the_replica_is_about_to_send(tmp_path: Path) -> None:
    """A user sees in the log that the training runs, before its declarations have arrived."""

    async def scenario(api: ApiServer) -> None:
        for body in ({"kind": "set", "params": {"lr": 0.5}}, {"kind": "pause"}):
            run = await api.start_run(params={"epochs": 1})
            await api.sync(run, [], token=Script(api, run).token)

            async def is_running(path: str = f"/runs/{run['id']}") -> bool:
                return bool((await api.request("GET", path))["phase"] == "running")

            await api.wait_until(is_running)
            request = asyncio.create_task(api.request("POST", f"/runs/{run['id']}/commands", body))
            for _ in range(20):
                await asyncio.sleep(0)  # the request has begun
            events = event(kind="params", values={"lr": 0.1}) + event(kind="safe-points")
            await Script(api, run).sync(events)
            assert (await request)["state"] == "pending"

    run_scenario(tmp_path, scenario)


def test_one_replica_with_safe_points_is_enough(tmp_path: Path) -> None:
    """The first role is a parameter server, which has none."""

    async def scenario(api: ApiServer) -> None:
        role = {"command": ["true"], "resources": {"cpu_milli": 100}}
        run = await api.start_run(roles=[{**role, "name": "ps", "service": True}, {**role, "name": "worker"}])
        launches = api.engine.launches[f"{run['id']}.1"].replicas
        assert [each.independent_ranks for each in launches] == [(0,), (0,)]
        token, path = Script(api, run).token, f"/runs/{run['id']}/commands"
        params = event(kind="params", values={"lr": 0.1})
        await api.sync(run, [("events", 0, params)], token=token, rank=0)
        await api.sync(run, [("events", 0, params)], token=token, rank=1)
        await api.request("POST", path, {"kind": "pause"}, status=409)
        await api.sync(run, [("events", len(params), event(kind="safe-points"))], token=token, rank=1)
        for body in ({"kind": "set", "params": {"lr": 0.5}}, {"kind": "pause"}):
            assert (await api.request("POST", path, body))["state"] == "pending"
        changed = answer(1, 2, changes={"lr": [0.1, 0.5]})
        offset = len(params + event(kind="safe-points"))
        await api.sync(run, [("events", offset, changed)], token=token, rank=1)
        assert (await api.request("GET", f"{path}/1", wait=30))["state"] == "applied"
        assert (await api.request("GET", f"/runs/{run['id']}"))["params"] == {"lr": 0.5}

    run_scenario(tmp_path, scenario)


def test_next_attempt_continues_pause_and_parameters(tmp_path: Path) -> None:
    async def scenario(api: ApiServer) -> None:
        run = await api.start_run(params={"lr": 0.1})
        script, path = Script(api, run), f"/runs/{run['id']}/commands"
        await script.sync(event(kind="progress", done=0, total=5, unit="epoch"))
        for body in ({"kind": "set", "params": {"lr": 0.5}}, {"kind": "pause"}):
            await api.request("POST", path, body)
        await script.sync(answer(1, 2, changes={"lr": [0.1, 0.5]}), answer(2, 2))
        await api.request("GET", f"{path}/2", wait=30)
        await api.request("POST", path, {"kind": "set", "params": {"lr": 0.7}})
        await api.services.controller.preempt(run["id"], "for the test")
        await api.wait_until(lambda: f"{run['id']}.2" in api.engine.launches)
        assert api.engine.launches[f"{run['id']}.2"].replicas[0].params == {"lr": 0.5}  # type: ignore[index]
        assert await Script(api, run, attempt=2).sync() == [(2, "pause"), (3, "set")]
        fork = await api.request("POST", f"/runs/{run['id']}/fork", {})
        assert fork["spec"]["params"] == {"lr": 0.1}

    run_scenario(tmp_path, scenario)


def test_only_users_of_the_run_command_it(tmp_path: Path) -> None:
    async def scenario(api: ApiServer) -> None:
        await api.services.access.add_token("bob", hash_token("bob"), now=api.services.now(), name="b")
        run = await api.start_run()
        path = f"/runs/{run['id']}/commands"
        await api.request("POST", path, {"kind": "pause"}, token="bob", status=403)
        await api.finish(run)
        ended = await api.request("POST", path, {"kind": "pause"}, status=409)
        assert "has ended" in ended["error"]["message"]

    run_scenario(tmp_path, scenario)


def test_waiting_run_is_held_and_released(tmp_path: Path) -> None:
    async def scenario(api: ApiServer) -> None:
        first = await api.start_run(roles=[{"command": ["true"], "resources": {"cpu_milli": 8000}}])
        run = await api.submit(roles=[{"command": ["true"], "resources": {"cpu_milli": 8000}}])
        path = f"/runs/{run['id']}/commands"
        assert (await api.request("POST", path, {"kind": "pause"}))["state"] == "applied"
        held = await api.request("GET", f"/runs/{run['id']}")
        assert (held["phase"], held["held_by"]) == ("queued", "alice")
        assert (await api.request("POST", path, {"kind": "resume"}))["state"] == "applied"
        assert (await api.request("GET", f"/runs/{run['id']}"))["held_by"] is None
        await api.request("POST", f"/runs/{first['id']}/stop", {})

    run_scenario(tmp_path, scenario)


def test_paused_run_resumes_when_its_next_attempt_has_started(tmp_path: Path) -> None:
    async def scenario(api: ApiServer) -> None:
        run = await api.start_run()
        script, path = Script(api, run), f"/runs/{run['id']}/commands"
        await script.sync(event(kind="safe-points"))
        await api.request("POST", path, {"kind": "pause"})
        await script.sync(answer(1, 2))
        await api.request("GET", f"{path}/1", wait=30)
        await api.services.controller.preempt(run["id"], "for the test")
        await api.wait_until(lambda: f"{run['id']}.2" in api.engine.launches)
        assert (await api.request("GET", f"/runs/{run['id']}"))["phase"] != "paused"
        assert (await api.request("POST", path, {"kind": "resume"}))["state"] == "pending"
        again = await api.request("POST", path, {"kind": "resume"}, status=409)
        assert "not paused" in again["error"]["message"]
        second = Script(api, run, attempt=2)
        assert await second.sync() == [(1, "pause"), (2, "resume")]
        await second.sync(event(kind="safe-points"), answer(1, 2), answer(2, 2))
        assert (await api.request("GET", f"{path}/2", wait=30))["state"] == "applied"
        assert (await api.request("GET", f"/runs/{run['id']}"))["paused_at"] is None

    run_scenario(tmp_path, scenario)


def test_fork_begins_with_the_values_that_held_at_its_checkpoint(tmp_path: Path) -> None:
    """The best checkpoint was saved between two changes; its step counts something else than theirs."""

    async def scenario(api: ApiServer) -> None:
        run = await api.start_run(
            params={"lr": 0.1}, param_format={"style": "args", "source": "argparse in main.py", "options": {}}
        )
        script, path = Script(api, run), f"/runs/{run['id']}/commands"
        await script.sync(event(kind="params", values={"lr": 0.1, "wd": 0.0}), event(kind="safe-points"))
        began = time.time() - 100
        for number, params in enumerate(({"lr": 0.2}, {"lr": 0.3, "wd": 0.5}), 1):
            await api.request("POST", path, {"kind": "set", "params": params})
            changes = {name: [0.1, value] for name, value in params.items()}
            await script.sync(answer(number, 1, changes=changes, t=began + 10 * number))
            await api.request("GET", f"{path}/{number}", wait=30)
        for step, seconds, accuracy in ((500, 5, 0.1), (900, 15, 0.9), (990, 25, 0.2)):
            body = {
                "rank": 0,
                "step": step,
                "manifest": await api.put_tree({"state": b"%d" % step}, token=script.token),
                "metrics": {"acc": accuracy},
                "best_by": "max:acc",
                "created_at": datetime.fromtimestamp(began + seconds, UTC).isoformat(),
            }
            saved = f"/attempts/{run['id']}.1/checkpoints"
            await api.request("POST", saved, body, token=script.token, status=201)
        forks = {
            checkpoint: await api.request("POST", f"/runs/{run['id']}/fork", {"checkpoint": checkpoint})
            for checkpoint in (500, "best", 990, "newest")
        }
        assert {checkpoint: fork["spec"]["params"] for checkpoint, fork in forks.items()} == {
            500: {"lr": 0.1},
            "best": {"lr": 0.2},
            990: {"lr": 0.3, "wd": 0.5},
            "newest": {"lr": 0.3, "wd": 0.5},
        }
        # only `hop.params` of the script knows `wd`: it gets no `--wd`
        options = forks["newest"]["spec"]["param_format"]["options"]
        assert {name: option["kind"] for name, option in options.items()} == {"wd": "omitted"}
        changed = {"checkpoint": 990, "params": {"lr": 0.7}}
        fork = await api.request("POST", f"/runs/{run['id']}/fork", changed)
        assert fork["spec"]["params"] == {"lr": 0.7, "wd": 0.5}
        files = [
            await api.request("GET", f"/runs/{run['id']}/yaml", **query)
            for query in ({}, {"checkpoint": 500}, {"checkpoint": 900}, {"checkpoint": 990})
        ]
        assert [file["values"]["params"] for file in files] == [
            {"lr": 0.1},
            {"lr": 0.1},
            {"lr": 0.2},
            {"lr": 0.3, "wd": 0.5},
        ]
        await api.request("GET", f"/runs/{run['id']}/yaml", checkpoint=7, status=404)

    run_scenario(tmp_path, scenario)


def test_command_of_an_ended_run_is_shown_as_refused(tmp_path: Path) -> None:
    async def scenario(api: ApiServer) -> None:
        run = await api.start_run()
        script, path = Script(api, run), f"/runs/{run['id']}/commands"
        await script.sync(event(kind="safe-points"))
        await api.request("POST", path, {"kind": "pause"})
        await api.finish(run)
        shown = await api.request("GET", f"{path}/1", wait=30)
        assert (shown["state"], "the run ended" in shown["answer"]) == ("refused", True)
        assert (await api.request("GET", path))["commands"] == [shown]

    run_scenario(tmp_path, scenario)


def test_values_that_json_lacks_are_texts(tmp_path: Path) -> None:
    async def scenario(api: ApiServer) -> None:
        run = await api.start_run()
        script, path = Script(api, run), f"/runs/{run['id']}/commands"
        values = {"x": 0.5, "y": math.nan, "name": "Infinity"}
        await script.sync(event(kind="params", values=values), event(kind="safe-points"))
        await api.services.ingest.flush_all()
        recorded = (await api.request("GET", f"/runs/{run['id']}"))["params"]
        assert recorded == {"x": 0.5, "y": "NaN", "name": "Infinity"}
        params = {"x": "-inf", "y": "3", "name": "to the moon"}
        given = await api.request("POST", path, {"kind": "set", "params": params})
        assert given["arguments"] == {"x": "-Infinity", "y": 3.0, "name": "to the moon"}

    run_scenario(tmp_path, scenario)
