"""Private parts of a run: values of variables, and secrets."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from hopyard.domain.run_environment import RANK_VARIABLES
from tests.server.api_server import TOKEN, ApiServer, role, run_scenario

VALUE = "s3cr3t-value"


async def add_bob(api: ApiServer) -> str:
    token: str = (await api.request("POST", "/users", {"name": "bob"}))["token"]
    return token


def study_spec(env: dict[str, str]) -> dict[str, Any]:
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


def test_responses_show_variable_values_only_to_the_runs_user(tmp_path: Path) -> None:
    async def scenario(api: ApiServer) -> None:
        bob = await add_bob(api)
        env = {"env": {"KEY": VALUE}}
        run = await api.request(
            "POST", "/runs", {"spec": {"project": "p", "roles": [role()], **env}}, token=bob
        )
        study = await api.request(
            "POST",
            "/runs",
            {"spec": {"project": "s", "roles": [role()], **env, "study": study_spec({"KEY": VALUE})}},
            token=bob,
        )
        read = (await api.request("POST", "/tokens", {"name": "r", "scopes": ["read"]}, token=bob))["secret"]
        for hidden in (run, study):
            assert VALUE in json.dumps(hidden)
            user, project, number = hidden["name"].split("/")
            # TOKEN: the owner of the server
            for token, shown in ((bob, True), (TOKEN, False), (read, False)):
                for path, query in (
                    (f"/runs/{hidden['id']}", {}),
                    (f"/runs/by-name/{user}/{project}/{number}", {}),
                    ("/runs/resolve", {"ref": hidden["id"]}),
                    ("/runs", {"user": "bob"}),
                ):
                    result = json.dumps(await api.request("GET", path, token=token, **query))
                    assert (VALUE in result) == (shown and path != "/runs"), (path, token)
                    assert '"KEY"' in result or path == "/runs"  # rows of a listing are light
        await api.request("POST", f"/runs/{run['id']}/stop", {}, token=bob)
        await api.request("POST", f"/runs/{study['id']}/stop", {}, token=bob)
        for hidden in (run, study):
            for token, shown in ((bob, True), (TOKEN, False)):
                followed = await api.request("GET", f"/runs/{hidden['id']}/follow", token=token)
                assert (VALUE.encode() in followed) == shown
        assert VALUE not in json.dumps(await api.request("POST", f"/runs/{run['id']}/stop", {}))

    run_scenario(tmp_path, scenario, loops=False)


def test_run_file_hides_values_from_a_token_that_only_reads(tmp_path: Path) -> None:
    async def scenario(api: ApiServer) -> None:
        bob = await add_bob(api)
        hook = f"https://hooks.example.org/{VALUE}"
        spec = {"project": "p", "roles": [role()], "env": {"KEY": VALUE}, "on_end": [{"to": hook}]}
        run = await api.request("POST", "/runs", {"spec": spec}, token=bob)
        read = (await api.request("POST", "/tokens", {"name": "r", "scopes": ["read"]}, token=bob))["secret"]
        path = f"/runs/{run['id']}/yaml"
        own = await api.request("GET", path, token=bob)
        assert own["file"].count(VALUE) == 2
        for token in (read, TOKEN):
            hidden = await api.request("GET", path, token=token)
            assert VALUE not in json.dumps(hidden)
            assert hidden["left_out"] == ["KEY"]

    run_scenario(tmp_path, scenario, loops=False)


def test_fork_by_another_user_names_values_not_inherited(tmp_path: Path) -> None:
    async def scenario(api: ApiServer) -> None:
        bob = await add_bob(api)
        await api.request("PUT", "/secrets/HF", {"value": VALUE}, token=bob)
        spec = {"project": "p", "roles": [role()], "env": {"KEY": VALUE, "B": "2"}, "secrets": ["HF"]}
        run = await api.request("POST", "/runs", {"spec": spec}, token=bob)
        own = await api.request("POST", f"/runs/{run['id']}/fork", {}, token=bob, status=201)
        assert (own["spec"]["env"], own["spec"]["secrets"]) == (
            {"KEY": VALUE, "B": "2"},
            ["HF"],
        ) and "not_inherited" not in own
        fork = await api.request("POST", f"/runs/{run['id']}/fork", {"env": {"B": "3"}}, status=201)
        assert (fork["spec"]["env"], fork["spec"]["secrets"], fork["not_inherited"]) == (
            {"B": "3"},
            [],
            ["KEY", "HF"],
        )
        await api.request("PUT", "/secrets/HF", {"value": "alice's own"})
        fork = await api.request(
            "POST", f"/runs/{run['id']}/fork", {"env": {"KEY": "mine"}, "secrets": ["HF"]}, status=201
        )
        assert (fork["spec"]["env"], fork["spec"]["secrets"], fork["not_inherited"]) == (
            {"KEY": "mine"},
            ["HF"],
            ["B"],
        )
        study = await api.request(
            "POST",
            "/runs",
            {"spec": {"project": "s", "roles": [role()], "study": study_spec({"KEY": VALUE})}},
            token=bob,
        )
        fork = await api.request("POST", f"/runs/{study['id']}/fork", {"env": {"NEW": "1"}}, status=201)
        assert fork["not_inherited"] == ["KEY"] and fork["spec"]["study"]["trial"]["env"] == {"NEW": "1"}
        await api.request("POST", f"/runs/{study['id']}/stop", {})
        continued = await api.request(
            "POST", f"/runs/{study['id']}/continue", {"env": {"KEY": "mine"}}, status=201
        )
        assert (
            continued["spec"]["study"]["trial"]["env"] == {"KEY": "mine"} and "not_inherited" not in continued
        )

    run_scenario(tmp_path, scenario, loops=False)


def test_fork_of_an_evaluation_reports_only_into_runs_of_its_user(tmp_path: Path) -> None:
    async def scenario(api: ApiServer) -> None:
        bob = await add_bob(api)
        trained = await api.submit()
        evaluation = await api.submit(evaluation={"run": trained["id"]})
        refused = await api.send("POST", f"/runs/{evaluation['id']}/fork", {}, token=bob)
        assert refused.status_code == 403
        body = {"id": "a" * 26}
        # the second one repeats the request
        forks = [await api.request("POST", f"/runs/{evaluation['id']}/fork", body) for _ in range(2)]
        assert forks[0]["id"] == forks[1]["id"]
        events = (await api.request("GET", f"/runs/{trained['id']}"))["events"]
        evaluations = [event["detail"] for event in events if event["kind"] == "evaluation"]
        assert evaluations == [f"by {run['name']} ({run['id']})" for run in (evaluation, forks[0])]

    run_scenario(tmp_path, scenario, loops=False)


def test_secret_is_sent_to_the_replica_only(tmp_path: Path) -> None:
    async def scenario(api: ApiServer) -> None:
        bob = await add_bob(api)
        request = {"spec": {"project": "p", "roles": [role()], "secrets": ["HF"]}}
        for refused, status in (
            (request, 404),
            ({"spec": {**request["spec"], "secrets": ["1-x"]}}, 422),
            ({"spec": {**request["spec"], "secrets": ["HOPYARD_X"]}}, 400),
        ):
            await api.request("POST", "/runs", refused, token=bob, status=status)
        response = await api.request("PUT", "/secrets/HF", {"value": VALUE}, token=bob)
        await api.request("PUT", "/secrets/HF", {"value": "alice's"})
        both = {"spec": {**request["spec"], "env": {"HF": "x"}}}
        assert (
            "secrets.0: `HF`"
            in (await api.request("POST", "/runs", both, token=bob, status=400))["error"]["message"]
        )
        run = await api.request("POST", "/runs", request, token=bob)
        await api.wait_until(lambda: f"{run['id']}.1" in api.engine.launches)
        (replica,) = api.engine.launches[f"{run['id']}.1"].replicas
        assert replica.secrets == {"HF": VALUE} and "HF" not in replica.env
        listed = await api.request("GET", "/secrets", token=bob)
        everything = [
            response,
            run,
            listed,
            await api.request("GET", f"/runs/{run['id']}", token=bob),
            await api.request("GET", "/audit"),
        ]
        assert VALUE not in json.dumps(everything) and [secret["name"] for secret in listed["secrets"]] == [
            "HF"
        ]
        await api.request("GET", "/secrets/HF", token=bob, status=405)
        await api.request("DELETE", "/secrets/HF", token=bob)
        await api.request("DELETE", "/secrets/HF", token=bob, status=404)
        for name in ("HOPYARD_HOME", *RANK_VARIABLES):
            refused = await api.request("PUT", f"/secrets/{name}", {"value": "x"}, token=bob, status=400)
            assert "set by Hopyard itself" in refused["error"]["message"], "its value would not reach the run"

    run_scenario(tmp_path, scenario)


def test_run_with_a_removed_secret_fails_and_names_it(tmp_path: Path) -> None:
    async def scenario(api: ApiServer) -> None:
        await api.request("PUT", "/secrets/HF", {"value": VALUE})
        blocking = await api.start_run(roles=[role(gpus=2)])
        run = await api.submit(roles=[role(gpus=2)], secrets=["HF"], max_attempts=1)
        await api.request("DELETE", "/secrets/HF")
        await api.finish(blocking)

        async def failed() -> bool:
            return bool((await api.request("GET", f"/runs/{run['id']}"))["phase"] == "failed")

        await api.wait_until(failed)
        assert "no secret `HF`" in (await api.request("GET", f"/runs/{run['id']}"))["exit"]["reason"]

    run_scenario(tmp_path, scenario)


def test_submission_names_the_pusher_of_a_version_of_another_user(tmp_path: Path) -> None:
    async def scenario(api: ApiServer) -> None:
        bob = await add_bob(api)
        await api.push_dataset("adata")
        request = {"spec": {"project": "p", "roles": [role()], "datasets": [{"name": "adata"}]}}
        assert "pinned" not in await api.request("POST", "/runs", request)
        manifest = await api.put_tree({"b.txt": b"bob's"})
        await api.request("POST", "/datasets/adata/versions", {"manifest": manifest}, token=bob)
        (pinned,) = (await api.request("POST", "/runs", request))["pinned"]
        assert (pinned["dataset"], pinned["version"], pinned["created_by"]) == ("adata", 2, "bob")
        request["spec"]["datasets"][0]["version"] = 2  # type: ignore[index]
        assert "pinned" not in await api.request("POST", "/runs", request)

    run_scenario(tmp_path, scenario, loops=False)
