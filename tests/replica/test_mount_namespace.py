"""Files of a home that a run's process can read and change, as root and as another user."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from hopyard.private_files import make_folder
from hopyard.replica.mount_namespace import IsolationMode, detect_isolation_mode
from tests.engines.local.engine_fixture import LocalEngineFixture
from tests.replica.conftest import RunScenario

# The process under test is started by an ordinary replica's code, in a process that first becomes the user.
_START = """
import ctypes, os, sys
from pathlib import Path
from hopyard.replica.mount_namespace import IsolationMode, MountView, detect_isolation_mode
from hopyard.replica.user_process import ProcessSpec, start_process
home, uid, undo = Path(sys.argv[1]), int(sys.argv[2]), sys.argv[3]
if uid:
    os.setgroups([]); os.setresgid(uid, uid, uid); os.setresuid(uid, uid, uid)
    # dumpable, as after exec: only then its folder below /proc is its own
    ctypes.CDLL(None).prctl(4, 1, 0, 0, 0)
if detect_isolation_mode() is IsolationMode.MODES:
    sys.exit(77)
own = home / "attempts" / "abcdef.1"
view = MountView(unmounted=[home], read_only=[home / "cache", home / "address"], writable=[own],
            links={home / "server.json": Path("address/server.json")})
pid = start_process(
    ProcessSpec(["sh", "-c", undo], dict(os.environ), own, own / "out", own / "err", view=view)
).pid
sys.exit(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))
"""


@pytest.fixture(params=[0, 1234], ids=["root", "another user"])
def home(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    if os.getuid() != 0 and request.param != 0:
        pytest.skip("only root becomes another user")
    root = tmp_path / "home"
    for folder in ("attempts/abcdef.1", "attempts/ghijkl.1", "cache/trees", "blobs", "address"):
        make_folder(root / folder)
    for file in ("token", "attempts/ghijkl.1/spec.json", "cache/trees/a.txt", "blobs/b"):
        (root / file).write_text("as it was")
    for path in (root, *root.rglob("*")):
        os.chown(path, request.param or os.getuid(), -1)
    for above in tmp_path, *tmp_path.parents[:3]:  # pytest's own folders
        above.chmod(0o711)
    return root


def _run(home: Path, script: str) -> str:
    """Returns the output of the script, with its folder of the home as working folder."""
    uid = home.stat().st_uid
    result = subprocess.run(
        [sys.executable, "-c", _START, str(home), str(uid), script],
        check=False,
        capture_output=True,
        text=True,
    )
    if result.returncode == 77:
        pytest.skip("the kernel allows no mounts here")
    assert result.returncode == 0, result.stderr
    return (home / "attempts/abcdef.1/out").read_text()


def test_run_can_change_only_its_folder_in_home(home: Path) -> None:
    before = {path: path.read_bytes() for path in home.rglob("*") if path.is_file()}
    me = os.getpid()
    undo = f"""
    for way in '' 'unshare --user --map-root-user --mount'; do
        $way umount -l {home}; $way mount -o remount,bind,rw {home}; $way mount -o remount,rw {home}
        $way sh -c 'umount -l {home}; mount -o remount,bind,rw {home}
            echo no >> {home}/cache/trees/a.txt; echo no > {home}/config.yaml'
        $way nsenter -t {me} -m sh -c 'echo no > {home}/config.yaml'
        $way chmod -R 777 {home}/cache; $way mv {home}/cache {home}/old; $way rm -rf {home}/cache
    done
    echo no > /proc/{me}/root{home}/config.yaml; echo no > {home}/cache/trees/a.txt; mv {home} {home}.old
    ln {home}/cache/trees/a.txt mine && echo no > mine
    touch kept
    """
    _run(home, undo)
    after = {
        path: path.read_bytes()
        for path in home.rglob("*")
        if path.is_file() and path.parent.name != "abcdef.1"
    }
    assert after == before
    assert (home / "attempts/abcdef.1/kept").exists()


def test_run_cannot_read_tokens_or_files_of_other_runs(home: Path) -> None:
    reading = f"""
    for way in '' 'unshare --user --map-root-user --mount'; do
        for f in token attempts/ghijkl.1/spec.json blobs/b; do
            $way cat {home}/$f
            $way sh -c 'umount -l {home}/token {home}/attempts {home}/blobs; cat {home}/'$f
            cat /proc/{os.getpid()}/root{home}/$f /proc/1/root{home}/$f
        done
    done
    cat {home}/cache/trees/a.txt; ls {home}/attempts
    """
    assert _run(home, reading).split("\n") == ["as it wasabcdef.1", ""]


def test_run_retains_its_user(home: Path) -> None:
    assert _run(home, "id -u; stat -c %u .").split() == [str(home.stat().st_uid)] * 2


def test_run_sees_no_later_home_files_except_server_location(home: Path) -> None:
    """A restarted server recreates the files of its database, which hold secrets in clear text."""
    script = f"""
    touch begun; while [ ! -e go ]; do sleep 0.01; done
    cat {home}/hopyard.db-wal {home}/server.json; ls {home}
    """
    uid, own = home.stat().st_uid, home / "attempts/abcdef.1"
    command = [sys.executable, "-c", _START, str(home), str(uid), script]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as replica:
        while not (own / "begun").exists() and replica.poll() is None:
            time.sleep(0.01)
        if replica.returncode == 77:
            pytest.skip("the kernel allows no mounts here")
        for file in ("hopyard.db-wal", "address/server.json"):
            (home / file).write_text(f"{file}\n")
            os.chown(home / file, uid, -1)
        (own / "go").touch()
    assert replica.returncode == 0
    assert (own / "out").read_text().split() == [
        "address/server.json",
        "address",
        "attempts",
        "cache",
        "server.json",
    ]


def test_root_run_cannot_read_other_processes(home: Path) -> None:
    """By their folders below /proc, in the name of any user."""
    if home.stat().st_uid != 0:
        pytest.skip("another user has no other names")
    with subprocess.Popen(
        ["sleep", "60"], user=65534, group=65534, extra_groups=[], env={"KEY": "s3cret"}
    ) as other:
        try:
            script = f"""
            for pid in {other.pid} {os.getpid()}; do
                for uid in 0 65534; do
                    {sys.executable} -I -c "
import ctypes, os
ctypes.CDLL(None).setfsuid($uid)
for name in ('root', 'environ', 'mem', 'cwd'):
    try: os.open(f'/proc/$pid/{{name}}', os.O_RDONLY); print('opened', name, $pid, $uid)
    except OSError: pass
"
                done
            done
            """
            assert _run(home, script) == ""
        finally:
            other.kill()


def test_dropped_root_capabilities_are_not_restored(tmp_path: Path) -> None:
    """Old container engines start root with inheritable capabilities."""
    if os.getuid() != 0:
        pytest.skip("only root inherits any")
    own, secret = tmp_path / "attempts" / "abcdef.1", tmp_path / "token"
    make_folder(own)
    secret.write_text("as it was")
    script = f"umount -l {tmp_path}; umount -l {tmp_path}; cat {secret}; grep CapInh /proc/self/status"
    for folder in ("cache", "address"):
        make_folder(tmp_path / folder)
    # A user namespace starts without capabilities, so this test uses none.
    start = _START.replace(
        "if detect_isolation_mode()",
        "from hopyard.replica import user_process\n"
        "user_process.detect_isolation_mode = lambda: IsolationMode.MOUNTS\n"
        "if detect_isolation_mode()",
    )
    command = [
        "setpriv",
        "--inh-caps",
        "+sys_admin,+sys_ptrace,+dac_read_search",
        sys.executable,
        "-c",
        start,
        str(tmp_path),
        "0",
        script,
    ]
    result = subprocess.run(command, check=False, capture_output=True, text=True)
    if result.returncode == 77:
        pytest.skip("the kernel allows no mounts here")
    assert (own / "out").read_text().split() == ["CapInh:", "0" * 16], result.stderr


def test_replicas_can_inspect_only_their_gang(run_scenario: RunScenario) -> None:
    """As libraries do that share memory of GPUs. Not where modes are the only protection."""
    script = """
import json, os, time
rank = int(os.environ["RANK"])
def at(rank, name):
    return f"{name}-{rank}"
open(at(rank, "me"), "w").write(str(os.getpid()))
other = at(1 - rank, "me")
while not os.path.exists(other) or not open(other).read():
    time.sleep(0.01)
def opens(pid):
    try:
        os.close(os.open(f"/proc/{pid}/mem", os.O_RDONLY))
    except OSError:
        return False
    return True
print(json.dumps([opens(open(other).read()), opens(os.getppid())]))
open(at(rank, "done"), "w").close()
while not os.path.exists(at(1 - rank, "done")):
    time.sleep(0.01)
"""

    async def scenario(fixture: LocalEngineFixture) -> None:
        await fixture.launch("a.1", script, script)
        assert [ended.reason for ended in await fixture.wait_exits("a.1")] == ["finished"] * 2
        expected = [True, detect_isolation_mode() is IsolationMode.MODES]
        assert [json.loads(fixture.sink.stream("a.1", rank, "stdout")) for rank in (0, 1)] == [expected] * 2

    run_scenario(scenario)
