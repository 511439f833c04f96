"""One real server for all tests that need one, in a home of its own; each test works in a project of its own."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from hopyard.config.home import Home
from hopyard.sdk.client import Client
from hopyard.sdk.connect import connect, start_server, stop_server

from .terminal import Shell


@pytest.fixture(scope="module")
def served_home(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    home = Home(tmp_path_factory.mktemp("home"))
    home.settings_file.write_text("node: {cpus: 4, memory: 8G}\n")  # the same node on every machine
    start_server(home)
    yield home.root
    stop_server(home, runs="stop")


@pytest.fixture
def shell(served_home: Path, tmp_path: Path) -> Shell:
    """A folder to type in, with the server's home in its environment."""
    folder = tmp_path / "work"
    folder.mkdir()
    # Whatever environment the tests run in, the caller here is this interpreter without a terminal or colours.
    hidden = {"VIRTUAL_ENV", "CONDA_PREFIX", "HOPYARD_URL", "HOPYARD_TOKEN", "NO_COLOR"}
    environment = {key: value for key, value in os.environ.items() if key not in hidden}
    environment |= {"HOPYARD_HOME": str(served_home), "COLUMNS": "100"}
    return Shell(folder, environment)


@pytest.fixture
def client(served_home: Path) -> Client:
    return connect(start=False, home=Home(served_home))
