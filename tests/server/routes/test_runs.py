"""Submitting, finding, stopping and deleting runs."""

from __future__ import annotations

import dataclasses
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from blake3 import blake3

from hopyard.controller.orphan_cleanup import remove_orphaned_folders
from hopyard.domain.ids import RunId
from hopyard.domain.manifest import FileEntry, Manifest
from hopyard.domain.run import RunEvent, RunEventKind
from hopyard.domain.script_tags import ScriptTags
from hopyard.server.authentication import hash_token
from tests.server.api_server import NODE, UNTIL_KILLED, ApiServer, role, run_scenario


def test_submitted_run_is_planned_and_launched(tmp_path: Path) -> None:
    async def scenario(api: ApiServer) -> None:
        run = await api.start_run(label="first", params={"lr": 0.1})
        assert (run["name"], run["phase"]) == ("alice/p/1", "starting")
        assert api.engine.launches[f"{run['id']}.1"].replicas[0].params == {"lr": 0.1}
        response = await api.request("GET", f"/runs/{run['id']}")
        assert response["latest"] == {}
        assert [a["number"] for a in response["attempts"]] == [1]
        assert await api.request("GET", "/runs/by-name/alice/p/1") == response

    run_scenario(tmp_path, scenario)


def test_pending_run_has_position_and_hold_reason(tmp_path: Path) -> None:
    async def scenario(api: ApiServer) -> None:
        await api.start_run(roles=[role(gpus=2)])
        waiting = await api.submit(roles=[role(gpus=1)])
        assert (waiting["phase"], waiting["position"], waiting["hold_reason"]) == ("queued", 1, "no-capacity")
        assert waiting["hold_detail"]

    run_scenario(tmp_path, scenario)


def test_run_that_never_fits_is_refused_with_the_shortfall(tmp_path: Path) -> None:
    async def scenario(api: ApiServer) -> None:
        refused = await api.submit(roles=[role(gpus=3)], status=400)
        assert refused["error"]["code"] == "does_not_fit"
        assert "3" in refused["error"]["message"]
        assert "box" in refused["error"]["message"]

    run_scenario(tmp_path, scenario)


def test_unknown_node_label_gives_a_suggestion(tmp_path: Path) -> None:
    async def scenario(api: ApiServer) -> None:
        api.engine.nodes = [dataclasses.replace(NODE, labels={"rack": "north", "zone": "b"})]
        await api.start_run()  # the controller observes the engine again
        await api.wait_until(lambda: _has_label(api))
        for label, hint in (
            (("rak", "north"), "did you mean `rack=north`?"),
            (("rack", "nort"), "did you mean `rack=north`?"),
            (("rack", "7"), "values of label `rack`: north"),
            (("colour", "red"), "labels that nodes have: rack, zone"),
        ):
            wish = {**role(), "where": {"labels": [label]}}
            refused = (await api.submit(roles=[wish], status=400))["error"]
            assert (refused["code"], refused["hints"][0]) == ("does_not_fit", hint)
        refused = (await api.submit(roles=[{**role(), "where": {"pools": ["defalt"]}}], status=400))["error"]
        assert refused["hints"][0] == "did you mean pool `default`?"
        large = {**role(gpus=3), "where": {"labels": [("rack", "north")]}}
        assert len((await api.submit(roles=[large], status=400))["error"]["hints"]) == 1

    run_scenario(tmp_path, scenario)


async def _has_label(api: ApiServer) -> bool:
    return any(node.labels for node in await api.services.node_cache.get())


def test_repeated_submission_with_the_same_id_returns_the_same_run(tmp_path: Path) -> None:
    async def scenario(api: ApiServer) -> None:
        await api.push_dataset("mnist")
        body = {
            "id": "client-made-1",
            "spec": {"project": "p", "roles": [role()], "datasets": [{"name": "mnist"}]},
        }
        first = await api.request("POST", "/runs", body)
        await api.push_dataset("mnist", {"b.txt": b"newer"})  # there is a newer version now
        await api.services.runs.record_tags(RunId(first["id"]), ScriptTags({"kind": "x"}))
        second = await api.request("POST", "/runs", body)
        assert (second["id"], second["name"], second["spec"]["datasets"][0]["version"]) == (
            "client-made-1",
            first["name"],
            1,
        )
        body["spec"]["params"] = {"lr": 1}
        clash = await api.request("POST", "/runs", body, status=409)
        assert clash["error"]["code"] == "conflict"

    run_scenario(tmp_path, scenario, loops=False)


def test_incomplete_code_is_refused_with_the_missing_blobs(tmp_path: Path) -> None:
    async def scenario(api: ApiServer) -> None:
        data = b"print(1)"
        digest = blake3(data).hexdigest()
        encoded = Manifest.build([FileEntry("main.py", len(data), (digest,))]).encode()  # type: ignore[arg-type]
        code = blake3(encoded).hexdigest()
        refused = await api.submit(code=code, status=409)
        assert (refused["error"]["code"], refused["error"]["digests"]) == ("missing_blobs", [code])
        await api.request("PUT", f"/blobs/{code}", encoded)
        refused = await api.submit(code=code, status=409)
        assert refused["error"]["digests"] == [digest]
        await api.request("PUT", f"/blobs/{digest}", data)
        assert (await api.submit(code=code))["spec"]["code"] == code
        junk = b"no manifest"
        await api.request("PUT", f"/blobs/{blake3(junk).hexdigest()}", junk)
        refused = await api.submit(code=blake3(junk).hexdigest(), status=400)
        assert "not a manifest" in refused["error"]["message"]

    run_scenario(tmp_path, scenario, loops=False)


def test_datasets_are_pinned_and_unknown_ones_refused(tmp_path: Path) -> None:
    async def scenario(api: ApiServer) -> None:
        first = await api.push_dataset("mnist")
        run = await api.submit(datasets=[{"name": "mnist"}])
        pinned = {"name": "mnist", "version": 1, "manifest": first["manifest"], "path": ""}
        assert run["spec"]["datasets"] == [pinned]
        refused = await api.submit(datasets=[{"name": "mnits"}], status=404)
        assert any("mnist" in hint for hint in refused["error"]["hints"])
        await api.submit(datasets=[{"name": "mnist", "version": 7}], status=404)
        await api.submit(datasets=[{"name": "mnist"}, {"name": "mnist"}], status=400)

    run_scenario(tmp_path, scenario, loops=False)


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
def test_invalid_spec_is_refused_with_its_path(tmp_path: Path, spec: dict[str, object], path: str) -> None:
    async def scenario(api: ApiServer) -> None:
        response = await api.send("POST", "/runs", {"spec": {"project": "p", "roles": [role()], **spec}})
        assert response.status_code in (400, 422)
        assert response.json()["error"]["code"] == "bad_spec"
        assert path in response.json()["error"]["message"]

    run_scenario(tmp_path, scenario, loops=False)


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
def test_malformed_bodies_are_refused(tmp_path: Path, body: bytes) -> None:
    async def scenario(api: ApiServer) -> None:
        response = await api.send("POST", "/runs", body)
        assert response.status_code == 422
        assert response.json()["error"]["code"] == "bad_spec"

    run_scenario(tmp_path, scenario, loops=False)


def test_oversized_body_is_refused_with_the_limit(tmp_path: Path) -> None:
    async def scenario(api: ApiServer) -> None:
        response = await api.send("POST", "/runs", b" " * (5 * 1024 * 1024))
        assert response.status_code == 422
        assert str(4 * 1024 * 1024) in response.json()["error"]["message"]

    run_scenario(tmp_path, scenario, loops=False)


@pytest.mark.parametrize("run_id", ["abcdef\n", "-leading", "trailing-", "", "short", "abcdef\u2028"])
def test_invalid_run_id_is_refused(tmp_path: Path, run_id: str) -> None:
    async def case(api: ApiServer) -> None:
        await api.request(
            "POST", "/runs", {"id": run_id, "spec": {"project": "p", "roles": [role()]}}, status=422
        )
        assert (await api.request("GET", "/runs"))["runs"] == []

    run_scenario(tmp_path, case)


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
def test_names_labels_and_keys_contain_no_terminal_controls(tmp_path: Path, spec: dict[str, object]) -> None:
    async def case(api: ApiServer) -> None:
        await api.submit(status=422, **spec)

    run_scenario(tmp_path, case)


def test_listing_filters_and_pages(tmp_path: Path) -> None:
    async def scenario(api: ApiServer) -> None:
        for number in range(5):
            await api.submit(plan=0, label=f"l{number % 2}", tags={"k": str(number)})
        page = await api.request("GET", "/runs", limit=2)
        assert [run["name"] for run in page["runs"]] == ["alice/p/5", "alice/p/4"]
        rest = await api.request("GET", "/runs", limit=50, before=page["next"])
        assert [run["name"] for run in rest["runs"]] == ["alice/p/3", "alice/p/2", "alice/p/1"]
        assert rest["next"] is None
        assert len((await api.request("GET", "/runs", label="l0"))["runs"]) == 3
        assert [run["name"] for run in (await api.request("GET", "/runs", tag="k=3"))["runs"]] == [
            "alice/p/4"
        ]
        assert len((await api.request("GET", "/runs", phase="queued,running"))["runs"]) == 5
        assert (await api.request("GET", "/runs", phase="failed"))["runs"] == []
        refused = await api.request("GET", "/runs", phase="dancing", status=422)
        assert "queued" in refused["error"]["message"]
        refused = await api.request("GET", "/runs", colour="red", status=422)
        assert "colour" in refused["error"]["message"]
        await api.request("GET", "/runs", limit="many", status=422)
        await api.request("GET", "/runs", limit=0, status=422)

    run_scenario(tmp_path, scenario, loops=False)


def test_listing_with_query_and_order(tmp_path: Path) -> None:
    async def scenario(api: ApiServer) -> None:
        runs = [await api.submit(plan=0, params={"lr": 10.0**-n}, tags={"k": str(n % 2)}) for n in range(7)]
        for number, run in enumerate(runs):
            await api.services.runs.record_summary(run["id"], {"val_acc": (number * 3 % 7) / 10})

        async def names(**query: Any) -> list[int]:
            found: list[int] = []
            while True:
                page = await api.request("GET", "/runs", **query)
                found += [int(run["name"].rsplit("/", 1)[1]) - 1 for run in page["runs"]]
                if page["next"] is None:
                    return found
                query["before"] = page["next"]

        assert await names(where="val_acc > 0.3 and params.lr < 1e-1") == [6, 4, 2]
        assert await names(where="tags.k = 1 or val_acc = 0", limit=2) == [5, 3, 1, 0]
        by_accuracy = [2, 4, 6, 1, 3, 5, 0]
        assert await names(sort="-val_acc", limit=3) == by_accuracy
        assert await names(sort="val_acc") == by_accuracy[::-1]
        assert await names(sort="-val_acc", where="phase = queued", limit=1, tag="k=0") == [2, 4, 6, 0]
        assert await names(where="nothing > 1") == []
        refused = await api.request("GET", "/runs", where="val_ac > 0", status=400)
        assert refused["error"]["hints"] == ["did you mean `val_acc`?"]
        refused = await api.request("GET", "/runs", where="val_acc >", status=400)
        assert "where: the end" in refused["error"]["message"]
        await api.request("POST", f"/runs/{runs[2]['id']}/stop", {})
        stale = {"sort": "-val_acc", "where": "phase = queued", "before": runs[2]["id"]}
        await api.request("GET", "/runs", **stale, status=409)

    run_scenario(tmp_path, scenario, loops=False)


def test_labels_of_other_users_do_not_shadow_names_or_ids(tmp_path: Path) -> None:
    async def scenario(api: ApiServer) -> None:
        eve = (await api.request("POST", "/users", {"name": "eve"}, status=201))["token"]
        mine = await api.submit(plan=0, label="mine")
        spec = {"project": "p", "roles": [role()]}

        async def submit_labelled(label: str) -> str:
            return str(
                (await api.request("POST", "/runs", {"spec": {**spec, "label": label}}, token=eve, plan=0))[
                    "id"
                ]
            )

        async def find(ref: str, status: int | None = None) -> Any:
            return (await api.request("GET", "/runs/resolve", ref=ref, status=status)).get("id")

        for taken in (mine["id"], mine["id"][:19], "alice/p/1", "p/1", "mine"):
            await submit_labelled(taken)
            assert await find(taken) == mine["id"], taken
        for absent in ("alice/p/99", "p/99"):
            await submit_labelled(absent)
            await find(absent, status=404)
        for reserved in ("1", "99", "last"):
            await api.request("POST", "/runs", {"spec": {**spec, "label": reserved}}, token=eve, status=400)
        shared = await submit_labelled("resnet")
        assert await find("resnet") == shared
        forked = await api.request("POST", f"/runs/{shared}/fork", {}, plan=0)
        assert forked["spec"]["label"] == "", "a fork of another user's run is not found by that user's label"

    run_scenario(tmp_path, scenario, loops=False)


def test_label_resolves_to_the_newest_live_run(tmp_path: Path) -> None:
    async def scenario(api: ApiServer) -> None:
        waits = await api.submit(plan=0, label="dup")
        is_over = await api.submit(plan=0, label="dup")
        await api.request("POST", f"/runs/{is_over['id']}/stop", {})
        assert (await api.request("GET", "/runs/resolve", ref="dup"))["id"] == waits["id"]
        await api.request("POST", f"/runs/{waits['id']}/stop", {})
        assert (await api.request("GET", "/runs/resolve", ref="dup"))["id"] == is_over["id"]

    run_scenario(tmp_path, scenario, loops=False)


def test_run_is_resolved_by_id_prefix_name_or_label(tmp_path: Path) -> None:
    async def scenario(api: ApiServer) -> None:
        first = await api.submit(plan=0, project="mnist", label="baseline")
        second = await api.submit(plan=0, project="cifar", label="baseline")
        third = await api.submit(plan=0, project="mnist")

        async def find(ref: str) -> str:
            return str((await api.request("GET", "/runs/resolve", ref=ref))["id"])

        assert await find(first["id"]) == first["id"]
        assert await find(first["id"][:19]) == first["id"]
        assert await find("alice/mnist/1") == first["id"]
        assert await find("mnist/2") == third["id"]
        assert await find("2") == third["id"]  # the only run of this user with this number
        assert await find("baseline") == second["id"]
        assert await find("last") == third["id"]
        unknown = await api.request("GET", "/runs/resolve", ref="mnist/21", status=404)
        assert "alice/mnist/" in unknown["error"]["hints"][0]
        for odd in ("../x", "a/b/c/d", "bob/mnist/1", "99999999999999999999", "%", "_" * 20):
            await api.request("GET", "/runs/resolve", ref=odd, status=404)
        ambiguous = await api.request("GET", "/runs/resolve", ref=first["id"][:6], status=400)
        assert "several" in ambiguous["error"]["message"]

    run_scenario(tmp_path, scenario, loops=False)


def test_bare_number_resolves_within_the_project_only(tmp_path: Path) -> None:
    async def scenario(api: ApiServer) -> None:
        bob = (await api.request("POST", "/users", {"name": "bob"}, status=201))["token"]
        mine = {
            (project, number): (await api.submit(plan=0, project=project))["id"]
            for number in (1, 2)
            for project in ("proj", "study")
        }
        only = (await api.submit(plan=0, project="study"))["id"]
        await api.request(
            "POST", "/runs", {"spec": {"project": "bobs", "roles": [role()]}}, token=bob, plan=0
        )

        async def find(ref: str, status: int | None = None, **query: Any) -> Any:
            return await api.request("GET", "/runs/resolve", ref=ref, status=status, **query)

        for (project, number), run in mine.items():
            assert (await find(str(number), project=project))["id"] == run
        assert (await find("3", project="proj"))["id"] == only, (
            "no run of the project has that number, and another run does"
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

    run_scenario(tmp_path, scenario, loops=False)


def test_stop_and_delete(tmp_path: Path) -> None:
    async def scenario(api: ApiServer) -> None:
        run = await api.start_run()
        refused = await api.request("DELETE", f"/runs/{run['id']}", status=409)
        assert refused["error"]["code"] == "conflict"
        stopping = await api.request("POST", f"/runs/{run['id']}/stop", {"grace_s": 0})
        assert stopping["phase"] in ("stopping", "cancelled")

        async def is_over() -> bool:
            return bool((await api.request("GET", f"/runs/{run['id']}"))["phase"] == "cancelled")

        await api.wait_until(is_over)
        await api.request("DELETE", f"/runs/{run['id']}")
        await api.request("GET", f"/runs/{run['id']}", status=404)
        await api.request("POST", f"/runs/{run['id']}/stop", {}, status=404)
        await api.request("DELETE", f"/runs/{run['id']}", status=404)

    run_scenario(tmp_path, scenario)


def test_forced_delete_stops_the_run_first(tmp_path: Path) -> None:
    async def scenario(api: ApiServer) -> None:
        run = await api.start_run()
        await api.sync(run, [("stdout", 0, b"hello")])
        await api.request("DELETE", f"/runs/{run['id']}", force=1)
        await api.request("GET", f"/runs/{run['id']}", status=404)
        assert await api.services.streams.list(run["id"]) == []

    run_scenario(tmp_path, scenario)


def test_failed_delete_removes_nothing_and_an_interrupted_one_is_completed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def scenario(api: ApiServer) -> None:
        other, run = [await api.start_run() for _ in range(2)]
        for each in (other, run):
            await api.sync(each, [("stdout", 0, b"hello")])
            await api.finish(each)
        runs, streams = api.services.runs, api.services.streams

        async def fails(_run: str, /) -> None:
            raise OSError("here the disk is full, there are no descriptors, or the server is killed")

        with monkeypatch.context() as patch:
            patch.setattr(runs, "delete", fails)
            await api.request("DELETE", f"/runs/{run['id']}", status=500)
        assert [key.name for key in await streams.list(run["id"])] == ["stdout"]
        with monkeypatch.context() as patch:
            patch.setattr(streams, "delete", fails)
            await api.request("DELETE", f"/runs/{run['id']}")
        assert set(await streams.list_runs()) == {other["id"], run["id"]}
        assert (await remove_orphaned_folders(runs, streams), set(await streams.list_runs())) == (
            1,
            {other["id"]},
        )

    run_scenario(tmp_path, scenario)


def test_submission_names_the_run_that_it_was_forked_from(tmp_path: Path) -> None:
    async def scenario(api: ApiServer) -> None:
        run = await api.submit(plan=0)
        fork = await api.submit(plan=0, forked_from=run["id"], params={"lr": 0.2})
        shown = await api.request("GET", f"/runs/{fork['id']}")
        assert (shown["spec"]["forked_from"], shown["forked_from_name"]) == (run["id"], run["name"])

        refused = await api.submit(plan=0, status=400, forked_from="absent")
        assert "no run absent" in refused["error"]["message"]
        resume = {"run": run["id"], "step": 1, "manifest": "0" * 64}
        refused = await api.submit(plan=0, status=400, forked_from=run["id"], resume=resume)
        assert "hop fork" in refused["error"]["hints"][0]

    run_scenario(tmp_path, scenario, loops=False)


def test_run_starts_from_a_checkpoint_that_the_script_of_another_saved(tmp_path: Path) -> None:
    async def scenario(api: ApiServer) -> None:
        bob = (await api.request("POST", "/users", {"name": "bob"}))["token"]
        run = await api.start_run()
        saved = await api.put_tree({"work/model.pt": b"weights"}, token=api.run_token(run))
        own = {"rank": 0, "step": 4, "manifest": saved, "path": "work/model.pt"}
        await api.request("POST", f"/attempts/{run['id']}.1/checkpoints", own, token=api.run_token(run))
        fork = await api.submit(plan=0, forked_from=run["id"], initial_folder=saved)
        spec = (await api.request("GET", f"/runs/{fork['id']}"))["spec"]
        assert (spec["initial_folder"], spec["continued_runs"]) == (saved, [run["id"]])
        other = await api.put_tree({"a": b"no checkpoint"})
        for fields, message in (
            ({"forked_from": run["id"], "initial_folder": other}, "has saved no such checkpoint"),
            ({"initial_folder": saved}, "cannot start from the files"),
            ({"forked_from": "absent", "initial_folder": saved}, "no run absent"),
        ):
            refused = await api.submit(plan=0, status=400, **fields)
            assert message in refused["error"]["message"]
        spec = {"project": "p", "roles": [{"command": ["true"]}]}
        body = {"spec": {**spec, "forked_from": run["id"], "initial_folder": saved}}
        refused = await api.request("POST", "/runs", body, token=bob, status=400)
        assert "a run of another user" in refused["error"]["message"]

    run_scenario(tmp_path, scenario)


def test_fork_keeps_unchanged_fields(tmp_path: Path) -> None:
    async def scenario(api: ApiServer) -> None:
        await api.push_dataset("mnist")
        code = await api.put_tree({"main.py": b"x"})
        run = await api.start_run(
            code=code, datasets=[{"name": "mnist"}], params={"lr": 0.1, "n": 3}, tags={"a": "1"}
        )
        await api.push_dataset("mnist", {"z": b"other"})
        saved = await api.put_tree({"state": b"weights"}, token=api.run_token(run))
        await api.request(
            "POST",
            f"/attempts/{run['id']}.1/checkpoints",
            {"rank": 0, "step": 4, "manifest": saved},
            token=api.run_token(run),
        )
        fork = await api.request(
            "POST", f"/runs/{run['id']}/fork", {"params": {"lr": 0.2}, "checkpoint": "newest"}
        )
        assert fork["spec"]["params"] == {"lr": 0.2, "n": 3}
        assert fork["spec"]["datasets"] == run["spec"]["datasets"]
        assert fork["spec"]["resume"] == {"run": run["id"], "step": 4, "manifest": saved, "foreign": False}
        assert fork["spec"]["forked_from"] == run["id"]
        await api.wait_until(lambda: f"{fork['id']}.1" in api.engine.launches)
        restore = api.engine.launches[f"{fork['id']}.1"].replicas[0].restore
        assert restore is not None
        assert (restore.step, restore.manifest) == (4, saved)
        standing = {
            "priority": 7,
            "preemptible": False,
            "topology": {"level": "node", "rule": "spread", "slice": 1},
            "queue": "default",
        }
        moved = await api.request("POST", f"/runs/{run['id']}/fork", standing)
        assert {key: moved["spec"][key] for key in standing} == standing
        missing = await api.request("POST", f"/runs/{run['id']}/fork", {"checkpoint": 5}, status=404)
        assert "4" in missing["error"]["hints"][0]

    run_scenario(tmp_path, scenario)


def test_submission_response_names_other_runs_by_name(tmp_path: Path) -> None:
    async def scenario(api: ApiServer) -> None:
        await api.request("PUT", "/queues", {"tree": {"queues": {"default": {"maximum": {"gpus": 2}}}}})
        await api.start_run(roles=[role(gpus=1)], time_limit_s=3600.0)
        # so short that its wait is long enough in the next cycle
        ahead = await api.submit(roles=[role(gpus=2)], time_limit_s=0.001)
        behind = await api.submit(roles=[role(gpus=1)])
        result = f"run {ahead['name']} has waited longer for the quota of queue default"
        assert (behind["hold_reason"], behind["hold_detail"]) == ("behind", result)
        fork = await api.request("POST", f"/runs/{behind['id']}/fork", {}, plan=1)
        assert fork["hold_detail"] == result

    run_scenario(tmp_path, scenario)


def test_stop_response_names_other_runs_by_name(tmp_path: Path) -> None:
    async def scenario(api: ApiServer) -> None:
        run, other = await api.start_run(), await api.start_run()
        await api.services.controller.preempt(run["id"], f"run {other['id']} has priority 90")
        response = await api.request("POST", f"/runs/{run['id']}/stop", {})
        assert response["attempt"]["preempt_reason"] == f"run {other['name']} has priority 90"

    run_scenario(tmp_path, scenario)


def test_resolve_without_any_run_has_its_own_error(tmp_path: Path) -> None:
    async def scenario(api: ApiServer) -> None:
        nothing = (await api.request("GET", "/runs/resolve", ref="last", status=404))["error"]
        assert (nothing["message"], nothing["hints"]) == (
            "there are no runs yet",
            ["start one with `hop run`"],
        )
        for empty in ("", "  "):
            unnamed = (await api.request("GET", "/runs/resolve", ref=empty, status=400))["error"]
            assert unnamed["message"] == "no run is given" and "USER/PROJECT/NUMBER" in unnamed["hints"][0]
        await api.submit()
        bob = "hop_" + "b" * 43
        await api.services.access.add_token("bob", hash_token(bob), now=datetime.now(UTC), name="first")
        other_error = (await api.request("GET", "/runs/resolve", ref="last", token=bob, status=404))["error"]
        assert (other_error["message"], other_error["hints"][1]) == (
            "you have no runs yet",
            "list the runs of others with `hop ps --all`",
        )

    run_scenario(tmp_path, scenario, loops=False)


def test_newest_events_of_a_run_are_in_order_of_time(tmp_path: Path) -> None:
    async def scenario(api: ApiServer) -> None:
        run = await api.submit()
        now = datetime.now(UTC)
        for seconds in (3, 1, 2):  # a replica's events arrive later than they happen
            event = RunEvent(now + timedelta(seconds=seconds), RunEventKind.ALERT, str(seconds))
            await api.services.runs.record_event(run["id"], event)
        response = await api.request("GET", f"/runs/{run['id']}")
        assert [event["detail"] for event in response["events"]] == ["1", "2", "3"]

    run_scenario(tmp_path, scenario, loops=False)


def test_events_and_reasons_name_other_runs_by_name(tmp_path: Path) -> None:
    async def scenario(api: ApiServer) -> None:
        run, other = await api.start_run(), await api.start_run()
        await api.services.controller.preempt(
            run["id"], f"run {other['id']} has priority 90; run 0123456789abcdefghjk is gone"
        )
        response = await api.request("GET", f"/runs/{run['id']}")
        reason = f"run {other['name']} has priority 90; run 0123456789abcdefghjk is gone"
        assert [(event["kind"], event["detail"]) for event in response["events"]] == [("preempted", reason)]
        assert [attempt["preempt_reason"] for attempt in (response["attempt"], *response["attempts"])] == [
            reason,
            reason,
        ]
        assert (await api.request("GET", f"/runs/{other['id']}"))["events"] == []
        listed = {run["id"]: run for run in (await api.request("GET", "/runs"))["runs"]}
        assert listed[run["id"]]["attempt"]["preempt_reason"] == reason
        why = await api.request("GET", f"/runs/{run['id']}/why")
        assert why["detail"] == f"it is not waiting: it is being preempted on box: {reason}"

    run_scenario(tmp_path, scenario, script=UNTIL_KILLED)
