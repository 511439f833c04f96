"""One real server for all tests, and a current folder with code."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from hopyard.api_client.local_server import start_server, stop_server
from hopyard.config.home import Home


@pytest.fixture(scope="session")
def served_home(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    home = Home(tmp_path_factory.mktemp("home"))
    home.settings_file.write_text("node: {id: box, cpus: 4, memory: 8G}\n")  # the same node on every machine
    start_server(home)
    yield home.root
    stop_server(home, runs="stop")


@pytest.fixture
def code(served_home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The current folder; its name is the project."""
    for variable in ("VIRTUAL_ENV", "CONDA_PREFIX", "HOPYARD_URL", "HOPYARD_TOKEN"):
        monkeypatch.delenv(variable, raising=False)
    monkeypatch.setenv("HOPYARD_HOME", str(served_home))
    folder = tmp_path / "study"
    folder.mkdir()
    monkeypatch.chdir(folder)
    return folder
