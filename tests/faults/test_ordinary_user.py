"""The platform for a user other than root: with user namespaces for runs, and on a kernel without them."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from hopyard.private_files import remove_tree

from .server_home import DEADLINE_S, HOP

_UID = 40404
# Switches to the user and starts the program. Interpreters below a folder that other users cannot enter are
# mounted into an empty one.
_START = """
import ctypes, os, sys
uid, allowed, shown, *argv = sys.argv[1:]
uid = int(uid)
libc = ctypes.CDLL(None, use_errno=True)
def must(result):
    if result:
        print(os.strerror(ctypes.get_errno()), file=sys.stderr)
        os._exit(77)
if uid != os.getuid():
    parts = [path for path in shown.split(":") if path]
    closed = {}
    for path in parts:
        steps = path.split("/")
        for n in range(2, len(steps)):
            above = "/".join(steps[:n])
            if not os.stat(above).st_mode & 1:
                closed.setdefault(above, []).append((path, os.open(path, os.O_PATH)))
                break
    if closed:
        must(libc.unshare(0x20000))
        must(libc.mount(None, b"/", None, 16384 | 1 << 19, None))
        closed = {
            above: [(path, os.open(path, os.O_PATH)) for path, _ in found] for above, found in closed.items()
        }
        for above, found in closed.items():
            must(libc.mount(b"tmpfs", above.encode(), b"tmpfs", 0, b"mode=755"))
            for path, descriptor in found:
                os.makedirs(path, exist_ok=True)
                source = f"/proc/self/fd/{descriptor}".encode()
                must(libc.mount(source, path.encode(), None, 4096 | 16384, None))
    os.setgroups([]); os.setresgid(uid, uid, uid); os.setresuid(uid, uid, uid)
    libc.prctl(4, 1, 0, 0, 0)
if allowed == "no":
    gid = os.getgid()
    must(libc.unshare(0x10000000))
    for name, text in (
        ("self/setgroups", "deny"),
        ("self/uid_map", f"{uid} {uid} 1"),
        ("self/gid_map", f"{gid} {gid} 1"),
        ("sys/user/max_user_namespaces", "0"),
    ):
        with open(f"/proc/{name}", "w") as file:
            file.write(text)
os.execv(argv[0], argv)
"""
_SCRIPT = """
import ctypes, multiprocessing, os, signal, socket, subprocess, sys, tempfile
from multiprocessing import shared_memory
from pathlib import Path
import hopyard as hop

def double(x):
    return 2 * x

if __name__ == "__main__":
    for way in ("fork", "spawn", "forkserver"):
        with multiprocessing.get_context(way).Pool(2) as pool:
            assert pool.map(double, [1, 2]) == [2, 4]
    block = shared_memory.SharedMemory(create=True, size=100)
    block.close(); block.unlink()
    child = subprocess.Popen(["sleep", "60"])
    assert ctypes.CDLL(None).ptrace(16, child.pid, 0, 0) == 0, "a debugger cannot attach"
    os.waitpid(child.pid, os.WUNTRACED)
    child.kill()
    with tempfile.NamedTemporaryFile() as file:
        file.write(b"x")
    (Path.home() / "results").mkdir()
    (Path.home() / "results" / "a.txt").write_text("x")
    Path("beside.txt").write_text("x")
    os.mkfifo("pipe"); os.unlink("pipe")
    assert os.listdir(hop.dataset_path("few")) == ["a.txt"]
    subprocess.run(["git", "init", "-q", "inner"], check=True)
    hop.log(loss=1.0, step=0)
    try:
        tokens = (Path.home() / ".hopyard" / "token").read_text()
    except OSError:
        tokens = ""
    print("token read" if tokens else "no token", flush=True)
"""
_GANG = """
import os, sys, time
from pathlib import Path
mine = Path(os.environ["HOPYARD_GANG_DIR"], os.environ["RANK"])
mine.mkdir(exist_ok=True)
(mine / "here").write_text("x")
other = Path(os.environ["HOPYARD_GANG_DIR"], str(1 - int(os.environ["RANK"])), "here")
while not other.exists():
    time.sleep(0.01)
print("met", flush=True)
"""
_TRIAL = (
    "import hopyard as hop\np = hop.params(lr=0.1, epochs=1)\nhop.bind(values={})\n"
    "for e in hop.loop(range(p.epochs)):\n    hop.log(loss=p.lr, step=e)\n"
)
_STUDY = (
    'name: s\nmetric: loss\ngoal: min\nsearcher: random\ntrials: 2\nspace: {lr: "uniform(0, 1)"}\n'
    "script: trial.py\n"
)
_COMMANDS = """
set -e
trap '$HOP down --stop-runs >/dev/null' EXIT
$HOP up
$HOP dataset push few data
$HOP run -d few script.py
$HOP run --replicas 2 gang.py
$HOP search study.yaml
timeout 60 $HOP run --requirements wanted.txt -- python -c 'import probe; print("with", probe.__version__)'
cat "$HOME/results/a.txt"
$HOP doctor
"""


@pytest.fixture
def home() -> Iterator[Path]:
    """Outside pytest's folders, since each pytest session closes them to other users."""
    folder = Path(tempfile.mkdtemp(prefix="user-"))
    try:
        yield folder
    finally:
        remove_tree(folder)


@pytest.mark.parametrize("allowed", ["yes", "no"])
def test_ordinary_user_can_use_every_feature(home: Path, allowed: str) -> None:
    folder = home / "work"
    (folder / "data").mkdir(parents=True)
    with zipfile.ZipFile(home / "probe-1.5-py3-none-any.whl", "w") as wheel:
        about = "probe-1.5.dist-info"
        for name, text in {
            "probe.py": "__version__ = '1.5'\n",
            f"{about}/METADATA": "Metadata-Version: 2.1\nName: probe\nVersion: 1.5\n",
            f"{about}/WHEEL": (
                "Wheel-Version: 1.0\nGenerator: tests\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
            ),
            f"{about}/RECORD": "probe.py,,\n",
        }.items():
            wheel.writestr(name, text)
    for name, text in {
        "script.py": _SCRIPT,
        "gang.py": _GANG,
        "trial.py": _TRIAL,
        "study.yaml": _STUDY,
        "wanted.txt": "probe\n",
        "data/a.txt": "a",
    }.items():
        (folder / name).write_text(text)
    uid = os.getuid() or _UID
    for path in (home, *home.rglob("*")):
        os.chown(path, uid, uid if os.getuid() == 0 else -1)
    environment = {
        "PATH": os.environ["PATH"],
        "HOME": str(home),
        "HOP": HOP,
        "COLUMNS": "200",
        "UV_FIND_LINKS": str(home),
        "UV_OFFLINE": "1",
    }
    prefixes = ":".join({sys.base_prefix, sys.prefix})
    result = subprocess.run(
        [sys.executable, "-c", _START, str(uid), allowed, prefixes, "/bin/sh", "-c", _COMMANDS],
        cwd=folder,
        env=environment,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=DEADLINE_S,
        check=False,
    )
    if result.returncode == 77:
        pytest.skip(f"no such user can be made here: {result.stderr}")
    assert result.returncode == 0, result.stdout + result.stderr
    assert result.stdout.count("met\n") == 2 and "with 1.5\n" in result.stdout, result.stdout
    in_namespace = "by a user namespace" in result.stdout
    assert in_namespace or re.search("^warn  privacy", result.stdout, re.MULTILINE)
    assert ("no token\n" if in_namespace else "token read\n") in result.stdout
    assert not (in_namespace and allowed == "no")
