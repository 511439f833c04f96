"""Where the code stands in git, asked while the code is being packed."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hopyard.cli.console import bytes_text, say

if TYPE_CHECKING:
    import subprocess

_MAX_DIFF_BYTES = 8 * 1024 * 1024  # what one blob holds
_TIMEOUT_S = 20.0


class GitProbe:
    """Starts `git` at once and collects what it said later. Without git, or outside a repository, there is nothing to say."""

    def __init__(self, folder: Path) -> None:
        self._children: list[subprocess.Popen[bytes]] = []
        if not in_repository(folder):
            return
        import subprocess  # only here: outside a repository its import would be for nothing

        environment = {**os.environ, "GIT_OPTIONAL_LOCKS": "0", "LC_ALL": "C"}
        try:
            for words in (
                ("status", "--porcelain=v2", "--branch", "--untracked-files=no"),
                ("diff", "--no-color", "--no-ext-diff", "--binary", "HEAD"),
                ("config", "--get", "remote.origin.url"),
            ):
                command = ("git", "-C", str(folder), *words)
                self._children.append(
                    subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, env=environment)
                )
        except OSError:
            self.close()

    def collect(self) -> tuple[dict[str, Any] | None, bytes]:
        """The GitState as JSON without its diff (None where there is none to tell), and the diff; one that is too large is told."""
        if not self._children:
            return None, b""
        from subprocess import TimeoutExpired

        try:
            status, diff, remote = (child.communicate(timeout=_TIMEOUT_S)[0] for child in self._children)
        except (OSError, TimeoutExpired):
            self.close()
            return None, b""
        if self._children[0].returncode != 0:
            return None, b""
        head, dirty = _read_status(status.decode(errors="replace"))
        if head["oid"] == "(initial)":
            return None, b""
        branch = "" if head["head"] == "(detached)" else head["head"]
        state = {"commit": head["oid"], "branch": branch, "dirty": dirty, "remote": without_secret(remote.decode(errors="replace").strip())}
        if dirty and len(diff) > _MAX_DIFF_BYTES:
            say(f"note: uncommitted changes of {bytes_text(len(diff))} are too large to be kept as a diff; the code itself is kept whole")
            diff = b""
        return state, diff if dirty else b""

    def close(self) -> None:
        """End what still runs."""
        for child in self._children:
            if child.poll() is None:
                child.kill()
            child.communicate()
        self._children = []


def in_repository(folder: Path) -> bool:
    return any((place / ".git").exists() for place in (folder.absolute(), *folder.absolute().parents))


def _read_status(text: str) -> tuple[dict[str, str], bool]:
    head = {"oid": "(initial)", "head": ""}
    dirty = False
    for line in text.splitlines():
        if line.startswith("# branch."):
            key, _, value = line.removeprefix("# branch.").partition(" ")
            head[key] = value
        elif not line.startswith("#"):
            dirty = True
    return head, dirty


def without_secret(url: str) -> str:
    """A remote's address without the user and password that may stand in it."""
    scheme, separator, rest = url.partition("://")
    if not separator:
        return url
    host, slash, path = rest.partition("/")
    return scheme + separator + host.rpartition("@")[2] + slash + path
