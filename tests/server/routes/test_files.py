"""The files in the working folder of a live run, which its script may replace by links."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime
from pathlib import Path

import pytest
from starlette.requests import ClientDisconnect

from hopyard.domain.ids import AttemptId
from hopyard.server.routes import files
from tests.datasets.test_output_scan import open_paths


def test_no_file_is_read_through_a_link(tmp_path: Path) -> None:
    replica, private = tmp_path / "a.1" / "0", tmp_path / "private"
    for folder in (replica / "work", private / "work"):
        folder.mkdir(parents=True)
    (replica / "work" / "own.txt").write_text("own")
    (private / "work" / "key").write_text("SECRET")
    (private / "key").write_text("SECRET")
    work = replica / "work"
    opened = files._open_regular(work, "own.txt")
    assert opened is not None
    with opened[0] as file:
        assert file.read() == b"own"
    assert [file.path for file in files._scan_files(work, 0, {})] == ["own.txt"]
    work.rename(replica / "moved")
    work.symlink_to(private)
    assert files._open_regular(work, "key") is None
    assert files._scan_files(work, 0, {}) == []
    replica.rename(tmp_path / "a.1" / "moved")
    replica.symlink_to(private)
    assert files._open_regular(work, "key") is None
    assert files._scan_files(work, 0, {}) == []


def test_pages_are_of_one_listing() -> None:
    modified_at = datetime(2026, 11, 1, tzinfo=UTC)
    paths = [(rank, path) for rank in (1, 0) for path in ("b", "a/" + "long" * 900, "a.txt")]
    listing = files._FileList.of_files([files.FileOut(path, rank, 1, modified_at) for rank, path in paths])
    listings = files._FileListCache()
    after, seen = None, []
    while True:
        page, after = listing.page(after, 2)
        seen += [(file.rank, file.path) for file in page]
        listings.put(AttemptId("a.1"), listing if after else None)
        if after is None:
            break
        assert listings.get(AttemptId("a.1")) is listing
    assert seen == sorted(paths)
    assert listings.get(AttemptId("a.1")) is None
    for at in range(20):
        listings.put(AttemptId(f"b.{at}"), listing)
    assert listings.get(AttemptId("b.0")) is None
    assert listings.get(AttemptId("b.19")) is listing


def test_file_is_closed_when_the_client_leaves_early(tmp_path: Path) -> None:
    (tmp_path / "work").mkdir()
    (tmp_path / "work" / "large").write_bytes(bytes(2**20))

    async def respond(sent: int) -> None:
        """Sends the response to a client that leaves after some messages."""
        remaining = sent
        opened = files._open_regular(tmp_path / "work", "large")
        assert opened is not None

        async def send(_: object) -> None:
            nonlocal remaining
            if remaining == 0:
                raise OSError("the client has left")
            remaining -= 1

        async def receive() -> dict[str, str]:
            await asyncio.Event().wait()
            return {}

        with pytest.raises((ClientDisconnect, OSError)):
            await files._FileResponse(*opened)({"type": "http", "method": "GET"}, receive, send)

    for sent in (0, 1, 2):
        asyncio.run(respond(sent))
    assert open_paths(tmp_path) == []
