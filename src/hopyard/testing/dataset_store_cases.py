"""Cases of every DatasetStore and every AccessStore."""

from __future__ import annotations

import asyncio
from dataclasses import replace

import pytest

from hopyard.domain.access import ALL_SCOPES, Scope, Token
from hopyard.domain.checkpoint import Checkpoint
from hopyard.domain.dataset import Dataset, DatasetVersion
from hopyard.domain.ids import attempt_id
from hopyard.domain.run import DatasetRef, Environment, GitState, ResumeFrom
from hopyard.errors import Conflict, NotFound, SpecError
from hopyard.interfaces.access_store import User
from hopyard.testing.stores import Stores, make_digest, submit_run, time_at


async def push(stores: Stores, name: str, content: str, *, seconds: float = 0) -> tuple[DatasetVersion, bool]:
    return await stores.datasets.push(
        name,
        make_digest(content),
        size_bytes=2**40,
        files=3,
        user="alice",
        message="why",
        now=time_at(seconds),
    )


class DatasetCases:
    """Named, versioned data."""

    async def test_versions_count_from_one_and_equal_push_makes_none(self, stores: Stores) -> None:
        first = DatasetVersion("mnist", 1, make_digest("a"), 2**40, 3, time_at(0), "alice", "why")
        second = DatasetVersion("mnist", 2, make_digest("b"), 2**40, 3, time_at(1), "alice", "why")
        assert await push(stores, "mnist", "a") == (first, True)
        assert await push(stores, "mnist", "a", seconds=9) == (first, False)
        assert await push(stores, "mnist", "b", seconds=1) == (second, True)
        # equal to an older version only: a new one
        assert (await push(stores, "mnist", "a", seconds=2))[0].number == 3
        assert [version.number for version in await stores.datasets.versions("mnist")] == [3, 2, 1]
        assert await stores.datasets.version("mnist", 2) == second
        assert (await stores.datasets.version("mnist", 0)).number == 3

    async def test_concurrent_pushes(self, stores: Stores) -> None:
        different = await asyncio.gather(*(push(stores, "mnist", f"{number}") for number in range(8)))
        assert sorted(version.number for version, _ in different) == list(range(1, 9))
        equal = await asyncio.gather(*(push(stores, "cifar", "same") for _ in range(8)))
        assert {version.number for version, _ in equal} == {1}
        assert sum(created for _, created in equal) == 1

    async def test_list_datasets(self, stores: Stores) -> None:
        assert await stores.datasets.list() == []
        assert await stores.datasets.find("mnist") is None
        version, _ = await push(stores, "mnist", "a")
        await push(stores, "cifar", "b", seconds=1)
        newest, _ = await push(stores, "cifar", "c", seconds=2)
        mnist, cifar = Dataset("mnist", time_at(0), 1, version), Dataset("cifar", time_at(1), 2, newest)
        assert await stores.datasets.list() == [cifar, mnist]
        assert await stores.datasets.find("cifar") == cifar

    async def test_list_datasets_and_versions_in_pages(self, stores: Stores) -> None:
        for number in range(5):
            await push(stores, f"d{number}", "a")
            await push(stores, "many", f"{number}")
        first = await stores.datasets.list(limit=2)
        assert [item.name for item in first] == ["d0", "d1"]
        rest = await stores.datasets.list(after="d1", limit=9)
        assert [(item.name, item.versions) for item in rest] == [("d2", 1), ("d3", 1), ("d4", 1), ("many", 5)]
        assert [item.number for item in await stores.datasets.versions("many", limit=2)] == [5, 4]
        assert [item.number for item in await stores.datasets.versions("many", before=4, limit=2)] == [3, 2]
        assert await stores.datasets.first_version("many") == await stores.datasets.version("many", 1)
        await stores.datasets.delete("many", 1)
        assert await stores.datasets.first_version("many") == await stores.datasets.version("many", 2)
        assert await stores.datasets.first_version("none") is None

    async def test_version_keeps_its_origin(self, stores: Stores) -> None:
        await push(stores, "raw", "a")
        pushed, _ = await stores.datasets.push(
            "clean",
            make_digest("b"),
            size_bytes=1,
            files=1,
            user="alice",
            message="",
            now=time_at(0),
            derived_from="raw:1",
        )
        assert pushed.derived_from == "raw:1"
        assert await stores.datasets.version("clean", 1) == pushed
        assert (await stores.datasets.version("raw", 1)).derived_from == ""

    async def test_runs_are_counted_by_dataset(self, stores: Stores) -> None:
        for name in ("mnist", "cifar", "unused"):
            await push(stores, name, name)
        both = (DatasetRef("mnist", 1, make_digest("mnist")), DatasetRef("cifar", 0, None))
        await submit_run(stores, datasets=both)
        await submit_run(stores, datasets=both[:1])
        counts = await stores.datasets.count_runs(["mnist", "cifar", "unused", "missing"])
        assert dict(counts) == {"mnist": 2, "cifar": 1}
        assert dict(await stores.datasets.count_runs([])) == {}

    async def test_manifests_that_a_deletion_frees(self, stores: Stores) -> None:
        for content in "abc":
            await push(stores, "mnist", content)
        await push(stores, "copy", "b")
        await submit_run(stores, datasets=(DatasetRef("mnist", 3, make_digest("c")),))
        freed = stores.datasets.freed_manifests
        assert await freed("mnist", 1) == [make_digest("a")]
        for number in (2, 3):  # another dataset has the one, a run the other
            assert await freed("mnist", number) == []
        assert await freed("mnist", None) == [make_digest("a")]
        assert await freed("mnist", 9) == []
        with pytest.raises(NotFound):
            await freed("mnits", 1)

    async def test_metric_of_leaderboard(self, stores: Stores) -> None:
        await push(stores, "mnist", "a")
        for metric, direction in (("val_acc", True), ("loss", False), ("", None)):
            await stores.datasets.set_metric("mnist", metric, direction)
            dataset = await stores.datasets.find("mnist")
            assert dataset is not None
            assert (dataset.metric, dataset.higher_is_better) == (metric, direction)

    async def test_description_is_changed_by_revision(self, stores: Stores) -> None:
        await push(stores, "mnist", "a")

        async def stored() -> tuple[str, int]:
            (dataset,) = await stores.datasets.list()
            assert dataset == await stores.datasets.find("mnist")
            return dataset.description, dataset.description_revision

        assert await stored() == ("", 0)
        assert await stores.datasets.set_description("mnist", "# Digits Ⅱ\n", base=0) == 1
        assert await stores.datasets.set_description("mnist", "# Digits Ⅱ\n", base=0) == 1, "sent again"
        with pytest.raises(Conflict):
            await stores.datasets.set_description("mnist", "other", base=0)
        assert await stored() == ("# Digits Ⅱ\n", 1)
        assert await stores.datasets.set_description("mnist", "other") == 2
        await push(stores, "mnist", "b")
        await stores.datasets.set_metric("mnist", "acc", None)
        assert await stored() == ("other", 2)
        assert await stores.datasets.set_description("mnist", "", base=2) == 3
        with pytest.raises(NotFound):
            await stores.datasets.set_description("cifar", "x")
        await stores.datasets.delete("mnist", None)
        await push(stores, "mnist", "c")
        assert await stored() == ("", 0)

    async def test_unknown_dataset_is_reported_with_close_names(self, stores: Stores) -> None:
        await push(stores, "mnist", "a")
        for call in (
            stores.datasets.versions("mnits"),
            stores.datasets.version("mnits", 0),
            stores.datasets.set_metric("mnits", "x", None),
            stores.datasets.delete("mnits", None),
        ):
            with pytest.raises(NotFound) as raised:
                await call
            assert "mnist" in " ".join(raised.value.hints)
        for version_call in (stores.datasets.version("mnist", 2), stores.datasets.delete("mnist", 2)):
            with pytest.raises(NotFound):
                await version_call

    async def test_illegal_dataset_name_is_rejected(self, stores: Stores) -> None:
        with pytest.raises(SpecError):
            await push(stores, "../etc", "a")

    async def test_delete_dataset(self, stores: Stores) -> None:
        for content in "abc":
            await push(stores, "mnist", content)
        assert await stores.datasets.delete("mnist", 3) == 1
        assert (await push(stores, "mnist", "d"))[0].number == 4  # a number is never reused
        assert await stores.datasets.delete("mnist", None) == 3
        assert await stores.datasets.find("mnist") is None
        with pytest.raises(NotFound):
            await stores.datasets.delete("mnist", None)

    async def test_version_numbers_of_deleted_dataset_are_not_reused(self, stores: Stores) -> None:
        """A reference to `mnist:1` yields that version or none: a name that is pushed again holds other
        data."""
        for content in "ab":
            await push(stores, "mnist", content)
        await stores.datasets.delete("mnist", None)
        again, created = await push(stores, "mnist", "c", seconds=5)
        assert (again.number, created) == (3, True)
        assert await stores.datasets.find("mnist") == Dataset("mnist", time_at(5), 1, again)
        with pytest.raises(NotFound):
            await stores.datasets.version("mnist", 1)
        await stores.datasets.delete("mnist", None)
        assert (await push(stores, "mnist", "c"))[0].number == 4
        assert (await push(stores, "cifar", "c"))[0].number == 1

    async def test_dataset_remains_without_versions(self, stores: Stores) -> None:
        await push(stores, "mnist", "a")
        await stores.datasets.delete("mnist", 1)
        assert await stores.datasets.find("mnist") == Dataset("mnist", time_at(0), 0, None)
        assert await stores.datasets.versions("mnist") == []
        with pytest.raises(NotFound):
            await stores.datasets.version("mnist", 0)

    async def test_version_in_use_cannot_be_deleted(self, stores: Stores) -> None:
        for content in "ab":
            await push(stores, "mnist", content)
        run = await submit_run(stores, datasets=(DatasetRef("mnist", 1, make_digest("a")),))
        for number in (1, None):
            with pytest.raises(Conflict):
                await stores.datasets.delete("mnist", number)
        assert await stores.datasets.delete("mnist", 2) == 1
        await stores.cluster.request_stop(run.id, now=time_at(1))
        assert await stores.datasets.delete("mnist", None) == 1


HASH, OTHER = "a" * 64, "b" * 64


class AccessCases:
    """Tokens, secrets, and blobs in use, which must not be garbage-collected."""

    async def test_database_id_is_stable(self, stores: Stores) -> None:
        database_id = await stores.access.database_id()
        assert database_id
        assert await stores.access.database_id() == database_id

    async def test_add_and_list_tokens(self, stores: Stores) -> None:
        access = stores.access
        assert await access.find_token(HASH) is None
        token = await access.add_token(
            "alice", HASH, now=time_at(0), name="laptop", scopes=[Scope.READ], expires_at=time_at(9)
        )
        assert token == Token(HASH[:12], "alice", "laptop", frozenset({Scope.READ}), time_at(0), time_at(9))
        assert await access.find_token(HASH) == token
        for user, name in (("bob", "laptop"), ("alice", "other")):
            with pytest.raises(Conflict):
                await access.add_token(user, HASH, now=time_at(0), name=name)
        with pytest.raises(Conflict):
            await access.add_token("alice", OTHER, now=time_at(0), name="laptop")
        ci = await access.add_token("alice", OTHER, now=time_at(1), name="ci")
        assert (ci.scopes, ci.expires_at, ci.used_at) == (ALL_SCOPES, None, None)
        await access.record_use(OTHER, now=time_at(2))
        await access.record_use("gone", now=time_at(2))
        assert (
            await access.list_tokens("alice")
            == [token, replace(ci, used_at=time_at(2))]
            == await access.list_tokens(None)
        )
        assert await access.list_tokens("bob") == []

    async def test_replaced_token_keeps_name_and_scopes(self, stores: Stores) -> None:
        access = stores.access
        token = await access.add_token("alice", HASH, now=time_at(0), name="ci", scopes=[Scope.SUBMIT])
        replaced = await access.replace_token(token.id, OTHER, now=time_at(5), expires_at=time_at(9))
        assert replaced == Token(OTHER[:12], "alice", "ci", frozenset({Scope.SUBMIT}), time_at(5), time_at(9))
        assert await access.find_token(HASH) is None
        assert await access.find_token(OTHER) == replaced
        for call in (
            access.replace_token(token.id, "c" * 64, now=time_at(6), expires_at=None),
            access.remove_token(token.id),
        ):
            with pytest.raises(NotFound):
                await call
        assert await access.remove_token(replaced.id) == replaced
        assert await access.find_token(OTHER) is None

    async def test_user_name_that_differs_by_case_only_is_rejected(self, stores: Stores) -> None:
        await stores.access.add_user("bob", HASH, now=time_at(0))
        with pytest.raises(Conflict) as raised:
            await stores.access.add_user("Bob", OTHER, now=time_at(0))
        assert "`bob`" in raised.value.message
        await submit_run(stores, user="carol")
        with pytest.raises(Conflict):
            await stores.access.add_user("CAROL", OTHER, now=time_at(0))
        await stores.access.add_user("carol", OTHER, now=time_at(0))

    async def test_put_list_and_remove_secrets(self, stores: Stores) -> None:
        access = stores.access
        assert await access.secret_names("alice") == {}
        await access.put_secret("alice", "KEY", "old", now=time_at(0))
        await access.put_secret("alice", "KEY", "new \u00e9\n", now=time_at(1))
        await access.put_secret("alice", "B", "2", now=time_at(2))
        await access.put_secret("bob", "KEY", "his", now=time_at(3))
        assert list((await access.secret_names("alice")).items()) == [("B", time_at(2)), ("KEY", time_at(1))]
        assert await access.secret_values("alice", ["KEY", "NONE"]) == {"KEY": "new \u00e9\n"}
        await access.remove_secret("alice", "B")
        with pytest.raises(NotFound):
            await access.remove_secret("alice", "B")
        await access.add_user("alice", HASH, now=time_at(4))
        await access.remove_user("alice")
        assert await access.secret_names("alice") == {}
        assert list(await access.secret_names("bob")) == ["KEY"]

    async def test_user_is_added_once_and_removed_with_all_tokens(self, stores: Stores) -> None:
        assert await stores.access.list_users() == []
        await stores.access.add_user("bob", "first", now=time_at(0))
        with pytest.raises(Conflict):
            await stores.access.add_user("bob", "second", now=time_at(1))
        assert await stores.access.find_token("second") is None
        with pytest.raises(Conflict):
            await stores.access.add_user("carol", "first", now=time_at(1))
        await stores.access.add_token("bob", "third", now=time_at(2), name="other")
        await stores.access.add_user("alice", "hers", now=time_at(3))
        assert await stores.access.list_users() == [User("alice", time_at(3)), User("bob", time_at(0), 2)]
        assert await stores.access.remove_user("bob") == 2
        tokens = [await stores.access.find_token(token_hash) for token_hash in ("first", "third", "hers")]
        assert [token and token.user for token in tokens] == [None, None, "alice"]
        with pytest.raises(NotFound):
            await stores.access.remove_user("bob")
        for name in ("bob", "Bob"):
            with pytest.raises(Conflict):
                await stores.access.add_user(name, "fourth", now=time_at(4))
        with pytest.raises(NotFound):
            await stores.access.add_user("carol", "fourth", now=time_at(4), restored=True)
        await stores.access.add_user("bob", "fourth", now=time_at(4), restored=True)
        assert await stores.access.list_users() == [User("alice", time_at(3)), User("bob", time_at(4))]

    async def test_concurrent_adds_of_user_succeed_once(self, stores: Stores) -> None:
        results = await asyncio.gather(
            *(stores.access.add_user("bob", f"{number}", now=time_at(0)) for number in range(4)),
            return_exceptions=True,
        )
        assert sorted(type(result).__name__ for result in results) == [
            "Conflict",
            "Conflict",
            "Conflict",
            "NoneType",
        ]
        assert await stores.access.list_users() == [User("bob", time_at(0))]

    async def test_new_store_has_no_signing_secret(self, stores: Stores) -> None:
        assert await stores.access.signing_secret() is None
        await stores.access.remove_signing_secret(now=time_at(0))

    async def test_manifests_and_blobs_in_use(self, stores: Stores) -> None:
        assert await stores.access.manifests_in_use() == await stores.access.blobs_in_use() == []
        await push(stores, "mnist", "data")
        run = await submit_run(
            stores,
            code=make_digest("code"),
            datasets=(DatasetRef("gone", 1, make_digest("pinned")),),
            resume=ResumeFrom(
                attempt_id_run := (await submit_run(stores, code=make_digest("code"))).id,
                1,
                make_digest("resume"),
            ),
            git=GitState("c" * 40, diff=make_digest("diff")),
            environment=Environment(requirements=make_digest("requirements")),
        )
        await stores.runs.record_artifact(run.id, make_digest("artifact"))
        await stores.runs.record_lock(run.id, make_digest("lock"), {})
        saved = Checkpoint(
            attempt_id_run, attempt_id(attempt_id_run, 1), 0, 1, make_digest("checkpoint"), 1, time_at(0)
        )
        await stores.runs.record_checkpoint(saved)
        manifests = ("data", "code", "pinned", "resume", "artifact", "checkpoint")
        assert list(await stores.access.manifests_in_use()) == sorted(make_digest(name) for name in manifests)
        blobs = ("diff", "requirements", "lock")
        assert list(await stores.access.blobs_in_use()) == sorted(make_digest(name) for name in blobs)

    async def test_deleted_run_uses_no_manifests(self, stores: Stores) -> None:
        run = (
            await submit_run(
                stores, code=make_digest("code"), datasets=(DatasetRef("gone", 1, make_digest("pinned")),)
            )
        ).id
        await stores.runs.record_checkpoint(
            Checkpoint(run, attempt_id(run, 1), 0, 1, make_digest("checkpoint"), 1, time_at(0))
        )
        assert len(await stores.access.manifests_in_use()) == 3
        await stores.cluster.request_stop(run, now=time_at(1))
        await stores.runs.delete(run)
        assert await stores.access.manifests_in_use() == []
