"""A world of its own for each test that breaks things; one for a module where things are only refused."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from hopyard.datasets.cache import remove_tree

from .world import World


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    found = World(tmp_path)
    try:
        yield found
    finally:
        found.end()
        remove_tree(found.home.trees)


@pytest.fixture(scope="module")
def calm(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    found = World(tmp_path_factory.mktemp("calm"))
    try:
        found.ok("up")
        yield found
    finally:
        found.end()
        remove_tree(found.home.trees)
