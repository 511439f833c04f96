"""The tutorial and the README, executed with real processes, in a separate folder and home."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from .pages import run_page
from .tree import ROOT


def test_tutorial_works_completely(tmp_path: Path) -> None:
    folder = tmp_path / "first-steps"
    folder.mkdir()
    run_page(ROOT / "docs" / "guides" / "tutorial.md", folder=folder, home=tmp_path / "home")


@pytest.mark.torch
def test_the_readme_works(tmp_path: Path) -> None:
    """Without `make` (CI runs it), the activation of the environment (it is active), and the gang
    (tests/examples runs it)."""
    folder = tmp_path / "hopyard"
    for part in ("examples", "scripts"):
        shutil.copytree(ROOT / part, folder / part, ignore=shutil.ignore_patterns("__pycache__"))
    subprocess.run(
        [sys.executable, "examples/mnist_dataset.py", ".demo/mnist"],
        cwd=folder,
        check=True,
        capture_output=True,
    )
    run_page(
        ROOT / "README.md",
        folder=folder,
        home=tmp_path / "home",
        leave_out=("make ", ". .venv", "hop run --replicas"),
    )
