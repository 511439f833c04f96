"""Storage quota per user: refusals name the limit and how to free space, and live runs lose nothing."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path

import pytest
from blake3 import blake3
from sqlalchemy import select

from hopyard.domain.ids import Digest
from hopyard.domain.run_values import limit_packages
from hopyard.errors import QuotaExceeded
from hopyard.server.storage_quota import StorageQuota
from hopyard.server.submit_run import MAX_NOTE_BYTES
from hopyard.stores.sql.database import Database
from hopyard.stores.sql.storage import SqlStorageStore
from hopyard.stores.sql.tables import tree_sizes
from tests.server.api_server import ApiServer, run_scenario


async def refusal_message(api: ApiServer, method: str, path: str, body: object) -> str:
    response = await api.request(method, path, body, status=507)
    assert response["error"]["code"] == "quota_exceeded"
    assert any("hop rm" in hint for hint in response["error"]["hints"])
    return str(response["error"]["message"])


def test_user_over_quota_cannot_push_or_submit_until_space_is_freed(tmp_path: Path) -> None:
    async def scenario(api: ApiServer) -> None:
        bob = (await api.request("POST", "/users", {"name": "bob"}))["token"]
        run = await api.start_run()
        await api.push_dataset("small", {"a": b"x" * 600_000})
        token = api.run_token(run)
        # a run's own token proves that it has the bytes
        large = await api.put_tree({"b": b"y" * 700_000}, token=token)
        assert "at most" in await refusal_message(
            api, "POST", "/datasets/large/versions", {"manifest": large}
        )
        saved = {"rank": 0, "step": 1, "manifest": large}
        await api.request("POST", f"/attempts/{run['id']}.1/checkpoints", saved, status=201)
        await refusal_message(
            api, "POST", "/runs", {"spec": {"project": "p", "roles": [{"command": ["true"]}]}}
        )
        await refusal_message(api, "PUT", f"/blobs/{blake3(b'new').hexdigest()}", b"new")
        await api.sync(run, [("stdout", 0, b"goes on\n")])
        await api.request(
            "POST", "/runs", {"spec": {"project": "p", "roles": [{"command": ["true"]}]}}, token=bob
        )
        await api.request("DELETE", "/datasets/small")
        await api.submit(plan=0)

    run_scenario(tmp_path, scenario, quota_bytes=1_000_000)


def test_runs_save_up_to_twice_the_user_quota(tmp_path: Path) -> None:
    """A script has the token of its run: uploads that are never part of a checkpoint count, too."""

    async def scenario(api: ApiServer) -> None:
        run, other = await api.start_run(), await api.start_run()
        token, path = api.run_token(run), f"/attempts/{run['id']}.1"
        for step in (1, 2):
            tree = await api.put_tree({"w": bytes([step]) * 600_000}, token=token)
            await api.request(
                "POST", f"{path}/checkpoints", {"rank": 0, "step": step, "manifest": tree}, token=token
            )
        assert await api.services.storage._store.list_uploads(api.services.engine) == [], (
            "saved blobs count once"
        )
        await api.request("PUT", f"/blobs/{blake3(b'c' * 900_000).hexdigest()}", b"c" * 900_000, token=token)
        for sender in (token, api.run_token(other)):
            message = (
                await api.request("PUT", f"/blobs/{blake3(b'd').hexdigest()}", b"d", token=sender, status=507)
            )["error"]["message"]
            assert message.startswith("alice stores")
        await api.services.storage.remove_swept(api.services.now())
        await api.put_tree({"w": b"d"}, token=token)

    run_scenario(tmp_path, scenario, quota_bytes=1_000_000)


def test_oversized_lock_is_refused_and_its_packages_are_cut(tmp_path: Path) -> None:
    async def scenario(api: ApiServer) -> None:
        run = await api.start_run()
        token, path = api.run_token(run), f"/attempts/{run['id']}.1/lock"
        packages = {f"p{n}": "v" * 1000 for n in range(300)}
        for lock, status in ((b"x" * (MAX_NOTE_BYTES + 1), 400), (b"numpy==2.0", 200)):
            digest = blake3(lock).hexdigest()
            await api.request("PUT", f"/blobs/{digest}", lock, token=token)
            await api.request(
                "POST", path, {"lock": digest, "packages": packages}, token=token, status=status
            )
            environment = (await api.request("GET", f"/runs/{run['id']}"))["spec"]["environment"]
            assert environment["lock"] == (None if status == 400 else digest)
        assert environment["packages"] == limit_packages(packages) != packages

    run_scenario(tmp_path, scenario)


def test_uploads_count_until_they_are_referenced_or_collected(tmp_path: Path) -> None:
    async def scenario(api: ApiServer) -> None:
        async def put(data: bytes, status: int | None = None) -> str:
            await api.request("PUT", f"/blobs/{blake3(data).hexdigest()}", data, status=status)
            return blake3(data).hexdigest()

        await put(b"a" * 600_000)
        await put(b"a" * 600_000)  # the same once more counts once
        await api.push_dataset("d", {"x": b"a" * 600_000})  # counted once, as a version
        await put(b"b" * 500_000)
        assert (
            "two hours"
            in (await api.request("PUT", f"/blobs/{blake3(b'c').hexdigest()}", b"c", status=507))["error"][
                "hints"
            ][1]
        )
        quota = api.services.storage
        await quota.remove_swept(api.services.now())
        await put(b"c")

    run_scenario(tmp_path, scenario, loops=False, quota_bytes=1_000_000)


def test_refused_version_names_its_uploads(tmp_path: Path) -> None:
    """They count until they are removed, although nothing refers to them."""

    async def scenario(api: ApiServer) -> None:
        await api.push_dataset("first", {"x": b"a" * 300_000})
        tree = await api.put_tree({"y": b"b" * 400_000, "z": b"b" * 400_000})  # sent once, counted twice
        refused = await api.request("POST", "/datasets/second/versions", {"manifest": tree}, status=507)
        assert any("KiB of uploads without a reference" in hint for hint in refused["error"]["hints"])
        await api.request("DELETE", "/datasets/first")
        await api.request("POST", "/datasets/second/versions", {"manifest": tree})  # sends nothing again

    run_scenario(tmp_path, scenario, loops=False, quota_bytes=1_000_000)


def test_uploads_count_after_a_restart_and_on_another_server(tmp_path: Path) -> None:
    data = b"a" * 600_000
    digest = Digest(blake3(data).hexdigest())

    async def before(api: ApiServer) -> None:
        await api.request("PUT", f"/blobs/{digest}", data)

    async def after(api: ApiServer) -> None:
        await api.request("PUT", f"/blobs/{blake3(b'b').hexdigest()}", b"b" * 1)
        database = Database.open(tmp_path / "hopyard.db")
        try:
            other_server = StorageQuota(
                SqlStorageStore(database), 1_000_000, server="elsewhere", now=api.services.now
            )
            await other_server.load_uploads()
            with pytest.raises(QuotaExceeded):
                await other_server.check_quota("alice", added_bytes=500_000)
            await other_server.check_quota("bob", added_bytes=500_000)
            with pytest.raises(QuotaExceeded):
                await api.services.storage.check_quota("alice", added_bytes=500_000)
            await api.push_dataset("d", {"x": data})  # it is counted once from now on, as a version
            await api.services.storage.check_quota("alice", added_bytes=390_000)
            assert [
                upload.digest for upload in await SqlStorageStore(database).list_uploads(api.services.engine)
            ] == [blake3(b"b").hexdigest()]
            await api.services.storage.remove_swept(api.services.now() + timedelta(seconds=1))
            assert await SqlStorageStore(database).list_uploads(api.services.engine) == []
        finally:
            await database.close()

    run_scenario(tmp_path, before, loops=False, quota_bytes=1_000_000)
    run_scenario(tmp_path, after, loops=False, quota_bytes=1_000_000)


def test_sizes_of_unreferenced_trees_are_deleted(tmp_path: Path) -> None:
    async def scenario(api: ApiServer) -> None:
        referenced, deleted = await api.put_tree({"a": b"kept"}), await api.put_tree({"a": b"gone"})
        await api.submit(plan=0, code=referenced)
        run = await api.submit(plan=0, code=deleted)
        await api.request("POST", f"/runs/{run['id']}/stop", {})
        await api.request("DELETE", f"/runs/{run['id']}")
        database = Database.open(tmp_path / "hopyard.db")

        async def sizes() -> set[str]:
            return set(
                await database.read(lambda conn: conn.execute(select(tree_sizes.c.manifest)).scalars().all())
            )

        try:
            await api.services.storage.remove_swept(api.services.now())
            assert await sizes() == {referenced, deleted}, "another server may still refer to it"
            await api.services.storage.remove_swept(api.services.now() + timedelta(hours=3))
            assert await sizes() == {referenced}
        finally:
            await database.close()

    run_scenario(tmp_path, scenario, loops=False)


def test_oversized_spec_is_refused_and_many_parameters_fit(tmp_path: Path) -> None:
    async def scenario(api: ApiServer) -> None:
        fat = await api.submit(plan=0, status=400, env={f"K{n}": "v" * 3800 for n in range(900)})
        assert "256 KiB" in fat["error"]["message"]
        assert "env" in fat["error"]["hints"][0]
        large = await api.put_tree({"requirements.txt": b"x"})
        await api.submit(plan=0, code=large, params={f"p{n}": "v" * 150 for n in range(1000)})

    run_scenario(tmp_path, scenario, loops=False)


def test_trees_with_several_references_count_once(tmp_path: Path) -> None:
    async def scenario(api: ApiServer) -> None:
        code = await api.put_tree({"main.py": b"print(1)"})
        for _ in range(2):
            await api.submit(plan=0, code=code)
        await api.push_dataset("a", {"x": b"123"})
        await api.push_dataset("b", {"x": b"123"})
        await api.push_dataset("c", {"x": b"12345"})
        database = Database.open(tmp_path / "hopyard.db")
        try:
            assert await SqlStorageStore(database).stored_bytes("alice") == 8 + 3 + 5
            assert await SqlStorageStore(database).stored_bytes("bob") == 0
        finally:
            await database.close()

    run_scenario(tmp_path, scenario, loops=False)
