"""Recorded state of the caller: interpreter, packages, git."""

from __future__ import annotations

import os
import subprocess
import sys
from contextlib import suppress
from importlib import metadata
from pathlib import Path

import pytest

from hopyard.client import git_state
from hopyard.client.git_state import GitProbe, read_commit, strip_url_credentials
from hopyard.client.interpreter import caller_interpreter, installed_packages


def test_active_environment_has_priority(tmp_path: Path) -> None:
    for name in ("venv", "conda"):
        (tmp_path / name / "bin").mkdir(parents=True)
        (tmp_path / name / "bin" / "python").symlink_to(sys.executable)
    both = {"VIRTUAL_ENV": str(tmp_path / "venv"), "CONDA_PREFIX": str(tmp_path / "conda")}
    assert caller_interpreter(both) == str(tmp_path / "venv" / "bin" / "python")
    assert caller_interpreter({"CONDA_PREFIX": both["CONDA_PREFIX"]}) == str(
        tmp_path / "conda" / "bin" / "python"
    )
    assert caller_interpreter({"VIRTUAL_ENV": str(tmp_path / "gone")}) == str(Path(sys.executable).absolute())


def test_packages_are_read_from_folder_names() -> None:
    result = installed_packages(sys.executable)
    assert result["click"] == metadata.version("click")
    assert result["pytest"] == metadata.version("pytest")
    assert installed_packages("/nowhere/bin/python") == {}


def git(folder: Path, *words: str) -> str:
    environment = {**os.environ, "GIT_CONFIG_GLOBAL": "/dev/null", "GIT_CONFIG_SYSTEM": "/dev/null"}
    command = [
        "git",
        "-c",
        "user.name=t",
        "-c",
        "user.email=t@example.org",
        "-c",
        "init.defaultBranch=main",
        *words,
    ]
    return subprocess.run(
        command, cwd=folder, capture_output=True, text=True, check=True, env=environment
    ).stdout.strip()


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    git(tmp_path, "init", "-q")
    (tmp_path / "a.py").write_text("one\n")
    git(tmp_path, "add", "a.py")
    git(tmp_path, "commit", "-qm", "first")
    git(tmp_path, "remote", "add", "origin", "https://me:secret@example.org/x.git")
    return tmp_path


def test_clean_repository(repository: Path) -> None:
    (repository / "sub").mkdir()
    state, diff = GitProbe(repository / "sub").collect()
    assert state == {
        "commit": git(repository, "rev-parse", "HEAD"),
        "branch": "main",
        "dirty": False,
        "remote": "https://example.org/x.git",
    }
    assert diff == b""


def test_changes_are_stored_as_an_applicable_diff(repository: Path) -> None:
    (repository / "a.py").write_text("two\n")
    (repository / "untracked.py").write_text("x")
    state, diff = GitProbe(repository).collect()
    assert state is not None
    assert state["dirty"] is True
    git(repository, "checkout", "-q", "a.py")
    subprocess.run(["git", "apply"], cwd=repository, input=diff, check=True)
    assert (repository / "a.py").read_text() == "two\n"


def test_oversized_diff_is_reported(
    repository: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(git_state, "_MAX_DIFF_BYTES", 1000)
    (repository / "a.py").write_text("two\n" * 1000)
    state, diff = GitProbe(repository).collect()
    assert state is not None
    assert (state["dirty"], diff) == (True, b"")
    assert "too large to be kept as a diff" in capsys.readouterr().err


def test_diff_covers_the_packed_files_only(repository: Path, capsys: pytest.CaptureFixture[str]) -> None:
    exp = repository / "exp"
    (exp / "conf").mkdir(parents=True)
    files = (
        "secrets.yaml",
        "exp/main.py",
        "exp/local.env",
        "exp/conf/key.pem",
        "exp/gone.env",
        "exp/kept.env",
    )
    for name in files:
        (repository / name).write_text("before\n")
    (exp / ".hopignore").write_text("*.env\n!kept.env\nconf/\n")
    git(repository, "add", "-f", ".")
    git(repository, "commit", "-qm", "second")
    for name in files:
        (repository / name).write_text(f"changed {name}\n")
    (exp / "gone.env").unlink()
    state, diff = GitProbe(exp).collect()
    assert state is not None and state["dirty"]
    assert [name for name in files if f"b/{name}".encode() in diff] == ["exp/main.py", "exp/kept.env"]
    assert "lacks what ignore files name: conf/key.pem, gone.env, local.env" in capsys.readouterr().err
    git(repository, "checkout", "-q", "exp/main.py", "exp/kept.env")
    state, diff = GitProbe(exp).collect()
    assert state is not None and (state["dirty"], diff) == (False, b"")


def test_programs_configured_in_a_repository_are_not_started(
    repository: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    trap = repository / "trap.sh"
    trap.write_text(f"#!/bin/sh\ntouch {repository}/CAUGHT\n")
    trap.chmod(0o755)
    hooks = repository / "hooks"
    hooks.mkdir()
    (hooks / "post-index-change").symlink_to(trap)
    for key, value in (
        ("core.fsmonitor", str(trap)),
        ("core.hooksPath", str(hooks)),
        ("diff.external", str(trap)),
        ("diff.x.textconv", str(trap)),
    ):
        git(repository, "config", key, value)
    inner = repository / "inner"
    inner.mkdir()
    git(inner, "init", "-q")
    (inner / "b.py").write_text("b\n")
    git(inner, "add", ".")
    git(inner, "commit", "-qm", "inner")
    git(repository, "-c", "core.fsmonitor=false", "-c", f"core.hooksPath={os.devnull}", "add", "inner")
    (inner / "b.py").write_text("c\n")
    git(inner, "config", "core.fsmonitor", str(trap))
    for key, value in (("clean", str(trap)), ("process", str(trap)), ("required", "true")):
        git(repository, "config", f"filter.my own.{key}", value)
        git(repository, "config", f"filter.y.{key}", value)
    (repository / ".gitattributes").write_text("*.py diff=x filter=y\n")
    monkeypatch.setenv("GIT_EXTERNAL_DIFF", str(trap))
    monkeypatch.setenv("GIT_DIR", "/nowhere")
    (repository / "a.py").write_text("two\n")
    state, diff = GitProbe(repository).collect()
    assert state is not None and b"+two" in diff
    assert not (repository / "CAUGHT").exists()


@pytest.mark.parametrize(
    "settings",
    [
        {"remote.origin.url": "ext::sh {trap}", "protocol.ext.allow": "always"},
        {"remote.origin.url": "ssh://nowhere.invalid/x", "core.sshCommand": "{trap}"},
        {
            "remote.origin.url": "{repository}",
            "remote.origin.uploadpack": "{trap}; git-upload-pack",
            "protocol.file.allow": "always",
        },
    ],
    ids=["ext", "ssh", "uploadpack"],
)
def test_missing_objects_of_a_partial_clone_are_not_fetched(
    repository: Path, settings: dict[str, str]
) -> None:
    trap = repository / "trap.sh"
    trap.write_text(f"#!/bin/sh\ntouch {repository}/CAUGHT\n")
    trap.chmod(0o755)
    blob = git(repository, "rev-parse", "HEAD:a.py")
    (repository / "a.py").write_text("two\n")
    (repository / ".git/objects" / blob[:2] / blob[2:]).unlink()
    for key, value in {
        "core.repositoryFormatVersion": "1",
        "extensions.partialClone": "origin",
        "remote.origin.promisor": "true",
        **settings,
    }.items():
        git(repository, "config", key, value.format(trap=trap, repository=repository))
    GitProbe(repository).collect()
    assert not (repository / "CAUGHT").exists()
    with suppress(subprocess.CalledProcessError):
        git(repository, "diff", "HEAD")
    assert (repository / "CAUGHT").exists(), "git does fetch it"


def test_no_repository_no_commit_no_git(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path / "plain"
    folder.mkdir()
    assert GitProbe(folder).collect() == (None, b"")
    git(folder, "init", "-q")
    assert GitProbe(folder).collect() == (None, b"")
    monkeypatch.setenv("PATH", str(tmp_path / "nothing"))
    assert GitProbe(folder).collect() == (None, b"")


@pytest.mark.parametrize(
    ("url", "expected"),
    [
        ("git@example.org:a/b.git", "git@example.org:a/b.git"),
        ("https://u:p@h/a", "https://h/a"),
        ("https://h/a@b", "https://h/a@b"),
        ("", ""),
    ],
)
def test_remotes_lose_their_secrets(url: str, expected: str) -> None:
    assert strip_url_credentials(url) == expected


def test_commit_of_another_repository_is_read_without_its_programs(
    repository: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(git_state, "_SHORT_TIMEOUT_S", 60.0)  # git takes long on a busy machine
    commit = git(repository, "rev-parse", "HEAD")[:12]
    assert read_commit(repository) == commit
    for key, value in (
        ("filter.y.clean", f"touch {tmp_path}/started; cat"),
        ("core.fsmonitor", f"touch {tmp_path}/started"),
    ):
        git(repository, "config", key, value)
    (repository / ".gitattributes").write_text("*.py filter=y\n")
    (repository / "a.py").write_text("two\n")
    assert read_commit(repository) == f"{commit}-dirty"
    assert not (tmp_path / "started").exists()
    (tmp_path / "empty").mkdir()
    git(tmp_path / "empty", "init", "-q")
    assert read_commit(tmp_path / "empty") == ""
