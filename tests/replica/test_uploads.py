"""Files of a run are staged for their upload."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

import pytest

from hopyard.replica.uploads import stage_files

_OTHER_USER = 65534


@pytest.mark.skipif(os.geteuid() != 0, reason="creates files of two users")
def test_file_of_another_user_is_staged() -> None:
    """A kernel with protected hard links refuses to link it."""
    # the other user cannot enter the folders of pytest
    with tempfile.TemporaryDirectory(dir="/tmp") as name:
        root, folder = Path(name), Path(name) / "work"
        folder.mkdir()
        (folder / "foreign.sh").write_text("foreign")
        (folder / "foreign.sh").chmod(0o755)
        (folder / "own.txt").write_text("own")
        for path in (root, folder, folder / "own.txt"):
            os.chown(path, _OTHER_USER, _OTHER_USER)
        child = os.fork()
        if child == 0:
            code = 1
            try:
                os.setgroups([])
                os.setresgid(_OTHER_USER, _OTHER_USER, _OTHER_USER)
                os.setresuid(_OTHER_USER, _OTHER_USER, _OTHER_USER)
                stage_files(root, folder, {"a/foreign.sh": "foreign.sh", "own.txt": "own.txt"})
                code = 0
            finally:
                os._exit(code)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
        (staged,) = root.glob("outputs-*")
        assert (staged / "a" / "foreign.sh").read_text() == "foreign"
        assert (staged / "a" / "foreign.sh").stat().st_mode & 0o111
        assert (staged / "own.txt").stat().st_nlink == 2
