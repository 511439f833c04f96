"""Streams that replicas ship, and reading them."""

from __future__ import annotations

import asyncio
import json
import time
from pathlib import Path
from typing import Any

import pytest

from hopyard.cli.run_text import duration_s
from hopyard.domain.ids import AttemptId
from hopyard.domain.manifest import Manifest
from hopyard.domain.metric_records import NO_STEP, POINT, pack_definition, pack_point, series_id
from hopyard.interfaces.streams import StreamKey
from hopyard.server.authentication import Caller
from hopyard.server.routes import server
from hopyard.server.routes.streams import make_frame_stream
from hopyard.tracking.follow import FollowRequest
from tests.datasets.folder_transport import small_disk
from tests.server.api_server import API, TOKEN, ApiServer, role, run_scenario


def points(name: str, *pairs: tuple[int, float]) -> bytes:
    return pack_definition(name) + b"".join(
        pack_point(POINT, series_id(name), step, 1000.0 + step, value) for step, value in pairs
    )


def event(kind: str, **fields: Any) -> bytes:
    return json.dumps({"t": time.time(), "kind": kind, **fields}).encode() + b"\n"


def test_bytes_are_accepted_only_at_the_exact_end(tmp_path: Path) -> None:
    async def scenario(api: ApiServer) -> None:
        run = await api.start_run()
        assert (await api.sync(run, [("stdout", 0, b"hello ")]))["offsets"] == {"stdout": 6}
        assert (await api.sync(run, [("stdout", 0, b"hello ")]))["offsets"] == {"stdout": 6}  # sent again
        # overlaps
        assert (await api.sync(run, [("stdout", 3, b"lo world\n")]))["offsets"] == {"stdout": 12}
        assert (await api.sync(run, [("stdout", 99, b"gap")]))["offsets"] == {"stdout": 12}
        assert await api.request("GET", f"/runs/{run['id']}/log") == b"hello world\n"
        raw = await api.send("GET", f"/runs/{run['id']}/raw/{run['id']}.1/0/stdout", offset=6, limit=5)
        assert (raw.content, raw.headers["x-length"]) == (b"world", "12")
        listed = await api.request("GET", f"/runs/{run['id']}/streams")
        assert listed == {
            "streams": [{"attempt": f"{run['id']}.1", "rank": 0, "stream": "stdout"}],
            "next": None,
        }

    run_scenario(tmp_path, scenario)


def test_sync_with_a_wrong_header_is_refused(tmp_path: Path) -> None:
    async def scenario(api: ApiServer) -> None:
        run = await api.start_run()
        at = f"/attempts/{run['id']}.1/replicas/0/sync"
        status = {"rank": 0, "phase": "running"}
        for head, data in (
            ({"status": status, "segments": [{"stream": "stdout", "offset": 0, "size": 9}]}, b"short"),
            ({"status": status, "segments": []}, b"too much"),
            ({"status": status, "segments": [{"stream": "../x", "offset": 0, "size": 1}]}, b"x"),
            ({"status": status, "segments": [{"stream": "stdout", "offset": -1, "size": 1}]}, b"x"),
            ({"status": {"rank": 1, "phase": "running"}}, b""),
            ({"status": {"rank": 0, "phase": "exited"}}, b""),
            ({"status": {"rank": 0, "phase": "dancing"}}, b""),
            ({}, b""),
        ):
            response = await api.send("POST", at, json.dumps(head).encode() + b"\n" + data)
            assert response.status_code in (400, 422), response.text
        assert await api.request("GET", f"/runs/{run['id']}/streams") == {"streams": [], "next": None}
        for attempt, rank in ((f"{run['id']}.2", 0), (f"{run['id']}.1", 1), ("unknownrun.1", 0)):
            body = json.dumps({"status": {"rank": rank, "phase": "running"}}).encode()
            assert (
                await api.send("POST", f"/attempts/{attempt}/replicas/{rank}/sync", body)
            ).status_code == 404

    run_scenario(tmp_path, scenario)


def test_exit_is_recorded_with_the_final_sync(tmp_path: Path) -> None:
    async def scenario(api: ApiServer) -> None:
        run = await api.start_run()
        result = {"kind": "exit-code", "code": 3, "reason": "exit code 3"}
        await api.sync(run, [("stdout", 0, b"a")], phase="exited", exit=result)  # has exited, and still ships
        assert (await api.request("GET", f"/runs/{run['id']}"))["phase"] == "running"
        ended = await api.finish(run, code=3, segments=[("stdout", 1, b"b")])
        assert (ended["phase"], ended["exit"]) == ("failed", result)
        assert (await api.sync(run, []))["stop"]  # a replica that still reports for it is stopped

    run_scenario(tmp_path, scenario)


def test_params_progress_and_metrics_survive_a_server_restart(tmp_path: Path) -> None:
    run: Any = None

    async def first(api: ApiServer) -> None:
        nonlocal run
        run = await api.start_run(params={"lr": 1})
        lines = (
            event("params", values={"lr": 0.5, "n": 3})
            + event("scaled", values={"lr.scaled": 1.0})
            + event("progress", done=3, total=10, unit="epochs")
        )
        await api.sync(run, [("events", 0, lines), ("metrics", 0, points("loss", (0, 2.0), (1, 1.5)))])
        response = await api.request("GET", f"/runs/{run['id']}")
        assert response["latest"] == {"loss": [1, 1.5]}
        assert response["progress"] == {"done": 3.0, "total": 10.0, "unit": "epochs"}
        listed = await api.request("GET", "/runs")
        assert listed["runs"][0]["latest"] == {"loss": [1, 1.5]}

    async def second(api: ApiServer) -> None:
        # The engine of the first server is gone; its streams are still there and continue.
        response = await api.request("GET", f"/runs/{run['id']}")
        assert response["latest"] == {"loss": [1, 1.5]}
        assert response["params"] == {"lr": 0.5, "n": 3, "lr.scaled": 1.0}
        held = len(points("loss", (0, 2.0), (1, 1.5)))
        cut = points("loss", (2, 1.0))
        text = await api.sync(run, [("metrics", held, cut[:30])])  # a record in two pieces
        assert text["offsets"]["metrics"] == held + 30
        await api.sync(run, [("metrics", held + 30, cut[30:])])
        response = await api.request("GET", f"/runs/{run['id']}")
        assert response["latest"] == {"loss": [2, 1.0]}
        assert response["progress"]["done"] == 3.0

    run_scenario(tmp_path, first)
    run_scenario(tmp_path, second, loops=False)


def test_invalid_stream_records_are_skipped(tmp_path: Path) -> None:
    async def scenario(api: ApiServer) -> None:
        run = await api.start_run()
        garbage = (
            b'\xff\xfe\n{"kind": "summary"}\n{"kind": "summary", "values": {"a": "x", "ok": 1}}\n[]\n"x"\n{\n'
            + b"[" * 100_000
            + b"\n"
        )
        garbage += (
            b'{"t": "late", "kind": "progress", "done": {}, "total": []}\n'
            b'{"t": 1e999, "kind": "params", "values": {"": 1, "k": [1]}}\n'
        )
        garbage += b'{"kind": ["x"]}\n{"kind": "summary", "values": {"huge": 1' + b"0" * 400 + b"}}\n"
        system = (
            b'{"t": 5, "cpu_percent": "x", "memory_bytes": null, "gpus": [1, {"index": "a"}]}\n'
            b'{"t": null}\nnot json\n'
        )
        metrics = points("loss", (1, 0.5)) + b"\x07garbage" + points("acc", (1, 0.5))
        await api.sync(run, [("events", 0, garbage), ("system", 0, system), ("metrics", 0, metrics)])
        result = await api.finish(run)
        assert result["summary"]["ok"] == 1
        assert result["latest"] == {"loss": [1, 0.5]}
        assert (await api.request("GET", f"/runs/{run['id']}/metrics"))["series"]["loss"]["values"] == [0.5]
        samples = (await api.request("GET", f"/runs/{run['id']}/system"))["samples"]
        assert [(s["t"], s["cpu_percent"], s["memory_bytes"], len(s["gpus"])) for s in samples] == [
            (5, 0, 0, 1)
        ]

    run_scenario(tmp_path, scenario)


def test_values_that_are_not_finite_are_texts(tmp_path: Path) -> None:
    async def scenario(api: ApiServer) -> None:
        run = await api.start_run()
        data = points("loss", (0, 1.0), (1, float("nan")), (2, float("inf")))
        await api.sync(
            run,
            [("metrics", 0, data), ("events", 0, b'{"kind":"summary","values":{"loss":NaN,"acc":0.5}}\n')],
        )
        result = await api.finish(run)
        assert result["latest"] == {"loss": [2, "Infinity"]}
        assert result["summary"] == {"loss": "NaN", "acc": 0.5}
        assert (await api.request("GET", f"/runs/{run['id']}/metrics"))["series"]["loss"]["values"] == [
            1.0,
            "NaN",
            "Infinity",
        ]

    run_scenario(tmp_path, scenario)


def test_metrics_are_columns_downsampled_and_counted(tmp_path: Path) -> None:
    async def scenario(api: ApiServer) -> None:
        run = await api.start_run()
        spiky = [(step, 100.0 if step == 777 else step / 1000) for step in range(2000)]
        counted = pack_definition("free") + b"".join(
            pack_point(POINT, series_id("free"), NO_STEP, 5.0, v) for v in (1.0, 2.0, 3.0)
        )
        await api.sync(
            run,
            [("metrics", 0, points("loss", *spiky) + counted), ("tensorboard", 0, points("tb/x", (5, 1.0)))],
        )
        everything = (await api.request("GET", f"/runs/{run['id']}/metrics"))["series"]
        assert sorted(everything) == ["free", "loss", "tb/x"]
        assert everything["free"] == {
            "steps": [0, 1, 2],
            "values": [1.0, 2.0, 3.0],
            "times": [5.0] * 3,
            "count": 3,
        }
        thin = (await api.request("GET", f"/runs/{run['id']}/metrics", names="loss", max_points=50))["series"]
        assert list(thin) == ["loss"]
        assert thin["loss"]["count"] == 2000
        assert len(thin["loss"]["steps"]) <= 50
        assert 777 in thin["loss"]["steps"]  # peaks stay
        assert (thin["loss"]["steps"][0], thin["loss"]["steps"][-1]) == (0, 1999)
        assert thin["loss"]["steps"] == sorted(thin["loss"]["steps"])

    run_scenario(tmp_path, scenario)


def test_after_a_resume_metrics_and_log_are_rolled_back(tmp_path: Path) -> None:
    async def scenario(api: ApiServer) -> None:
        run = await api.start_run()
        before = points("loss", (0, 3.0), (1, 2.0))
        await api.sync(run, [("stdout", 0, b"one\ntwo\n"), ("metrics", 0, before)])
        saved = await api.put_tree({"w": b"1"}, token=api.run_token(run))
        offsets = {"stdout": len(b"one\ntwo\n"), "metrics": len(before)}
        body = {"rank": 0, "step": 1, "manifest": saved, "offsets": offsets, "metrics": {"loss": 2.0}}
        created = await api.request(
            "POST", f"/attempts/{run['id']}.1/checkpoints", body, token=api.run_token(run)
        )
        assert (created["step"], created["size_bytes"]) == (1, 1)
        await api.sync(run, [("stdout", 8, b"lost\n"), ("metrics", len(before), points("loss", (2, 9.0)))])
        api.engine.lose_attempt(f"{run['id']}.1")  # type: ignore[arg-type]
        await api.wait_until(lambda: f"{run['id']}.2" in api.engine.launches)
        restore = api.engine.launches[f"{run['id']}.2"].replicas[0].restore  # type: ignore[index]
        assert restore is not None
        assert (restore.step, restore.manifest) == (1, saved)
        await api.sync(run, [("stdout", 0, b"three\n"), ("metrics", 0, points("loss", (2, 1.0)))], attempt=2)
        assert await api.request("GET", f"/runs/{run['id']}/log") == b"one\ntwo\nthree\n"
        assert await api.request("GET", f"/runs/{run['id']}/log", tail_lines=2) == b"two\nthree\n"
        series = (await api.request("GET", f"/runs/{run['id']}/metrics"))["series"]["loss"]
        assert (series["steps"], series["values"]) == ([0, 1, 2], [3.0, 2.0, 1.0])
        raw = await api.request("GET", f"/runs/{run['id']}/raw/{run['id']}.1/0/stdout")
        assert raw == b"one\ntwo\nlost\n"

    run_scenario(tmp_path, scenario)


def unnumbered_points(name: str, *values: float) -> bytes:
    """Returns points logged without a step."""
    return pack_definition(name) + b"".join(
        pack_point(POINT, series_id(name), NO_STEP, 5.0, value) for value in values
    )


async def resume(api: ApiServer, run: Any, number: int) -> None:
    """Loses the attempt of a run and waits for the next launch."""
    api.engine.lose_attempt(f"{run['id']}.{number}")  # type: ignore[arg-type]
    await api.wait_until(lambda: f"{run['id']}.{number + 1}" in api.engine.launches)


async def last_steps(api: ApiServer, run: Any) -> dict[str, int]:
    """Returns by metric the last step, which `ps`, `info` and `plot` show alike."""
    series = (await api.request("GET", f"/runs/{run['id']}/metrics"))["series"]
    drawn = {name: [one["steps"][-1], one["values"][-1]] for name, one in series.items()}
    (listed,) = (await api.request("GET", "/runs"))["runs"]
    assert drawn == listed["latest"] == (await api.request("GET", f"/runs/{run['id']}"))["latest"]
    return {name: step for name, (step, _) in drawn.items()}


def test_counted_steps_continue_after_a_resume(tmp_path: Path) -> None:
    """Counting continues from the end of the visible points, in every view and after a server restart."""

    async def before(api: ApiServer) -> None:
        run = await api.start_run(roles=[{**role(), "replicas": 2}])
        metrics = unnumbered_points("loss", 9.0, 8.0, 7.0)
        await api.sync(run, [("metrics", 0, metrics), ("events", 0, event("progress", done=3, total=9))])
        await api.sync(run, [("metrics", 0, unnumbered_points("other", 1.0, 2.0))], rank=1)
        body = {
            "rank": 0,
            "step": 3,
            "manifest": await api.put_tree({"w": b"1"}),
            "offsets": {"metrics": len(metrics)},
        }
        await api.request("POST", f"/attempts/{run['id']}.1/checkpoints", body)
        await api.sync(
            run,
            [("metrics", len(metrics), unnumbered_points("loss", 6.0, 5.0) + unnumbered_points("lost", 1.0))],
        )
        assert (await last_steps(api, run))["loss"] == 4
        await resume(api, run, 1)
        await asyncio.gather(*(api.sync(run, [], attempt=2, rank=rank) for rank in (0, 1)))
        # rolled-back values are not shown any more
        assert await last_steps(api, run) == {"loss": 2, "other": 1}
        await api.sync(run, [("metrics", 0, unnumbered_points("loss", 4.0, 3.0))], attempt=2)
        assert await last_steps(api, run) == {"loss": 4, "other": 1}
        await api.sync(run, [("metrics", 0, unnumbered_points("other", 3.0))], attempt=2, rank=1)
        assert (await last_steps(api, run))["other"] == 2

    async def after(api: ApiServer) -> None:
        (run,) = (await api.request("GET", "/runs"))["runs"]
        at = len(unnumbered_points("loss", 4.0, 3.0))
        await api.sync(run, [("metrics", at, unnumbered_points("loss", 2.0))], attempt=2)
        assert await last_steps(api, run) == {"loss": 5, "other": 2}

    run_scenario(tmp_path, before)
    run_scenario(tmp_path, after, loops=False)


def test_superseded_attempt_changes_nothing_of_its_run(tmp_path: Path) -> None:
    async def scenario(api: ApiServer) -> None:
        run = await api.start_run()
        first, tree = f"/attempts/{run['id']}.1", await api.put_tree({"w": b"1"})
        await api.sync(
            run,
            [
                ("stdout", 0, b"seen\n"),
                ("metrics", 0, unnumbered_points("loss", 9.0)),
                ("journal", 0, b"one"),
            ],
        )
        body = {
            "rank": 0,
            "step": 1,
            "manifest": tree,
            "offsets": {"stdout": 5, "metrics": len(unnumbered_points("loss", 9.0))},
        }
        await api.request("POST", first + "/checkpoints", body)
        await resume(api, run, 1)
        await api.sync(run, [("events", 0, event("summary", values={"acc": 0.5}))], attempt=2)
        await api.request("POST", f"/attempts/{run['id']}.2/artifact", {"manifest": tree})
        before = await api.request("GET", f"/runs/{run['id']}")

        token = api.run_token(run)
        result = (
            event("summary", values={"acc": 0.9})
            + event("params", values={"lr": 7})
            + event("progress", done=9, total=9)
        )
        late = [
            ("stdout", 5, b"late\n"),
            ("metrics", len(unnumbered_points("loss", 9.0)), unnumbered_points("loss", 1.0)),
            ("events", 0, result),
            ("journal", 3, b"two"),
        ]
        response = await api.sync(run, late, token=token)
        assert response["stop"]
        # nothing more of it is waited for
        assert (response["offsets"]["stdout"], response["offsets"]["journal"]) == (10, 6)
        exit = {"kind": "exit-code", "code": 0, "reason": "finished"}
        await api.sync(run, [], token=token, phase="exited", exit=exit, final=True)
        other = await api.put_tree({"w": b"2"})
        for path, sent in (
            ("/checkpoints", {"rank": 0, "step": 7, "manifest": other}),
            ("/artifact", {"manifest": other}),
            ("/lock", {"lock": other, "packages": {}}),
        ):
            refused = await api.request("POST", first + path, sent, token=token, status=409)
            assert "attempt 1 of run alice/p/1 is superseded by attempt 2" in refused["error"]["message"]
        assert await api.request("GET", f"/runs/{run['id']}") == before
        assert await api.request("GET", f"/runs/{run['id']}/log") == b"seen\n"
        assert await api.request("GET", f"/runs/{run['id']}/raw/{run['id']}.1/0/stdout") == b"seen\nlate\n"
        # the state from which the second attempt resumed
        assert await api.request("GET", f"/runs/{run['id']}/raw/{run['id']}.1/0/journal") == b"one"
        assert await last_steps(api, run) == {"loss": 0}

    run_scenario(tmp_path, scenario)


def test_checkpoints_are_complete_idempotent_and_pruned_to_the_retained(tmp_path: Path) -> None:
    async def scenario(api: ApiServer) -> None:
        run = await api.start_run()
        at, saved = f"/attempts/{run['id']}.1/checkpoints", await api.put_tree({"w": b"1"})
        refused = await api.request("POST", at, {"rank": 0, "step": 0, "manifest": "0" * 64}, status=409)
        assert refused["error"]["digests"] == ["0" * 64]
        for step in (1, 1, 2):
            await api.request("POST", at, {"rank": 0, "step": step, "manifest": saved})
        await api.request("POST", f"/runs/{run['id']}/checkpoints/1/keep")
        for step in (3, 4):
            await api.request("POST", at, {"rank": 0, "step": step, "manifest": saved})
        listed = (await api.request("GET", f"/runs/{run['id']}/checkpoints"))["checkpoints"]
        assert [(c["step"], c["kept"]) for c in listed] == [(1, True), (3, False), (4, False)]
        await api.request("POST", f"/runs/{run['id']}/checkpoints/9/keep", status=404)
        await api.request("POST", at, {"rank": 5, "step": 9, "manifest": saved}, status=400)

    run_scenario(tmp_path, scenario, keep_checkpoints=2)


def test_artifact_and_lock_are_recorded(tmp_path: Path) -> None:
    async def scenario(api: ApiServer) -> None:
        run = await api.start_run()
        token = api.run_token(run)
        tree = await api.put_tree({"out.txt": b"made"}, token=token)
        await api.request("POST", f"/attempts/{run['id']}.1/artifact", {"manifest": tree}, token=token)
        await api.request(
            "POST", f"/attempts/{run['id']}.1/lock", {"lock": tree, "packages": {"numpy": "2.0"}}, token=token
        )
        response = await api.request("GET", f"/runs/{run['id']}")
        assert response["artifact"] == tree
        assert response["spec"]["environment"]["lock"] == tree
        assert response["spec"]["environment"]["packages"] == {"numpy": "2.0"}
        await api.request(
            "POST", f"/attempts/{run['id']}.1/artifact", {"manifest": "1" * 64}, token=token, status=409
        )

    run_scenario(tmp_path, scenario)


def test_artifact_has_a_folder_for_each_rank(tmp_path: Path) -> None:
    async def scenario(api: ApiServer) -> None:
        run = await api.start_run(roles=[{**role(), "replicas": 3}])
        token = api.run_token(run)
        files = {0: {"a": b"0"}, 1: {"a": b"1", "sub/b": b"b"}, 2: {"c": b"c"}}
        trees = {rank: await api.put_tree(contents, token=token) for rank, contents in files.items()}
        again = await api.put_tree({"new": b"n"}, token=token)
        address = f"/attempts/{run['id']}.1/artifact"
        await asyncio.gather(
            *(
                api.request("POST", address, {"manifest": tree, "rank": rank}, token=token)
                for rank, tree in trees.items()
            )
        )
        assert await stored_paths(api, run["id"]) == ["0/a", "1/a", "1/sub/b", "2/c"]
        await api.request("POST", address, {"manifest": again, "rank": 1}, token=token)
        assert await stored_paths(api, run["id"]) == ["0/a", "1/new", "2/c"]

    run_scenario(tmp_path, scenario)


async def stored_paths(api: ApiServer, run: str) -> list[str]:
    digest = (await api.request("GET", f"/runs/{run}"))["artifact"]
    return [file.path for file in Manifest.decode(await api.services.blobs.get(digest)).files]


def test_offline_run_is_recorded_completely(tmp_path: Path) -> None:
    async def scenario(api: ApiServer) -> None:
        await api.push_dataset("mnist")
        spec = {
            "project": "p",
            "roles": [{"command": ["python", "main.py"]}],
            "datasets": [{"name": "mnist"}],
        }
        body = {"id": "offline-1", "started_at": "2026-01-02T03:04:05Z", "spec": spec}
        run = await api.request("POST", "/runs/offline", body)
        assert run["offline"]
        assert (await api.request("POST", "/runs/offline", body))["name"] == run["name"]
        assert not (await api.sync(run, []))["stop"]  # it has no replica, and no stop order is sent
        text = b'{"t": 1767323105, "kind": "summary", "values": {"acc": 0.9}}\n'  # a minute later
        result = await api.finish(run, segments=[("stdout", 0, b"hi\n"), ("events", 0, text)])
        assert (result["phase"], result["summary"], result["started_at"]) == (
            "succeeded",
            {"acc": 0.9},
            "2026-01-02T03:04:05Z",
        )
        assert result["ended_at"] == "2026-01-02T03:05:05Z"
        assert await api.request("GET", f"/runs/{run['id']}/log") == b"hi\n"
        again = await api.finish(run, segments=[("stdout", 0, b"hi\n")])  # sent again
        assert again == result
        board = await api.request("GET", "/datasets/mnist/board")
        assert [row["name"] for row in board["rows"]] == ["alice/p/1"]
        assert duration_s(await api.request("GET", f"/runs/{run['id']}")) == 60
        refused = await api.request("POST", f"/runs/{run['id']}/fork", {}, status=409)
        assert "was recorded offline, without its code" in refused["error"]["message"], refused
        await api.request(
            "POST",
            "/runs/offline",
            {**body, "id": "offline-2", "started_at": "2026-01-02T03:04:05"},
            status=422,
        )
        assert api.engine.started_attempts == []

    run_scenario(tmp_path, scenario)


def test_follow_returns_everything_and_resumes_from_cursors(tmp_path: Path) -> None:
    async def scenario(api: ApiServer) -> None:
        run = await api.start_run()
        await api.sync(
            run, [("stdout", 0, b"one\n"), ("stderr", 0, b"err\n"), ("metrics", 0, points("loss", (0, 1.0)))]
        )
        following = asyncio.create_task(api.send("GET", f"/runs/{run['id']}/follow"))
        await api.wait_until(lambda: api.count_subscribers(run))
        await api.sync(run, [("stdout", 4, b"two\n")])
        await api.finish(run, segments=[("stdout", 8, b"three\n")])
        frames = parse((await following).content)
        assert (
            "".join(f["text"] for f in frames if f["kind"] == "output" and f["stream"] == "stdout")
            == "one\ntwo\nthree\n"
        )
        assert (
            "".join(f["text"] for f in frames if f["kind"] == "output" and f["stream"] == "stderr") == "err\n"
        )
        assert frames[0]["kind"] == "state"
        assert (frames[-1]["kind"], frames[-1]["run"]["phase"]) == ("end", "succeeded")
        assert any(f["kind"] == "progress" and f["latest"] == {"loss": [0, 1.0]} for f in frames)
        assert api.count_subscribers(run) == 0
        query = {"cursors": json.dumps({f"{run['id']}.1:0:stdout": 8}), "streams": "stdout"}
        remaining = parse((await api.send("GET", f"/runs/{run['id']}/follow", **query)).content)
        assert [f["text"] for f in remaining if f["kind"] == "output"] == ["three\n"]
        for invalid in (
            {"cursors": "x"},
            {"cursors": '{"a": 1}'},
            {"cursors": "[1]"},
            {"streams": "nope"},
            {"ranks": "x"},
        ):
            assert (await api.send("GET", f"/runs/{run['id']}/follow", **invalid)).status_code in (400, 422)
        assert (await api.send("GET", "/runs/unknown-run/follow")).status_code == 404

    run_scenario(tmp_path, scenario)


def test_follow_returns_the_requested_streams_only(tmp_path: Path) -> None:
    """Short, long and overlapping segments, mixed with other streams and ranks."""

    async def scenario(api: ApiServer) -> None:
        run = await api.start_run(roles=[{**role(), "replicas": 2}])
        pieces = [
            b"a\n",
            b"b" * 5000 + b"\n",
            b"c\n",
            b"d" * 4095 + b"\n",
            b"e" * 300_000 + b"\n",
            b"f\n",
            b"g\n",
        ]
        following = asyncio.create_task(
            api.send("GET", f"/runs/{run['id']}/follow", streams="stderr,journal", ranks="1")
        )
        await api.wait_until(lambda: api.count_subscribers(run))
        expected, at = b"".join(pieces), 0
        for number, piece in enumerate(pieces):
            begin = max(0, at - number % 3)  # some of it was sent before
            at += len(piece)
            await api.sync(
                run, [("journal", begin, expected[begin:at]), ("stdout", number * 2, b"x\n")], rank=1
            )
            await api.sync(run, [("journal", number * 2, b"y\n"), ("stderr", number * 2, b"z\n")], rank=0)
        assert (await api.sync(run, [("stderr", 0, b"err\n")], rank=1))["offsets"]["journal"] == at
        ended = {"kind": "exit-code", "code": 0, "reason": "finished"}
        for rank in (0, 1):
            await api.sync(run, [], phase="exited", exit=ended, final=True, rank=rank)
        frames = [f for f in parse((await following).content) if f["kind"] == "output"]
        assert {(f["rank"], f["stream"]) for f in frames} == {(1, "journal"), (1, "stderr")}
        assert "".join(f["text"] for f in frames if f["stream"] == "journal").encode() == b"".join(pieces)
        assert "".join(f["text"] for f in frames if f["stream"] == "stderr") == "err\n"

    run_scenario(tmp_path, scenario)


def test_follower_that_keeps_up_gets_bytes_without_a_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def scenario(api: ApiServer) -> None:
        run = await api.start_run()
        heard: set[bytes] = set()

        async def follow() -> None:
            async for piece in make_frame_stream(api.services, Caller("alice")).frames(
                run["id"], FollowRequest()
            ):
                heard.add(piece[-5:])

        async def running() -> bool:
            return bool((await api.request("GET", f"/runs/{run['id']}"))["phase"] == "running")

        await api.sync(run, [("stdout", 0, b"begin")])
        await api.wait_until(running)  # after a change of the state, a follower reads all streams
        following = asyncio.create_task(follow())
        await api.wait_until(lambda: b"begin" in heard)

        async def nothing(*_given: Any) -> None:
            raise AssertionError("read again")

        monkeypatch.setattr(api.services.streams, "read", nothing)
        monkeypatch.setattr(api.services.streams, "lengths", nothing)
        for number in range(5):
            await api.sync(run, [("stdout", 5 * (number + 1), b"more%d" % number)])
            await api.wait_until(lambda number=number: b"more%d" % number in heard)  # type: ignore[misc]
        following.cancel()

    run_scenario(tmp_path, scenario)


def test_follow_names_other_runs_by_name(tmp_path: Path) -> None:
    async def scenario(api: ApiServer) -> None:
        run, other = await api.start_run(), await api.start_run()
        await api.services.controller.preempt(run["id"], f"run {other['id']} has priority 90")
        output = json.loads(
            await anext(make_frame_stream(api.services, Caller("alice")).frames(run["id"], FollowRequest()))
        )["run"]
        assert output["attempt"]["preempt_reason"] == f"run {other['name']} has priority 90"

    run_scenario(tmp_path, scenario)


def test_slow_follower_gets_all_bytes(tmp_path: Path) -> None:
    async def scenario(api: ApiServer) -> None:
        run = await api.start_run()
        await api.sync(run, [("stdout", 0, b"begin\n")])
        frames = make_frame_stream(api.services, Caller("alice")).frames(run["id"], FollowRequest())
        received = b""

        async def take_until(end: bytes) -> None:
            nonlocal received
            async with asyncio.timeout(10):
                while not received.endswith(end):
                    received += await anext(frames)

        await take_until(b"begin\n")
        await api.sync(run, [("stdout", 6, b"one\n")])
        await take_until(b"one\n")  # it had read its state before
        at = 10
        for piece in (b"two\n", b"three\n", b"four\n"):  # while it is given nothing
            await api.sync(run, [("stdout", at, piece)])
            at += len(piece)
        await take_until(b"four\n")
        assert (
            "".join(frame["text"] for frame in parse(received) if frame["kind"] == "output")
            == "begin\none\ntwo\nthree\nfour\n"
        )
        await frames.aclose()

    run_scenario(tmp_path, scenario)


def test_full_disk_reports_the_offsets_that_were_stored(tmp_path: Path) -> None:
    tmp_path.joinpath("home").mkdir()
    with small_disk(tmp_path / "disk", "1m") as disk:
        (tmp_path / "home" / "streams").symlink_to(disk)

        async def scenario(api: ApiServer) -> None:
            run = await api.start_run()
            first = [
                ("metrics", 0, points("loss", (3, 0.5))),
                ("stderr", 0, b"few\n"),
                ("stdout", 0, b"x" * (4 << 20)),
            ]
            with api.services.subscriptions.subscribe(run["id"]) as watch:
                assert (await api.sync(run, first, status=507))["error"]["code"] == "storage_full"
                key = StreamKey(AttemptId(f"{run['id']}.1"), 0, "stderr")
                assert watch.take_stream_lengths() == {key: (4, b"few\n")}
                assert (await api.request("GET", f"/runs/{run['id']}"))["latest"] == {"loss": [3, 0.5]}
                response = await api.sync(run, [*first[:2], ("stdout", 0, b"x\n")])
                assert response["offsets"] == {"metrics": len(first[0][2]), "stderr": 4, "stdout": 2}

        run_scenario(tmp_path / "home", scenario)


def parse(data: bytes) -> list[dict[str, Any]]:
    frames = []
    while data:
        line, _, data = data.partition(b"\n")
        head = json.loads(line)
        if head["kind"] == "output":
            head["text"], data = data[: head["size"]].decode(), data[head["size"] :]
        frames.append(head)
    return frames


def test_leaderboard_ranks_best_first_and_keeps_the_best_checkpoint(tmp_path: Path) -> None:
    async def scenario(api: ApiServer) -> None:
        await api.push_dataset("mnist")
        saved = await api.put_tree({"w": b"1"})
        for accuracy, loss in ((0.8, 0.3), (0.9, 0.5), (0.9, 0.1)):
            run = await api.start_run(datasets=[{"name": "mnist"}], params={"a": accuracy})
            for step, measured in ((7, accuracy), (9, 0.1)):
                await api.request(
                    "POST",
                    f"/attempts/{run['id']}.1/checkpoints",
                    {"rank": 0, "step": step, "manifest": saved, "metrics": {"val_acc": measured}},
                )
            await api.finish(
                run,
                segments=[("events", 0, event("summary", values={"val_acc": accuracy, "val_loss": loss}))],
            )
        board = await api.request("GET", "/datasets/mnist/board")
        assert (board["metric"], board["higher_is_better"]) == ("val_acc", True)
        assert [(row["rank"], row["name"], row["value"]) for row in board["rows"]] == [
            (1, "alice/p/2", 0.9),
            (2, "alice/p/3", 0.9),
            (3, "alice/p/1", 0.8),
        ]
        assert (board["rows"][0]["checkpoint_step"], board["rows"][0]["version"]) == (7, 1)
        by_loss = await api.request("GET", "/datasets/mnist/board", metric="val_loss", limit=2)
        assert by_loss["rows"][0]["checkpoint_step"] == 9, "the newest one, as none has the metric"
        assert (by_loss["higher_is_better"], [row["value"] for row in by_loss["rows"]]) == (False, [0.1, 0.3])
        best = board["rows"][0]["run"]

        async def kept() -> bool:
            return bool((await api.request("GET", f"/runs/{best}/checkpoints"))["checkpoints"][0]["kept"])

        await api.wait_until(kept)
        await api.request("PATCH", "/datasets/mnist", {"metric": "val_loss", "higher_is_better": True})
        assert [row["value"] for row in (await api.request("GET", "/datasets/mnist/board"))["rows"]] == [
            0.5,
            0.3,
            0.1,
        ]
        await api.request("GET", "/datasets/nothing/board", status=404)

    run_scenario(tmp_path, scenario)


def test_status_nodes_and_shutdown(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def scenario(api: ApiServer) -> None:
        run = await api.start_run(roles=[{"command": ["x"], "resources": {"gpus": 1, "memory_bytes": 1024}}])
        status = await api.request("GET", "/status")
        assert status["nodes"][0]["used"] == {
            "cpu_milli": 1000,
            "memory_bytes": 1024,
            "gpus": [0],
            "gpu_milli": [1000],
            "extras": {},
        }
        assert sum(status["runs"].values()) == 1
        assert (await api.request("GET", "/nodes"))["nodes"] == status["nodes"]
        assert (await api.request("GET", "/health", token=None))["status"] == "ok"
        for _ in range(5):
            await api.submit(roles=[{"command": ["x"], "resources": {"gpus": 1}}])
        monkeypatch.setattr(server, "_PAGE_SIZE", 2)  # more live runs than one page of a listing
        refused = await api.request("POST", "/shutdown", {}, status=409)
        assert refused["error"]["message"].startswith("6 runs are still live (")
        assert not api.shutdown_requested.is_set()
        await api.request("POST", "/shutdown", {"runs": "stop"})
        assert api.shutdown_requested.is_set()
        assert (await api.request("GET", f"/runs/{run['id']}"))["phase"] == "cancelled"
        assert (await api.request("GET", "/status"))["runs"] == {"cancelled": 6}
        assert (await api.request("POST", "/sweep"))["freed_bytes"] == 0

    run_scenario(tmp_path, scenario)


def test_unknown_paths_and_methods_return_error_objects(tmp_path: Path) -> None:
    async def scenario(api: ApiServer) -> None:
        response = await api.http.get("/nowhere")
        assert (response.status_code, response.json()["error"]["code"]) == (404, "not_found")
        response = await api.http.put(API + "/runs", headers={"Authorization": f"Bearer {TOKEN}"})
        assert (response.status_code, response.headers["allow"]) == (405, "GET, POST")
        assert response.json()["error"]["code"] == "usage"
        for path in (
            "/runs/..%2f..%2fetc",
            "/runs/ab",
            "/datasets/..%2fx",
            "/blobs/xyz",
            "/runs/%00%00%00%00%00%00",
        ):
            response = await api.send("GET" if "blobs" not in path else "PUT", path)
            assert response.status_code == 404, path

    run_scenario(tmp_path, scenario, loops=False)
