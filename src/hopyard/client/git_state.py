"""The git state of the code, read while the code is packed.

Only the run's folder is read. Nothing that the repository configures is started: no hooks, no file system
monitor, no external diff, no filters (a file with a filter is compared as it is on the disk). Submodules are
not read, because their own configuration would apply.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from hopyard.client.feedback import Notify, print_notice
from hopyard.datasets.ignore_rules import CODE_RULES, exclusion_reasons
from hopyard.domain.byte_text import format_bytes
from hopyard.domain.text import escape
from hopyard.domain.urls import strip_credentials

if TYPE_CHECKING:
    import subprocess

    from hopyard.api_client import types as api

_MAX_DIFF_BYTES = 8 * 1024 * 1024  # the limit of a blob
_TIMEOUT_S = 20.0
_SHORT_TIMEOUT_S = 3.0  # for repositories other than that of the code
_MAX_TEXT_LENGTH = 1024  # characters of a branch or a remote
_MAX_EXCLUDED_FILES = 1000  # changed files that are named to git, one by one
# Objects that are missing in a partial clone are not fetched: the repository's settings would name the
# programs for that.
_GIT_ENVIRONMENT = {
    "GIT_OPTIONAL_LOCKS": "0",
    "GIT_NO_LAZY_FETCH": "1",
    "GIT_ALLOW_PROTOCOL": "none",
    "GIT_TERMINAL_PROMPT": "0",
}
_GIT = ("git", "-c", "core.fsmonitor=false", "-c", f"core.hooksPath={os.devnull}")
_DIFF = ("diff", "--no-color", "--no-ext-diff", "--no-textconv", "--ignore-submodules=dirty")
# These name another repository than the folder's, or programs to start.
_REMOVED_VARIABLES = (
    "GIT_DIR",
    "GIT_WORK_TREE",
    "GIT_INDEX_FILE",
    "GIT_OBJECT_DIRECTORY",
    "GIT_ALTERNATE_OBJECT_DIRECTORIES",
    "GIT_COMMON_DIR",
    "GIT_NAMESPACE",
    "GIT_PREFIX",
    "GIT_EXTERNAL_DIFF",
    "GIT_PAGER",
)


class GitProbe:
    """Starts `git` at once and collects its answers later.
    Without git, or outside a repository, there are none."""

    def __init__(self, folder: Path, *, notify: Notify = print_notice) -> None:
        self._folder = folder
        self._notify = notify
        self._children: list[subprocess.Popen[bytes]] = []
        self._tracked_child: subprocess.Popen[bytes] | None = None
        self._disabled_filters: Sequence[str] = ()
        if not is_in_repository(folder):
            return
        try:
            self._tracked_child = self._start(
                "ls-files", "-z", "--cached", "--ignored", "--exclude-standard", "--", "."
            )
            without = _filter_options(folder)
            if without is None:
                return
            self._disabled_filters = without
            for words in (
                (
                    "status",
                    "--porcelain=v2",
                    "--branch",
                    "--untracked-files=no",
                    "--ignore-submodules=dirty",
                    "--",
                    ".",
                ),
                (*_DIFF, "--name-only", "--no-renames", "--relative", "-z", "HEAD", "--", "."),
                (*_DIFF, "--binary", "HEAD", "--", "."),
                ("config", "--get", "remote.origin.url"),
            ):
                self._children.append(self._start(*words))
        except OSError:
            self.close()

    def _start(self, *arguments: str) -> subprocess.Popen[bytes]:
        return _start_git(self._folder, *self._disabled_filters, *arguments)

    def tracked_ignored_files(self) -> frozenset[str]:
        """Returns the files that git tracks although its ignore files name them; none without git."""
        from subprocess import TimeoutExpired

        child = self._tracked_child
        if child is None:
            return frozenset()
        try:
            output = child.communicate(timeout=_TIMEOUT_S)[0]
        except (OSError, TimeoutExpired):
            return frozenset()
        return frozenset(os.fsdecode(name) for name in output.split(b"\0") if name)

    def collect(self) -> tuple[api.GitIn | None, bytes]:
        """Returns the GitState as JSON without its diff (None outside of git), and the diff of the folder.
        Files that are not packed are not in the diff; a notice names them."""
        if not self._children:
            return None, b""
        from subprocess import TimeoutExpired

        try:
            status, names, diff, remote = (
                child.communicate(timeout=_TIMEOUT_S)[0] for child in self._children
            )
        except (OSError, TimeoutExpired):
            self.close()
            return None, b""
        if self._children[0].returncode != 0:
            return None, b""
        head = _read_status(status.decode(errors="replace"))
        if head["oid"] == "(initial)":
            return None, b""
        changed = [name for name in os.fsdecode(names).split("\0") if name]
        # `git diff` names tracked files only
        left_out = list(exclusion_reasons(CODE_RULES, self._folder, changed, tracked=set(changed)))
        dirty = len(changed) > len(left_out)
        if dirty and left_out:
            diff = self._diff_excluding(left_out)
        branch = "" if head["head"] == "(detached)" else head["head"]
        origin = strip_url_credentials(remote.decode(errors="replace").strip())
        state: api.GitIn = {
            "commit": head["oid"],
            "branch": _sanitize(branch),
            "dirty": dirty,
            "remote": _sanitize(origin),
        }
        if dirty and len(diff) > _MAX_DIFF_BYTES:
            self._notify(
                f"note: uncommitted changes of {format_bytes(len(diff))} are too large to be kept as a "
                "diff; the code itself is kept whole"
            )
            diff = b""
        return state, strip_credentials(diff.decode("latin-1")).encode("latin-1") if dirty else b""

    def _diff_excluding(self, excluded: Sequence[str]) -> bytes:
        from subprocess import TimeoutExpired

        if len(excluded) > _MAX_EXCLUDED_FILES:
            self._notify(f"note: no diff is kept: ignore files name {len(excluded)} of the changed files")
            return b""
        self._notify(
            "note: the diff that is kept lacks what ignore files name: "
            f"{', '.join(excluded[:3])}{' …' if len(excluded) > 3 else ''}"
        )
        child = self._start(
            *_DIFF, "--binary", "HEAD", "--", ".", *(f":(exclude,literal){name}" for name in excluded)
        )
        self._children.append(child)
        try:
            return child.communicate(timeout=_TIMEOUT_S)[0]
        except TimeoutExpired:
            self.close()
            return b""

    def close(self) -> None:
        """Ends the processes that still run."""
        for child in filter(None, (*self._children, self._tracked_child)):
            if child.poll() is None:
                child.kill()
            child.communicate()
        self._children, self._tracked_child = [], None


def read_commit(folder: Path) -> str:
    """Returns the commit of the repository with the folder, with `-dirty` for uncommitted changes below it.

    Returns "" without a repository, and for one that git does not trust. It takes a few seconds at most.
    """
    if not is_in_repository(folder):
        return ""
    head = _output(_start_git(folder, "rev-parse", "--verify", "HEAD"), _SHORT_TIMEOUT_S)
    filters = _filter_options(folder, _SHORT_TIMEOUT_S) if head else None
    if not head or filters is None:
        return head.decode(errors="replace")[:12].strip()
    words = ("status", "--porcelain", "--untracked-files=no", "--ignore-submodules=dirty", "--", ".")
    changed = _output(_start_git(folder, *filters, *words), _SHORT_TIMEOUT_S)
    return head.decode(errors="replace")[:12].strip() + ("-dirty" if changed else "")


def _start_git(folder: Path, *words: str) -> subprocess.Popen[bytes]:
    import subprocess  # only here: outside a repository its import would be for nothing

    environment = {name: value for name, value in os.environ.items() if name not in _REMOVED_VARIABLES} | {
        **_GIT_ENVIRONMENT,
        "LC_ALL": "C",
    }
    return subprocess.Popen(
        (*_GIT, "-C", str(folder), *words),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        env=environment,
    )


def _output(child: subprocess.Popen[bytes], timeout_s: float) -> bytes:
    """Returns what git prints, b"" for an error and after the time."""
    from subprocess import TimeoutExpired

    try:
        output = child.communicate(timeout=timeout_s)[0]
    except TimeoutExpired:
        child.kill()
        child.communicate()
        return b""
    return b"" if child.returncode else output


def _filter_options(folder: Path, timeout_s: float = _TIMEOUT_S) -> list[str] | None:
    """Returns the options that disable every configured filter; None if no option can name one of them."""
    from subprocess import TimeoutExpired

    child = _start_git(folder, "config", "-z", "--name-only", "--get-regexp", r"^filter\.")
    try:
        output = child.communicate(timeout=timeout_s)[0]
    except TimeoutExpired:
        child.kill()
        child.communicate()
        return None
    names = {os.fsdecode(key).rpartition(".")[0] for key in output.split(b"\0") if key}
    if child.returncode not in (0, 1) or any("=" in name for name in names):
        return None
    return [
        word
        for name in sorted(names)
        for setting in ("clean=", "smudge=", "process=", "required=false")
        for word in ("-c", f"{name}.{setting}")
    ]


def is_in_repository(folder: Path) -> bool:
    return any((place / ".git").exists() for place in (folder.absolute(), *folder.absolute().parents))


def _read_status(text: str) -> dict[str, str]:
    head = {"oid": "(initial)", "head": ""}
    for line in text.split("\n"):
        if line.startswith("# branch."):
            key, _, value = line.removeprefix("# branch.").partition(" ")
            head[key] = value
    return head


def _sanitize(text: str) -> str:
    """As a server takes it: git takes names of branches and remotes with characters that are not visible."""
    return escape(text)[:_MAX_TEXT_LENGTH]


def strip_url_credentials(url: str) -> str:
    """A remote's address without the user and password that may stand in it."""
    scheme, separator, rest = url.partition("://")
    if not separator:
        return url
    host, slash, path = rest.partition("/")
    return scheme + separator + host.rpartition("@")[2] + slash + path
