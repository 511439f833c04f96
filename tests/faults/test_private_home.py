"""Other users can read nothing below a home, with any first command, any umask, and also if the folder
existed before."""

from __future__ import annotations

import os
import stat
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from hopyard.config.home import Home

from .server_home import HOP, ServerHome

SAVES = """
import os, hopyard as hop
before = os.umask(0)
print(f"umask {before:04o}")
os.umask(before)
values = {"a": 1}
hop.bind(values=values)
for step in hop.loop(range(2)):
    hop.log(loss=1.0)
open("result.txt", "w").write("made by the script")
"""


@pytest.fixture
def open_umask() -> Iterator[None]:
    before = os.umask(0)
    yield
    os.umask(before)


def readable(home: Home) -> list[str]:
    """Returns the files that other users could read if they could enter the home, except output of
    scripts."""
    result = [home.root, *home.root.rglob("*")] if home.root.exists() else []
    return [
        str(path)
        for path in result
        if not path.is_symlink() and "work" not in path.parts and path.lstat().st_mode & 0o077
    ]


@pytest.mark.usefixtures("open_umask")
def test_first_run_creates_private_home(tmp_path: Path) -> None:
    server_home = ServerHome(tmp_path, settings="")
    server_home.home.root.mkdir(mode=0o777)
    (server_home.home.root / "config.yaml").write_text("node: {id: box, cpus: 4, memory: 8G}\n")
    old = server_home.home.blobs / "packs"
    old.mkdir(parents=True)
    (old / "left").write_text("of an older Hopyard")
    try:
        server_home.write("saves.py", SAVES)
        run = server_home.wait_for_phase(
            server_home.run_detached("-e", "API_KEY=s3cret", "saves.py"), "succeeded"
        )
        assert server_home.log(run) == "umask 0000\n", (
            "scripts have the umask that the server was started with"
        )
        server_home.ok("dataset", "push", "data", ".")
        assert server_home.home.database.exists() and (old / "left").exists()
        assert readable(server_home.home) == []
    finally:
        server_home.end()


@pytest.mark.usefixtures("open_umask")
@pytest.mark.parametrize("first", ["offline", "refused"])
def test_commands_without_server_create_private_home(tmp_path: Path, first: str) -> None:
    """A recording without a server; and a submission that fails after it has packed."""
    server_home = ServerHome(tmp_path, settings="")
    script = server_home.write("saves.py", SAVES)
    if first == "offline":
        subprocess.run(
            [sys.executable, script],
            cwd=server_home.folder,
            env=server_home.environment,
            check=True,
            capture_output=True,
        )
        assert list(server_home.home.offline.glob("*/checkpoints/*"))
    else:
        result = subprocess.run(
            [HOP, "run", script],
            cwd=server_home.folder,
            env=server_home.environment | {"HOPYARD_URL": "http://127.0.0.1:9", "HOPYARD_TOKEN": "x"},
            capture_output=True,
            check=False,
        )
        assert result.returncode == 1
        assert list(server_home.home.pack_cache.iterdir())
    assert readable(server_home.home) == []
    server_home.home.root.chmod(0o755)
    server_home.hop("status")
    assert stat.S_IMODE(server_home.home.root.stat().st_mode) == 0o700, "any command mends it"


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a folder to another user")
def test_home_of_another_user_is_refused_by_every_command(tmp_path: Path) -> None:
    server_home = ServerHome(tmp_path)
    os.chown(server_home.home.root, 54321, -1)
    try:
        for words in (("up",), ("ps",), ("run", "true"), ("down",), ("status",)):
            result = server_home.hop(*words)
            assert (
                result.code == 2
                and f"{server_home.home.root} belongs to 54321 (uid 54321), and this is root (uid 0)"
                in result.stderr
                and "hint: run this as" in result.stderr
            ), result
        server = subprocess.run(
            [sys.executable, "-m", "hopyard.app", "--home", server_home.home.root],
            capture_output=True,
            text=True,
            check=False,
        )
        assert server.returncode == 1 and "belongs to" in server.stderr
        assert "fail  home" in server_home.hop("doctor").stdout
    finally:
        server_home.end()
