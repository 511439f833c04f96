"""One tree of the files of several ranks."""

from __future__ import annotations

from dataclasses import replace

from hypothesis import given, settings
from hypothesis import strategies as st

from hopyard.domain.encoded_path import decode_path, encode_path
from hopyard.domain.ids import Digest
from hopyard.domain.manifest import FileEntry, LinkEntry, Manifest
from hopyard.domain.rank_folders import merge_rank, split_rank
from tests.domain.test_manifest import trees


@settings(max_examples=30)
@given(st.lists(st.tuples(st.integers(0, 12), trees()), max_size=5))
def test_tree_holds_the_last_files_of_each_rank(merges: list[tuple[int, Manifest]]) -> None:
    merged = Manifest()
    for rank, files in merges:
        merged = Manifest.decode(merge_rank(merged, rank, files).encode())
    for rank, files in dict(merges).items():
        found = [(split_rank(file.path), file) for file in merged.files]
        assert [replace(file, path=place[1]) for place, file in found if place and place[0] == rank] == [
            *files.files
        ]
        links = [(split_rank(link.path), link.target) for link in merged.links]
        assert [(place[1], target) for place, target in links if place and place[0] == rank] == [
            (link.path, link.target) for link in files.links
        ]
    assert sum(len(files.files) for files in dict(merges).values()) == len(merged.files)


def test_odd_and_plain_paths_are_joined_in_encoded_form() -> None:
    blob = Digest("1" * 64)
    plain = Manifest.build([FileEntry("100%", 1, (blob,))], [LinkEntry("to", "100%")])
    odd = replace(Manifest.build([FileEntry(encode_path("a\nb"), 1, (blob,))]), encoded=True)
    merged = merge_rank(merge_rank(Manifest(), 0, plain), 1, odd)
    assert merged == merge_rank(merge_rank(Manifest(), 1, odd), 0, plain)
    assert [decode_path(file.path) for file in merged.files] == ["0/100%", "1/a\nb"]
    assert [(link.path, decode_path(link.target)) for link in merged.links] == [("0/to", "100%")]
    assert Manifest.decode(merged.encode()) == merged


def test_files_outside_of_the_folders_of_ranks_are_dropped() -> None:
    names = ["a", "01/a", "x/1", "١/a"]
    older = Manifest.build([FileEntry(name, 0, ()) for name in names])
    assert merge_rank(older, 0, Manifest()) == Manifest()
    assert [split_rank(name) for name in names] == [None] * 4
