"""A separate home for each test that causes faults, and a shared home per module for tests of refused
input."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from hopyard.private_files import remove_tree
from small_disk import small_disk

from .server_home import ServerHome

# a run needs 64 MiB free to start, and its output is stored twice until it is shipped
DISK_BYTES = 200 << 20


@pytest.fixture
def server_home(tmp_path: Path) -> Iterator[ServerHome]:
    home = ServerHome(tmp_path)
    try:
        yield home
    finally:
        home.end()
        remove_tree(home.home.trees)


@pytest.fixture(scope="module")
def shared_home(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerHome]:
    home = ServerHome(tmp_path_factory.mktemp("calm"))
    try:
        home.ok("up")
        yield home
    finally:
        home.end()
        remove_tree(home.home.trees)


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Path]:
    """A small file system; the test is skipped where none can be mounted."""
    folder = tmp_path / "disk"
    folder.mkdir()
    with small_disk(folder, DISK_BYTES):
        yield folder


@pytest.fixture
def small_disk_home(tmp_path: Path, disk: Path) -> Iterator[ServerHome]:
    home = ServerHome(tmp_path, home=disk / "home")
    try:
        yield home
    finally:
        home.end()
        remove_tree(home.home.trees)
