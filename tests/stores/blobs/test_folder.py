from __future__ import annotations

import asyncio
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Awaitable, Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from hopyard.domain.ids import Digest
from hopyard.errors import IntegrityError, NotFound, SpecError, StorageFull
from hopyard.stores.blobs.folder import FolderBlobs
from tests.datasets.folder_transport import corrupt_blob, digest_of, files_of, small_disk

SMALL, LARGE = b"small" * 100, os.urandom(3 << 20) + b"end"
LATER = timedelta(days=1)


def run_scenario(root: Path, scenario: Callable[[FolderBlobs], Awaitable[None]]) -> None:
    async def run() -> None:
        blobs = FolderBlobs(root)
        try:
            await scenario(blobs)
        finally:
            await blobs.close()

    asyncio.run(run())


async def fetch_all(blobs: FolderBlobs, digests: list[Digest]) -> list[bytes]:
    return [data async for _, data in blobs.get_many(digests)]


@pytest.mark.parametrize(
    "data", [b"", b"x", SMALL, b"e" * (1 << 20), LARGE], ids=["empty", "one", "small", "edge", "large"]
)
def test_stored_blob_is_read_by_the_next_server(tmp_path: Path, data: bytes) -> None:
    digest = digest_of(data)

    async def first(blobs: FolderBlobs) -> None:
        assert await blobs.find_missing([digest, digest]) == [digest]
        await blobs.put(digest, data)
        await blobs.put(digest, data)
        assert await blobs.get(digest) == data

    async def second(blobs: FolderBlobs) -> None:
        assert await blobs.find_missing([digest]) == []
        assert await blobs.get(digest) == data
        assert await blobs.usage() == (1, len(data))

    run_scenario(tmp_path, first)
    run_scenario(tmp_path, second)


def test_wrong_bytes_refuse_the_complete_batch(tmp_path: Path) -> None:
    async def scenario(blobs: FolderBlobs) -> None:
        with pytest.raises(IntegrityError):
            await blobs.put_many([(digest_of(SMALL), SMALL), (digest_of(b"a"), b"b")])
        assert await blobs.usage() == (0, 0)
        with pytest.raises(NotFound):
            await blobs.get(digest_of(SMALL))
        with pytest.raises(NotFound):
            await fetch_all(blobs, [digest_of(SMALL)])
        with pytest.raises(SpecError):
            await blobs.get(Digest("../../etc/passwd"))

    run_scenario(tmp_path, scenario)


def test_blobs_are_returned_in_the_requested_order(tmp_path: Path) -> None:
    async def scenario(blobs: FolderBlobs) -> None:
        many = [str(n).encode() * 7 for n in range(3000)] + [LARGE]
        await blobs.put_many([(digest_of(data), data) for data in many])
        assert len(list((tmp_path / "packs").iterdir())) == 1, "small blobs share a file"
        requested = [many[n] for n in (5, 2999, 3000, 5, 0, 1)] + many[::-1]
        assert await fetch_all(blobs, [digest_of(data) for data in requested]) == requested

    run_scenario(tmp_path, scenario)


@pytest.mark.parametrize("data", [SMALL, LARGE], ids=["small", "large"])
def test_damaged_blob_is_quarantined_and_stored_again(tmp_path: Path, data: bytes) -> None:
    digest = digest_of(data)

    async def scenario(blobs: FolderBlobs) -> None:
        await blobs.put_many([(digest, data), (digest_of(b"good"), b"good")])
        corrupt_blob(tmp_path, data)
        with pytest.raises(IntegrityError, match="damaged") as result:
            await blobs.get(digest)
        assert result.value.hints
        assert await blobs.find_missing([digest, digest_of(b"good")]) == [digest]
        await blobs.put(digest, data)
        assert await fetch_all(blobs, [digest, digest_of(b"good")]) == [data, b"good"]

    run_scenario(tmp_path, scenario)


@pytest.mark.parametrize("data", [SMALL, LARGE], ids=["small", "large"])
def test_quarantined_blob_is_kept_until_its_file_is_restored(tmp_path: Path, data: bytes) -> None:
    digest, aside, saved = digest_of(data), tmp_path / "store" / "damaged", tmp_path / "saved"

    async def scenario(blobs: FolderBlobs) -> None:
        await blobs.put_many([(digest, data), (digest_of(b"good"), b"good")])
        shutil.copytree(tmp_path / "store", saved)
        corrupt_blob(tmp_path / "store", data)
        assert (await blobs.scrub(None)).damaged == (digest,)
        (quarantined,) = aside.iterdir()
        assert quarantined.stat().st_size == len(data) and await blobs.find_missing([digest]) == [digest]
        for folder in ("packs", "large"):
            shutil.copytree(saved / folder, tmp_path / "store" / folder, dirs_exist_ok=True)
        await blobs.scrub(None)
        assert await fetch_all(blobs, [digest, digest_of(b"good")]) == [data, b"good"]
        assert list(aside.iterdir()) == []

    run_scenario(tmp_path / "store", scenario)


def test_missing_and_truncated_files_are_detected(tmp_path: Path) -> None:
    async def scenario(blobs: FolderBlobs) -> None:
        await blobs.put(digest_of(LARGE), LARGE)
        await blobs.put(digest_of(SMALL), SMALL)
        (large,) = files_of(tmp_path, "large/*/*")
        os.truncate(large, 4096)
        with pytest.raises(IntegrityError):
            await blobs.get(digest_of(LARGE))
        (pack,) = files_of(tmp_path, "packs/*")
        pack.unlink()
        with pytest.raises(IntegrityError):
            await blobs.get(digest_of(SMALL))
        assert len(await blobs.find_missing([digest_of(SMALL), digest_of(LARGE)])) == 2

    run_scenario(tmp_path, scenario)


@pytest.mark.parametrize("how", ["missing", "garbage", "behind"])
def test_index_is_rebuilt_from_the_files(tmp_path: Path, how: str) -> None:
    def reset() -> None:
        for path in tmp_path.glob("index.db*"):
            path.unlink()
        if how == "garbage":
            (tmp_path / "index.db").write_bytes(b"not a database" * 1000)
        elif how == "behind":
            (tmp_path / "kept.db").rename(tmp_path / "index.db")

    async def first(blobs: FolderBlobs) -> None:
        await blobs.put(digest_of(b"early"), b"early")

    async def second(blobs: FolderBlobs) -> None:
        await blobs.put_many([(digest_of(data), data) for data in (SMALL, LARGE, b"")])

    async def third(blobs: FolderBlobs) -> None:
        assert await fetch_all(blobs, [digest_of(data) for data in (SMALL, LARGE, b"", b"early")]) == [
            SMALL,
            LARGE,
            b"",
            b"early",
        ]
        assert (await blobs.usage())[0] == 4

    run_scenario(tmp_path, first)
    (tmp_path / "kept.db").write_bytes((tmp_path / "index.db").read_bytes())
    run_scenario(tmp_path, second)
    reset()
    (tmp_path / "packs" / ".tmp-half").write_bytes(b"half a pack")
    run_scenario(tmp_path, third)
    assert not files_of(tmp_path, "**/.tmp-*")


def test_torn_pack_returns_its_complete_blobs(tmp_path: Path) -> None:
    many = [bytes([n]) * 1000 for n in range(10)]

    async def first(blobs: FolderBlobs) -> None:
        await blobs.put_many([(digest_of(data), data) for data in many])

    async def second(blobs: FolderBlobs) -> None:
        missing = set(await blobs.find_missing([digest_of(data) for data in many]))
        assert 0 < len(missing) < 10
        complete = [data for data in many if digest_of(data) not in missing]
        assert await fetch_all(blobs, [digest_of(data) for data in complete]) == complete

    run_scenario(tmp_path, first)
    (pack,) = files_of(tmp_path, "packs/*")
    os.truncate(pack, pack.stat().st_size - 3500)
    for path in tmp_path.glob("index.db*"):
        path.unlink()
    run_scenario(tmp_path, second)


def test_collection_keeps_used_young_and_requested_blobs(tmp_path: Path) -> None:
    used, garbage = [b"u%d" % n * 100 for n in range(20)], [b"g%d" % n * 100 for n in range(200)]

    async def scenario(blobs: FolderBlobs) -> None:
        await blobs.put_many([(digest_of(data), data) for data in (*used, *garbage, LARGE)])
        in_use = [digest_of(data) for data in used]
        now = datetime.now(UTC)
        assert await blobs.remove_unused(in_use, older_than=now - LATER) == 0, "all blobs are young"
        freed = await blobs.remove_unused(in_use, older_than=now + LATER)
        assert freed == sum(map(len, garbage)) + len(LARGE)
        assert await fetch_all(blobs, in_use) == used
        assert await blobs.usage() == (len(used), sum(map(len, used)))
        assert sum(path.stat().st_size for path in files_of(tmp_path, "packs/*")) < 20_000, (
            "a pack that is mostly garbage is rewritten"
        )
        assert not files_of(tmp_path, "large/*/*")
        assert await blobs.remove_unused([], older_than=now + LATER) > 0
        assert not files_of(tmp_path, "packs/*")

    run_scenario(tmp_path, scenario)


def test_collection_merges_small_packs(tmp_path: Path) -> None:
    many = [b"%d" % n for n in range(40)]

    async def scenario(blobs: FolderBlobs) -> None:
        for data in many:
            await blobs.put(digest_of(data), data)
        assert len(files_of(tmp_path, "packs/*")) == 40
        reader = blobs.get_many([digest_of(data) for data in many])
        await anext(reader)
        await blobs.remove_unused([digest_of(data) for data in many], older_than=datetime.now(UTC) - LATER)
        assert len(files_of(tmp_path, "packs/*")) == 1
        assert [data async for _, data in reader] == many[1:]
        assert await fetch_all(blobs, [digest_of(data) for data in many]) == many

    run_scenario(tmp_path, scenario)


def test_full_disk_leaves_no_partial_write(tmp_path: Path) -> None:
    with small_disk(tmp_path / "disk", "4m") as disk:

        async def scenario(blobs: FolderBlobs) -> None:
            await blobs.put(digest_of(SMALL), SMALL)
            for data in (os.urandom(8 << 20), os.urandom(900_000)):
                many = [(digest_of(data + bytes([n])), data + bytes([n])) for n in range(8)]
                with pytest.raises(StorageFull) as result:
                    await blobs.put_many(many)
                assert result.value.hints
            assert not list(disk.glob("**/.tmp-*"))
            assert await blobs.get(digest_of(SMALL)) == SMALL
            await blobs.put(digest_of(b"still"), b"still")

        run_scenario(disk / "blobs", scenario)


PUTTER = """
import asyncio, os, sys
from pathlib import Path
from blake3 import blake3
from hopyard.stores.blobs.folder import FolderBlobs

async def main():
    blobs, n = FolderBlobs(Path(sys.argv[1])), 0
    while True:
        n += 1
        many = [os.urandom(20_000) for _ in range(20)] + ([os.urandom(2 << 20)] if n % 3 == 0 else [])
        await blobs.put_many([(blake3(data).hexdigest(), data) for data in many])
        sys.stdout.write("".join(blake3(data).hexdigest() + "\\n" for data in many))
        sys.stdout.flush()

asyncio.run(main())
"""


@pytest.mark.parametrize("seed", range(4))
def test_kill_at_any_point_loses_no_acknowledged_blob(tmp_path: Path, seed: int) -> None:
    root = tmp_path / "blobs"
    child = subprocess.Popen([sys.executable, "-c", PUTTER, str(root)], stdout=subprocess.PIPE)
    assert child.stdout is not None
    promised = [child.stdout.readline().strip().decode() for _ in range(25 + 30 * seed)]
    time.sleep(seed * 0.003)  # not to wait for anything: to be killed at another point each time
    child.send_signal(signal.SIGKILL)
    promised += [line.strip().decode() for line in child.stdout if len(line) == 65]
    child.stdout.close()
    child.wait()

    async def scenario(blobs: FolderBlobs) -> None:
        digests = [Digest(digest) for digest in promised]
        assert await blobs.find_missing(digests) == []
        assert len(await fetch_all(blobs, digests)) == len(digests)
        assert not list(root.glob("**/.tmp-*"))

    run_scenario(root, scenario)
