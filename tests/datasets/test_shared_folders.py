"""Attacks by another user of the machine on a tree that is written into a folder that both may write to."""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from hopyard.datasets import open_folder
from hopyard.datasets.open_folder import OpenFolder
from hopyard.datasets.pack import pack_tree
from hopyard.datasets.transfer import pull_tree, push_tree
from hopyard.errors import SpecError
from tests.datasets.folder_transport import FolderTransport, list_tree, make_tree, open_transport

OTHER_USER = 65534
pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="only root can act as a second user")


@pytest.fixture
def server(tmp_path: Path) -> Iterator[FolderTransport]:
    with open_transport(tmp_path / "blobs") as transport:
        yield transport


@pytest.fixture(params=[0o777, 0o1777], ids=["open", "sticky"])
def shared(request: pytest.FixtureRequest) -> Iterator[Path]:
    """A folder that all users may write to, below folders that all users may enter."""
    top = Path(tempfile.mkdtemp(prefix="shared-", dir="/tmp"))
    top.chmod(request.param)
    yield top
    shutil.rmtree(top)


def run_as_other_user(script: str, folder: Path) -> None:
    subprocess.run(
        ["/bin/sh", "-c", script],
        cwd=folder,
        user=OTHER_USER,
        group=OTHER_USER,
        extra_groups=[],
        check=False,
        timeout=30,
    )


class CallbackProgress:
    """Progress that lets another user act when the download begins."""

    def __init__(self, act: Callable[[], None]) -> None:
        self._act = act

    def begin(self, what: str, total_bytes: int, /) -> None:
        self._act()

    def advance(self, size_bytes: int, /) -> None:
        return


def test_no_file_is_written_through_path_of_other_user(
    server: FolderTransport, shared: Path, tmp_path: Path
) -> None:
    """Existing folders, and folders that replace ours during the write."""
    tree, victim = (
        pack_tree(make_tree(tmp_path / "tree", {"sub/authorized_keys": "attacker", "top": "x"})),
        tmp_path / "victim",
    )
    push_tree(tree, server)
    victim.mkdir()
    plant = (
        f"mkdir $n; ln -s {victim} $n/sub; mkdir -p $n/tree; ln -s {victim} $n/tree/sub; printf "
        f"{tree.digest} > $n/manifest; chmod -R 777 $n"
    )
    run_as_other_user(
        f"for n in .dest.{tree.digest[:16]}.part .dest.0123456789abcdef.part; do {plant}; done", shared
    )
    swap = f"for p in .dest.*.part; do if mv $p taken-$p; then n=$p; {plant}; fi; done"
    try:
        pull_tree(
            tree.digest, shared / "dest", server, CallbackProgress(lambda: run_as_other_user(swap, shared))
        )
    except SpecError:
        assert not (shared / "dest").exists()
    else:
        assert list_tree(shared / "dest") == list_tree(tmp_path / "tree")
        assert (shared / "dest").stat().st_uid == 0
    assert list(victim.iterdir()) == []


def test_folder_of_other_user_is_refused(shared: Path) -> None:
    run_as_other_user("mkdir eves; chmod 777 eves; ln -s eves link", shared)
    (shared / "open").mkdir()
    (shared / "open").chmod(0o722)
    with OpenFolder.open_path(shared) as top:
        for name in ("eves", "open"):
            with pytest.raises(SpecError, match="not a folder of yours alone"):
                top.enter_private(name)
        with pytest.raises(OSError):
            top.enter_private("link")
    for path in (shared / "eves", shared / "open"):
        with pytest.raises(SpecError):
            OpenFolder.open_private(path)


@pytest.mark.parametrize("openat2", [None, False], ids=["as-the-kernel-has-it", "step-by-step"])
def test_no_file_is_written_through_link_of_other_user(
    shared: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, openat2: bool | None
) -> None:
    monkeypatch.setattr(open_folder, "_has_openat2", openat2)
    (tmp_path / "precious").write_text("mine")
    run_as_other_user(
        f"ln -s {tmp_path}/precious run.json; mkdir logs; chmod 777 logs; ln -s {tmp_path} sub", shared
    )
    with OpenFolder.open_path(shared) as top:
        with pytest.raises(OSError):
            top.open("sub/precious", os.O_WRONLY)
        assert top.write("run.json", [b"{", b"}"]) == 2
        with pytest.raises(OSError):
            top.open("sub/new", os.O_WRONLY | os.O_CREAT)
        with pytest.raises(OSError):
            top.ensure_folder("sub")
    assert (shared / "run.json").read_text() == "{}" and not (shared / "run.json").is_symlink()
    assert (tmp_path / "precious").read_text() == "mine" and not (tmp_path / "new").exists()
