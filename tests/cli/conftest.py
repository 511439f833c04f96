"""One real server with a home of its own for all tests of a module; each test has a folder of its own."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from hopyard.api_client.client import Client
from hopyard.api_client.local_server import connect, start_server, stop_server
from hopyard.config.home import Home
from tests.cli.shell import Shell

TRAIN = """
import sys
from pathlib import Path
import hopyard as hop

p = hop.params(lr=0.1, epochs=4)
for epoch in hop.loop(range(p.epochs)):
    hop.log(train_loss=p.lr / (epoch + 1), val_loss=2 * p.lr / (epoch + 1), acc=epoch / p.epochs, step=epoch)
    print(f"\\r{epoch}", end="")
print()
print("warning", file=sys.stderr)
Path("model.txt").write_text(str(p.lr))
hop.save(epoch)
hop.summary(acc=1 - p.lr)
"""


@pytest.fixture(scope="module")
def served_home(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    home = Home(tmp_path_factory.mktemp("home"))
    home.settings_file.write_text("node: {id: box, cpus: 4, memory: 8G}\n")  # the same node on every machine
    start_server(home)
    yield home.root
    stop_server(home, runs="stop")


def shell_in(folder: Path, home: Path) -> Shell:
    """Creates a shell with the server's home in its environment. Its folder names the project: `study`."""
    folder.mkdir()
    # Independent of the environment of the tests: this interpreter, no terminal, no colours.
    hidden = {"VIRTUAL_ENV", "CONDA_PREFIX", "HOPYARD_URL", "HOPYARD_TOKEN", "NO_COLOR"}
    environment = {key: value for key, value in os.environ.items() if key not in hidden}
    return Shell(folder, environment | {"HOPYARD_HOME": str(home), "COLUMNS": "100"})


@pytest.fixture
def shell(served_home: Path, tmp_path: Path) -> Shell:
    return shell_in(tmp_path / "study", served_home)


@pytest.fixture(scope="module")
def trained_runs(served_home: Path, tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    """Names of two runs of one script that differ in a parameter, a line, a file and their memory limit."""
    shell = shell_in(tmp_path_factory.mktemp("trained") / "study", served_home)
    shell.write("train.py", TRAIN)
    shell.write("old.txt", "old\n")
    first = shell.hop(
        "run", "--json", "-n", "first", "--tag", "kind=trained", "--tag", "n=1", "train.py"
    ).json
    assert first["phase"] == "succeeded", first
    (shell.folder / "old.txt").unlink()
    shell.write("train.py", TRAIN + "print('more')\n")
    second = shell.hop(
        "run", "--json", "-p", "lr=0.5", "--memory", "1G", "--tag", "kind=trained", "train.py"
    ).json
    return [first["name"], second["name"]]


@pytest.fixture
def client(served_home: Path) -> Client:
    return connect(start=False, home=Home(served_home))
