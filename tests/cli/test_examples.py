"""`hop examples`: the files of the repository's examples, and of the tutorial's page."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.cli.in_process import hop
from tests.house.pages import code_blocks
from tests.house.tree import ROOT


def test_examples_are_copied_and_changed_files_are_kept(
    capfd: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    _, *rows = hop(capfd, "examples", "ls").out.splitlines()
    assert {row.split()[0] for row in rows} >= {"launchers", "mnist", "tutorial"}
    assert all(len(row.split()) > 2 for row in rows), "each has a summary"
    assert hop(capfd, "examples", "copy").code == 0
    copied = {
        str(file.relative_to(tmp_path)) for file in (tmp_path / "examples").rglob("*") if file.is_file()
    }
    assert {"examples/mnist/main.py", "examples/mnist_dataset.py", "examples/hop.yaml"} <= copied
    assert hop(capfd, "examples", "copy", "plain").code == 0  # nothing differs
    (tmp_path / "examples" / "plain" / "train.py").write_text("mine")
    refused = hop(capfd, "examples", "copy", "plain")
    assert (refused.code, (tmp_path / "examples" / "plain" / "train.py").read_text()) == (2, "mine")
    assert hop(capfd, "examples", "copy", "plain", "--force").code == 0
    assert (tmp_path / "examples" / "plain" / "train.py").read_text() != "mine"
    assert "did you mean `plain`?" in hop(capfd, "examples", "copy", "plane").err


def test_tutorial_files_are_those_of_its_page(
    capfd: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert hop(capfd, "examples", "copy", "tutorial", "--to", ".").code == 0
    blocks = code_blocks(ROOT / "docs" / "guides" / "tutorial.md")
    files = {
        block.word: block.body for block in blocks if block.language in ("python", "yaml") and block.word
    }
    assert {file.name: file.read_text() for file in tmp_path.iterdir()} == files
