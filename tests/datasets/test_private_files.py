"""Folders of any depth and any modes are removed."""

from __future__ import annotations

import os
from pathlib import Path

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
