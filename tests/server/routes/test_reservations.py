"""Reservations through the API: admission, refusal with the conflicts, and their effect on other runs."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from hopyard.server.authentication import hash_token
from tests.server.api_server import ApiServer, role, run_scenario

BOB, CAROL = "hop_" + "b" * 43, "hop_" + "c" * 43
TREE = {
    "queues": {"research": {"admins": ["bob"], "queues": {"vision": {}, "nlp": {}}}, "prod": {}},
    "default": "prod",
}


def at(hours: float) -> str:
    return (datetime.now(UTC) + timedelta(hours=hours)).isoformat()


def reservation_request(
    name: str = "exam", *, begin: float = 1, hours: float = 2, **fields: Any
) -> dict[str, Any]:
    """Requests the complete node for alice, from one hour ahead."""
    end = (datetime.fromisoformat(at(begin)) + timedelta(hours=hours)).isoformat()
    place = {} if "resources" in fields else {"nodes": ["box"]}
    owner = {} if {"users", "queue"} & fields.keys() else {"users": ["alice"]}
    return {"name": name, "start_at": at(begin), "end_at": end, **place, **owner, **fields}


async def reserve(
    api: ApiServer, *bodies: Any, status: int = 201, token: str | None = None, **fields: Any
) -> Any:
    body = bodies[0] if bodies else reservation_request(**fields)
    return await api.request(
        "POST", "/reservations", body, status=status, **({"token": token} if token else {})
    )


async def add_users(api: ApiServer, **tokens: str) -> None:
    for user, token in tokens.items():
        await api.services.access.add_token(user, hash_token(token), now=datetime.now(UTC), name="first")


def test_reservation_is_admitted_listed_and_cancelled(tmp_path: Path) -> None:
    async def scenario(api: ApiServer) -> None:
        answer = await reserve(api)
        assert answer["warnings"] == []
        created = answer["reservation"]
        assert (created["name"], created["nodes"], created["created_by"], created["active"]) == (
            "exam",
            ["box"],
            "alice",
            False,
        )
        assert (await api.request("GET", "/reservations"))["reservations"] == [created]
        assert await api.request("GET", "/reservations/exam") == created
        assert await api.request("DELETE", "/reservations/exam") == created
        assert (await api.request("GET", "/reservations"))["reservations"] == []
        assert "exam" in (await api.request("DELETE", "/reservations/exam", status=404))["error"]["message"]

    run_scenario(tmp_path, scenario)


def test_dry_run_returns_the_reservation_without_storing_it(tmp_path: Path) -> None:
    async def scenario(api: ApiServer) -> None:
        dry = await api.request(
            "POST", "/reservations", reservation_request(begin=-0.001), dry_run=1, status=200
        )
        assert (dry["applied"], dry["reservation"]["nodes"], dry["reservation"]["active"]) == (
            False,
            ["box"],
            True,
        )
        assert (await api.request("GET", "/reservations"))["reservations"] == []
        assert (await api.request("GET", "/nodes/box"))["node"]["reserved"] == []
        await api.request("POST", "/reservations", reservation_request(nodes=["bax"]), dry_run=1, status=404)
        assert (await reserve(api, begin=-0.001))["applied"]
        await api.request("POST", "/reservations", reservation_request(name="other"), dry_run=1, status=409)

    run_scenario(tmp_path, scenario)


def test_nodes_and_queues_list_active_and_coming_reservations(tmp_path: Path) -> None:
    async def scenario(api: ApiServer) -> None:
        await api.request("PUT", "/queues", {"tree": TREE})
        await reserve(api, name="later", begin=3, hours=1, queue="research")
        await reserve(api, name="now", begin=-0.001, hours=1, queue="vision", resources={"gpus": 1})
        box = await api.request("GET", "/nodes/box")
        assert box["node"]["reserved"] == ["now"]
        assert [reservation["name"] for reservation in box["reservations"]] == ["now", "later"]
        assert (await api.request("GET", "/pools"))["pools"][0]["reserved"] == 1
        for queue, names in (("vision", ["now", "later"]), ("nlp", ["later"]), ("prod", [])):
            response = await api.request("GET", f"/queues/{queue}")
            assert [reservation["name"] for reservation in response["reservations"]] == names

    run_scenario(tmp_path, scenario)


def test_pieces_of_two_reservations_share_a_node(tmp_path: Path) -> None:
    async def scenario(api: ApiServer) -> None:
        piece = {"gpus": 1, "cpu_milli": 1000}
        first = (await reserve(api, name="first", resources=piece))["reservation"]
        assert (first["nodes"], first["pieces"]) == (["box"], [1])
        await reserve(api, name="second", resources=piece)
        refused = await reserve(api, name="third", resources=piece, status=409)
        assert "first, second" in refused["error"]["message"] and refused["error"]["hints"]
        too_many = await reserve(api, name="much", resources={"gpus": 4}, status=409)
        assert "one piece needs 4 GPUs on one node; the only node, box, has " in too_many["error"]["message"]

    run_scenario(tmp_path, scenario)


def test_conflicting_reservation_is_named(tmp_path: Path) -> None:
    async def scenario(api: ApiServer) -> None:
        await reserve(api, name="exam", begin=10, hours=2, every_s=86400.0)
        refused = await reserve(api, name="other", begin=24 + 11, hours=2, status=409)
        assert refused["error"]["code"] == "conflict" and "exam" in refused["error"]["message"]
        await reserve(api, name="between", begin=13, hours=2)
        again = await reserve(api, name="exam", begin=13.5, status=409)
        assert "reservation `exam` already exists" in again["error"]["message"]
        stuck = await api.start_run(preemptible=False, time_limit_s=36000.0)
        assert (await api.request("GET", f"/runs/{stuck['id']}"))["phase"] in ("starting", "running")
        meets = await reserve(api, name="now", begin=0.1, hours=1, users=["carol"], status=409)
        assert f"run {stuck['name']} " in meets["error"]["message"]
        later = await reserve(api, name="later", begin=6, hours=1, users=["carol"])
        assert f"cannot be preempted and may still run then: run {stuck['name']}" in later["warnings"]

    run_scenario(tmp_path, scenario)


def test_only_permitted_users_reserve(tmp_path: Path) -> None:
    async def scenario(api: ApiServer) -> None:
        await add_users(api, bob=BOB, carol=CAROL)
        await api.request("PUT", "/queues", {"tree": TREE, "file": "team.yaml"})
        for token, body in (
            (BOB, {"users": ["bob"]}),
            (BOB, {"queue": "prod"}),
            (CAROL, {"queue": "vision"}),
        ):
            refused = await reserve(api, token=token, status=403, **body)
            whose = f"queue {body['queue']}" if "queue" in body else "users"
            assert f"may not reserve for {whose}; allowed users: " in refused["error"]["message"]
        await reserve(api, token=BOB, queue="vision")
        refused = await api.request("DELETE", "/reservations/exam", token=CAROL, status=403)
        assert "may not cancel reservations for queue vision; allowed users: " in refused["error"]["message"]
        await api.request("DELETE", "/reservations/exam", token=BOB)

    run_scenario(tmp_path, scenario)


def test_removing_a_queue_warns_about_its_reservations(tmp_path: Path) -> None:
    async def scenario(api: ApiServer) -> None:
        await api.request("PUT", "/queues", {"tree": TREE, "file": "team.yaml"})
        await reserve(api, queue="prod")
        less = {"tree": {"queues": {"rest": {}}, "default": "rest"}, "file": "team.yaml"}
        tried = await api.request("PUT", "/queues", less, dry_run=1)
        assert "reservation exam is for queue prod, which would be removed" in tried["warnings"]
        assert (
            "reservation exam is for queue prod, which was removed"
            in (await api.request("PUT", "/queues", less))["warnings"]
        )

    run_scenario(tmp_path, scenario)


def test_invalid_reservation_is_refused_with_its_path(tmp_path: Path) -> None:
    async def scenario(api: ApiServer) -> None:
        cases: list[tuple[int, str, dict[str, Any]]] = [
            (400, "start_at: ", reservation_request(begin=-3)),
            (400, "end_at: it ends before", reservation_request(hours=-1)),
            (400, "end_at: it is shorter", reservation_request(hours=0.001)),
            (400, "end_at: it is longer", reservation_request(hours=24 * 400)),
            (400, "start_at: it begins more", reservation_request(begin=24 * 365 * 6)),
            (400, "every_s: ", reservation_request(hours=5, every_s=3600.0)),
            (400, "until: it does not repeat", {**reservation_request(), "until": at(50)}),
            (400, "until: it is before", {**reservation_request(every_s=86400.0), "until": at(0)}),
            (400, "users: no owner is given", reservation_request(users=[])),
            (404, "queue: there is no queue `defaul`", reservation_request(queue="defaul")),
            (404, "nodes.0: there is no node `bux`", {**reservation_request(), "nodes": ["bux"]}),
            (400, "nodes.1: `box` is given twice", {**reservation_request(), "nodes": ["box", "box"]}),
            (400, "nodes: it reserves no capacity", {**reservation_request(), "nodes": []}),
            (400, "nodes: whole nodes and resources", {**reservation_request(), "resources": {"gpus": 1}}),
            (400, "resources: it reserves no capacity", reservation_request(resources={"cpu_milli": 0})),
            (
                404,
                "where.pools.0: there is no pool",
                reservation_request(resources={"gpus": 1}, where={"pools": ["a10"]}),
            ),
        ]
        for status, begins, body in cases:
            result = (await reserve(api, body, status=status))["error"]
            assert result["message"].startswith(begins), result
            assert result["hints"] or begins.startswith("nodes.1"), result
        assert (
            "did you mean `default`?"
            in (await reserve(api, reservation_request(queue="defaul"), status=404))["error"]["hints"]
        )
        for malformed in (
            {**reservation_request(), "name": "../x"},
            {**reservation_request(), "start_at": "tomorrow"},
            {**reservation_request(), "start_at": "2030-01-01T00:00:00"},
            {**reservation_request(), "pieces": [1]},
            {**reservation_request(resources={"gpus": 1}), "count": 0},
        ):
            await reserve(api, malformed, status=422)
        assert (await api.request("GET", "/reservations"))["reservations"] == []

    run_scenario(tmp_path, scenario)


def test_mistyped_user_gives_a_suggestion(tmp_path: Path) -> None:
    async def scenario(api: ApiServer) -> None:
        assert (await reserve(api, users=["alcie"]))["warnings"] == [
            "there is no user `alcie` yet; did you mean `alice`?"
        ]

    run_scenario(tmp_path, scenario)


def test_run_that_would_overlap_a_reservation_does_not_start(tmp_path: Path) -> None:
    async def scenario(api: ApiServer) -> None:
        await api.request(
            "PUT",
            "/queues",
            {"tree": {"queues": {"default": {}, "exam": {}}, "default": "default"}, "file": "t.yaml"},
        )
        await reserve(api, begin=1, queue="exam")
        waits = await api.submit(time_limit_s=7200.0)
        await api.start_run(time_limit_s=1800.0)
        await api.start_run(queue="exam", time_limit_s=7200.0)
        response = await api.request("GET", f"/runs/{waits['id']}/why")
        assert response["reason"] == "reserved" and [
            blocker["name"] for blocker in response["blocked_by"]
        ] == ["exam"]
        assert "with --time 59m: now, by backfill" in [line["text"] for line in response["what_if"]]
        assert response["expected"]["mid_at"] >= at(2.9)

    run_scenario(tmp_path, scenario)


def test_reservation_accepts_the_resource_fields_of_a_role(tmp_path: Path) -> None:
    async def scenario(api: ApiServer) -> None:
        body = reservation_request(
            resources=role(gpus=1, gpu_models=["A100"], extras=[])["resources"],
            where={"pools": ["default"]},
            count=2,
        )
        created = (await reserve(api, body))["reservation"]
        assert (created["pieces"], created["where"]["pools"], created["resources"]["gpu_models"]) == (
            [2],
            ["default"],
            ["A100"],
        )

    run_scenario(tmp_path, scenario)
