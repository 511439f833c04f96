"""A server that finds a real Podman."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest

from tests.cli.shell import Shell
from tests.podman import Podman
from tests.podman import podman as podman


@pytest.fixture(scope="module")
def shell(podman: Podman, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Shell]:
    folder = tmp_path_factory.mktemp("containers")
    (folder / "code").mkdir()
    environment = {**os.environ, **podman.variables, "HOPYARD_HOME": str(folder / "home")}
    shell = Shell(folder / "code", environment)
    yield shell
    shell.hop("down", "--stop-runs")
