"""Updating runs through the API: permissions, validation and effects."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from hopyard.server.authentication import hash_token
from tests.server.api_server import ApiServer, role, run_scenario
from tests.server.routes.test_studies import STUDY, TRIAL, trial

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


async def set_up(api: ApiServer) -> None:
    for name, token in TOKENS.items():
        await api.services.access.add_token(name, hash_token(token), name="t", now=datetime.now(UTC))
    await api.request("PUT", "/queues", {"tree": TREE, "file": "team.yaml"})


async def submit(api: ApiServer, user: str, **spec: Any) -> Any:
    body = {"spec": {"project": "p", "roles": [role()], **spec}}
    return await api.request("POST", "/runs", body, token=TOKENS[user])


async def change(api: ApiServer, run: Any, *, user: str = "", status: int | None = None, **body: Any) -> Any:
    options = {} if not user else {"token": TOKENS[user]}
    return await api.request("PATCH", f"/runs/{run['id']}", body, status=status, **options)


def test_pending_run_is_updated_by_permitted_users(tmp_path: Path) -> None:
    async def scenario(api: ApiServer) -> None:
        await set_up(api)
        run = await submit(api, "carol", tags={"a": "1"})
        await change(api, run, user="dave", priority=30, status=403)
        done = await change(
            api,
            run,
            user="carol",
            priority=30,
            time_limit_s=60,
            tags={"b": "2"},
            untag=["a"],
            note="look",
            label="mine",
        )
        text = [
            "priority 20 -> 30",
            "time limit none -> 1 min",
            "name none -> `mine`",
            "note none -> `look`",
            "tag a `1` -> none",
            "tag b none -> `2`",
        ]
        assert done["changes"] == text
        assert (await change(api, run, user="bob", hold=True))["changes"] == ["held"]
        waits = await api.request("GET", f"/runs/{run['id']}/why")
        assert (
            waits["reason"] == "held" and "held by bob" in waits["detail"] and "--release" in waits["detail"]
        )
        assert (await change(api, run, hold=False, time_limit_s=None))["changes"] == [
            "time limit 1 min -> none",
            "released",
        ]
        assert (await change(api, run, hold=False))["changes"] == []
        response = await api.request("GET", f"/runs/{run['id']}")
        assert [(event["kind"], event["detail"]) for event in response["events"]] == [
            ("changed", f"by carol: {'; '.join(text)}"),
            ("changed", "by bob: held"),
            ("changed", "by alice: time limit 1 min -> none; released"),
        ]
        assert (response["spec"]["tags"], response["note"], response["held_by"]) == ({"b": "2"}, "look", None)
        details = [
            record["detail"]
            for record in (await api.request("GET", "/audit", action="run.update", outcome="done"))["records"]
        ][-1]
        assert (details["note"], details["tags"]) == ("written", ["b"]), (
            "the audit log has no text of a note and no value of a tag"
        )

    run_scenario(tmp_path, scenario, loops=False)


def test_update_is_validated_like_a_submission(tmp_path: Path) -> None:
    async def scenario(api: ApiServer) -> None:
        await set_up(api)
        await api.start_run(roles=[role(cpu_milli=8000)])  # no other run starts
        run = await submit(api, "carol")
        await change(api, run, user="carol", priority=70, status=400)
        await change(api, run, user="carol", queue="nowhere", status=400)
        await change(api, run, user="carol", queue="research", status=400)  # it has queues below it
        for resources, why in (({"cpu_milli": 9000}, "9 CPUs"), ({"gpus": 3}, "3 GPUs")):
            refused = await change(api, run, user="carol", roles=[role(**resources)], status=400)
            assert why in refused["error"]["message"]
        await change(api, run, user="carol", roles=[{**role(), "command": ["sh"]}], status=400)
        await change(api, run, user="carol", untag=["none"], status=400)
        await change(api, run, user="carol", priority=101, status=422)
        assert (await api.request("GET", f"/runs/{run['id']}"))["events"][1:] == []
        assert (await change(api, run, user="carol", roles=[role(gpus=2)]))["changes"] == ["GPUs 0 -> 2"]
        moved = await change(api, run, user="carol", queue="prod")
        assert moved["changes"] == ["queue vision -> prod", "priority 20 -> 35"]  # 20 is not allowed there
        refused = await change(api, run, user="carol", roles=[role(gpus=2, cpu_milli=2000)], status=400)
        assert "can never start in queue prod" in refused["error"]["message"]

    run_scenario(tmp_path, scenario)


def test_move_needs_permission_in_both_queues(tmp_path: Path) -> None:
    async def scenario(api: ApiServer) -> None:
        await set_up(api)
        run = await submit(api, "dave")
        await change(api, run, user="dave", queue="nlp", status=403)  # not a submitter there
        await change(api, run, user="carol", queue="nlp", status=403)  # not dave's
        # administers only one of the two queues
        await change(api, run, user="bob", queue="prod", status=403)
        assert (await change(api, run, user="bob", queue="nlp"))["changes"][0] == "queue vision -> nlp"
        assert (await change(api, run, queue="prod"))["changes"][0] == "queue nlp -> prod"
        await change(api, run, user="bob", note="mine no more", status=403)

    run_scenario(tmp_path, scenario, loops=False)


def test_study_is_moved_only_to_queues_that_admit_its_trials(tmp_path: Path) -> None:
    async def scenario(api: ApiServer) -> None:
        await set_up(api)
        await api.start_run(roles=[role(cpu_milli=8000)])  # nothing else starts
        queues = {
            **TREE["queues"],
            "calm": {"no_preempt": False, "admins": ["bob"]},
            "small": {"maximum": {"gpus": 1}},
        }
        await api.request("PUT", "/queues", {"tree": {**TREE, "queues": queues}, "file": "team.yaml"})
        never = {**STUDY, "trial": {**TRIAL, "preemptible": False}}
        large = {**STUDY, "trial": {**TRIAL, "roles": [role(gpus=2)]}}
        stubborn, wide, usual = [await submit(api, "dave", study=study) for study in (never, large, STUDY)]
        refused = await change(api, stubborn, user="dave", queue="calm", status=403)
        assert (
            refused["error"]["message"] == "`dave` may not submit runs that are never preempted to queue calm"
        )
        refused = await change(api, wide, user="dave", queue="small", status=400)
        assert "can never start in queue small" in refused["error"]["message"]
        for study in (stubborn, wide):
            assert (await api.request("GET", f"/runs/{study['id']}"))["spec"]["queue"] == "vision"
        assert (await change(api, usual, user="dave", queue="calm"))["changes"][0] == "queue vision -> calm"
        # by the owner
        assert (await change(api, stubborn, queue="calm"))["changes"][0] == "queue vision -> calm"

    run_scenario(tmp_path, scenario)


def test_updated_run_starts_with_the_update(tmp_path: Path) -> None:
    """Also if the server has the submitted run in its cache."""

    async def scenario(api: ApiServer) -> None:
        first, second = await api.start_run(roles=[role(gpus=2)]), await api.submit(roles=[role(gpus=2)])
        assert (await change(api, second, hold=True))["run"]["hold_reason"] == "held"
        await api.request("POST", f"/runs/{first['id']}/stop", {})
        third = await api.start_run(roles=[role(gpus=1)])
        assert (await api.request("GET", f"/runs/{second['id']}"))["phase"] == "queued"
        await change(api, second, roles=[role(gpus=1)], time_limit_s=77, hold=False)
        await api.wait_until(lambda: f"{second['id']}.1" in api.engine.launches)
        launched = api.engine.launches[f"{second['id']}.1"].replicas[0]  # type: ignore[index]
        assert (launched.resources.gpus, launched.time_limit_s) == (1, 77)
        refused = await change(api, third, priority=20, status=409)
        assert "does not wait" in refused["error"]["message"]
        assert (await change(api, third, note="runs", label="third"))["run"]["spec"]["label"] == "third"
        await api.finish(third)
        refused = await change(api, third, priority=20, status=409)
        assert "does not wait: it has ended, so" in refused["error"]["message"]

    run_scenario(tmp_path, scenario)


def test_queue_is_emptied_by_updates_and_removed(tmp_path: Path) -> None:
    async def scenario(api: ApiServer) -> None:
        await set_up(api)
        run = await submit(api, "dave")
        smaller = {"default": "prod", "queues": {"prod": TREE["queues"]["prod"]}}
        refused = await api.request("PUT", "/queues", {"tree": smaller, "file": "team.yaml"}, status=409)
        assert "hop update --from-queue vision --queue prod" in refused["error"]["hints"][0]
        await change(api, run, queue="prod")
        await api.request("PUT", "/queues", {"tree": smaller, "file": "team.yaml"})
        assert (await api.request("GET", f"/runs/{run['id']}"))["spec"]["queue"] == "prod"

    run_scenario(tmp_path, scenario, loops=False)


def test_trial_cannot_be_updated(tmp_path: Path) -> None:
    async def scenario(api: ApiServer) -> None:
        study = await api.start_run(study=STUDY)
        trial_run = await api.request("POST", "/runs", trial(study), token=api.run_token(study))
        refused = await change(api, trial_run, time_limit_s=5, status=400)
        assert "is a trial" in refused["error"]["message"]
        await api.request(
            "PATCH", f"/runs/{trial_run['id']}", {"note": "x"}, token=api.run_token(study), status=403
        )

    run_scenario(tmp_path, scenario)


def test_change_of_text_that_another_user_has_changed_is_refused(tmp_path: Path) -> None:
    async def scenario(api: ApiServer) -> None:
        await set_up(api)
        run = await submit(api, "carol", tags={"a": "1", "b": "1"}, label="first")
        read = {"label": "first", "note": "", "tags": {"a": "1", "new": None}}
        await change(api, run, user="carol", note="of carol", tags={"c": "1"}, replaces={"note": ""})
        refused = await change(
            api, run, user="bob", note="of bob", tags={"a": "2", "new": "1"}, replaces=read, status=409
        )
        assert refused["error"]["message"].endswith("was changed meanwhile: note")
        await change(api, run, user="carol", note="of carol", replaces={"note": ""})  # the same text again
        await change(
            api, run, user="bob", tags={"a": "2"}, untag=["b"], replaces={"tags": {"a": "1", "b": "1"}}
        )
        for body in (
            {"tags": {"a": "3"}, "replaces": {"tags": {"a": "1"}}},
            {"untag": ["b"], "replaces": {"tags": {"b": "1"}}},
            {"tags": {"c": "2"}, "replaces": {"tags": {"c": None}}},
            {"label": "second", "replaces": {"label": "other"}},
        ):
            await change(api, run, user="carol", status=409, **body)
        found = await api.request("GET", f"/runs/{run['id']}")
        assert (found["note"], found["spec"]["label"]) == ("of carol", "first")
        assert found["spec"]["tags"] == {"a": "2", "c": "1"}, "other tags stay"

    run_scenario(tmp_path, scenario, loops=False)
