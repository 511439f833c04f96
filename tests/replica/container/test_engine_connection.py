"""A container engine that is away at the start of a run: a fault of the node if it has answered before."""

from __future__ import annotations

from pathlib import Path

import pytest

from hopyard.replica.container.engine_connection import connect_engine
from hopyard.replica.errors import NodeFault, PrepareFailed
from tests.podman import Podman
from tests.podman import podman as podman


def test_engine_that_has_answered_before_is_waited_for(
    podman: Podman, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    socket = tmp_path / "engine.sock"
    monkeypatch.setenv("DOCKER_HOST", f"unix://{socket}")
    reports: list[str] = []
    with pytest.raises(PrepareFailed, match=r"neither Docker nor Podman.*install Podman") as absent:
        connect_engine(tmp_path, reports.append)
    assert (type(absent.value), reports) == (PrepareFailed, [])
    socket.symlink_to(podman.api.path)
    assert connect_engine(tmp_path, reports.append).name == "Podman"
    socket.unlink()
    with pytest.raises(NodeFault, match="does not answer"):
        connect_engine(tmp_path, reports.append, wait_s=0)

    def restart(text: str) -> None:
        reports.append(text)
        socket.symlink_to(podman.api.path)

    assert connect_engine(tmp_path, restart, wait_s=600).name == "Podman"
    assert reports == ["waiting for the container engine"]
