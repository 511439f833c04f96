"""One server for all tests of a module, and a folder with the scripts of `shapes`."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from tests.cli.conftest import served_home as served_home
from tests.cli.conftest import shell_in
from tests.cli.shell import Shell

SHAPES = Path(__file__).parent / "shapes"


@pytest.fixture
def scripts(served_home: Path, tmp_path: Path) -> Shell:
    shell = shell_in(tmp_path / "code", served_home)
    shutil.copytree(SHAPES, shell.folder, dirs_exist_ok=True, ignore=shutil.ignore_patterns("__pycache__"))
    return shell
