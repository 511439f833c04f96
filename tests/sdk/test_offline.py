"""Scripts run by plain `python`: their recorded data and end."""

from __future__ import annotations

import fcntl
import json
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from hopyard.errors import NotFound, SpecError
from hopyard.sdk.data import find_dataset

from .scripts import CLEAN, finish, read_events, read_points, start


class PlainScripts:
    """A folder and a home in which plain scripts run."""

    def __init__(self, root: Path) -> None:
        self.folder, self.home = root / "project", root / "home"
        self.folder.mkdir()
        self.env = {**CLEAN, "HOPYARD_HOME": str(self.home)}

    def run(self, code: str, *, ok: bool = True, **env: str) -> subprocess.CompletedProcess[str]:
        return finish(start(code, self.folder, {**self.env, **env}), ok=ok)

    def only_run(self) -> tuple[Path, dict[str, Any]]:
        (folder,) = (self.home / "offline").iterdir()
        return folder, json.loads((folder / "run.json").read_text())


@pytest.fixture
def plain_scripts(tmp_path: Path) -> PlainScripts:
    return PlainScripts(tmp_path)


SCRIPT = """
import hopyard as hop
p = hop.params(lr=0.1)
kept = hop.bind(n=[0])
for epoch in hop.loop(range(5)):
    kept.n[0] += 1
    hop.log(loss=p.lr, step=epoch)
hop.summary(loss=p.lr)
r = hop.run()
print(r.offline, r.rank, r.world_size, r.params, r.id == r.folder.name == r.name)
"""


def test_plain_run_is_recorded_like_replica(plain_scripts: PlainScripts) -> None:
    done = plain_scripts.run(SCRIPT)
    assert done.stdout == "True 0 1 {'lr': 0.1} True\n"
    folder, facts = plain_scripts.only_run()
    assert done.stderr.strip() == f"hopyard: recording offline in {folder}; `hop sync` sends it to the server"
    assert [p.step for _, p in read_points(folder)] == [0, 1, 2, 3, 4]
    kinds = {event["kind"] for event in read_events(folder)}
    assert kinds == {"params", "progress", "checkpoint", "summary", "note"}
    assert sorted(f.name for f in (folder / "checkpoints").iterdir()) == ["3", "4", "5"]
    assert facts["id"] == folder.name and facts["project"] == "project" and facts["git"] is None
    assert facts["argv"] == [sys.executable, str(plain_scripts.folder / "main.py")] and facts["cwd"] == str(
        plain_scripts.folder
    )
    assert (
        facts["exit"] == {"kind": "exit-code", "code": 0, "reason": "finished"}
        and facts["ended_at"] > facts["started_at"]
    )
    assert oct(folder.stat().st_mode & 0o777) == "0o700"


@pytest.mark.parametrize(
    ("end", "code"),
    [
        ("import sys; sys.exit(3)", 3),
        ("raise ValueError('x')", 1),
        ("import sys; sys.exit('words')", 1),
        ("import sys; sys.exit()", 0),
        ("raise SystemExit(3)", 3),
        ("code = 4\nif code:\n    raise SystemExit(\n        code\n    )", 4),
        ("raise SystemExit(f'{1} words')", 1),
        ("raise SystemExit", 0),
        ("raise SystemExit(None)", 0),
        ("raise SystemExit(print())", 0),
        ("try:\n    raise SystemExit(5)\nexcept SystemExit:\n    pass", 0),
    ],
)
def test_exit_code_is_recorded_and_unchanged(plain_scripts: PlainScripts, end: str, code: int) -> None:
    done = plain_scripts.run(f"import hopyard as hop\nhop.log(loss=1.0)\n{end}\n", ok=code == 0)
    assert done.returncode == code
    assert plain_scripts.only_run()[1]["exit"]["code"] == code


def test_killed_script_records_no_end(plain_scripts: PlainScripts) -> None:
    code = "import hopyard as hop, os, signal\nhop.log(loss=1.0)\nos.kill(os.getpid(), signal.SIGKILL)\n"
    assert plain_scripts.run(code, ok=False).returncode == -signal.SIGKILL
    folder, facts = plain_scripts.only_run()
    assert facts["exit"] is None and facts["ended_at"] is None and len(read_points(folder)) == 1


def test_the_lock_is_held_while_the_script_runs(plain_scripts: PlainScripts) -> None:
    process = start(
        "import hopyard as hop, sys\nhop.log(loss=1.0)\nprint(1, flush=True)\ninput()\n",
        plain_scripts.folder,
        plain_scripts.env | {"X": "1"},
    )
    try:
        assert process.stdout is not None
        process.stdout.readline()
        with open(plain_scripts.only_run()[0] / "lock") as lock, pytest.raises(BlockingIOError):
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    finally:
        process.kill()
        process.communicate()


def test_children_log_into_same_run_and_do_not_end_it(plain_scripts: PlainScripts) -> None:
    code = """
import os, subprocess, sys
import hopyard as hop
if len(sys.argv) > 1:
    hop.log(child=1.0)
    sys.exit(7)
hop.log(parent=1.0)
assert subprocess.call([sys.executable, __file__, "child"]) == 7
if os.fork() == 0:
    hop.log(fork=1.0)
    sys.exit(9)
os.wait()
"""
    plain_scripts.run(code)
    folder, facts = plain_scripts.only_run()
    assert sorted(name for name, _ in read_points(folder)) == ["child", "fork", "parent"]
    assert facts["exit"]["code"] == 0


def test_processes_of_launcher_record_one_run(plain_scripts: PlainScripts) -> None:
    code = "import hopyard as hop, os\nhop.log({'rank' + os.environ['RANK']: 1.0})\n"
    world = {"WORLD_SIZE": "3", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "29500"}
    ranks = [
        start(code, plain_scripts.folder, {**plain_scripts.env, **world, "RANK": str(rank)})
        for rank in range(3)
    ]
    errors = [finish(rank).stderr for rank in ranks]
    assert sorted(name for name, _ in read_points(plain_scripts.only_run()[0])) == ["rank0", "rank1", "rank2"]
    assert sum("recording offline" in text for text in errors) >= 1


def test_code_revision_is_recorded(plain_scripts: PlainScripts) -> None:
    def git(*words: str) -> str:
        names = ("-c", "user.name=a", "-c", "user.email=a@example.com")
        return subprocess.run(
            ["git", *names, *words], cwd=plain_scripts.folder, check=True, capture_output=True, text=True
        ).stdout.strip()

    git("init", "-q", "-b", "trunk")
    (plain_scripts.folder / "main.py").write_text("import hopyard as hop\nhop.log(loss=1.0)\n")
    git("add", "main.py")
    git("commit", "-qm", "first")
    plain_scripts.run("import hopyard as hop\nhop.log(loss=1.0)\n")
    assert plain_scripts.only_run()[1]["git"] == {
        "commit": git("rev-parse", "HEAD"),
        "branch": "trunk",
        "dirty": False,
    }


def test_unwritable_home_does_not_stop_script(plain_scripts: PlainScripts) -> None:
    done = plain_scripts.run(SCRIPT, HOPYARD_HOME="/proc/nowhere")
    assert (
        done.stdout.startswith("True 0 1")
        and "cannot be recorded" in done.stderr
        and "Traceback" not in done.stderr
    )


def test_script_may_remove_its_offline_run(plain_scripts: PlainScripts) -> None:
    plain_scripts.run("import hopyard as hop, shutil\nhop.log(loss=1.0)\nshutil.rmtree(hop.run().folder)\n")
    assert list((plain_scripts.home / "offline").iterdir()) == []


# -- datasets ------------------------------------------------------------------------------------------------


class OfflineRun:
    offline = True

    def record_dataset(self, name: str, version: int) -> None:
        raise AssertionError


class OnlineRun(OfflineRun):
    offline = False


def test_dataset_paths_of_run_are_returned(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOPYARD_DATASETS", '{"mnist": "/data/m"}')
    assert find_dataset("mnist", OnlineRun()) == find_dataset(None, OnlineRun()) == Path("/data/m")
    with pytest.raises(NotFound, match="no dataset `other`; it has mnist"):
        find_dataset("other", OnlineRun())
    monkeypatch.setenv("HOPYARD_DATASETS", '{"a": "/a", "b": "/b"}')
    with pytest.raises(SpecError, match="which dataset\\? This run has a, b"):
        find_dataset(None, OnlineRun())
    for broken in ("{", "[]", "3"):
        monkeypatch.setenv("HOPYARD_DATASETS", broken)
        with pytest.raises(SpecError, match="not a JSON object"):
            find_dataset("a", OnlineRun())


def test_dataset_is_not_found_without_server(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("HOPYARD_HOME", str(tmp_path / "home"))
    for name in ("HOPYARD_DATASETS", "HOPYARD_URL", "HOPYARD_TOKEN"):
        monkeypatch.delenv(name, raising=False)
    with pytest.raises(NotFound, match="no dataset `mnist`: no server runs"):
        find_dataset("mnist", OfflineRun())
    with pytest.raises(SpecError, match="not a name"):
        find_dataset("../etc", OfflineRun())
    assert not (tmp_path / "home").exists()


# -- the surface ---------------------------------------------------------------------------------------------


def test_import_loads_only_few_standard_library_modules() -> None:
    code = """
import sys
before = set(sys.modules)
import hopyard as hop
hop.log, hop.loop, hop.params
from pathlib import Path
import sysconfig
roots = {name.partition(".")[0] for name in set(sys.modules) - before}
print(sorted(root for root in roots if root not in sys.stdlib_module_names))
heavy = {"http", "subprocess", "asyncio", "numpy", "torch", "ssl", "email", "pickle"}
print(sorted(heavy & set(sys.modules)))
light = ("sdk", "domain", "config", "errors", "private_files", "backports")
ours = [name for name in sorted(sys.modules) if name.startswith("hopyard.")]
print([name for name in ours if name.split(".")[1] not in light])
"""
    result = subprocess.run(
        [sys.executable, "-c", code], env=CLEAN, capture_output=True, text=True, check=True
    )
    assert result.stdout.splitlines() == ["['hopyard']", "[]", "[]"]


def test_public_api_is_typed(tmp_path: Path) -> None:
    (tmp_path / "user.py").write_text("""
import hopyard as hop
from pathlib import Path
p = hop.params(lr=0.1, name="x")
data: Path = hop.dataset_path("mnist")
bound = hop.bind(best=0.0)
for epoch in hop.loop(range(3), every=2):
    n: int = epoch
    hop.log(loss=0.5, step=epoch)
    hop.log({"a/b": 1}, step=epoch)
hop.log(loss="high")  # E
hop.loop(3)  # E
folder: Path | None = hop.save(step=3, acc=0.5)
step: int | None = hop.load()
hop.summary(acc=0.5)
print(hop.run().rank + 1, p.lr, len(hop.loop([1])))
hop.nothing  # E
""")
    cache = str(tmp_path / "cache")
    result = subprocess.run(
        [sys.executable, "-m", "mypy", "--strict", "--cache-dir", cache, "user.py"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )
    lines = sorted({int(line.split(":")[1]) for line in result.stdout.splitlines() if ": error:" in line})
    assert lines == [11, 12, 17], result.stdout


def test_package_and_module_versions_agree() -> None:
    import tomllib

    import hopyard

    project = Path(hopyard.__file__).parents[2] / "pyproject.toml"
    if not project.exists():
        pytest.skip("not a checkout")
    stated = tomllib.loads(project.read_text())
    assert stated["project"].get("version", hopyard.__version__) == hopyard.__version__
    assert set(hopyard.__all__) <= set(dir(hopyard))
