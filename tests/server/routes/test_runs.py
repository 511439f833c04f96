"""Submitting, finding, stopping and deleting runs."""

from __future__ import annotations

import dataclasses
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from blake3 import blake3

from hopyard.controller.orphan_cleanup import remove_orphaned_folders
from hopyard.domain.manifest import FileEntry, Manifest
from hopyard.server.authentication import hash_token
from tests.server.stage import NODE, UNTIL_KILLED, Stage, play, role


def test_a_submitted_run_is_planned_and_launched(tmp_path: Path) -> None:
    async def scene(stage: Stage) -> None:
        run = await stage.started(label="first", params={"lr": 0.1})
        assert (run["name"], run["phase"]) == ("alice/p/1", "starting")
        assert stage.engine.launches[f"{run['id']}.1"].replicas[0].params == {"lr": 0.1}
        found = await stage.ask("GET", f"/runs/{run['id']}")
        assert found["latest"] == {}
        assert [a["number"] for a in found["attempts"]] == [1]
        assert await stage.ask("GET", "/runs/by-name/alice/p/1") == found

    play(tmp_path, scene)


def test_a_waiting_run_says_why_and_where(tmp_path: Path) -> None:
    async def scene(stage: Stage) -> None:
        await stage.started(roles=[role(gpus=2)])
        waiting = await stage.submit(roles=[role(gpus=1)])
        assert (waiting["phase"], waiting["position"], waiting["hold_reason"]) == ("queued", 1, "no-capacity")
        assert waiting["hold_detail"]

    play(tmp_path, scene)


def test_too_large_is_refused_at_once_and_says_what_is_missing(tmp_path: Path) -> None:
    async def scene(stage: Stage) -> None:
        refused = await stage.submit(roles=[role(gpus=3)], status=400)
        assert refused["error"]["code"] == "does_not_fit"
        assert "3" in refused["error"]["message"]
        assert "box" in refused["error"]["message"]

    play(tmp_path, scene)


def test_a_label_that_no_node_has_comes_with_the_nearest(tmp_path: Path) -> None:
    async def scene(stage: Stage) -> None:
        stage.engine.nodes = [dataclasses.replace(NODE, labels={"rack": "north", "zone": "b"})]
        await stage.started()  # somebody looks at the engine again
        await stage.until(lambda: _labelled(stage))
        for label, hint in (
            (("rak", "north"), "did you mean `rack=north`?"),
            (("rack", "nort"), "did you mean `rack=north`?"),
            (("rack", "7"), "values of label `rack`: north"),
            (("colour", "red"), "labels that nodes have: rack, zone"),
        ):
            wish = {**role(), "where": {"labels": [label]}}
            refused = (await stage.submit(roles=[wish], status=400))["error"]
            assert (refused["code"], refused["hints"][0]) == ("does_not_fit", hint)
        refused = (await stage.submit(roles=[{**role(), "where": {"pools": ["defalt"]}}], status=400))[
            "error"
        ]
        assert refused["hints"][0] == "did you mean pool `default`?"
        large = {**role(gpus=3), "where": {"labels": [("rack", "north")]}}
        assert len((await stage.submit(roles=[large], status=400))["error"]["hints"]) == 1

    play(tmp_path, scene)


async def _labelled(stage: Stage) -> bool:
    return any(node.labels for node in await stage.parts.node_cache.get())


def test_the_same_id_with_the_same_spec_is_the_same_run(tmp_path: Path) -> None:
    async def scene(stage: Stage) -> None:
        await stage.dataset("mnist")
        body = {
            "id": "client-made-1",
            "spec": {"project": "p", "roles": [role()], "datasets": [{"name": "mnist"}]},
        }
        first = await stage.ask("POST", "/runs", body)
        await stage.dataset("mnist", {"b.txt": b"newer"})  # the newest version is another one now
        second = await stage.ask("POST", "/runs", body)
        assert (second["id"], second["name"], second["spec"]["datasets"][0]["version"]) == (
            "client-made-1",
            first["name"],
            1,
        )
        body["spec"]["params"] = {"lr": 1}
        clash = await stage.ask("POST", "/runs", body, status=409)
        assert clash["error"]["code"] == "conflict"

    play(tmp_path, scene, loops=False)


def test_code_must_be_whole_and_what_is_missing_is_named(tmp_path: Path) -> None:
    async def scene(stage: Stage) -> None:
        data = b"print(1)"
        digest = blake3(data).hexdigest()
        encoded = Manifest.build([FileEntry("main.py", len(data), (digest,))]).encode()  # type: ignore[arg-type]
        code = blake3(encoded).hexdigest()
        refused = await stage.submit(code=code, status=409)
        assert (refused["error"]["code"], refused["error"]["digests"]) == ("missing_blobs", [code])
        await stage.ask("PUT", f"/blobs/{code}", encoded)
        refused = await stage.submit(code=code, status=409)
        assert refused["error"]["digests"] == [digest]
        await stage.ask("PUT", f"/blobs/{digest}", data)
        assert (await stage.submit(code=code))["spec"]["code"] == code
        junk = b"no manifest"
        await stage.ask("PUT", f"/blobs/{blake3(junk).hexdigest()}", junk)
        refused = await stage.submit(code=blake3(junk).hexdigest(), status=400)
        assert "no manifest" in refused["error"]["message"]

    play(tmp_path, scene, loops=False)


def test_datasets_are_pinned_and_unknown_ones_refused(tmp_path: Path) -> None:
    async def scene(stage: Stage) -> None:
        first = await stage.dataset("mnist")
        run = await stage.submit(datasets=[{"name": "mnist"}])
        assert run["spec"]["datasets"] == [{"name": "mnist", "version": 1, "manifest": first["manifest"]}]
        refused = await stage.submit(datasets=[{"name": "mnits"}], status=404)
        assert any("mnist" in hint for hint in refused["error"]["hints"])
        await stage.submit(datasets=[{"name": "mnist", "version": 7}], status=404)
        await stage.submit(datasets=[{"name": "mnist"}, {"name": "mnist"}], status=400)

    play(tmp_path, scene, loops=False)


@pytest.mark.parametrize(
    ("spec", "path"),
    [
        ({"roles": []}, "spec.roles"),
        ({"roles": [{"command": []}]}, "spec.roles.0.command"),
        ({"roles": [role(gpus=-1)]}, "spec.roles.0.resources.gpus"),
        ({"roles": [role(gpus="two")]}, "spec.roles.0.resources.gpus"),
        ({"roles": [role(cpu_milli=10**30)]}, "spec.roles.0.resources.cpu_milli"),
        ({"roles": [role(gpu_models=["A100"])]}, "roles.0.resources.gpu_models"),
        ({"roles": [role(gpu_milli=1000)]}, "spec.roles.0.resources.gpu_milli"),
        ({"roles": [role(gpus=1, gpu_milli=500)]}, "roles.0.resources.gpu_milli"),
        ({"roles": [role(gpus=1, gpu_memory_bytes=1)]}, "roles.0.resources.gpu_memory_bytes"),
        ({"roles": [role(gpu_milli=1, gpu_memory_bytes=1)]}, "roles.0.resources.gpu_memory_bytes"),
        ({"roles": [role(extras=[["fpga", 0]])]}, "spec.roles.0.resources.extras"),
        ({"roles": [role(extras=[["b", 1], ["a", 1]])]}, "roles.0.resources.extras"),
        ({"roles": [role(extras=[["a", 1], ["a", 1]])]}, "roles.0.resources.extras"),
        ({"roles": [role(extras=[["memory", 1]])]}, "roles.0.resources.extras"),
        ({"roles": [{**role(), "replicas": 2, "min_replicas": 3}]}, "roles.0.min_replicas"),
        ({"roles": [{**role(), "where": {"pools": ["a/b"]}}]}, "spec.roles.0.where.pools"),
        ({"roles": [{**role(), "where": {"labels": [["b", "1"], ["a", "1"]]}}]}, "roles.0.where.labels"),
        (
            {"roles": [{**role(), "topology": {"level": "rack", "rule": "close"}}]},
            "spec.roles.0.topology.rule",
        ),
        ({"topology": {"level": " ", "rule": "same"}}, "topology.level"),
        ({"topology": {"level": "rack", "rule": "same", "slice": 0}}, "spec.topology.slice"),
        ({"preemptible": 1}, "spec.preemptible"),
        ({"roles": [{**role(), "replicas": 0}]}, "spec.roles.0.replicas"),
        ({"roles": [role(), role()]}, "roles.1.name"),
        ({"roles": [{**role(), "name": "a/b"}]}, "spec.roles.0.name"),
        ({"project": "../etc"}, "spec.project"),
        ({"project": "a..b"}, "project"),
        ({"priority": 101}, "spec.priority"),
        ({"time_limit_s": 0}, "spec.time_limit_s"),
        ({"params": {"a": [1]}}, "spec.params"),
        ({"params": {"a": {"b": 1}}}, "spec.params"),
        ({"env": {"A=B": "x"}}, "spec.env"),
        ({"env": {"A": "x\0"}}, "spec.env"),
        ({"code": "abc"}, "spec.code"),
        ({"datasets": [{"name": "../x"}]}, "spec.datasets.0.name"),
        ({"environment": {"interpreter": "python"}}, "spec.environment.interpreter"),
        ({"collour": 1}, "collour"),
        ({"max_attempts": 0}, "spec.max_attempts"),
    ],
)
def test_what_is_wrong_is_named_by_its_path(tmp_path: Path, spec: dict[str, object], path: str) -> None:
    async def scene(stage: Stage) -> None:
        response = await stage.send("POST", "/runs", {"spec": {"project": "p", "roles": [role()], **spec}})
        assert response.status_code in (400, 422)
        assert response.json()["error"]["code"] == "bad_spec"
        assert path in response.json()["error"]["message"]

    play(tmp_path, scene, loops=False)


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"{",
        b"[]",
        b"\xff\xfe",
        b'{"spec": NaN}',
        b'{"spec": {"params": {"a": Infinity}}}',
        b"[" * 100_000,
    ],
)
def test_bodies_that_are_not_json_of_the_right_shape(tmp_path: Path, body: bytes) -> None:
    async def scene(stage: Stage) -> None:
        response = await stage.send("POST", "/runs", body)
        assert response.status_code == 422
        assert response.json()["error"]["code"] == "bad_spec"

    play(tmp_path, scene, loops=False)


def test_a_body_that_is_too_large_is_refused_by_its_size(tmp_path: Path) -> None:
    async def scene(stage: Stage) -> None:
        response = await stage.send("POST", "/runs", b" " * (5 * 1024 * 1024))
        assert response.status_code == 422
        assert str(4 * 1024 * 1024) in response.json()["error"]["message"]

    play(tmp_path, scene, loops=False)


@pytest.mark.parametrize("bad", ["abcdef\n", "-leading", "trailing-", "", "short", "abcdef\u2028"])
def test_an_id_that_nothing_could_be_named_by_makes_no_run(tmp_path: Path, bad: str) -> None:
    async def case(stage: Stage) -> None:
        await stage.ask("POST", "/runs", {"id": bad, "spec": {"project": "p", "roles": [role()]}}, status=422)
        assert (await stage.ask("GET", "/runs"))["runs"] == []

    play(tmp_path, case)


@pytest.mark.parametrize(
    "spec",
    [
        {"project": "p\n"},
        {"queue": "default\n"},
        {"code": "0" * 64 + "\n"},
        {"forked_from": "abcdef\n"},
        {"label": "x\nroot/prod/7  default  succeeded"},
        {"label": "\x1b]0;T\x07"},
        {"tags": {"k\x9b": "v"}},
        {"tags": {"k": "v\u202e"}},
        {"label": "a\u200db"},
        {"tags": {"k\u200b": "v"}},
        {"params": {"l\xadr": 1}},
        {"params": {"lr\n": 1}},
        {"env": {"A\n": "1"}},
        {"git": {"commit": "abc", "branch": "\x1b[2J"}},
        {"roles": [{**role(), "name": "worker\n"}]},
        {"environment": {"python": "3.11\n"}},
    ],
)
def test_no_name_label_or_key_holds_what_acts_on_a_terminal(tmp_path: Path, spec: dict[str, object]) -> None:
    async def case(stage: Stage) -> None:
        await stage.submit(status=422, **spec)

    play(tmp_path, case)


def test_listing_filters_and_pages(tmp_path: Path) -> None:
    async def scene(stage: Stage) -> None:
        for number in range(5):
            await stage.submit(plan=0, label=f"l{number % 2}", tags={"k": str(number)})
        page = await stage.ask("GET", "/runs", limit=2)
        assert [run["name"] for run in page["runs"]] == ["alice/p/5", "alice/p/4"]
        rest = await stage.ask("GET", "/runs", limit=50, before=page["next"])
        assert [run["name"] for run in rest["runs"]] == ["alice/p/3", "alice/p/2", "alice/p/1"]
        assert rest["next"] is None
        assert len((await stage.ask("GET", "/runs", label="l0"))["runs"]) == 3
        assert [run["name"] for run in (await stage.ask("GET", "/runs", tag="k=3"))["runs"]] == ["alice/p/4"]
        assert len((await stage.ask("GET", "/runs", phase="queued,running"))["runs"]) == 5
        assert (await stage.ask("GET", "/runs", phase="failed"))["runs"] == []
        refused = await stage.ask("GET", "/runs", phase="dancing", status=422)
        assert "queued" in refused["error"]["message"]
        refused = await stage.ask("GET", "/runs", colour="red", status=422)
        assert "colour" in refused["error"]["message"]
        await stage.ask("GET", "/runs", limit="many", status=422)
        await stage.ask("GET", "/runs", limit=0, status=422)

    play(tmp_path, scene, loops=False)


def test_labels_of_others_never_stand_in_for_a_name_or_an_id(tmp_path: Path) -> None:
    async def scene(stage: Stage) -> None:
        eve = (await stage.ask("POST", "/users", {"name": "eve"}, status=201))["token"]
        mine = await stage.submit(plan=0, label="mine")
        spec = {"project": "p", "roles": [role()]}

        async def labelled(label: str) -> str:
            return str(
                (await stage.ask("POST", "/runs", {"spec": {**spec, "label": label}}, token=eve, plan=0))[
                    "id"
                ]
            )

        async def find(ref: str, status: int | None = None) -> Any:
            return (await stage.ask("GET", "/runs/resolve", ref=ref, status=status)).get("id")

        for taken in (mine["id"], mine["id"][:19], "alice/p/1", "p/1", "mine"):
            await labelled(taken)
            assert await find(taken) == mine["id"], taken
        for absent in ("alice/p/99", "p/99"):
            await labelled(absent)
            await find(absent, status=404)
        for reserved in ("1", "99", "last"):
            await stage.ask("POST", "/runs", {"spec": {**spec, "label": reserved}}, token=eve, status=400)
        shared = await labelled("resnet")
        assert await find("resnet") == shared
        forked = await stage.ask("POST", f"/runs/{shared}/fork", {}, plan=0)
        assert forked["spec"]["label"] == "", "a fork of another user's run is not found by that user's label"

    play(tmp_path, scene, loops=False)


def test_label_names_the_newest_run_that_is_not_over(tmp_path: Path) -> None:
    async def scene(stage: Stage) -> None:
        waits = await stage.submit(plan=0, label="dup")
        over = await stage.submit(plan=0, label="dup")
        await stage.ask("POST", f"/runs/{over['id']}/stop", {})
        assert (await stage.ask("GET", "/runs/resolve", ref="dup"))["id"] == waits["id"]
        await stage.ask("POST", f"/runs/{waits['id']}/stop", {})
        assert (await stage.ask("GET", "/runs/resolve", ref="dup"))["id"] == over["id"]

    play(tmp_path, scene, loops=False)


def test_runs_are_found_by_what_people_call_them(tmp_path: Path) -> None:
    async def scene(stage: Stage) -> None:
        first = await stage.submit(plan=0, project="mnist", label="baseline")
        second = await stage.submit(plan=0, project="cifar", label="baseline")
        third = await stage.submit(plan=0, project="mnist")

        async def find(ref: str) -> str:
            return str((await stage.ask("GET", "/runs/resolve", ref=ref))["id"])

        assert await find(first["id"]) == first["id"]
        assert await find(first["id"][:19]) == first["id"]
        assert await find("alice/mnist/1") == first["id"]
        assert await find("mnist/2") == third["id"]
        assert await find("2") == third["id"]  # the only one of mine with this number
        assert await find("baseline") == second["id"]
        assert await find("last") == third["id"]
        unknown = await stage.ask("GET", "/runs/resolve", ref="mnist/21", status=404)
        assert "alice/mnist/" in unknown["error"]["hints"][0]
        for odd in ("../x", "a/b/c/d", "bob/mnist/1", "99999999999999999999", "%", "_" * 20):
            await stage.ask("GET", "/runs/resolve", ref=odd, status=404)
        ambiguous = await stage.ask("GET", "/runs/resolve", ref=first["id"][:6], status=400)
        assert "several" in ambiguous["error"]["message"]

    play(tmp_path, scene, loops=False)


def test_bare_number_is_first_one_of_the_project_and_never_guessed(tmp_path: Path) -> None:
    async def scene(stage: Stage) -> None:
        bob = (await stage.ask("POST", "/users", {"name": "bob"}, status=201))["token"]
        mine = {
            (project, number): (await stage.submit(plan=0, project=project))["id"]
            for number in (1, 2)
            for project in ("proj", "study")
        }
        only = (await stage.submit(plan=0, project="study"))["id"]
        await stage.ask("POST", "/runs", {"spec": {"project": "bobs", "roles": [role()]}}, token=bob, plan=0)

        async def find(ref: str, status: int | None = None, **more: Any) -> Any:
            return await stage.ask("GET", "/runs/resolve", ref=ref, status=status, **more)

        for (project, number), run in mine.items():
            assert (await find(str(number), project=project))["id"] == run
        assert (await find("3", project="proj"))["id"] == only, (
            "no run of the project has that number, and one other does"
        )
        for elsewhere in ({}, {"project": "empty"}):
            error = (await find("1", status=400, **elsewhere))["error"]
            assert (
                "proj/1" in error["message"]
                and "study/1" in error["message"]
                and "bobs" not in error["message"]
            )
            assert "PROJECT/NUMBER" in error["hints"][0]
        await find("9", status=404, project="proj")
        await find("1", status=422, project="no project")

    play(tmp_path, scene, loops=False)


def test_stop_and_delete(tmp_path: Path) -> None:
    async def scene(stage: Stage) -> None:
        run = await stage.started()
        refused = await stage.ask("DELETE", f"/runs/{run['id']}", status=409)
        assert refused["error"]["code"] == "conflict"
        stopping = await stage.ask("POST", f"/runs/{run['id']}/stop", {"grace_s": 0})
        assert stopping["phase"] in ("stopping", "cancelled")

        async def over() -> bool:
            return bool((await stage.ask("GET", f"/runs/{run['id']}"))["phase"] == "cancelled")

        await stage.until(over)
        await stage.ask("DELETE", f"/runs/{run['id']}")
        await stage.ask("GET", f"/runs/{run['id']}", status=404)
        await stage.ask("POST", f"/runs/{run['id']}/stop", {}, status=404)
        await stage.ask("DELETE", f"/runs/{run['id']}", status=404)

    play(tmp_path, scene)


def test_delete_by_force_ends_the_run_first(tmp_path: Path) -> None:
    async def scene(stage: Stage) -> None:
        run = await stage.started()
        await stage.sync(run, [("stdout", 0, b"hello")])
        await stage.ask("DELETE", f"/runs/{run['id']}", force=1)
        await stage.ask("GET", f"/runs/{run['id']}", status=404)
        assert await stage.parts.streams.list(run["id"]) == []

    play(tmp_path, scene)


def test_a_removal_that_cannot_be_written_down_takes_nothing_and_one_cut_short_is_swept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def scene(stage: Stage) -> None:
        kept, run = [await stage.started() for _ in range(2)]
        for each in (kept, run):
            await stage.sync(each, [("stdout", 0, b"hello")])
            await stage.finish(each)
        runs, streams = stage.parts.runs, stage.parts.streams

        async def fails(_run: str, /) -> None:
            raise OSError("here the disk is full, there are no descriptors, or the server is killed")

        with monkeypatch.context() as patch:
            patch.setattr(runs, "delete", fails)
            await stage.ask("DELETE", f"/runs/{run['id']}", status=500)
        assert [key.name for key in await streams.list(run["id"])] == ["stdout"]
        with monkeypatch.context() as patch:
            patch.setattr(streams, "delete", fails)
            await stage.ask("DELETE", f"/runs/{run['id']}")
        assert set(await streams.list_runs()) == {kept["id"], run["id"]}
        assert (await remove_orphaned_folders(runs, streams), set(await streams.list_runs())) == (
            1,
            {kept["id"]},
        )

    play(tmp_path, scene)


def test_only_the_server_says_what_a_run_was_forked_from(tmp_path: Path) -> None:
    async def scene(stage: Stage) -> None:
        run = await stage.submit(plan=0)
        refused = await stage.submit(plan=0, status=400, forked_from=run["id"])
        assert "hop fork" in refused["error"]["hints"][0]
        resume = {"run": run["id"], "step": 1, "manifest": "0" * 64}
        await stage.submit(plan=0, status=400, forked_from=run["id"], resume=resume)

    play(tmp_path, scene, loops=False)


def test_a_fork_keeps_what_it_does_not_change(tmp_path: Path) -> None:
    async def scene(stage: Stage) -> None:
        await stage.dataset("mnist")
        code = await stage.put_tree({"main.py": b"x"})
        run = await stage.started(
            code=code, datasets=[{"name": "mnist"}], params={"lr": 0.1, "n": 3}, tags={"a": "1"}
        )
        await stage.dataset("mnist", {"z": b"other"})
        saved = await stage.put_tree({"state": b"weights"}, token=stage.token_of(run))
        await stage.ask(
            "POST",
            f"/attempts/{run['id']}.1/checkpoints",
            {"rank": 0, "step": 4, "manifest": saved},
            token=stage.token_of(run),
        )
        fork = await stage.ask(
            "POST", f"/runs/{run['id']}/fork", {"params": {"lr": 0.2}, "checkpoint": "newest"}
        )
        assert fork["spec"]["params"] == {"lr": 0.2, "n": 3}
        assert fork["spec"]["datasets"] == run["spec"]["datasets"]
        assert fork["spec"]["resume"] == {"run": run["id"], "step": 4, "manifest": saved, "foreign": False}
        assert fork["spec"]["forked_from"] == run["id"]
        await stage.until(lambda: f"{fork['id']}.1" in stage.engine.launches)
        restore = stage.engine.launches[f"{fork['id']}.1"].replicas[0].restore
        assert restore is not None
        assert (restore.step, restore.manifest) == (4, saved)
        standing = {
            "priority": 7,
            "preemptible": False,
            "topology": {"level": "node", "rule": "spread", "slice": 1},
            "queue": "default",
        }
        moved = await stage.ask("POST", f"/runs/{run['id']}/fork", standing)
        assert {key: moved["spec"][key] for key in standing} == standing
        missing = await stage.ask("POST", f"/runs/{run['id']}/fork", {"checkpoint": 5}, status=404)
        assert "4" in missing["error"]["hints"][0]

    play(tmp_path, scene)


def test_the_answer_to_a_submission_names_runs_as_people_do(tmp_path: Path) -> None:
    async def scene(stage: Stage) -> None:
        await stage.ask("PUT", "/queues", {"tree": {"queues": {"default": {"maximum": {"gpus": 2}}}}})
        await stage.started(roles=[role(gpus=1)], time_limit_s=3600.0)
        # so short that it has waited long enough by the next turn
        ahead = await stage.submit(roles=[role(gpus=2)], time_limit_s=0.001)
        behind = await stage.submit(roles=[role(gpus=1)])
        told = f"run {ahead['name']} has waited longer for the quota of queue default"
        assert (behind["hold_reason"], behind["hold_detail"]) == ("behind", told)
        fork = await stage.ask("POST", f"/runs/{behind['id']}/fork", {}, plan=1)
        assert fork["hold_detail"] == told

    play(tmp_path, scene)


def test_a_stop_is_answered_with_the_names_of_others(tmp_path: Path) -> None:
    async def scene(stage: Stage) -> None:
        run, other = await stage.started(), await stage.started()
        await stage.parts.controller.preempt(run["id"], f"run {other['id']} has priority 90")
        told = await stage.ask("POST", f"/runs/{run['id']}/stop", {})
        assert told["attempt"]["preempt_reason"] == f"run {other['name']} has priority 90"

    play(tmp_path, scene)


def test_where_there_is_no_run_at_all_that_is_said(tmp_path: Path) -> None:
    async def scene(stage: Stage) -> None:
        nothing = (await stage.ask("GET", "/runs/resolve", ref="last", status=404))["error"]
        assert (nothing["message"], nothing["hints"]) == (
            "there are no runs yet",
            ["start one with `hop run`"],
        )
        for empty in ("", "  "):
            unnamed = (await stage.ask("GET", "/runs/resolve", ref=empty, status=400))["error"]
            assert unnamed["message"] == "no run is given" and "USER/PROJECT/NUMBER" in unnamed["hints"][0]
        await stage.submit()
        bob = "hop_" + "b" * 43
        await stage.parts.access.add_token("bob", hash_token(bob), now=datetime.now(UTC), name="first")
        others = (await stage.ask("GET", "/runs/resolve", ref="last", token=bob, status=404))["error"]
        assert (others["message"], others["hints"][1]) == (
            "you have no runs yet",
            "list the runs of others with `hop ps --all`",
        )

    play(tmp_path, scene, loops=False)


def test_what_was_decided_about_a_run_is_told_with_the_names_of_others(tmp_path: Path) -> None:
    async def scene(stage: Stage) -> None:
        run, other = await stage.started(), await stage.started()
        await stage.parts.controller.preempt(
            run["id"], f"run {other['id']} has priority 90; run 0123456789abcdefghjk is gone"
        )
        told = await stage.ask("GET", f"/runs/{run['id']}")
        reason = f"run {other['name']} has priority 90; run 0123456789abcdefghjk is gone"
        assert [(event["kind"], event["detail"]) for event in told["events"]] == [("preempted", reason)]
        assert [attempt["preempt_reason"] for attempt in (told["attempt"], *told["attempts"])] == [
            reason,
            reason,
        ]
        assert (await stage.ask("GET", f"/runs/{other['id']}"))["events"] == []
        listed = {one["id"]: one for one in (await stage.ask("GET", "/runs"))["runs"]}
        assert listed[run["id"]]["attempt"]["preempt_reason"] == reason
        why = await stage.ask("GET", f"/runs/{run['id']}/why")
        assert why["detail"] == f"it is not waiting: it is being preempted on box: {reason}"

    play(tmp_path, scene, fate=UNTIL_KILLED)
