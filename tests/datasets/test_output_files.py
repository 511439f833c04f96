"""Which files of a run are kept, by the patterns of `outputs`."""

from __future__ import annotations

from pathlib import Path

import pytest

from hopyard.datasets.output_files import ChangedFiles, UnstoredReason, describe_paths, select_storable

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


def test_links_name_what_they_lead_to(tmp_path: Path) -> None:
    work = tmp_path / "work"
    for folder in ("src", "out"):
        (work / folder).mkdir(parents=True)
    for file in ("out/a.pt", "out/.netrc", "src/old.bin"):
        (work / file).touch()
    targets = {"self": ".", "old": "src", "out2": "out", "key": "out/.netrc", "up": "..", "gone": "nothing"}
    for name, target in targets.items():
        (work / name).symlink_to(target)
    changes = ChangedFiles(["out/a.pt"], list(targets), {"out/.netrc": UnstoredReason.SECRET})
    storable = select_storable(work, changes)
    assert storable.links == {"out2": "out"}
    assert {name: storable.unstored[name] for name in targets if name != "out2"} == {
        "self": UnstoredReason.FOLDER_LINK,
        "old": UnstoredReason.FOLDER_LINK,
        "key": UnstoredReason.SECRET,
        "up": UnstoredReason.LINK,
        "gone": UnstoredReason.LINK,
    }


def test_long_paths_are_shortened_in_sentences() -> None:
    text = describe_paths(["a/" * 3000 + "last.pt"])
    assert text.startswith("1 file of the run's folder (`a/a/")
    assert "…" in text
    assert text.endswith("/a/last.pt`)")
    assert len(text) < 200
