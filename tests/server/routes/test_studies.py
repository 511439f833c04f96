"""Studies: their trials are started, read and stopped with the study's token, and are stopped and deleted
with it."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

from hopyard.domain.metric_records import POINT, pack_definition, pack_point, series_id
from hopyard.studies.stop_requests import stopped_trials
from tests.server.api_server import UNTIL_KILLED, ApiServer, role, run_scenario

TRIAL = {"project": "p", "roles": [role()]}
STUDY = {
    "name": "s",
    "space": [{"name": "lr", "kind": "uniform", "low": 0.0, "high": 1.0}],
    "metric": "acc",
    "goal": "max",
    "parallel": "trials",
    "trials": 3,
    "trial": TRIAL,
}


def trial(study: Any, number: int = 0, **spec: Any) -> dict[str, Any]:
    return {
        "spec": {**TRIAL, "parent": study["id"], "tags": {"trial": str(number)}, **spec},
        "id": f"{study['id']}-{number}",
    }


def points(name: str, *pairs: tuple[int, float]) -> bytes:
    return pack_definition(name) + b"".join(
        pack_point(POINT, series_id(name), step, 1.0, value) for step, value in pairs
    )


async def poll_trials(
    api: ApiServer, study: Any, token: str, trials: dict[str, str | None], **body: Any
) -> tuple[dict[str, Any], bytes]:
    response = await api.request(
        "POST", f"/runs/{study['id']}/trials", {"trials": trials, **body}, token=token
    )
    head, _, rest = response.partition(b"\n")
    return json.loads(head), rest


def test_study_starts_trials_in_its_queue_as_its_user(tmp_path: Path) -> None:
    async def scenario(api: ApiServer) -> None:
        study = await api.start_run(study=STUDY, priority=70)
        token = api.run_token(study)
        body = trial(study, params={"lr": 0.5})
        created = await api.request("POST", "/runs", body, token=token)
        assert (
            created["name"],
            created["spec"]["parent"],
            created["spec"]["priority"],
            created["spec"]["params"],
        ) == (
            "alice/p/2",
            study["id"],
            70,
            {"lr": 0.5},
        )
        assert (await api.request("POST", "/runs", body, token=token))["id"] == created["id"]  # a retry
        replica = api.engine.launches[f"{study['id']}.1"].replicas[0]
        assert replica.study is not None
        assert replica.study["metric"] == "acc"
        assert len(replica.secret) == 64
        assert (await api.request("GET", f"/runs/{created['id']}", token=token))["id"] == created["id"]
        assert [
            one["id"] for one in (await api.request("GET", "/runs", token=token, parent=study["id"]))["runs"]
        ] == [created["id"]]
        listed = (await api.request("GET", "/runs", trials=0))["runs"]
        assert [listed_row["id"] for listed_row in listed] == [study["id"]]
        # however far it is by now
        assert listed[0]["trials"] in [{phase: 1} for phase in ("queued", "starting", "running")]
        assert [run["id"] for run in (await api.request("GET", "/runs", studies=1))["runs"]] == [study["id"]]
        assert (await api.request("GET", "/runs/resolve", ref="last"))["id"] == study["id"]

    run_scenario(tmp_path, scenario)


def test_only_the_study_starts_its_trials(tmp_path: Path) -> None:
    async def scenario(api: ApiServer) -> None:
        study, other = await api.start_run(study=STUDY), await api.start_run(study=STUDY)
        plain = await api.start_run()
        token = api.run_token(study)
        for refused, by in (
            (trial(study), None),
            (trial(other), token),
            ({"spec": TRIAL}, token),
            (trial(plain), api.run_token(plain)),
            (trial(study, roles=[{**role(), "command": ["python", "other.py"]}]), token),
            (trial(study, env={"A": "B"}), token),
            (trial(study, resume={"run": plain["id"], "step": 1, "manifest": "0" * 64}), token),
        ):
            response = await api.send("POST", "/runs", refused, **({"token": by} if by else {}))
            assert (response.status_code, response.json()["error"]["code"]) == (403, "forbidden"), (
                response.text
            )
        foreign = await api.request("POST", "/runs", trial(other), token=api.run_token(other))
        for method, path in (("GET", ""), ("POST", "/stop"), ("GET", "/checkpoints"), ("GET", "/log")):
            assert (
                await api.send(
                    method, f"/runs/{foreign['id']}{path}", {} if method == "POST" else None, token=token
                )
            ).status_code == 403
        assert (await api.send("GET", "/runs", token=token)).status_code == 403
        assert (await api.send("GET", "/runs", token=token, parent=other["id"])).status_code == 403
        assert (await api.send("POST", f"/runs/{study['id']}/stop", {}, token=token)).status_code == 403
        assert (
            await api.send(
                "POST", f"/runs/{study['id']}/trials", {"trials": {foreign["id"]: None}}, token=token
            )
        ).status_code == 403

    run_scenario(tmp_path, scenario)


def test_invalid_study_is_refused_with_its_path(tmp_path: Path) -> None:
    async def scenario(api: ApiServer) -> None:
        for change, path in (
            ({"trial": None}, "study.trial"),
            ({"parallel": "mop", "trial": None}, "study.mop"),
            ({"trial": {**TRIAL, "roles": []}}, "study.trial.roles"),
            ({"trial": {**TRIAL, "study": STUDY}}, "study.trial"),
            ({"trial": {**TRIAL, "colour": "red"}}, "colour"),
        ):
            refused = await api.submit(study={**STUDY, **change}, status=400)
            assert path in refused["error"]["message"]
        live = await api.start_run(study=STUDY)
        # nothing would check whether it has ended
        refused = await api.submit(study={**STUDY, "continues": live["id"]}, status=400)
        assert "study.continues" in refused["error"]["message"]
        refused = await api.submit(study={**STUDY, "space": [{"name": "lr", "kind": "normal"}]}, status=422)
        assert "study.space.0" in refused["error"]["message"]
        mop = {"trainable": "m.py", "workers": 2, "dataset": "mnist", "partitions": {"parts": 2}}
        refused = await api.submit(study={**STUDY, "parallel": "mop", "trial": None, "mop": mop}, status=400)
        assert "study.mop.dataset" in refused["error"]["message"]

    run_scenario(tmp_path, scenario)


def test_trials_use_the_dataset_version_of_the_study(tmp_path: Path) -> None:
    async def scenario(api: ApiServer) -> None:
        first = await api.push_dataset("mnist")
        spec = {**STUDY, "trial": {**TRIAL, "datasets": [{"name": "mnist"}]}}
        sent = {"spec": {"project": "p", "roles": [role()], "study": spec}, "id": "study-one"}
        study = await api.request("POST", "/runs", sent, plan=1)
        await api.push_dataset("mnist", {"b.txt": b"newer"})
        assert (await api.request("POST", "/runs", sent))["id"] == study["id"]  # a retry
        await api.wait_until(lambda: "study-one.1" in api.engine.launches)
        created = await api.request(
            "POST", "/runs", trial(study, datasets=[{"name": "mnist"}]), token=api.run_token(study)
        )
        assert [(one["version"], one["manifest"]) for one in created["spec"]["datasets"]] == [
            (1, first["manifest"])
        ]

    run_scenario(tmp_path, scenario)


def test_trials_are_stopped_and_deleted_with_their_study(tmp_path: Path) -> None:
    async def scenario(api: ApiServer) -> None:
        study = await api.start_run(study=STUDY)
        token = api.run_token(study)
        created = [await api.request("POST", "/runs", trial(study, n), token=token) for n in range(3)]
        await api.wait_until(
            lambda: all(f"{trial_run['id']}.1" in api.engine.launches for trial_run in created)
        )
        await api.request("POST", f"/runs/{created[0]['id']}/stop", {"at_safe_point": True}, token=token)
        await api.request("POST", f"/runs/{study['id']}/stop", {})

        async def is_over() -> bool:
            runs = (await api.request("GET", "/runs"))["runs"]
            return all(run["phase"] == "cancelled" for run in runs)

        await api.wait_until(is_over)
        refused = await api.send("POST", "/runs", trial(study, 9), token=token)
        assert refused.status_code in (401, 409)
        await api.request("DELETE", f"/runs/{study['id']}")
        assert (await api.request("GET", "/runs"))["runs"] == []

    run_scenario(tmp_path, scenario)


def test_trial_poll_waits_for_changes_and_misses_none(tmp_path: Path) -> None:
    async def scenario(api: ApiServer) -> None:
        study = await api.start_run(study=STUDY)
        token = api.run_token(study)
        created = await api.request("POST", "/runs", trial(study), token=token)
        await api.wait_until(lambda: f"{created['id']}.1" in api.engine.launches)
        head, rest = await poll_trials(api, study, token, {created["id"]: None, "gone-run": None})
        assert ([trial["id"] for trial in head["trials"]], rest) == ([created["id"]], b"")
        text = points("acc", (1, 0.5), (2, 0.75))
        await api.sync(created, [("metrics", 0, text)])
        head, rest = await poll_trials(api, study, token, {created["id"]: "running"}, wait_s=20)
        where = {"attempt": f"{created['id']}.1", "rank": 0, "stream": "metrics"}
        assert (head["segments"], rest) == ([{**where, "offset": 0, "size": len(text)}], text)
        cursors = {f"{created['id']}.1:0:metrics": len(text)}
        head, rest = await poll_trials(
            api, study, token, {created["id"]: head["trials"][0]["phase"]}, cursors=cursors
        )
        assert (head["segments"], rest) == ([], b"")
        point = pack_point(POINT, series_id("acc"), 3, 2.0, 0.9)
        await api.finish(created, segments=[("metrics", len(text), point)])
        phases: list[str] = []
        while not phases or phases[-1] != "succeeded":
            head, rest = await poll_trials(
                api,
                study,
                token,
                {created["id"]: phases[-1] if phases else "running"},
                cursors=cursors,
                wait_s=20,
            )
            for one in head["segments"]:
                cursors[f"{one['attempt']}:{one['rank']}:{one['stream']}"] += one["size"]
                assert rest == point
            phases.append(head["trials"][0]["phase"])
        assert cursors == {f"{created['id']}.1:0:metrics": len(text) + len(point)}
        assert head["trials"][0]["exit"]["code"] == 0

    run_scenario(tmp_path, scenario)


def test_trial_poll_without_trials_returns_at_once(tmp_path: Path) -> None:
    async def scenario(api: ApiServer) -> None:
        study = await api.start_run(study=STUDY)
        async with asyncio.timeout(10):
            head, rest = await poll_trials(api, study, api.run_token(study), {}, wait_s=20)
        assert (head, rest) == ({"trials": [], "segments": [], "more": False}, b"")
        await api.request("POST", f"/runs/{study['id'][::-1]}/trials", {"trials": {}}, status=404)

    run_scenario(tmp_path, scenario)


def test_journal_is_read_over_all_attempts(tmp_path: Path) -> None:
    async def scenario(api: ApiServer) -> None:
        study = await api.start_run(study=STUDY)
        token = api.run_token(study)
        await api.sync(study, [("journal", 0, b'\n{"a":1}\n')], token=token)
        result = {"kind": "lost", "code": 1, "reason": "lost"}
        await api.sync(study, [], phase="exited", exit=result, final=True)
        await api.wait_until(lambda: f"{study['id']}.2" in api.engine.launches)
        await api.sync(study, [("journal", 0, b'\n{"a":2}\n')], attempt=2)
        complete = b'\n{"a":1}\n\n{"a":2}\n'
        response = await api.send("GET", f"/runs/{study['id']}/journal")
        assert (response.content, response.headers["x-length"]) == (complete, str(len(complete)))
        for offset, limit in ((0, 4), (5, 9), (9, 100), (18, 5), (30, 1)):
            part = await api.send("GET", f"/runs/{study['id']}/journal", offset=offset, limit=limit)
            assert part.content == complete[offset : offset + limit]

    run_scenario(tmp_path, scenario)


def test_nonessential_replicas_are_stopped_after_the_essential_ones(tmp_path: Path) -> None:
    async def scenario(api: ApiServer) -> None:
        run = await api.start_run(
            roles=[role(), {**role(), "name": "helper", "replicas": 2, "essential": False}]
        )
        for rank in range(3):
            assert not (await api.sync(run, [], rank=rank))["stop"]
        lost = {"kind": "signal", "code": 137, "reason": "killed"}
        await api.sync(run, [], rank=2, phase="exited", exit=lost, final=True)
        assert (await api.request("GET", f"/runs/{run['id']}"))["phase"] == "running"
        await api.request("POST", f"/runs/{run['id']}/stop", {"grace_s": 60})
        assert (await api.sync(run, []))["stop"]
        assert not (await api.sync(run, [], rank=1))["stop"]
        stopped = {"kind": "stopped", "code": 143, "reason": "stopped by request"}
        await api.sync(run, [], phase="exited", exit=stopped, final=True)
        assert (await api.sync(run, [], rank=1))["stop"]
        await api.sync(run, [], rank=1, phase="exited", exit=stopped, final=True)
        assert (await api.request("GET", f"/runs/{run['id']}"))["phase"] == "cancelled"

    run_scenario(tmp_path, scenario, script=UNTIL_KILLED)


def test_gang_succeeds_with_its_essential_replicas(tmp_path: Path) -> None:
    async def scenario(api: ApiServer) -> None:
        run = await api.start_run(
            roles=[{**role(), "replicas": 2}, {**role(), "name": "helper", "essential": False}]
        )
        done = {"kind": "exit-code", "code": 0, "reason": "finished"}
        await api.sync(run, [], rank=2)
        await api.sync(run, [], phase="exited", exit=done, final=True)  # before the first status of its peer
        assert not (await api.sync(run, [], rank=1))["stop"]
        await api.sync(run, [], rank=1, phase="exited", exit=done, final=True)
        assert (await api.sync(run, [], rank=2))["stop"]
        stopped = {"kind": "stopped", "code": 143, "reason": "ended with its gang"}
        await api.sync(run, [], rank=2, phase="exited", exit=stopped, final=True)
        response = await api.request("GET", f"/runs/{run['id']}")
        assert (response["phase"], response["exit"]["reason"]) == ("succeeded", "finished")
        refused = await api.submit(roles=[{**role(), "essential": False}], status=400)
        assert "no role is essential" in refused["error"]["message"]
        refused = await api.submit(study={**STUDY, "trial": {**TRIAL, "roles": [role(gpus=9)]}}, status=400)
        assert refused["error"]["code"] == "does_not_fit"

    run_scenario(tmp_path, scenario)


def test_ended_study_continues_in_a_new_run(tmp_path: Path) -> None:
    async def scenario(api: ApiServer) -> None:
        study = await api.start_run(study=STUDY, priority=70)
        path = f"/runs/{study['id']}/continue"
        created = await api.request("POST", "/runs", trial(study), token=api.run_token(study))
        assert "has not ended" in (await api.request("POST", path, {}, status=409))["error"]["message"]
        await api.sync(study, [("journal", 0, b'\n{"a":1}\n')])
        saved = await api.request(
            "POST",
            f"/attempts/{study['id']}.1/checkpoints",
            {
                "step": 4,
                "manifest": await api.put_tree({"state": b"w"}),
                "metrics": {},
                "offsets": {},
                "rank": 0,
            },
        )
        await api.finish(study, code=1)
        await api.wait_until(lambda: stage_phase(api, study, "failed"))
        on = await api.request("POST", path, {"trials": 5, "id": "goes-on"}, plan=1)
        assert (await api.request("POST", path, {"trials": 5, "id": "goes-on"}))["id"] == on["id"]  # a retry
        spec = on["spec"]
        assert (
            spec["forked_from"],
            spec["priority"],
            spec["study"]["continues"],
            spec["study"]["trials"],
        ) == (study["id"], 70, study["id"], 5)
        assert spec["resume"] == {
            "run": study["id"],
            "step": 4,
            "manifest": saved["manifest"],
            "foreign": False,
        }
        await api.wait_until(lambda: "goes-on.1" in api.engine.launches)
        token, other = api.run_token(on), api.run_token(await api.start_run(study=STUDY))
        for of in (
            f"/runs/{study['id']}/journal",
            f"/runs/{study['id']}/checkpoints",
            f"/runs/{created['id']}/checkpoints",
            f"/runs/{created['id']}",
        ):
            assert (await api.send("GET", of, token=token)).status_code == 200, of
            assert (await api.send("GET", of, token=other)).status_code == 403, of
        assert (await api.send("POST", f"/runs/{study['id']}/stop", {}, token=token)).status_code == 403
        assert (
            await api.send("GET", f"/runs/{on['id']}/journal", token=api.run_token(study))
        ).status_code in (401, 403)
        forked = await api.request("POST", f"/runs/{on['id']}/fork", {})
        # a fork starts a new search
        assert (forked["spec"]["study"]["continues"], forked["spec"]["resume"]) == ("", None)
        code, form = await api.put_tree({"a.py": b"new"}), {"style": "hydra", "script": "a.py"}
        for start in (f"/runs/{on['id']}/fork", path):  # the trials run the new code
            spec = (await api.request("POST", start, {"code": code, "param_format": form}))["spec"]
            assert (spec["code"], spec["param_format"]) == (code, None)
            trials = spec["study"]["trial"]
            assert (trials["code"], trials["param_format"]["style"]) == (code, "hydra")
        plain = await api.start_run()
        assert (
            "not a study"
            in (await api.request("POST", f"/runs/{plain['id']}/continue", {}, status=400))["error"][
                "message"
            ]
        )

    run_scenario(tmp_path, scenario)


def test_user_requests_the_end_of_a_trial_that_hops(tmp_path: Path) -> None:
    plan = {"parts": 1, "validation": 0.2}
    mop = {"trainable": "t.py:T", "workers": 1, "dataset": "d", "partitions": plan}
    hops = {**STUDY, "parallel": "mop", "trial": None, "mop": mop}

    async def scenario(api: ApiServer) -> None:
        await api.push_dataset("d")
        study = await api.start_run(study=hops, datasets=[{"name": "d"}])
        path = f"/runs/{study['id']}"
        assert (await api.request("POST", f"{path}/stop", {"trial": "7"}))["phase"] == study["phase"]
        events = (await api.request("GET", f"{path}/events", token=api.run_token(study)))["events"]
        assert stopped_trials(events) == {"7"}
        await api.request("POST", f"{path}/stop", {"trial": "x"}, status=422)
        other = await api.start_run(study=STUDY)
        await api.request("POST", f"/runs/{other['id']}/stop", {"trial": "7"}, status=400)

    run_scenario(tmp_path, scenario)


def test_fork_of_a_study_continues_its_best_model(tmp_path: Path) -> None:
    plan = {"parts": 1, "validation": 0.2}
    hops = {
        **STUDY,
        "parallel": "mop",
        "trial": None,
        "max_epochs": 5,
        "mop": {"trainable": "t.py:T", "workers": 1, "dataset": "d", "partitions": plan},
    }
    best = {"trial": "3", "epoch": 4, "best": True, "value": 0.5, "params": {"lr": 0.25}}

    async def scenario(api: ApiServer) -> None:
        await api.push_dataset("d")
        study = await api.start_run(study=hops, datasets=[{"name": "d"}], params={"kept": 1})
        path = f"/runs/{study['id']}/fork"

        async def save(step: int, states: Any) -> str:
            index = json.dumps({"format": 1, "step": step, "states": states}).encode()
            manifest = await api.put_tree({"1.7": b"w", "1.8": b"v", "hopyard.json": index})
            text = {"step": step, "manifest": manifest, "metrics": {}, "offsets": {}, "rank": 0}
            await api.request("POST", f"/attempts/{study['id']}.1/checkpoints", text)
            return manifest

        async def refused(body: dict[str, Any], words: str, status: int = 400, of: str = path) -> None:
            response = await api.request("POST", of, body, status=status)
            assert words in response["error"]["message"], response

        await refused({"checkpoint": "best"}, "has saved no best model yet", 404)
        manifest = await save(1, {"1.7": best, "1.8": {"trial": "1", "epoch": 5}})
        for invalid in (
            None,
            [],
            {"1.7": 3},
            {"1.7": {**best, "params": None}},
            {"1.7": {**best, "trial": "x"}},
            {"1.9": best},
        ):
            await save(2, invalid)  # fields set by the run itself are ignored
        fork = await api.request(
            "POST", path, {"checkpoint": "best", "epochs": 2, "params": {"lr": 2}, "id": "fork-1"}, plan=1
        )
        assert (
            await api.request(
                "POST", path, {"checkpoint": "best", "epochs": 2, "params": {"lr": 2}, "id": "fork-1"}
            )
        )["id"] == "fork-1"
        spec = fork["spec"]
        begin = {
            "run": study["id"],
            "state": "1.7",
            "study": study["name"],
            "trial": "3",
            "epoch": 4,
            "value": 0.5,
            "params": {"lr": 0.25},
            "visited": [],
        }
        assert (spec["forked_from"], spec["resume"], spec["params"]) == (
            study["id"],
            {"run": study["id"], "step": 1, "manifest": manifest, "foreign": False},
            {"kept": 1},
        )
        assert (spec["study"]["beginning"], spec["study"]["max_epochs"], spec["study"]["trials"]) == (
            begin,
            6,
            1,
        )
        assert spec["study"]["space"] == [{"name": "lr", "kind": "constant", "value": 2, "conditions": []}]
        again = (await api.request("POST", "/runs/fork-1/fork", {}))["spec"]
        assert (again["study"]["beginning"], again["resume"]) == (begin, spec["resume"]), (
            "from the same checkpoint, which is not its own yet"
        )
        await refused({"checkpoint": "best"}, "has saved no best model", 404, "/runs/fork-1/fork")
        await refused(
            {"checkpoint": "best", "params": {"momentum": 1}},
            "params.momentum: the study has no such parameter",
        )
        await refused({"checkpoint": "best", "params": {"lr": "x"}}, "params.lr: x is not a number")
        await refused({"checkpoint": "newest"}, "only its trials have checkpoints")
        await refused({"checkpoint": 1}, "only its trials have checkpoints")
        await refused({"params": {"lr": 1}}, "its parameters are those of its space")
        await refused({"epochs": 3}, "epochs: applies only to the best model")
        await refused(
            {"checkpoint": "best"},
            "only its trials have checkpoints",
            of=f"/runs/{(await api.start_run(study=STUDY))['id']}/fork",
        )
        await refused(
            {"checkpoint": "best"},
            "has no checkpoint",
            404,
            of=f"/runs/{(await api.start_run())['id']}/fork",
        )
        text = await api.submit(study={**hops, "beginning": begin}, datasets=[{"name": "d"}], status=400)
        assert "this request cannot" in text["error"]["message"]

    run_scenario(tmp_path, scenario)


def test_study_gets_different_errors_for_deleted_and_forbidden_runs(tmp_path: Path) -> None:
    """Also if the run that had it is deleted, with its trials."""

    async def scenario(api: ApiServer) -> None:
        study = await api.start_run(study=STUDY)
        created = await api.request("POST", "/runs", trial(study), token=api.run_token(study))
        await api.request("DELETE", f"/runs/{created['id']}", force=1)
        of = f"/runs/{created['id']}/checkpoints"
        assert (await api.send("GET", of, token=api.run_token(study))).status_code == 404
        await api.finish(study, code=1)
        await api.wait_until(lambda: stage_phase(api, study, "failed"))
        await api.request("POST", f"/runs/{study['id']}/continue", {"id": "goes-on"}, plan=1)
        await api.wait_until(lambda: "goes-on.1" in api.engine.launches)
        on = api.run_token({"id": "goes-on"})
        await api.request("DELETE", f"/runs/{study['id']}")
        for path in (of, f"/runs/{study['id']}", "/runs/never-was"):
            assert (await api.send("GET", path, token=on)).status_code == 404, path

    run_scenario(tmp_path, scenario)


def test_repeated_trial_submission_survives_a_deleted_origin(tmp_path: Path) -> None:
    async def scenario(api: ApiServer) -> None:
        study = await api.start_run(study=STUDY)
        created = await api.request("POST", "/runs", trial(study), token=api.run_token(study))
        await api.wait_until(lambda: f"{created['id']}.1" in api.engine.launches)
        saved = {
            "step": 4,
            "manifest": await api.put_tree({"state": b"w"}),
            "metrics": {},
            "offsets": {},
            "rank": 0,
        }
        await api.request("POST", f"/attempts/{created['id']}.1/checkpoints", saved)
        for run in (created, study):
            await api.finish(run, code=1)
            await api.wait_until(lambda run=run: stage_phase(api, run, "failed"))
        on = await api.request("POST", f"/runs/{study['id']}/continue", {"id": "goes-on"}, plan=1)
        await api.wait_until(lambda: "goes-on.1" in api.engine.launches)
        resume = {"run": created["id"], "step": 4, "manifest": saved["manifest"], "foreign": False}
        body, token = trial(on, resume=resume), api.run_token(on)
        goes_on = await api.request("POST", "/runs", body, token=token)
        await api.request("DELETE", f"/runs/{study['id']}")
        assert (await api.request("POST", "/runs", body, token=token))["id"] == goes_on["id"]
        for other in (
            trial(on, 1, resume=resume),
            {**body, "spec": {**body["spec"], "resume": {**resume, "step": 5}}},
        ):
            assert (await api.send("POST", "/runs", other, token=token)).status_code == 403

    run_scenario(tmp_path, scenario)


async def stage_phase(api: ApiServer, run: Any, phase: str) -> bool:
    return bool((await api.request("GET", f"/runs/{run['id']}"))["phase"] == phase)
