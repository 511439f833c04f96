"""What the web UI is tested and built with: what is missing is named, and nothing is installed."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


def run_with_programs(folder: Path, programs: Sequence[str]) -> subprocess.CompletedProcess[str]:
    """Runs the script where no other programs are on the PATH."""
    for name in programs:
        found = shutil.which(name)
        if found is None:
            pytest.skip(f"needs {name}")
        (folder / name).symlink_to(found)
    return subprocess.run(
        ["/bin/sh", ROOT / "scripts" / "web_tools.sh"],
        env={"PATH": str(folder)},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )


def test_missing_node_is_named(tmp_path: Path) -> None:
    result = run_with_programs(tmp_path, ["dirname"])
    assert result.returncode == 1 and result.stdout == ""
    assert result.stderr == "note: Node 20.19 or newer is missing (no `node` on the PATH)\n"


def test_missing_npm_is_named(tmp_path: Path) -> None:
    result = run_with_programs(tmp_path, ["dirname", "node"])
    assert result.returncode == 1 and result.stderr == "note: npm is missing (no `npm` on the PATH)\n"


def test_old_node_is_named_with_its_version(tmp_path: Path) -> None:
    (tmp_path / "node").write_text('#!/bin/sh\n[ "$1" = --version ] && echo v18.19.0\n')
    (tmp_path / "node").chmod(0o755)
    result = run_with_programs(tmp_path, ["dirname"])
    assert result.returncode == 1
    assert result.stderr == "note: Node 20.19 or newer is missing (v18.19.0)\n"
