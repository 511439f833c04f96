"""Which files of a run are kept, by the patterns of `outputs`."""

from __future__ import annotations

import pytest

from hopyard.datasets.output_files import ChangedFiles, UnstoredReason

FILES = ["data/train.bin", "last.ckpt", "model.pt", "plots/a.png", "plots/deep/b.png", "tmp/x.pt"]


@pytest.mark.parametrize(
    ("patterns", "kept"),
    [
        ([], FILES),
        (["*.pt"], ["model.pt", "tmp/x.pt"]),
        (["*.pt", "!tmp"], ["model.pt"]),
        (["!data"], FILES[1:]),
        (["plots"], ["plots/a.png", "plots/deep/b.png"]),
        (["plots/*.png"], ["plots/a.png", "plots/deep/b.png"]),
        (["./plots/", "last.ckpt", "!**/b.png"], ["last.ckpt", "plots/a.png"]),
        (["!*", "model.pt"], ["model.pt"]),
        (["nothing"], []),
    ],
)
def test_patterns_select_files(patterns: list[str], kept: list[str]) -> None:
    changed = ChangedFiles(list(FILES), ["link"], {"tmp/secret": UnstoredReason.UNREADABLE})
    omitted = changed.select(patterns)
    assert changed.files == kept
    assert sorted([*changed.files, *changed.links, *omitted]) == sorted([*FILES, "link"])
    assert bool(changed.unstored) == (not patterns or patterns == ["!data"])
