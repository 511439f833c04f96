"""Which container engine is used, and what is reported without one."""

from __future__ import annotations

import os
import socket
import tempfile
from contextlib import suppress
from pathlib import Path

import pytest

from hopyard.container_engine.engine_discovery import find_engine
from hopyard.errors import ContainerError


def test_missing_engine_has_a_hint(tmp_path: Path) -> None:
    with pytest.raises(ContainerError, match="neither Docker nor Podman") as absent:
        find_engine({"DOCKER_HOST": f"unix://{tmp_path}/absent.sock"})
    assert "install Podman" in absent.value.hints[0]
    (tmp_path / "file.sock").write_text("")
    with pytest.raises(ContainerError, match=r"file\.sock cannot be reached"):
        find_engine({"DOCKER_HOST": f"unix://{tmp_path}/file.sock"})
    with pytest.raises(ContainerError, match="not a socket of this node"):
        find_engine({"DOCKER_HOST": "tcp://10.0.0.1:2375"})


def test_socket_that_another_user_may_have_made_is_not_used(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    folder = tmp_path / f"hopyard-podman-{os.geteuid()}"
    folder.mkdir(mode=0o700)
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(str(folder / "podman.sock"))
        server.listen()
        server.setblocking(False)
        for mode, is_used in ((0o777, False), (0o700, True)):
            folder.chmod(mode)
            with suppress(ContainerError):
                find_engine({"XDG_RUNTIME_DIR": str(tmp_path)}, timeout_s=0.2)
            try:
                server.accept()[0].close()
            except BlockingIOError:
                assert not is_used
            else:
                assert is_used
