"""One server for all tests of this folder, and a working folder with the scripts of `shapes`."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from hopyard.api_client.local_server import start_server, stop_server
from hopyard.config.home import Home
from tests.cli.conftest import shell_in
from tests.cli.shell import Shell

SHAPES = Path(__file__).parent / "shapes"


@pytest.fixture(scope="session")
def served_home(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    home = Home(tmp_path_factory.mktemp("home"))
    home.settings_file.write_text("node: {id: box, cpus: 4, memory: 8G}\n")
    start_server(home)
    yield home.root
    stop_server(home, runs="stop")


@pytest.fixture
def scripts(served_home: Path, tmp_path: Path) -> Shell:
    shell = shell_in(tmp_path / "code", served_home)
    shutil.copytree(SHAPES, shell.folder, dirs_exist_ok=True, ignore=shutil.ignore_patterns("__pycache__"))
    return shell
