"""Changing runs through the API: who may, what is checked anew, and what follows."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from hopyard.server.authentication import hash_token
from tests.server.routes.test_studies import STUDY, TRIAL, trial
from tests.server.stage import Stage, play, role

TREE: dict[str, Any] = {
    "default": "vision",
    "queues": {
        "research": {
            "admins": ["bob"],
            "queues": {
                "vision": {"priorities": [10, 60], "default_priority": 20},
                "nlp": {"submitters": ["carol"]},
            },
        },
        "prod": {
            "maximum": {"cpus": 1},
            "submitters": ["carol"],
            "priorities": [30, 40],
            "default_priority": 35,
        },
    },
}
TOKENS = {name: "hop_" + name[0] * 43 for name in ("bob", "carol", "dave")}


async def begin(stage: Stage) -> None:
    for name, token in TOKENS.items():
        await stage.parts.access.add_token(name, hash_token(token), name="t", now=datetime.now(UTC))
    await stage.ask("PUT", "/queues", {"tree": TREE, "file": "team.yaml"})


async def submit(stage: Stage, user: str, **spec: Any) -> Any:
    body = {"spec": {"project": "p", "roles": [role()], **spec}}
    return await stage.ask("POST", "/runs", body, token=TOKENS[user])


async def change(stage: Stage, run: Any, *, user: str = "", status: int | None = None, **body: Any) -> Any:
    given = {} if not user else {"token": TOKENS[user]}
    return await stage.ask("PATCH", f"/runs/{run['id']}", body, status=status, **given)


def test_a_waiting_run_is_changed_by_those_who_may(tmp_path: Path) -> None:
    async def scene(stage: Stage) -> None:
        await begin(stage)
        run = await submit(stage, "carol", tags={"a": "1"})
        await change(stage, run, user="dave", priority=30, status=403)
        done = await change(
            stage,
            run,
            user="carol",
            priority=30,
            time_limit_s=60,
            tags={"b": "2"},
            untag=["a"],
            note="look",
            label="mine",
        )
        said = [
            "priority 20 -> 30",
            "time limit none -> 1 min",
            "name none -> `mine`",
            "note none -> `look`",
            "tag a `1` -> none",
            "tag b none -> `2`",
        ]
        assert done["changes"] == said
        assert (await change(stage, run, user="bob", hold=True))["changes"] == ["held"]
        waits = await stage.ask("GET", f"/runs/{run['id']}/why")
        assert (
            waits["reason"] == "held" and "held by bob" in waits["detail"] and "--release" in waits["detail"]
        )
        assert (await change(stage, run, hold=False, time_limit_s=None))["changes"] == [
            "time limit 1 min -> none",
            "released",
        ]
        assert (await change(stage, run, hold=False))["changes"] == []
        found = await stage.ask("GET", f"/runs/{run['id']}")
        assert [(one["kind"], one["detail"]) for one in found["events"]] == [
            ("changed", f"by carol: {'; '.join(said)}"),
            ("changed", "by bob: held"),
            ("changed", "by alice: time limit 1 min -> none; released"),
        ]
        assert (found["spec"]["tags"], found["note"], found["held_by"]) == ({"b": "2"}, "look", None)
        kept = [
            one["detail"]
            for one in (await stage.ask("GET", "/audit", action="run.update", outcome="done"))["records"]
        ][-1]
        assert (kept["note"], kept["tags"]) == ("written", ["b"]), (
            "the audit log has no text of a note and no value of a tag"
        )

    play(tmp_path, scene, loops=False)


def test_a_change_is_checked_as_a_submission_is(tmp_path: Path) -> None:
    async def scene(stage: Stage) -> None:
        await begin(stage)
        await stage.started(roles=[role(cpu_milli=8000)])  # nothing else starts
        run = await submit(stage, "carol")
        await change(stage, run, user="carol", priority=70, status=400)
        await change(stage, run, user="carol", queue="nowhere", status=400)
        await change(stage, run, user="carol", queue="research", status=400)  # it has queues below it
        for resources, why in (({"cpu_milli": 9000}, "9 CPUs"), ({"gpus": 3}, "3 GPUs")):
            refused = await change(stage, run, user="carol", roles=[role(**resources)], status=400)
            assert why in refused["error"]["message"]
        await change(stage, run, user="carol", roles=[{**role(), "command": ["sh"]}], status=400)
        await change(stage, run, user="carol", untag=["none"], status=400)
        await change(stage, run, user="carol", priority=101, status=422)
        assert (await stage.ask("GET", f"/runs/{run['id']}"))["events"][1:] == []
        assert (await change(stage, run, user="carol", roles=[role(gpus=2)]))["changes"] == ["GPUs 0 -> 2"]
        moved = await change(stage, run, user="carol", queue="prod")
        assert moved["changes"] == ["queue vision -> prod", "priority 20 -> 35"]  # 20 is not allowed there
        refused = await change(stage, run, user="carol", roles=[role(gpus=2, cpu_milli=2000)], status=400)
        assert "may never start in queue prod" in refused["error"]["message"]

    play(tmp_path, scene)


def test_both_queues_have_a_say(tmp_path: Path) -> None:
    async def scene(stage: Stage) -> None:
        await begin(stage)
        run = await submit(stage, "dave")
        await change(stage, run, user="dave", queue="nlp", status=403)  # not a submitter there
        await change(stage, run, user="carol", queue="nlp", status=403)  # not dave's
        # administers the one, and not the other
        await change(stage, run, user="bob", queue="prod", status=403)
        assert (await change(stage, run, user="bob", queue="nlp"))["changes"][0] == "queue vision -> nlp"
        assert (await change(stage, run, queue="prod"))["changes"][0] == "queue nlp -> prod"
        await change(stage, run, user="bob", note="mine no more", status=403)

    play(tmp_path, scene, loops=False)


def test_a_study_is_moved_only_where_its_trials_may_wait(tmp_path: Path) -> None:
    async def scene(stage: Stage) -> None:
        await begin(stage)
        await stage.started(roles=[role(cpu_milli=8000)])  # nothing else starts
        queues = {
            **TREE["queues"],
            "calm": {"no_preempt": False, "admins": ["bob"]},
            "small": {"maximum": {"gpus": 1}},
        }
        await stage.ask("PUT", "/queues", {"tree": {**TREE, "queues": queues}, "file": "team.yaml"})
        never = {**STUDY, "trial": {**TRIAL, "preemptible": False}}
        large = {**STUDY, "trial": {**TRIAL, "roles": [role(gpus=2)]}}
        stubborn, wide, usual = [await submit(stage, "dave", study=study) for study in (never, large, STUDY)]
        refused = await change(stage, stubborn, user="dave", queue="calm", status=403)
        assert (
            refused["error"]["message"] == "`dave` may not submit runs that are never preempted to queue calm"
        )
        refused = await change(stage, wide, user="dave", queue="small", status=400)
        assert "may never start in queue small" in refused["error"]["message"]
        for study in (stubborn, wide):
            assert (await stage.ask("GET", f"/runs/{study['id']}"))["spec"]["queue"] == "vision"
        assert (await change(stage, usual, user="dave", queue="calm"))["changes"][0] == "queue vision -> calm"
        # by the owner
        assert (await change(stage, stubborn, queue="calm"))["changes"][0] == "queue vision -> calm"

    play(tmp_path, scene)


def test_what_is_changed_starts_as_it_was_changed(tmp_path: Path) -> None:
    """Also where the server remembers what was submitted."""

    async def scene(stage: Stage) -> None:
        first, second = await stage.started(roles=[role(gpus=2)]), await stage.submit(roles=[role(gpus=2)])
        assert (await change(stage, second, hold=True))["run"]["hold_reason"] == "held"
        await stage.ask("POST", f"/runs/{first['id']}/stop", {})
        third = await stage.started(roles=[role(gpus=1)])
        assert (await stage.ask("GET", f"/runs/{second['id']}"))["phase"] == "queued"
        await change(stage, second, roles=[role(gpus=1)], time_limit_s=77, hold=False)
        await stage.until(lambda: f"{second['id']}.1" in stage.engine.launches)
        launched = stage.engine.launches[f"{second['id']}.1"].replicas[0]  # type: ignore[index]
        assert (launched.resources.gpus, launched.time_limit_s) == (1, 77)
        refused = await change(stage, third, priority=20, status=409)
        assert "does not wait" in refused["error"]["message"]
        assert (await change(stage, third, note="runs", label="third"))["run"]["spec"]["label"] == "third"
        await stage.finish(third)
        refused = await change(stage, third, priority=20, status=409)
        assert "does not wait: it has ended, so" in refused["error"]["message"]

    play(tmp_path, scene)


def test_a_queue_is_emptied_and_removed(tmp_path: Path) -> None:
    async def scene(stage: Stage) -> None:
        await begin(stage)
        run = await submit(stage, "dave")
        smaller = {"default": "prod", "queues": {"prod": TREE["queues"]["prod"]}}
        refused = await stage.ask("PUT", "/queues", {"tree": smaller, "file": "team.yaml"}, status=409)
        assert "hop update --from-queue vision --queue prod" in refused["error"]["hints"][0]
        await change(stage, run, queue="prod")
        await stage.ask("PUT", "/queues", {"tree": smaller, "file": "team.yaml"})
        assert (await stage.ask("GET", f"/runs/{run['id']}"))["spec"]["queue"] == "prod"

    play(tmp_path, scene, loops=False)


def test_a_trial_asks_for_what_its_study_says(tmp_path: Path) -> None:
    async def scene(stage: Stage) -> None:
        study = await stage.started(study=STUDY)
        one = await stage.ask("POST", "/runs", trial(study), token=stage.token_of(study))
        refused = await change(stage, one, time_limit_s=5, status=400)
        assert "is a trial" in refused["error"]["message"]
        await stage.ask("PATCH", f"/runs/{one['id']}", {"note": "x"}, token=stage.token_of(study), status=403)

    play(tmp_path, scene)
