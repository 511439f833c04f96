"""What of a run is its user's alone: values of variables, and secrets."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from hopyard.domain.run_environment import RANK_VARIABLES
from tests.server.stage import TOKEN, Stage, play, role

VALUE = "s3cr3t-value"


async def bob_of(stage: Stage) -> str:
    token: str = (await stage.ask("POST", "/users", {"name": "bob"}))["token"]
    return token


def a_study(env: dict[str, str]) -> dict[str, Any]:
    trial = {"project": "p", "roles": [role()], "env": env}
    space = [{"kind": "uniform", "name": "lr", "low": 0.0, "high": 1.0}]
    return {
        "name": "s",
        "metric": "acc",
        "goal": "max",
        "space": space,
        "parallel": "trials",
        "trials": 2,
        "trial": trial,
    }


def test_no_answer_shows_values_of_variables_to_anybody_but_the_runs_user(tmp_path: Path) -> None:
    async def scene(stage: Stage) -> None:
        bob = await bob_of(stage)
        env = {"env": {"KEY": VALUE}}
        run = await stage.ask(
            "POST", "/runs", {"spec": {"project": "p", "roles": [role()], **env}}, token=bob
        )
        study = await stage.ask(
            "POST",
            "/runs",
            {"spec": {"project": "s", "roles": [role()], **env, "study": a_study({"KEY": VALUE})}},
            token=bob,
        )
        read = (await stage.ask("POST", "/tokens", {"name": "r", "scopes": ["read"]}, token=bob))["secret"]
        for one in (run, study):
            assert VALUE in json.dumps(one)
            user, project, number = one["name"].split("/")
            # TOKEN: the owner of the server
            for token, shown in ((bob, True), (TOKEN, False), (read, False)):
                for path, query in (
                    (f"/runs/{one['id']}", {}),
                    (f"/runs/by-name/{user}/{project}/{number}", {}),
                    ("/runs/resolve", {"ref": one["id"]}),
                    ("/runs", {"user": "bob"}),
                ):
                    told = json.dumps(await stage.ask("GET", path, token=token, **query))
                    assert (VALUE in told) == (shown and path != "/runs"), (path, token)
                    assert '"KEY"' in told or path == "/runs"  # rows of a listing are light
        await stage.ask("POST", f"/runs/{run['id']}/stop", {}, token=bob)
        await stage.ask("POST", f"/runs/{study['id']}/stop", {}, token=bob)
        for one in (run, study):
            for token, shown in ((bob, True), (TOKEN, False)):
                followed = await stage.ask("GET", f"/runs/{one['id']}/follow", token=token)
                assert (VALUE.encode() in followed) == shown
        assert VALUE not in json.dumps(await stage.ask("POST", f"/runs/{run['id']}/stop", {}))

    play(tmp_path, scene, loops=False)


def test_another_users_fork_names_what_it_does_not_take_over(tmp_path: Path) -> None:
    async def scene(stage: Stage) -> None:
        bob = await bob_of(stage)
        await stage.ask("PUT", "/secrets/HF", {"value": VALUE}, token=bob)
        spec = {"project": "p", "roles": [role()], "env": {"KEY": VALUE, "B": "2"}, "secrets": ["HF"]}
        run = await stage.ask("POST", "/runs", {"spec": spec}, token=bob)
        own = await stage.ask("POST", f"/runs/{run['id']}/fork", {}, token=bob, status=201)
        assert (own["spec"]["env"], own["spec"]["secrets"]) == (
            {"KEY": VALUE, "B": "2"},
            ["HF"],
        ) and "not_inherited" not in own
        fork = await stage.ask("POST", f"/runs/{run['id']}/fork", {"env": {"B": "3"}}, status=201)
        assert (fork["spec"]["env"], fork["spec"]["secrets"], fork["not_inherited"]) == (
            {"B": "3"},
            [],
            ["KEY", "HF"],
        )
        await stage.ask("PUT", "/secrets/HF", {"value": "alice's own"})
        fork = await stage.ask(
            "POST", f"/runs/{run['id']}/fork", {"env": {"KEY": "mine"}, "secrets": ["HF"]}, status=201
        )
        assert (fork["spec"]["env"], fork["spec"]["secrets"], fork["not_inherited"]) == (
            {"KEY": "mine"},
            ["HF"],
            ["B"],
        )
        study = await stage.ask(
            "POST",
            "/runs",
            {"spec": {"project": "s", "roles": [role()], "study": a_study({"KEY": VALUE})}},
            token=bob,
        )
        fork = await stage.ask("POST", f"/runs/{study['id']}/fork", {"env": {"NEW": "1"}}, status=201)
        assert fork["not_inherited"] == ["KEY"] and fork["spec"]["study"]["trial"]["env"] == {"NEW": "1"}
        await stage.ask("POST", f"/runs/{study['id']}/stop", {})
        more = await stage.ask("POST", f"/runs/{study['id']}/continue", {"env": {"KEY": "mine"}}, status=201)
        assert more["spec"]["study"]["trial"]["env"] == {"KEY": "mine"} and "not_inherited" not in more

    play(tmp_path, scene, loops=False)


def test_a_secret_goes_to_the_replica_and_nowhere_else(tmp_path: Path) -> None:
    async def scene(stage: Stage) -> None:
        bob = await bob_of(stage)
        wanted = {"spec": {"project": "p", "roles": [role()], "secrets": ["HF"]}}
        for refused, status in (
            (wanted, 404),
            ({"spec": {**wanted["spec"], "secrets": ["1-x"]}}, 422),
            ({"spec": {**wanted["spec"], "secrets": ["HOPYARD_X"]}}, 400),
        ):
            await stage.ask("POST", "/runs", refused, token=bob, status=status)
        told = await stage.ask("PUT", "/secrets/HF", {"value": VALUE}, token=bob)
        await stage.ask("PUT", "/secrets/HF", {"value": "alice's"})
        both = {"spec": {**wanted["spec"], "env": {"HF": "x"}}}
        assert (
            "secrets.0: `HF`"
            in (await stage.ask("POST", "/runs", both, token=bob, status=400))["error"]["message"]
        )
        run = await stage.ask("POST", "/runs", wanted, token=bob)
        await stage.until(lambda: f"{run['id']}.1" in stage.engine.launches)
        (replica,) = stage.engine.launches[f"{run['id']}.1"].replicas
        assert replica.secrets == {"HF": VALUE} and "HF" not in replica.env
        listed = await stage.ask("GET", "/secrets", token=bob)
        everything = [
            told,
            run,
            listed,
            await stage.ask("GET", f"/runs/{run['id']}", token=bob),
            await stage.ask("GET", "/audit"),
        ]
        assert VALUE not in json.dumps(everything) and [one["name"] for one in listed["secrets"]] == ["HF"]
        await stage.ask("GET", "/secrets/HF", token=bob, status=405)
        await stage.ask("DELETE", "/secrets/HF", token=bob)
        await stage.ask("DELETE", "/secrets/HF", token=bob, status=404)
        for name in ("HOPYARD_HOME", *RANK_VARIABLES):
            refused = await stage.ask("PUT", f"/secrets/{name}", {"value": "x"}, token=bob, status=400)
            assert "set by Hopyard itself" in refused["error"]["message"], "its value would not reach the run"

    play(tmp_path, scene)


def test_a_run_whose_secret_was_removed_before_it_started_fails_by_its_name(tmp_path: Path) -> None:
    async def scene(stage: Stage) -> None:
        await stage.ask("PUT", "/secrets/HF", {"value": VALUE})
        blocking = await stage.started(roles=[role(gpus=2)])
        run = await stage.submit(roles=[role(gpus=2)], secrets=["HF"], max_attempts=1)
        await stage.ask("DELETE", "/secrets/HF")
        await stage.finish(blocking)

        async def failed() -> bool:
            return bool((await stage.ask("GET", f"/runs/{run['id']}"))["phase"] == "failed")

        await stage.until(failed)
        assert "no secret `HF`" in (await stage.ask("GET", f"/runs/{run['id']}"))["exit"]["reason"]

    play(tmp_path, scene)


def test_who_pushed_the_newest_version_is_told_where_it_was_somebody_else(tmp_path: Path) -> None:
    async def scene(stage: Stage) -> None:
        bob = await bob_of(stage)
        await stage.dataset("adata")
        wanted = {"spec": {"project": "p", "roles": [role()], "datasets": [{"name": "adata"}]}}
        assert "pinned" not in await stage.ask("POST", "/runs", wanted)
        manifest = await stage.put_tree({"b.txt": b"bob's"})
        await stage.ask("POST", "/datasets/adata/versions", {"manifest": manifest}, token=bob)
        (pinned,) = (await stage.ask("POST", "/runs", wanted))["pinned"]
        assert (pinned["dataset"], pinned["version"], pinned["created_by"]) == ("adata", 2, "bob")
        wanted["spec"]["datasets"][0]["version"] = 2  # type: ignore[index]
        assert "pinned" not in await stage.ask("POST", "/runs", wanted)

    play(tmp_path, scene, loops=False)
