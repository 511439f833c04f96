"""The blob store against a dictionary: any order of calls, restarts and sweeps in between."""

from __future__ import annotations

import asyncio
import shutil
import tempfile
from collections.abc import Coroutine
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, TypeVar

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from hopyard.errors import IntegrityError, NotFound
from hopyard.stores.blobs.folder import FolderBlobs
from tests.datasets.folder_transport import corrupt_blob, digest_of

T = TypeVar("T")
# Few different blobs, so that calls meet; two of them large.
CONTENT = [
    b"",
    *(b"blob %d " % n * (n + 1) * 20 for n in range(10)),
    b"L" * (1 << 20),
    b"M" * (1 << 20) + b"odd",
]
some = st.integers(0, len(CONTENT) - 1).map(lambda n: CONTENT[n])


class BlobsMachine(RuleBasedStateMachine):
    @initialize()
    def begin(self) -> None:
        self.root = Path(tempfile.mkdtemp(prefix="hopyard-blobs-"))
        self.loop = asyncio.new_event_loop()
        self.model: set[bytes] = set()
        self.blobs = FolderBlobs(self.root)

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        return self.loop.run_until_complete(work)

    @rule(data=some)
    def put(self, data: bytes) -> None:
        self.run(self.blobs.put(digest_of(data), data))
        self.model.add(data)

    @rule(many=st.lists(some, max_size=6))
    def put_many(self, many: list[bytes]) -> None:
        self.run(self.blobs.put_many([(digest_of(data), data) for data in many]))
        self.model.update(many)

    @rule(many=st.lists(some, min_size=1, max_size=4), wrong=some)
    def put_wrong(self, many: list[bytes], wrong: bytes) -> None:
        with pytest.raises(IntegrityError):
            self.run(
                self.blobs.put_many(
                    [*((digest_of(data), data) for data in many), (digest_of(wrong + b"!"), wrong)]
                )
            )

    @rule(data=some)
    def get(self, data: bytes) -> None:
        if data in self.model:
            assert self.run(self.blobs.get(digest_of(data))) == data
        else:
            with pytest.raises(NotFound):
                self.run(self.blobs.get(digest_of(data)))

    @rule(in_use=st.sets(some), old=st.booleans())
    def sweep(self, in_use: set[bytes], old: bool) -> None:
        age = timedelta(days=1 if old else -1)
        freed = self.run(
            self.blobs.remove_unused([digest_of(data) for data in in_use], older_than=datetime.now(UTC) + age)
        )
        removed = self.model - in_use if old else set()
        assert freed == sum(map(len, removed))
        self.model -= removed

    @rule(data=some)
    def corrupt_blob(self, data: bytes) -> None:
        if data in self.model and data:
            corrupt_blob(self.root, data)
            with pytest.raises(IntegrityError):
                self.run(self.blobs.get(digest_of(data)))
            self.model.remove(data)

    @rule(lose_index=st.booleans())
    def restart(self, lose_index: bool) -> None:
        self.run(self.blobs.close())
        # blobs in collected packs that are not rewritten yet may return: collect them for good
        if lose_index:
            for path in self.root.glob("index.db*"):
                path.unlink()
        self.blobs = FolderBlobs(self.root)
        if lose_index:
            self.run(
                self.blobs.remove_unused(
                    [digest_of(data) for data in self.model], older_than=datetime.now(UTC) + timedelta(days=1)
                )
            )

    @invariant()
    def agrees(self) -> None:
        if not hasattr(self, "model"):
            return
        expected = [digest_of(data) for data in CONTENT if data not in self.model]
        assert self.run(self.blobs.find_missing([digest_of(data) for data in CONTENT])) == expected
        assert self.run(self.blobs.usage()) == (len(self.model), sum(map(len, self.model)))

    def teardown(self) -> None:
        if hasattr(self, "blobs"):
            self.run(self.blobs.close())
            self.loop.close()
            shutil.rmtree(self.root)


TestBlobsMachine = BlobsMachine.TestCase
TestBlobsMachine.settings = settings(max_examples=20, stateful_step_count=15)
