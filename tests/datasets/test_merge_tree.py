"""Merging a tree into a folder of the user: nothing that is not in the tree is removed."""

from __future__ import annotations

from pathlib import Path

import pytest

from hopyard.datasets.merge_tree import merge_tree
from hopyard.datasets.open_folder import OpenFolder
from hopyard.errors import SpecError
from tests.datasets.folder_transport import list_tree, make_tree


def merge(tree: Path, dest: Path) -> None:
    with OpenFolder.open_path(tree) as source, OpenFolder.open_path(dest) as target:
        merge_tree(source, target, name="dest")


@pytest.mark.parametrize(
    ("existing", "problem"),
    [
        ({"a/b/mine": "1"}, "`dest/a/b` is a folder, and the version has a file there"),
        ({"a": "file"}, "`dest/a` is a file or a link, and the version has a folder there"),
    ],
)
def test_other_kinds_are_refused_before_any_change(
    tmp_path: Path, existing: dict[str, str], problem: str
) -> None:
    tree = make_tree(tmp_path / "tree", {"0": "first", "a/b": "new", "z": "last"})
    dest = make_tree(tmp_path / "dest", {"0": "mine", **existing})
    before = list_tree(dest)
    with pytest.raises(SpecError) as caught:
        merge(tree, dest)
    assert problem in caught.value.message
    assert list_tree(dest) == before


def test_links_are_not_followed(tmp_path: Path) -> None:
    outside = make_tree(tmp_path / "outside", {"b": "outside"})
    tree = make_tree(tmp_path / "tree", {"a/b": "new", "f": "new"})
    dest = make_tree(tmp_path / "dest", {})
    (dest / "a").symlink_to(outside)
    with pytest.raises(SpecError, match="is a file or a link"):
        merge(tree, dest)
    (dest / "a").unlink()
    (dest / "f").symlink_to(outside / "b")
    merge(tree, dest)
    assert (outside / "b").read_text() == "outside"
    assert list_tree(dest) == {"a": ("folder",), "a/b": ("file", b"new", False), "f": ("file", b"new", False)}
