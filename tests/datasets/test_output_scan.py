"""The scan of a folder that processes change meanwhile."""

from __future__ import annotations

import os
import resource
import socket
from contextlib import suppress
from pathlib import Path

from hopyard.datasets.output_scan import UnstoredReason, scan_files


def write(folder: Path, *paths: str) -> Path:
    for path in paths:
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        (folder / path).write_text(path)
    return folder


def open_paths(folder: Path) -> list[str]:
    """Returns the paths below the folder that this process holds open."""
    found = []
    for descriptor in Path("/proc/self/fd").iterdir():
        with suppress(OSError):
            if (path := str(descriptor.readlink())).startswith(str(folder)):
                found.append(path.removeprefix(f"{folder}/"))
    return sorted(found)


def test_scan_lists_no_name_of_another_folder(tmp_path: Path) -> None:
    work = write(tmp_path / "work", "a/x", "b/own", "c/removed", "d")
    private = write(tmp_path / "private", "key")
    scan = scan_files(work)
    assert next(scan)[0] == "a/x"
    (work / "b").rename(tmp_path / "moved")
    (work / "b").symlink_to(private)
    (work / "c" / "removed").unlink()
    (work / "c").rmdir()
    assert [path for path, *_ in scan] == ["d"]


def test_scan_follows_a_folder_that_was_moved_while_it_was_open(tmp_path: Path) -> None:
    work = write(tmp_path / "work", "a/x", "a/y", "a/z/deep")
    scan = scan_files(work)
    assert next(scan)[0] == "a/x"
    (work / "a").rename(tmp_path / "moved")
    write(work, "a/other")
    assert [path for path, *_ in scan] == ["a/y", "a/z/deep"]


def test_scan_closes_folders_that_are_not_read_to_the_end(tmp_path: Path) -> None:
    work = write(tmp_path / "work", *(f"{at}/deep/x" for at in range(3)))
    scan = scan_files(work)
    next(scan)
    assert open_paths(tmp_path) == ["work", "work/0", "work/0/deep"]
    scan.close()
    assert open_paths(tmp_path) == []


def test_files_that_no_tree_holds_are_named_with_their_kind(tmp_path: Path) -> None:
    work = write(tmp_path / "work", ".pytest_cache/v/x", "__pycache__/a.cpython-311.pyc", "bare/HEAD", "x")
    write(work, "bare/objects/a", "bare/refs/b", "sub/.git/config")
    os.mkfifo(work / "pipe")
    with socket.socket(socket.AF_UNIX) as listener:
        folder = Path.cwd()
        os.chdir(work)  # the name of a socket is short
        try:
            listener.bind("sock")
        finally:
            os.chdir(folder)
        found = {path: reason for path, _, reason in scan_files(work)}
    assert found == {
        ".pytest_cache": UnstoredReason.CACHE,
        "bare": UnstoredReason.TOOLS,
        "pipe": UnstoredReason.SPECIAL,
        "sock": UnstoredReason.SPECIAL,
        "sub/.git": UnstoredReason.TOOLS,
        "x": None,
    }


def test_tree_deeper_than_the_limit_of_descriptors_is_scanned_completely(tmp_path: Path) -> None:
    folder, expected = tmp_path, []
    for _ in range(300):
        for name in ("a", "z"):
            (folder / name).write_text("x")
            expected.append(str((folder / name).relative_to(tmp_path)))
        folder = folder / "d"
        folder.mkdir()
    (folder / "pyvenv.cfg").write_text("")
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    used = max(int(link.name) for link in Path("/proc/self/fd").iterdir())
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(soft, used + 80), hard))
    try:
        found = list(scan_files(tmp_path))
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    assert sorted(path for path, _, reason in found if reason is None) == sorted(expected)
    last = str(folder.relative_to(tmp_path))
    assert [(path, reason) for path, _, reason in found if reason] == [(last, UnstoredReason.TOOLS)]
