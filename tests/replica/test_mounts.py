"""What a run's process finds of a home and may change there, as root and as another user."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from hopyard.private_files import make_folder

# The process under test is started by an ordinary replica's code, in a process that first becomes the user.
_START = """
import ctypes, os, sys
from pathlib import Path
from hopyard.replica.mounts import Protection, View, find_protection
from hopyard.replica.process import Command, start
home, uid, undo = Path(sys.argv[1]), int(sys.argv[2]), sys.argv[3]
if uid:
    os.setgroups([]); os.setresgid(uid, uid, uid); os.setresuid(uid, uid, uid)
    ctypes.CDLL(None).prctl(4, 1, 0, 0, 0)  # dumpable, as after exec: only then its folder below /proc is its own
if find_protection() is Protection.MODES:
    sys.exit(77)
own = home / "attempts" / "abcdef.1"
view = View([home], [home / "token", home / "attempts", home / "blobs"], [own])
pid = start(Command(["sh", "-c", undo], dict(os.environ), own, own / "out", own / "err", view=view)).pid
sys.exit(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))
"""


@pytest.fixture(params=[0, 1234], ids=["root", "another user"])
def home(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    if os.getuid() != 0 and request.param != 0:
        pytest.skip("only root becomes another user")
    root = tmp_path / "home"
    for folder in ("attempts/abcdef.1", "attempts/ghijkl.1", "cache/trees", "blobs"):
        make_folder(root / folder)
    for file in ("token", "attempts/ghijkl.1/spec.json", "cache/trees/a.txt", "blobs/b"):
        (root / file).write_text("as it was")
    for path in (root, *root.rglob("*")):
        os.chown(path, request.param or os.getuid(), -1)
    for above in tmp_path, *tmp_path.parents[:3]:  # pytest's own folders
        above.chmod(0o711)
    return root


def _run(home: Path, script: str) -> str:
    """What the script prints, with its folder of the home as working folder."""
    uid = home.stat().st_uid
    done = subprocess.run([sys.executable, "-c", _START, str(home), str(uid), script], check=False, capture_output=True, text=True)
    if done.returncode == 77:
        pytest.skip("the kernel allows no mounts here")
    assert done.returncode == 0, done.stderr
    return (home / "attempts/abcdef.1/out").read_text()


def test_a_run_changes_nothing_in_the_home_but_its_own_folder(home: Path) -> None:
    before = {path: path.read_bytes() for path in home.rglob("*") if path.is_file()}
    me = os.getpid()
    undo = f"""
    for way in '' 'unshare --user --map-root-user --mount'; do
        $way umount -l {home}; $way mount -o remount,bind,rw {home}; $way mount -o remount,rw {home}
        $way sh -c 'umount -l {home}; mount -o remount,bind,rw {home}; echo no >> {home}/cache/trees/a.txt; echo no > {home}/config.yaml'
        $way nsenter -t {me} -m sh -c 'echo no > {home}/config.yaml'
        $way chmod -R 777 {home}/cache; $way mv {home}/cache {home}/old; $way rm -rf {home}/cache
    done
    echo no > /proc/{me}/root{home}/config.yaml; echo no > {home}/cache/trees/a.txt; mv {home} {home}.old; ln {home}/cache/trees/a.txt mine && echo no > mine
    touch kept
    """
    _run(home, undo)
    after = {path: path.read_bytes() for path in home.rglob("*") if path.is_file() and path.parent.name != "abcdef.1"}
    assert after == before
    assert (home / "attempts/abcdef.1/kept").exists()


def test_a_run_reads_no_token_and_no_file_of_another_run(home: Path) -> None:
    reading = f"""
    for way in '' 'unshare --user --map-root-user --mount'; do
        for f in token attempts/ghijkl.1/spec.json blobs/b; do
            $way cat {home}/$f; $way sh -c 'umount -l {home}/token {home}/attempts {home}/blobs; cat {home}/'$f; cat /proc/{os.getpid()}/root{home}/$f /proc/1/root{home}/$f
        done
    done
    cat {home}/cache/trees/a.txt; ls {home}/attempts
    """
    assert _run(home, reading).split("\n") == ["as it wasabcdef.1", ""]


def test_a_run_keeps_its_user(home: Path) -> None:
    assert _run(home, "id -u; stat -c %u .").split() == [str(home.stat().st_uid)] * 2
