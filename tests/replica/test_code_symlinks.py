"""The links of the code that lead out of its folder, in the working folder."""

from __future__ import annotations

from pathlib import Path

from hopyard.replica.code_symlinks import place_links


def test_datasets_take_the_place_of_links(tmp_path: Path) -> None:
    work, notes = tmp_path / "work", list[str]()
    work.mkdir()
    links = dict.fromkeys(("data", "mnist", "models/big", "other"), str(tmp_path)) | {"gone": "/no/such"}
    place_links(work, links, ["data/cifar", "mnist"], notes.append)
    assert sorted(path.name for path in work.iterdir()) == ["models", "other"]
    assert (work / "models" / "big").readlink() == (work / "other").readlink() == tmp_path
    assert notes == [
        "the link `data` is missing in the working folder: a dataset is placed below it",
        "the link `gone` is missing in the working folder: this node has no /no/such",
    ]
