"""The files in the working folder of a live run, which its script may replace by links."""

from __future__ import annotations

import os
from pathlib import Path

from hopyard.server.routes import files


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
    assert os.read(opened[0], 9) == b"own"
    os.close(opened[0])
    assert [file.path for file in files._scan_files(work, 0, {})] == ["own.txt"]
    work.rename(replica / "moved")
    work.symlink_to(private)
    assert files._open_regular(work, "key") is None
    assert files._scan_files(work, 0, {}) == []
    replica.rename(tmp_path / "a.1" / "moved")
    replica.symlink_to(private)
    assert files._open_regular(work, "key") is None
    assert files._scan_files(work, 0, {}) == []
