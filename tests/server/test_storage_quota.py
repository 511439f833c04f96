"""What one user stores has a limit, which is named with how to free space; runs that go on lose nothing."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path

import pytest
from blake3 import blake3
from sqlalchemy import select

from hopyard.domain.ids import Digest
from hopyard.errors import QuotaExceeded
from hopyard.server.storage_quota import StorageQuota
from hopyard.server.submit_run import MAX_NOTE_BYTES
from hopyard.stores.sql.database import Database
from hopyard.stores.sql.storage import SqlStorageStore
from hopyard.stores.sql.tables import tree_sizes
from tests.server.stage import Stage, play


async def refused(stage: Stage, method: str, path: str, body: object) -> str:
    answer = await stage.ask(method, path, body, status=507)
    assert answer["error"]["code"] == "quota_exceeded"
    assert any("hop rm" in hint for hint in answer["error"]["hints"])
    return str(answer["error"]["message"])


def test_a_user_over_the_quota_pushes_and_submits_nothing_until_space_is_freed(tmp_path: Path) -> None:
    async def scene(stage: Stage) -> None:
        bob = (await stage.ask("POST", "/users", {"name": "bob"}))["token"]
        run = await stage.started()
        await stage.dataset("small", {"a": b"x" * 600_000})
        token = stage.token_of(run)
        # a run's own token proves that it has the bytes
        large = await stage.put_tree({"b": b"y" * 700_000}, token=token)
        assert "at most" in await refused(stage, "POST", "/datasets/large/versions", {"manifest": large})
        saved = {"rank": 0, "step": 1, "manifest": large}
        await stage.ask("POST", f"/attempts/{run['id']}.1/checkpoints", saved, status=201)
        await refused(stage, "POST", "/runs", {"spec": {"project": "p", "roles": [{"command": ["true"]}]}})
        await refused(stage, "PUT", f"/blobs/{blake3(b'new').hexdigest()}", b"new")
        await stage.sync(run, [("stdout", 0, b"goes on\n")])
        await stage.ask(
            "POST", "/runs", {"spec": {"project": "p", "roles": [{"command": ["true"]}]}}, token=bob
        )
        await stage.ask("DELETE", "/datasets/small")
        await stage.submit(plan=0)

    play(tmp_path, scene, quota_bytes=1_000_000)


def test_runs_save_up_to_twice_the_quota_of_their_user(tmp_path: Path) -> None:
    """A script holds its run's token: what it uploads and never saves counts, too."""

    async def scene(stage: Stage) -> None:
        run, other = await stage.started(), await stage.started()
        token, path = stage.token_of(run), f"/attempts/{run['id']}.1"
        for step in (1, 2):
            tree = await stage.put_tree({"w": bytes([step]) * 600_000}, token=token)
            await stage.ask(
                "POST", f"{path}/checkpoints", {"rank": 0, "step": step, "manifest": tree}, token=token
            )
        assert await stage.parts.storage._store.list_uploads(stage.parts.engine) == [], (
            "what is saved is counted once"
        )
        await stage.ask("PUT", f"/blobs/{blake3(b'c' * 900_000).hexdigest()}", b"c" * 900_000, token=token)
        for one in (token, stage.token_of(other)):
            message = (
                await stage.ask("PUT", f"/blobs/{blake3(b'd').hexdigest()}", b"d", token=one, status=507)
            )["error"]["message"]
            assert message.startswith("alice stores")
        await stage.parts.storage.remove_swept(stage.parts.now())
        await stage.put_tree({"w": b"d"}, token=token)

    play(tmp_path, scene, quota_bytes=1_000_000)


def test_a_lock_that_would_store_megabytes_is_refused(tmp_path: Path) -> None:
    async def scene(stage: Stage) -> None:
        run = await stage.started()
        token, path = stage.token_of(run), f"/attempts/{run['id']}.1/lock"
        small, large = b"numpy==2.0", b"x" * (MAX_NOTE_BYTES + 1)
        for lock, packages in ((small, {f"p{n}": "v" * 1000 for n in range(300)}), (large, {})):
            digest = blake3(lock).hexdigest()
            await stage.ask("PUT", f"/blobs/{digest}", lock, token=token)
            await stage.ask("POST", path, {"lock": digest, "packages": packages}, token=token, status=400)
        assert (await stage.ask("GET", f"/runs/{run['id']}"))["spec"]["environment"]["lock"] is None

    play(tmp_path, scene)


def test_uploads_count_until_something_refers_to_them_or_they_are_swept(tmp_path: Path) -> None:
    async def scene(stage: Stage) -> None:
        async def put(data: bytes, status: int | None = None) -> str:
            await stage.ask("PUT", f"/blobs/{blake3(data).hexdigest()}", data, status=status)
            return blake3(data).hexdigest()

        await put(b"a" * 600_000)
        await put(b"a" * 600_000)  # the same once more counts once
        await stage.dataset("d", {"x": b"a" * 600_000})  # counted once, as a version
        await put(b"b" * 500_000)
        assert (
            "two hours"
            in (await stage.ask("PUT", f"/blobs/{blake3(b'c').hexdigest()}", b"c", status=507))["error"][
                "hints"
            ][1]
        )
        quota = stage.parts.storage
        await quota.remove_swept(stage.parts.now())
        await put(b"c")

    play(tmp_path, scene, loops=False, quota_bytes=1_000_000)


def test_uploads_count_after_a_restart_and_on_another_server(tmp_path: Path) -> None:
    data = b"a" * 600_000
    digest = Digest(blake3(data).hexdigest())

    async def before(stage: Stage) -> None:
        await stage.ask("PUT", f"/blobs/{digest}", data)

    async def after(stage: Stage) -> None:
        await stage.ask("PUT", f"/blobs/{blake3(b'b').hexdigest()}", b"b" * 1)
        database = Database.open(tmp_path / "hopyard.db")
        try:
            there = StorageQuota(
                SqlStorageStore(database), 1_000_000, server="elsewhere", now=stage.parts.now
            )
            await there.load_uploads()
            with pytest.raises(QuotaExceeded):
                await there.check_quota("alice", added_bytes=500_000)
            await there.check_quota("bob", added_bytes=500_000)
            with pytest.raises(QuotaExceeded):
                await stage.parts.storage.check_quota("alice", added_bytes=500_000)
            await stage.dataset("d", {"x": data})  # it is counted once from now on, as a version
            await stage.parts.storage.check_quota("alice", added_bytes=390_000)
            assert [
                one.digest for one in await SqlStorageStore(database).list_uploads(stage.parts.engine)
            ] == [blake3(b"b").hexdigest()]
            await stage.parts.storage.remove_swept(stage.parts.now() + timedelta(seconds=1))
            assert await SqlStorageStore(database).list_uploads(stage.parts.engine) == []
        finally:
            await database.close()

    play(tmp_path, before, loops=False, quota_bytes=1_000_000)
    play(tmp_path, after, loops=False, quota_bytes=1_000_000)


def test_sizes_of_trees_that_nothing_refers_to_are_forgotten(tmp_path: Path) -> None:
    async def scene(stage: Stage) -> None:
        kept, gone = await stage.put_tree({"a": b"kept"}), await stage.put_tree({"a": b"gone"})
        await stage.submit(plan=0, code=kept)
        run = await stage.submit(plan=0, code=gone)
        await stage.ask("POST", f"/runs/{run['id']}/stop", {})
        await stage.ask("DELETE", f"/runs/{run['id']}")
        database = Database.open(tmp_path / "hopyard.db")

        async def sizes() -> set[str]:
            return set(
                await database.read(lambda conn: conn.execute(select(tree_sizes.c.manifest)).scalars().all())
            )

        try:
            await stage.parts.storage.remove_swept(stage.parts.now())
            assert await sizes() == {kept, gone}, "another server may be about to refer to it"
            await stage.parts.storage.remove_swept(stage.parts.now() + timedelta(hours=3))
            assert await sizes() == {kept}
        finally:
            await database.close()

    play(tmp_path, scene, loops=False)


def test_a_spec_that_would_store_megabytes_is_refused_and_one_of_many_parameters_fits(tmp_path: Path) -> None:
    async def scene(stage: Stage) -> None:
        fat = await stage.submit(plan=0, status=400, env={f"K{n}": "v" * 3800 for n in range(900)})
        assert "256 KiB" in fat["error"]["message"]
        assert "env" in fat["error"]["hints"][0]
        large = await stage.put_tree({"requirements.txt": b"x"})
        await stage.submit(plan=0, code=large, params={f"p{n}": "v" * 150 for n in range(1000)})

    play(tmp_path, scene, loops=False)


def test_trees_that_several_things_refer_to_count_once(tmp_path: Path) -> None:
    async def scene(stage: Stage) -> None:
        code = await stage.put_tree({"main.py": b"print(1)"})
        for _ in range(2):
            await stage.submit(plan=0, code=code)
        await stage.dataset("a", {"x": b"123"})
        await stage.dataset("b", {"x": b"123"})
        await stage.dataset("c", {"x": b"12345"})
        database = Database.open(tmp_path / "hopyard.db")
        try:
            assert await SqlStorageStore(database).stored_bytes("alice") == 8 + 3 + 5
            assert await SqlStorageStore(database).stored_bytes("bob") == 0
        finally:
            await database.close()

    play(tmp_path, scene, loops=False)
