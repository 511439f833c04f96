"""Scripts with packages of their own: a src layout that is installed editable, and inline metadata."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from hopyard.config.home import Home
from tests.cli.shell import Shell

# a build tool without dependencies (PEP 517 and 660)
BUILD_TOOL = """
import zipfile
from pathlib import Path

def build_editable(folder, config_settings=None, metadata_directory=None):
    about = "proj-1.0.dist-info"
    texts = {
        "proj.pth": f"{Path.cwd() / 'src'}\\n",
        f"{about}/METADATA": "Metadata-Version: 2.1\\nName: proj\\nVersion: 1.0\\n",
        f"{about}/WHEEL": "Wheel-Version: 1.0\\nGenerator: t\\nRoot-Is-Purelib: true\\nTag: py3-none-any\\n",
    }
    texts[f"{about}/RECORD"] = "".join(f"{name},,\\n" for name in [*texts, f"{about}/RECORD"])
    with zipfile.ZipFile(Path(folder, "proj-1.0-py3-none-any.whl"), "w") as wheel:
        for name, text in texts.items():
            wheel.writestr(name, text)
    return "proj-1.0-py3-none-any.whl"
"""
PROJECT = """
[build-system]
requires = []
build-backend = "build_tool"
backend-path = ["."]
[project]
name = "proj"
version = "1.0"
"""
# ends once by a kill, where the file `kill` names a file that marks it as done
KILLED_ONCE = """
import os, signal
from pathlib import Path

checkpoint, kill = Path("ckpt/epoch"), Path("kill")
resumed = checkpoint.exists()
if kill.exists() and not Path(kill.read_text()).exists():
    checkpoint.parent.mkdir()
    checkpoint.write_text("1")
    Path(kill.read_text()).touch()
    os.kill(os.getpid(), signal.SIGKILL)
"""
TRAIN = """
import argparse, json, time
from pathlib import Path

parser = argparse.ArgumentParser()
parser.add_argument("--lr", type=float, default=0.1)
parser.add_argument("--wait-for")
args = parser.parse_args()
while args.wait_for and not Path(args.wait_for).exists():
    time.sleep(0.02)
import proj.once
import proj.net
print(json.dumps({"lr": args.lr, "version": proj.net.VERSION}))
if proj.once.resumed:
    print("resumed")
import hopyard
hopyard.log(loss=round(abs(args.lr - 0.3), 3), step=0)
"""
METADATA_SCRIPT = """
# /// script
# requires-python = ">=3.9"
# dependencies = ["probe>=1"]
# [[tool.uv.index]]
# url = "INDEX"
# default = true
# ///
import argparse
import once
import probe

parser = argparse.ArgumentParser()
parser.add_argument("--lr", type=float, default=0.1)
args = parser.parse_args()
print(f"probe {probe.VERSION} lr {args.lr}" + " resumed" * once.resumed)
import hopyard
hopyard.log(val_loss=abs(args.lr - 0.5), step=0)
"""


@pytest.fixture
def project(scripts: Shell) -> Shell:
    """A src layout, installed editable by uv into an environment that the shell has activated."""
    import uv

    shutil.rmtree(scripts.folder)
    scripts.write("pyproject.toml", PROJECT)
    scripts.write("build_tool.py", BUILD_TOOL)
    scripts.write("src/proj/__init__.py", "")
    scripts.write("src/proj/net.py", "VERSION = 'one'\n")
    scripts.write("src/proj/train.py", TRAIN)
    scripts.write("src/proj/once.py", KILLED_ONCE)
    environment = scripts.folder.parent / "venv"
    for words in (
        ["venv", "-q", "--python", sys.executable, str(environment)],
        ["pip", "install", "-q", "--no-index", "--python", str(environment / "bin" / "python"), "-e", "."],
    ):
        subprocess.run([uv.find_uv_bin(), *words], cwd=scripts.folder, check=True, timeout=120)
    scripts.environment["VIRTUAL_ENV"] = str(environment)
    return scripts


def test_editable_package_of_a_src_layout_runs_as_packed(project: Shell) -> None:
    go = project.folder.parent / "go"
    project.detach("-n", "first", "python", "--", "-m", "proj.train", "--wait-for", str(go))
    project.write("src/proj/net.py", "VERSION = 'two'\n")  # after the submission
    go.touch()
    first = project.hop("logs", "-f", "first")
    assert json.loads(first.text) == {"lr": 0.1, "version": "one"}, first.stderr_text
    environment = project.hop("info", "first", "--json").json["spec"]["environment"]
    assert environment["editable"] == {"proj": "."} and environment["packages"]["proj"] == "1.0"
    assert environment["packages"]["python"].startswith("3.")

    site = next(Path(project.environment["VIRTUAL_ENV"]).glob("lib/python*/site-packages"))
    (site / "later-3.0.dist-info").mkdir()
    fork = project.hop("fork", "first", "-n", "forked", "-p", "lr=0.5")
    assert json.loads(fork.text) == {"lr": 0.5, "version": "one"}
    assert "has changed since" in fork.stderr_text and "later absent → 3.0" in fork.stderr_text
    new = project.hop("run", "-n", "new", "python", "--", "-m", "proj.train", "--lr", "0.5")
    assert json.loads(new.text) == {"lr": 0.5, "version": "two"}
    difference = project.hop("diff", "forked", "new", "--json").json
    assert [change["path"] for change in difference["code"]] == ["src/proj/net.py"]
    assert difference["packages"] == {}
    assert project.hop("diff", "first", "new", "--json").json["packages"] == {"later": [None, "3.0"]}

    options = ("--searcher", "grid", "--metric", "loss", "--mode", "min", "-p", "lr=0.1,0.2,0.3,0.4")
    study = project.hop("search", *options, "python", "--", "-m", "proj.train")
    assert study.code == 0, study.stderr_text
    shown = project.hop("search", "show", "--json").json
    losses = {trial["params"]["lr"]: trial["value"] for trial in shown["trials"]}
    assert losses == {0.1: 0.2, 0.2: 0.1, 0.3: 0.0, 0.4: 0.1}

    project.write("kill", str(project.folder.parent / "killed"))
    killed = project.hop("run", "python", "--", "-m", "proj.train", "--lr", "0.2")
    assert killed.code == 137 and "SIGKILL" in killed.stderr_text, killed.stderr_text
    project.write("src/proj/net.py", "VERSION = 'three'\n")
    resumed = project.hop("resume", "last")
    assert resumed.text == '{"lr": 0.2, "version": "two"}\nresumed\n', resumed.stderr_text


@pytest.fixture
def index(tmp_path: Path) -> str:
    """The address of a package index on the disk, with one small wheel."""
    folder = tmp_path / "index" / "probe"
    folder.mkdir(parents=True)
    about = "probe-1.5.dist-info"
    texts = {
        "probe.py": "VERSION = '1.5'\n",
        f"{about}/METADATA": "Metadata-Version: 2.1\nName: probe\nVersion: 1.5\n",
        f"{about}/WHEEL": "Wheel-Version: 1.0\nGenerator: t\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
    }
    texts[f"{about}/RECORD"] = "".join(f"{name},,\n" for name in [*texts, f"{about}/RECORD"])
    name = "probe-1.5-py3-none-any.whl"
    with zipfile.ZipFile(folder / name, "w") as wheel:
        for path, text in texts.items():
            wheel.writestr(path, text)
    (folder / "index.html").write_text(f'<a href="{name}">{name}</a>')
    return folder.parent.as_uri()


def test_script_with_inline_metadata_is_run_forked_and_swept(
    scripts: Shell, index: str, served_home: Path
) -> None:
    shutil.rmtree(scripts.folder)
    scripts.write("train.py", METADATA_SCRIPT.replace("INDEX", index))
    scripts.write("once.py", KILLED_ONCE)
    first = scripts.hop("run", "-n", "first", "-p", "lr=0.25", "train.py")
    assert first.text == "probe 1.5 lr 0.25\n", first.stderr_text
    assert "built from the inline metadata of train.py" in first.stderr_text
    recorded = scripts.hop("info", "first", "--json").json["spec"]["environment"]
    assert recorded["packages"]["probe"] == "1.5" and recorded["lock"]
    (environment,) = Home(served_home).envs.glob("*/.ready")

    fork = scripts.hop("fork", "first", "-n", "second", "-p", "lr=0.75")
    assert fork.text == "probe 1.5 lr 0.75\n"
    assert "the fork uses the 1 package" in fork.stderr_text and "installed" in fork.stderr_text
    difference = scripts.hop("diff", "first", "second", "--json").json
    assert difference["params"] == {"lr": [0.25, 0.75]} and difference["packages"] == {}

    scripts.write(
        "s.yaml",
        "script: train.py\nmetric: val_loss\ngoal: min\nepochs: 1\n"
        "space: {lr: {choice: [0.1, 0.4, 0.9, 1.5]}}\nsearcher: grid\n",
    )
    study = scripts.hop("search", "s.yaml")
    assert study.code == 0, study.stderr_text
    shown = scripts.hop("search", "show", "last", "--json").json
    assert sorted(trial["params"]["lr"] for trial in shown["trials"]) == [0.1, 0.4, 0.9, 1.5]
    assert {str(trial["trial"]): trial["params"]["lr"] for trial in shown["trials"]}[shown["best"]] == 0.4

    scripts.write("kill", str(scripts.folder.parent / "killed"))
    killed = scripts.hop("run", "-p", "lr=0.5", "train.py")
    assert killed.code == 137 and "SIGKILL" in killed.stderr_text, killed.stderr_text
    resumed = scripts.hop("resume", "last")
    assert resumed.text == "probe 1.5 lr 0.5 resumed\n", resumed.stderr_text
    assert list(Home(served_home).envs.glob("*/.ready")) == [environment]  # one for all
