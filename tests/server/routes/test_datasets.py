"""Blobs and datasets as the API serves them, in process."""

from __future__ import annotations

import os
import struct
from pathlib import Path
from typing import Any

from hopyard.domain.manifest import FileEntry, Manifest
from tests.datasets.folder_transport import corrupt_blob, digest_of
from tests.server.api_server import ApiServer, run_scenario


def frame(data: bytes, digest: str | None = None) -> bytes:
    return struct.pack("<32sQ", bytes.fromhex(digest or digest_of(data)), len(data)) + data


def unframe(body: bytes) -> list[bytes]:
    result, at = [], 0
    while at < len(body):
        raw, size = struct.unpack_from("<32sQ", body, at)
        data = body[at + 40 : at + 40 + size]
        assert digest_of(data) == raw.hex()
        result.append(data)
        at += 40 + size
    return result


def test_upload_missing_and_fetch_blobs(tmp_path: Path) -> None:
    small, large = [b"%d" % n for n in range(500)], os.urandom(9 << 20)
    digests = [digest_of(data) for data in small]

    async def scenario(api: ApiServer) -> None:
        request = {"digests": [*digests, digest_of(large), digests[0]]}
        assert (await api.request("POST", "/blobs/missing", request))["missing"] == request["digests"][:-1]
        await api.request("POST", "/blobs/pack", b"".join(map(frame, small)))
        await api.request("PUT", f"/blobs/{digest_of(large)}", large)
        assert (await api.request("POST", "/blobs/missing", request))["missing"] == []
        complete = await api.send("POST", "/blobs/fetch", {"manifest": digests[0], "digests": digests[::-1]})
        assert unframe(complete.content) == small[::-1] and complete.headers["content-length"] == str(
            len(complete.content)
        )
        twice = [digest_of(large), digests[3], digest_of(large)]
        streamed = await api.send("POST", "/blobs/fetch", {"manifest": digests[0], "digests": twice})
        assert unframe(streamed.content) == [large, b"3", large], "more than the read-ahead size"
        assert (await api.request("POST", "/blobs/fetch", {"manifest": digests[0], "digests": []})) == b""
        (nowhere, near) = (
            await api.request(
                "POST", "/blobs/locate", {"manifest": digests[0], "digests": [digests[0], digest_of(large)]}
            )
        )["paths"]
        assert nowhere is None and near.endswith(digest_of(large))

    run_scenario(tmp_path, scenario, loops=False)


def test_wrong_bytes_are_refused(tmp_path: Path) -> None:
    good = digest_of(b"good")

    async def scenario(api: ApiServer) -> None:
        wrong = await api.request("PUT", f"/blobs/{good}", b"bad", status=422)
        assert wrong["error"]["code"] == "damaged" and wrong["error"]["hints"]
        await api.request(
            "POST", "/blobs/pack", frame(b"good") + frame(b"bad", digest_of(b"other")), status=422
        )
        for cut in (1, 20, 39, 41):
            response = await api.request("POST", "/blobs/pack", frame(b"good")[:cut], status=422)
            assert "ends within" in response["error"]["message"]
        huge = struct.pack("<32sQ", bytes(32), 2**64 - 1) + b"x"
        await api.request("POST", "/blobs/pack", huge, status=422)
        assert (await api.request("POST", "/blobs/missing", {"digests": [good]}))["missing"] == [good]
        await api.request("PUT", "/blobs/nothex", b"", status=404)
        await api.request("POST", "/blobs/missing", {"digests": ["../../x"]}, status=422)
        lacking = await api.request("POST", "/blobs/fetch", {"manifest": good, "digests": [good]}, status=409)
        assert lacking["error"]["digests"] == [good]

    run_scenario(tmp_path, scenario, loops=False)


def test_oversized_upload_is_refused_before_it_is_read(tmp_path: Path) -> None:
    async def scenario(api: ApiServer) -> None:
        headers = {"Authorization": f"Bearer {'hop_' + 't' * 43}", "content-length": str(1 << 40)}
        for method, path in (("PUT", f"/blobs/{digest_of(b'')}"), ("POST", "/blobs/pack")):
            answered = await api.http.request(method, f"/api/v1{path}", headers=headers, content=b"")
            assert answered.status_code == 422 and "at most" in answered.json()["error"]["message"]

    run_scenario(tmp_path, scenario, loops=False)


def test_damaged_blob_is_reported_and_repaired(tmp_path: Path) -> None:
    data = b"precious" * 100

    async def scenario(api: ApiServer) -> None:
        version = await api.push_dataset("d", {"a.txt": data})
        body = {"manifest": version["manifest"]}
        assert (await api.request("POST", "/datasets/d/versions", body))["created"] is False
        assert (await api.request("POST", f"/blobs/{digest_of(data)}/verify"))["ok"] is True
        corrupt_blob(tmp_path / "blobs", data)
        response = await api.request(
            "POST", "/blobs/fetch", {**body, "digests": [digest_of(data)]}, status=422
        )
        assert response["error"]["code"] == "damaged" and "push" in response["error"]["hints"][0]
        assert (await api.request("POST", f"/blobs/{digest_of(data)}/verify"))["ok"] is False
        lacking = await api.request("POST", "/datasets/d/versions", body, status=409)
        assert lacking["error"]["digests"] == [digest_of(data)], "an unchanged push detects it, too"
        await api.request("PUT", f"/blobs/{digest_of(data)}", data)
        again = await api.request("POST", "/datasets/d/versions", body)
        assert again["created"] is False and again["version"]["number"] == 1

    run_scenario(tmp_path, scenario, loops=False)


def test_versions_are_numbered_listed_and_deleted(tmp_path: Path) -> None:
    async def scenario(api: ApiServer) -> None:
        assert (await api.request("GET", "/datasets")) == {"datasets": [], "next": None}
        first = await api.push_dataset("d", {"a": b"1"})
        second = await api.push_dataset("d", {"a": b"2", "b": b"22"})
        assert (
            first["number"],
            second["number"],
            second["files"],
            second["size_bytes"],
            second["created_by"],
        ) == (
            1,
            2,
            2,
            3,
            "alice",
        )
        assert (await api.request("POST", "/datasets/d/versions", {"manifest": second["manifest"]}))[
            "created"
        ] is False
        assert (
            await api.request(
                "POST", "/datasets/d/versions", {"manifest": first["manifest"], "message": "back"}
            )
        )["version"]["number"] == 3
        listed = (await api.request("GET", "/datasets/d/versions"))["versions"]
        assert [v["number"] for v in listed] == [3, 2, 1]
        for which, number in (("0", 3), ("newest", 3), ("2", 2)):
            assert (await api.request("GET", f"/datasets/d/versions/{which}"))["number"] == number
        for path in ("/datasets/e", "/datasets/d/versions/9", "/datasets/e/versions", "/datasets/a..b"):
            await api.request("GET", path, status=404)
        changed = await api.request("PATCH", "/datasets/d", {"metric": "val_loss", "higher_is_better": False})
        assert (changed["metric"], changed["higher_is_better"], changed["newest"]["number"]) == (
            "val_loss",
            False,
            3,
        )
        assert (await api.request("DELETE", "/datasets/d", version=2)) == {"deleted": 1, "frees_bytes": 3}
        await api.request("GET", "/datasets/d/versions/2", status=404)
        assert (await api.request("DELETE", "/datasets/d")) == {"deleted": 2, "frees_bytes": 1}
        await api.request("GET", "/datasets/d", status=404)
        await api.request("DELETE", "/datasets/d", status=404)

    run_scenario(tmp_path, scenario, loops=False)


def test_dataset_creator_and_owner_set_the_leaderboard_metric(tmp_path: Path) -> None:
    async def scenario(api: ApiServer) -> None:
        bob, carol = [
            (await api.request("POST", "/users", {"name": name}))["token"] for name in ("bob", "carol")
        ]
        trees = [await api.put_tree({"a": data}, token=carol) for data in (b"1", b"2", b"3")]
        await api.request(
            "POST", "/datasets/d/versions", {"manifest": trees[0], "metric": "val_acc"}, token=bob
        )
        # as it is
        await api.request(
            "POST", "/datasets/d/versions", {"manifest": trees[1], "metric": "val_acc"}, token=carol
        )
        for method, path, body in (
            ("POST", "/datasets/d/versions", {"manifest": trees[2], "metric": "loss"}),
            ("PATCH", "/datasets/d", {"metric": "loss"}),
        ):
            refused = await api.request(method, path, body, token=carol, status=403)
            assert (
                refused["error"]["message"]
                == "`carol` cannot change the metric of `d`; allowed users: bob, alice"
            )
        assert [
            version["created_by"]
            for version in (await api.request("GET", "/datasets/d/versions"))["versions"]
        ] == ["carol", "bob"]
        assert (await api.request("PATCH", "/datasets/d", {"metric": "f1"}, token=bob))["metric"] == "f1"
        assert (await api.request("PATCH", "/datasets/d", {"metric": "loss"}))["metric"] == "loss"

    run_scenario(tmp_path, scenario, loops=False)


def test_users_who_pushed_and_the_owner_describe_a_dataset(tmp_path: Path) -> None:
    async def scenario(api: ApiServer) -> None:
        bob, carol = [
            (await api.request("POST", "/users", {"name": name}))["token"] for name in ("bob", "carol")
        ]
        tree = await api.put_tree({"a": b"1"}, token=bob)
        await api.request("POST", "/datasets/d/versions", {"manifest": tree}, token=bob)
        path, long = "/datasets/d/description", "# Digits\n" + "x" * 1000
        refused = await api.request("PUT", path, {"description": "x"}, token=carol, status=403)
        assert "allowed users: alice, bob" in refused["error"]["message"]
        changed = await api.request("PUT", path, {"description": long, "revision": 0}, token=bob)
        assert (changed["description"], changed["description_revision"]) == (long, 1)
        await api.request("PUT", path, {"description": "late", "revision": 0}, status=409)
        await api.request("PUT", path, {"description": "x" * 65537}, status=422)
        await api.request("PUT", "/datasets/none/description", {"description": ""}, status=404)
        assert (await api.request("GET", "/datasets/d", token=carol))["description"] == long
        (listed,) = (await api.request("GET", "/datasets"))["datasets"]
        assert long.startswith(listed["description"][:200]) and len(listed["description"]) < 300
        records = (await api.request("GET", "/audit", action="dataset.describe"))["records"]
        (record,) = [each for each in records if each["outcome"] == "done"]
        assert (record["user"], record["target"]) == ("bob", "d") and long not in str(record)

    run_scenario(tmp_path, scenario, loops=False)


def test_invalid_manifest_creates_no_version(tmp_path: Path) -> None:
    async def scenario(api: ApiServer) -> None:
        outside = Manifest((FileEntry("../x", 1, (digest_of(b"x"),)),)).encode()
        for data in (b"", b"{}", b"\xff" * 10, outside):
            await api.request("PUT", f"/blobs/{digest_of(data)}", data)
            response = await api.request(
                "POST", "/datasets/d/versions", {"manifest": digest_of(data)}, status=400
            )
            assert "not a manifest" in response["error"]["message"]
        lacking = await api.request("POST", "/datasets/d/versions", {"manifest": digest_of(b"?")}, status=409)
        assert lacking["error"]["code"] == "missing_blobs" and lacking["error"]["digests"] == [
            digest_of(b"?")
        ]
        await api.request("POST", "/datasets/a..b/versions", {"manifest": digest_of(b"?")}, status=404)
        assert (await api.request("GET", "/datasets")) == {"datasets": [], "next": None}

    run_scenario(tmp_path, scenario, loops=False)


def test_scrub_reads_all_blobs_and_names_damaged_ones(tmp_path: Path) -> None:
    async def scenario(api: ApiServer) -> None:
        large = [os.urandom(2 << 20) for _ in range(3)]
        await api.request("POST", "/blobs/pack", b"".join(frame(b"%d" % n) for n in range(1500)))
        for data in large:
            await api.request("PUT", f"/blobs/{digest_of(data)}", data)
        corrupt_blob(tmp_path / "blobs", large[1])
        damaged: list[str] = []
        after, size = None, 0
        while True:
            response = await api.request("POST", "/blobs/scrub", {"after": after})
            damaged, size, after = (
                [*damaged, *response["damaged"]],
                size + response["size_bytes"],
                response["last"],
            )
            if after is None:
                break
        assert damaged == [digest_of(large[1])]
        assert size == sum(map(len, large)) + sum(len(b"%d" % n) for n in range(1500))
        assert (await api.request("POST", "/blobs/missing", {"digests": damaged}))["missing"] == damaged

    run_scenario(tmp_path, scenario, loops=False)


def test_wrong_sizes_create_no_version(tmp_path: Path) -> None:
    async def scenario(api: ApiServer) -> None:
        data = b"x" * 1000
        await api.request("PUT", f"/blobs/{digest_of(data)}", data)
        for size in (5, 999, 1001):
            lying = Manifest.build([FileEntry("x.bin", size, (digest_of(data),))]).encode()
            await api.request("PUT", f"/blobs/{digest_of(lying)}", lying)
            response = await api.request(
                "POST", "/datasets/d/versions", {"manifest": digest_of(lying)}, status=400
            )
            assert f"has {size} bytes, but it has 1000" in response["error"]["message"]
        assert (await api.request("GET", "/datasets"))["datasets"] == []

    run_scenario(tmp_path, scenario, loops=False)


def test_run_records_only_blobs_that_it_sent_or_may_read(tmp_path: Path) -> None:
    """The run's token must not record another user's tree as a checkpoint to read it afterwards, nor reveal
    which blobs exist."""

    async def scenario(api: ApiServer) -> None:
        run, foreign = await api.start_run(), await api.put_tree({"secret": b"s"})
        (secret,) = [digest_of(b"s")]
        at, token = f"/attempts/{run['id']}.1", api.run_token(run)

        async def record(manifest: str, status: int | None = None) -> Any:
            return await api.request(
                "POST",
                f"{at}/checkpoints",
                {"rank": 0, "step": 1, "manifest": manifest},
                token=token,
                status=status,
            )

        request = {"digests": [secret, foreign, digest_of(b"nowhere")]}
        assert (await api.request("POST", "/blobs/missing", request, token=token))["missing"] == request[
            "digests"
        ]
        for digest in request["digests"]:
            assert await api.request("POST", f"/blobs/{digest}/verify", token=token) == {"ok": False}
        assert (await record(foreign, 409))["error"]["digests"] == [foreign]
        for path, body in (("artifact", {"manifest": foreign}), ("lock", {"lock": secret, "packages": {}})):
            await api.request("POST", f"{at}/{path}", body, token=token, status=409)

        # its own manifest, which refers to a blob that it may not read
        around = Manifest.build([FileEntry("mine", 1, (secret,))]).encode()
        await api.request("PUT", f"/blobs/{digest_of(around)}", around, token=token)
        assert (await record(digest_of(around), 409))["error"]["digests"] == [secret]
        await api.request(
            "POST",
            "/blobs/fetch",
            {"manifest": digest_of(around), "digests": [secret]},
            token=token,
            status=403,
        )

        await api.request("PUT", f"/blobs/{secret}", b"s", token=token)  # it knows the bytes
        await record(digest_of(around), 201)
        assert (await api.request("POST", "/blobs/missing", {"digests": [secret]}, token=token))[
            "missing"
        ] == []
        await api.request("POST", f"{at}/artifact", {"manifest": digest_of(around)}, token=token)

    run_scenario(tmp_path, scenario)


def test_run_reads_its_own_inputs_only(tmp_path: Path) -> None:
    async def scenario(api: ApiServer) -> None:
        mine, other = (
            await api.push_dataset("mine", {"a": b"mine"}),
            await api.push_dataset("other", {"a": b"other"}),
        )
        code = await api.put_tree({"main.py": b"print()"})
        run = await api.start_run(code=code, datasets=[{"name": "mine"}])
        token = api.run_token(run)

        async def fetch(manifest: str, *data: str, status: int) -> None:
            await api.request(
                "POST",
                "/blobs/fetch",
                {"manifest": manifest, "digests": list(data)},
                token=token,
                status=status,
            )

        await fetch(code, code, digest_of(b"print()"), status=200)
        await fetch(mine["manifest"], digest_of(b"mine"), status=200)
        await fetch(mine["manifest"], mine["manifest"], status=200)
        await fetch(mine["manifest"], digest_of(b"other"), status=403)
        await fetch(mine["manifest"], digest_of(b"mine"), digest_of(b"other"), status=403)
        await fetch(other["manifest"], other["manifest"], status=403)
        await fetch(digest_of(b"mine"), digest_of(b"mine"), status=403)
        other_blobs = {"manifest": other["manifest"], "digests": [digest_of(b"other")]}
        await api.request("POST", "/blobs/locate", other_blobs, token=token, status=403)
        await api.request("PUT", f"/blobs/{digest_of(b'out')}", b"out", token=token)
        await api.request("POST", "/datasets/mine/versions", {"manifest": code}, token=token, status=403)
        await api.request("DELETE", "/datasets/mine", token=token, status=403)
        await api.request("POST", "/blobs/missing", {"digests": []}, token=None, status=401)

    run_scenario(tmp_path, scenario)
