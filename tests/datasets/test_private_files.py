"""Folders of any depth and any modes are removed."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from hopyard.private_files import remove_tree


def test_folders_deeper_than_paths_and_recursion_are_removed(tmp_path: Path) -> None:
    folder, other = tmp_path / "work", tmp_path / "other"
    other.mkdir()
    (other / "kept").touch()
    folder.mkdir()
    (folder / "link").symlink_to(other)
    (folder / "closed" / "inner").mkdir(parents=True)
    (folder / "closed" / "inner" / "a").touch()
    (folder / "closed" / "inner").chmod(0)
    (folder / "closed").chmod(0)
    descriptor = os.open(folder, os.O_RDONLY)
    for _ in range(2500):
        os.mkdir("deep", dir_fd=descriptor)
        inner = os.open("deep", os.O_RDONLY, dir_fd=descriptor)
        os.close(descriptor)
        descriptor = inner
    os.close(os.open("a", os.O_CREAT, dir_fd=descriptor))
    os.close(descriptor)
    remove_tree(folder)
    assert not folder.exists()
    assert (other / "kept").exists()
    remove_tree(folder)


def test_link_in_the_place_of_a_folder_is_not_followed(tmp_path: Path) -> None:
    other, link = tmp_path / "other", tmp_path / "link"
    other.mkdir()
    (other / "file").touch()
    other.chmod(0o755)
    link.symlink_to(other)
    remove_tree(link)
    assert (other / "file").exists() and other.stat().st_mode & 0o777 == 0o755


@pytest.mark.parametrize(
    "removal",
    [
        "from hopyard.private_files import remove_below\nremove_below(Path(sys.argv[1]), 'tree')",
        "from hopyard.sdk.checkpoints import discard_folder\ndiscard_folder(f'{sys.argv[1]}/tree')",
    ],
)
def test_folder_is_complete_or_absent_after_a_killed_removal(tmp_path: Path, removal: str) -> None:
    """A process that is killed at any file of a folder that it removes leaves no part under its name."""
    files = ["a", "b", "deep/c"]
    script = (
        "import os, sys\nfrom pathlib import Path\n"
        f"{removal.partition(chr(10))[0]}\nleft = [int(sys.argv[2])]\n"
        "def hook(event, arguments):\n"
        "    if event in ('os.remove', 'os.rmdir'):\n"
        "        left[0] -= 1\n"
        "        if left[0] < 0: os.kill(os.getpid(), 9)\n"
        f"sys.addaudithook(hook)\n{removal.partition(chr(10))[2]}"
    )
    outcomes = set()
    for count in range(7):
        root = tmp_path / str(count)
        for file in files:
            (root / "tree" / file).parent.mkdir(parents=True, exist_ok=True)
            (root / "tree" / file).write_text(file)
        code = subprocess.run([sys.executable, "-c", script, str(root), str(count)], check=False).returncode
        found = sorted(
            str(path.relative_to(root / "tree")) for path in (root / "tree").rglob("*") if path.is_file()
        )
        assert found in ([], files), f"killed before removal {count}"
        assert found or not (root / "tree").exists()
        outcomes.add((code, bool(found)))
    assert {(-9, False), (0, False)} <= outcomes
