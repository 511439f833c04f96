"""The queue tree through the API: declaring it, reading it, and its effect on submissions."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from hopyard.server.authentication import hash_token
from tests.server.api_server import ApiServer, role, run_scenario
from tests.server.routes.test_studies import STUDY, TRIAL

BOB = "hop_" + "b" * 43
TREE: dict[str, Any] = {
    "default": "vision",
    "queues": {
        "research": {
            "guarantee": {"gpus": 2},
            "admins": ["bob"],
            "queues": {
                "vision": {
                    "guarantee": {"gpus": 1},
                    "maximum": {"gpus": 1},
                    "priorities": [10, 60],
                    "default_priority": 20,
                },
                "nlp": {"submitters": ["carol"], "lend_limit": {"gpus": 0}, "guarantee": {"gpus": 1}},
            },
        },
        "prod": {"user_limit": {"cpus": 2}},
    },
}


async def apply_tree(api: ApiServer, tree: dict[str, Any], **query: Any) -> Any:
    return await api.request("PUT", "/queues", {"tree": tree, "file": "team.yaml"}, **query)


async def add_bob(api: ApiServer) -> None:
    await api.services.access.add_token("bob", hash_token(BOB), now=datetime.now(UTC), name="laptop")


def test_undeclared_tree_has_one_default_queue(tmp_path: Path) -> None:
    async def scenario(api: ApiServer) -> None:
        run = await api.submit()
        assert (run["spec"]["queue"], run["spec"]["priority"]) == ("default", 50)
        response = await api.request("GET", "/queues")
        assert (response["default"], response["owner"], response["tree"]["queues"]) == (
            "default",
            "alice",
            {"default": {}},
        )
        (only,) = response["queues"]
        assert (only["name"], only["leaf"], only["waiting"], only["running"]) == ("default", True, 1, 0)

    run_scenario(tmp_path, scenario, loops=False)


def test_tree_is_applied_completely_and_returned_unchanged(tmp_path: Path) -> None:
    async def scenario(api: ApiServer) -> None:
        tried = await apply_tree(api, TREE, dry_run=1)
        assert not tried["applied"]
        assert [c["queue"] for c in tried["changes"]] == [
            None,
            "default",
            "nlp",
            "prod",
            "research",
            "vision",
        ]
        assert [q["name"] for q in (await api.request("GET", "/queues"))["queues"]] == ["default"]
        assert tried["warnings"] == [
            f"there is no user `{name}` yet; add it with `hop user add {name}`" for name in ("bob", "carol")
        ]
        done = await apply_tree(api, TREE)
        assert done == {**tried, "applied": True}
        response = await api.request("GET", "/queues")
        assert [(q["name"], q["depth"]) for q in response["queues"]] == [
            ("prod", 0),
            ("research", 0),
            ("nlp", 1),
            ("vision", 1),
        ]
        assert response["tree"] == {**TREE, "half_life": "7d"}
        assert await apply_tree(api, response["tree"]) == {"changes": [], "warnings": [], "applied": False}

    run_scenario(tmp_path, scenario)


def test_unreachable_limit_gives_a_warning(tmp_path: Path) -> None:
    async def scenario(api: ApiServer) -> None:
        done = await apply_tree(
            api,
            {"queues": {"default": {"maximum": {"gpus": 1, "gpus.A100": 2}, "user_limit": {"gpus": 2}}}},
        )
        assert done["warnings"] == [
            "default.maximum: 2 gpus.a100 can never be reached: maximum.gpus is 1",
            "default.user_limit: 2 gpus can never be reached: maximum.gpus is 1",
        ]
        assert done["applied"]

    run_scenario(tmp_path, scenario)


def test_impossible_guarantees_by_model_are_refused(tmp_path: Path) -> None:
    async def scenario(api: ApiServer) -> None:
        inside = {"b": {"guarantee": {"gpus.A100": 1}}, "c": {"guarantee": {"gpus.H100": 2}}}
        invalid_tree = {"queues": {"a": {"guarantee": {"gpus": 2}, "queues": inside}}, "default": "b"}
        refused = (await apply_tree(api, invalid_tree, status=400))["error"]
        assert refused["message"].startswith("team.yaml: queues.a.guarantee.gpus: 2 is less than")
        assert refused["hints"] == ["raise it to 3, or lower theirs", "GPUs of a model count as `gpus` too"]
        assert [q["name"] for q in (await api.request("GET", "/queues"))["queues"]] == ["default"]
        nested: dict[str, Any] = {}
        for level in range(300):
            nested = {f"q{level}": {"queues": nested}}
        deep = (await apply_tree(api, {"queues": nested}, status=400))["error"]
        assert deep["message"].endswith("the tree is deeper than 16 levels")

    run_scenario(tmp_path, scenario)


def test_guarantee_above_the_cluster_gives_a_warning(tmp_path: Path) -> None:
    async def scenario(api: ApiServer) -> None:
        done = await apply_tree(api, {"queues": {"default": {"guarantee": {"gpus": 3}}}})
        assert done["warnings"] == ["the queues are guaranteed 3 gpus together, and the nodes have 2"]
        assert done["applied"]

    run_scenario(tmp_path, scenario)


def test_invalid_tree_is_refused_with_file_and_path(tmp_path: Path) -> None:
    async def scenario(api: ApiServer) -> None:
        invalid_tree = {
            "queues": {"a": {"guarantee": {"gpus": 1}, "queues": {"b": {"guarantee": {"gpus": 2}}}}}
        }
        refused = (await apply_tree(api, invalid_tree, status=400))["error"]
        assert refused["message"].startswith("team.yaml: queues.a.guarantee.gpus: 1 is less than")
        assert refused["hints"] == ["raise it to 2, or lower theirs"]
        assert [q["name"] for q in (await api.request("GET", "/queues"))["queues"]] == ["default"]

    run_scenario(tmp_path, scenario, loops=False)


def test_run_gets_queue_and_priority_from_the_tree(tmp_path: Path) -> None:
    async def scenario(api: ApiServer) -> None:
        await apply_tree(api, TREE)
        run = await api.submit()
        assert (run["spec"]["queue"], run["spec"]["priority"]) == ("vision", 20)
        run = await api.submit(queue="prod", priority=99)
        assert (run["spec"]["queue"], run["spec"]["priority"]) == ("prod", 99)
        body = {"id": "client-made-1", "spec": {"project": "p", "roles": [role()]}}
        first = await api.request("POST", "/runs", body)
        changed = {**TREE, "default": "prod"}
        await apply_tree(api, changed)
        # a retry, although the default is another now
        assert (await api.request("POST", "/runs", body))["spec"] == first["spec"]
        body["spec"]["queue"] = "prod"
        await api.request("POST", "/runs", body, status=409)

    run_scenario(tmp_path, scenario, loops=False)


def test_higher_priorities_need_a_grant(tmp_path: Path) -> None:
    dora = "hop_" + "d" * 43

    async def scenario(api: ApiServer) -> None:
        await add_bob(api)
        await api.services.access.add_token("dora", hash_token(dora), now=datetime.now(UTC), name="laptop")

        async def submit(token: str, status: int = 201, **spec: Any) -> Any:
            body = {"spec": {"project": "p", "roles": [role()], **spec}}
            return await api.request("POST", "/runs", body, token=token, status=status)

        refused = (await submit(dora, 400, priority=51))["error"]
        assert refused["message"] == "priority: 51 is not in the range 0 to 50 of queue default for dora"
        assert refused["hints"][0] == "omit it to use the default of the queue, 50"
        assert (await submit(dora, priority=1))["spec"]["priority"] == 1
        by_owner = await api.submit(priority=90, preemptible=False)
        forked = await api.request("POST", f"/runs/{by_owner['id']}/fork", {}, token=dora, status=201)
        assert (forked["spec"]["priority"], forked["spec"]["preemptible"]) == (50, True)
        own = await api.request("POST", f"/runs/{by_owner['id']}/fork", {}, status=201)
        assert (own["spec"]["priority"], own["spec"]["preemptible"]) == (90, False)
        never_preempted = {**STUDY, "trial": {**TRIAL, "preemptible": False}}
        study = await api.submit(study=never_preempted, priority=90, preemptible=False)
        await api.request("POST", f"/runs/{study['id']}/stop", {})
        for path in ("fork", "continue"):
            taken = (await api.request("POST", f"/runs/{study['id']}/{path}", {}, token=dora, status=201))[
                "spec"
            ]
            assert (taken["priority"], taken["preemptible"], taken["study"]["trial"]["preemptible"]) == (
                50,
                True,
                True,
            )
        await apply_tree(api, {**TREE, "queues": {**TREE["queues"], "default": {}}})
        assert (await submit(dora, 400, priority=61))["error"][
            "message"
        ] == "priority: 61 is not in the range 10 to 60 of queue vision for dora"
        assert (await submit(dora, priority=60))["spec"]["priority"] == 60
        assert (await submit(BOB, priority=100))["spec"]["priority"] == 100  # he administers it
        await apply_tree(api, {"queues": {"default": {}, "vision": {"user_priorities": {"dora": 80}}}})
        assert (await submit(dora, queue="vision", priority=80))["spec"]["priority"] == 80
        refused = (await submit(dora, 400, queue="vision", priority=81))["error"]
        assert refused["message"] == "priority: 81 is not in the range 0 to 80 of queue vision for dora"
        assert "`user_priorities: {dora: 81}`" in refused["hints"][1]
        assert (await submit(BOB, 400, queue="vision", priority=51))["error"]["message"].startswith(
            "priority: 51 is not in the range 0 to 50"
        )
        await apply_tree(api, {"queues": {"default": {"no_preempt": False}, "vision": {}}})
        refused = (await submit(dora, 403, preemptible=False))["error"]
        assert refused["message"] == "`dora` may not submit runs that are never preempted to queue default"
        # nor studies with such trials
        assert (await submit(dora, 403, study=never_preempted))["error"]["message"] == refused["message"]

    run_scenario(tmp_path, scenario, loops=False)


def test_limit_below_current_usage_gives_a_warning(tmp_path: Path) -> None:
    async def scenario(api: ApiServer) -> None:
        await api.start_run(roles=[role(gpus=2)])
        tree = {"queues": {"default": {"maximum": {"gpus": 1}, "user_limit": {"gpus": 1}}}}
        tried = await apply_tree(api, tree, dry_run=1)
        assert tried["warnings"] == [
            (
                "default: at most 1 gpus, and its runs use 2 gpus now: these continue, and no other run "
                "starts until less is used"
            ),
            "default: at most 1 gpus for one user, and alice uses 2 gpus now",
        ]
        assert (await apply_tree(api, tree))["warnings"] == tried["warnings"]

    run_scenario(tmp_path, scenario)


def test_refused_submission_names_the_reason_and_other_queues(tmp_path: Path) -> None:
    async def scenario(api: ApiServer) -> None:
        await apply_tree(api, TREE)
        await add_bob(api)

        async def refused(token: str, **spec: Any) -> tuple[str, str, list[str]]:
            body = {"spec": {"project": "p", "roles": [role()], **spec}}
            response = await api.send("POST", "/runs", body, token=token)
            error = response.json()["error"]
            return error["code"], error["message"], error["hints"]

        alice = "hop_" + "t" * 43
        code, message, hints = await refused(alice, queue="visoin")
        assert (code, message) == ("bad_spec", "queue: there is no queue `visoin`")
        assert hints == ["did you mean `vision`?", "choose a queue with `-q QUEUE`: nlp, prod, vision"]
        code, message, hints = await refused(alice, queue="research")
        assert (code, hints) == ("bad_spec", ["choose one of nlp, vision"])
        code, message, hints = await refused(alice, roles=[role(gpus=2)])
        assert (code, hints) == ("does_not_fit", ["show its limits with `hop queue info vision`"])
        assert message.endswith("requests 2 GPUs; queue vision uses 0 of at most 1 GPU")
        code, message, _ = await refused(alice, queue="prod", roles=[role(cpu_milli=3000)])
        assert (code, "alice uses 0 of at most 2 CPUs for one user in queue prod" in message) == (
            "does_not_fit",
            True,
        )
        carol = "hop_" + "c" * 43
        await api.services.access.add_token("dora", hash_token(carol), now=datetime.now(UTC), name="laptop")
        code, message, hints = await refused(carol, queue="nlp")
        assert (code, message) == (
            "forbidden",
            "`dora` may not submit to queue nlp; allowed users: carol, bob, alice",
        )
        assert hints == ["queues that you may submit to: prod, vision"]
        closed = {
            "nlp": {"submitters": ["carol"], "admins": ["bob"]},
            "prod": {"submitters": ["carol"], "admins": ["dora"]},
        }
        await apply_tree(api, {"default": "nlp", "queues": closed})
        *_, hints = await refused(carol, queue="nlp")
        assert hints == ["queues that you may submit to: prod"]  # which dora administers
        await apply_tree(api, {"default": "nlp", "queues": {"nlp": closed["nlp"]}})
        assert (await refused(carol))[2] == ["ask one of them"]
        await apply_tree(api, TREE)
        await api.request(
            "POST", "/runs", {"spec": {"project": "p", "roles": [role()], "queue": "nlp"}}, token=BOB
        )  # he administers it

    run_scenario(tmp_path, scenario)


def test_administrators_change_only_children_of_their_queue(tmp_path: Path) -> None:
    async def scenario(api: ApiServer) -> None:
        await apply_tree(api, TREE)
        await add_bob(api)

        def changed(**queues: Any) -> dict[str, Any]:
            return {**TREE, "queues": {**TREE["queues"], **queues}}

        research = TREE["queues"]["research"]
        inside = {
            **research,
            "queues": {**research["queues"], "speech": {"queues": {"asr": {}}}, "vision": {"weight": 3}},
        }
        assert (await apply_tree(api, changed(research=inside), token=BOB))["applied"]
        await apply_tree(api, changed(research={**inside, "weight": 2}), token=BOB, status=403)
        await apply_tree(api, changed(research=inside, mine={}), token=BOB, status=403)
        refused = await apply_tree(api, {**changed(research=inside), "default": "nlp"}, token=BOB, status=403)
        assert "only the server's owner" in refused["error"]["message"]
        moved_out = {
            "vision": inside["queues"]["vision"],
            "research": {**inside, "queues": {"nlp": inside["queues"]["nlp"]}},
        }
        await apply_tree(api, changed(**moved_out), token=BOB, status=403)
        refused = await apply_tree(api, changed(research=inside, prod={}), token=BOB, status=403)
        assert refused["error"]["message"] == "`bob` may not change queue prod; allowed users: alice"

    run_scenario(tmp_path, scenario, loops=False)


def test_queue_with_pending_runs_is_not_removed(tmp_path: Path) -> None:
    async def scenario(api: ApiServer) -> None:
        await apply_tree(api, TREE)
        await api.start_run(roles=[role(gpus=1)])
        waiting = await api.submit(roles=[role(gpus=1, cpu_milli=8000)])
        for smaller in ({"default": {}}, {"vision": {"queues": {"new": {}}}}):
            refused = (await apply_tree(api, {"queues": smaller}, status=409))["error"]
            assert f"vision (1): {waiting['name']}" in refused["message"]
        await api.request("POST", f"/runs/{waiting['id']}/stop", {})
        assert (await apply_tree(api, {"queues": {"default": {}}}))["applied"]
        response = await api.request("GET", "/queues")
        assert [(q["name"], q["declared"], q["running"]) for q in response["queues"]] == [
            ("default", True, 0),
            ("vision", False, 1),
        ]

    run_scenario(tmp_path, scenario)


def test_queue_shows_usage_by_user(tmp_path: Path) -> None:
    async def scenario(api: ApiServer) -> None:
        tree = {"queues": {"default": {}, "sure": {"guarantee": {"gpus": 1}}}}
        await apply_tree(api, tree)
        await api.start_run(roles=[role(gpus=2)], queue="default", preemptible=False)
        waiting = await api.submit(roles=[role(gpus=1)], queue="sure")
        default, sure = (await api.request("GET", "/queues"))["queues"]
        assert (default["used"], default["share"]) == ({"cpu": 1000, "gpu": 2000, "gpu:a100": 2000}, 1.0)
        assert default["borrowed"]["gpu"] == 2000
        assert (sure["guarantee"], sure["lent"], sure["waiting"]) == ({"gpu": 1000}, {"gpu": 1000}, 1)
        response = await api.request("GET", "/queues/default")
        (user,) = response["users"]
        assert (user["user"], user["share"], user["running"]) == ("alice", 1.0, 1)
        assert [u["waiting"] for u in (await api.request("GET", "/queues/sure"))["users"]] == [1]
        missing = await api.request("GET", "/queues/defalt", status=404)
        assert missing["error"]["hints"] == ["did you mean `default`?"]
        assert waiting["hold_reason"]

    run_scenario(tmp_path, scenario)


def test_request_for_unlent_quota_is_refused_even_without_schedulable_nodes(
    tmp_path: Path,
) -> None:
    tree = {
        "default": "research",
        "queues": {"prod": {"guarantee": {"gpus": 1.5}, "lend_limit": {"gpus": 0}}, "research": {}},
    }

    async def scenario(api: ApiServer) -> None:
        await apply_tree(api, tree)
        for cordoned in (False, True):
            if cordoned:
                await api.request("POST", "/nodes/box/cordon", {"reason": "broken"})
                await api.wait_until(lambda: _cordoned(api))
            error = (
                await api.request(
                    "POST", "/runs", {"spec": {"project": "p", "roles": [role(gpus=1)]}}, status=400
                )
            )["error"]
            assert error["code"] == "does_not_fit" and error["hints"] == [
                "show its limits with `hop queue info prod`"
            ]
            assert error["message"] == (
                "a run of this size can never start in queue research: requests 1 GPU; queue research may "
                "use 0.5 GPUs more, the rest is not lent by prod"
            )
            await api.submit(roles=[role(gpu_milli=500)])
            await api.submit(queue="prod", roles=[role(gpus=1)])

    async def _cordoned(api: ApiServer) -> bool:
        return all(node.cordoned for node in (await api.services.cluster.nodes()))

    run_scenario(tmp_path, scenario)


def test_fork_of_a_run_from_a_removed_queue_uses_the_default_queue(tmp_path: Path) -> None:
    async def scenario(api: ApiServer) -> None:
        await apply_tree(api, {"default": "main", "queues": {"main": {}, "old": {"default_priority": 70}}})
        run = await api.submit(plan=0, queue="old")
        assert (run["spec"]["queue"], run["spec"]["priority"]) == ("old", 70)
        same_queue = await api.request("POST", f"/runs/{run['id']}/fork", {}, status=201)
        assert (same_queue["spec"]["queue"], "queue_gone" in same_queue) == ("old", False)
        for ended in (run, same_queue):
            await api.request("POST", f"/runs/{ended['id']}/stop", {})
        await apply_tree(api, {"default": "main", "queues": {"main": {}, "new": {}}})
        fork = await api.request("POST", f"/runs/{run['id']}/fork", {}, status=201)
        assert (fork["spec"]["queue"], fork["spec"]["priority"], fork["queue_gone"]) == ("main", 50, "old")
        requested = await api.request(
            "POST", f"/runs/{run['id']}/fork", {"queue": "new", "priority": 40}, status=201
        )
        assert (requested["spec"]["queue"], requested["spec"]["priority"], "queue_gone" in requested) == (
            "new",
            40,
            False,
        )
        # requested values are not replaced
        await api.request("POST", f"/runs/{run['id']}/fork", {"queue": "old"}, status=400)
        assert (await api.request("GET", f"/runs/{fork['id']}"))["forked_from_name"] == run["name"]
        await api.request("DELETE", f"/runs/{run['id']}")
        assert (await api.request("GET", f"/runs/{fork['id']}"))["forked_from_name"] is None

    run_scenario(tmp_path, scenario, loops=False)
