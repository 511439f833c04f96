"""Finds the ignore files that git reads besides `.gitignore`: `info/exclude` and `core.excludesFile`."""

from __future__ import annotations

import os
import re
from pathlib import Path

_TIMEOUT_S = 20.0
_REPOSITORY_VARIABLES = ("GIT_DIR", "GIT_WORK_TREE", "GIT_COMMON_DIR")  # name another repository
_EXCLUDES_SETTING = re.compile(rb"excludesfile|\[\s*include", re.IGNORECASE)


def private_ignore_files(repository: Path) -> list[Path]:
    """Returns the files that exist, in the order of their precedence. repository: a folder with `.git`."""
    common_folder = _common_folder(repository / ".git")
    candidates = [_excludes_file(repository, common_folder)]
    if common_folder is not None:
        candidates.insert(0, common_folder / "info" / "exclude")
    return [file for file in candidates if file is not None and file.is_file()]


def _common_folder(dot_git: Path) -> Path | None:
    """Returns the folder with the repository's settings. `.git` of a worktree or submodule is a file with the
    path of another folder."""
    folder = dot_git
    try:
        if dot_git.is_file():
            text = os.fsdecode(dot_git.read_bytes()).removeprefix("gitdir:").strip()
            folder = dot_git.parent / text
        common = folder / "commondir"
        return folder / os.fsdecode(common.read_bytes()).strip() if common.is_file() else folder
    except OSError:
        return None


def _excludes_file(repository: Path, common_folder: Path | None) -> Path | None:
    """Returns git's `core.excludesFile`. Starts git only if some file of settings may name it."""
    home = Path(os.environ.get("HOME") or "/")
    user_folder = Path(os.environ.get("XDG_CONFIG_HOME") or home / ".config") / "git"
    settings = [Path("/etc/gitconfig"), home / ".gitconfig", user_folder / "config"]
    if common_folder is not None:
        settings.append(common_folder / "config")
    if any(name.startswith("GIT_CONFIG") for name in os.environ) or any(map(_may_name_excludes, settings)):
        import subprocess  # late: rarely needed

        command = ("git", "-C", str(repository), "config", "-z", "--type=path", "--get", "core.excludesFile")
        try:
            found = subprocess.run(
                command,
                env={name: value for name, value in os.environ.items() if name not in _REPOSITORY_VARIABLES},
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                timeout=_TIMEOUT_S,
                check=False,
            ).stdout
        except (OSError, subprocess.TimeoutExpired):
            return None
        if found:
            return repository / os.fsdecode(found.rstrip(b"\0"))
    return user_folder / "ignore"


def _may_name_excludes(settings: Path) -> bool:
    try:
        return _EXCLUDES_SETTING.search(settings.read_bytes()) is not None
    except OSError:
        return False
