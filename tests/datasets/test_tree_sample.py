"""A sample of the files of a cached tree shows bytes that changed on disk."""

from __future__ import annotations

from pathlib import Path

from blake3 import blake3

from hopyard.datasets.tree_sample import find_sample_damage, write_sample
from hopyard.domain.ids import Digest
from hopyard.domain.manifest import FileEntry, Manifest


def test_changed_shorter_or_missing_file_is_found(tmp_path: Path) -> None:
    tree, sample = tmp_path / "tree", tmp_path / "sample"
    tree.mkdir()
    (tree / "a").write_bytes(b"right")
    (tree / "empty").touch()
    files = [FileEntry("a", 5, (Digest(blake3(b"right").hexdigest()),)), FileEntry("empty", 0, ())]
    assert find_sample_damage(tree, sample) == "", "a tree of an earlier version has no sample"
    write_sample(Manifest.build(files), sample)
    assert find_sample_damage(tree, sample) == ""
    for data in (b"wrong", b"righ"):
        (tree / "a").write_bytes(data)
        assert find_sample_damage(tree, sample) == "a"
    (tree / "a").unlink()
    assert find_sample_damage(tree, sample) == "a"
