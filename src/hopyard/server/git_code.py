"""Fetches the code of a run from a git repository, and packs it.

Git runs with an empty configuration of its own: without hooks, credentials, filters, submodules, redirects
and other protocols than that of the address.
"""

from __future__ import annotations

import asyncio
import itertools
import os
import shutil
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import BinaryIO, NamedTuple, cast

from hopyard.config.git_settings import GitSettings
from hopyard.datasets.ignore_rules import HOPIGNORE
from hopyard.datasets.lfs_pointers import find_lfs_pointers
from hopyard.datasets.pack import CODE_RULES, pack_tree
from hopyard.datasets.packed_tree import PackedTree
from hopyard.domain.byte_text import format_bytes
from hopyard.domain.git_address import GitAddress
from hopyard.domain.manifest import Manifest
from hopyard.domain.text import escape
from hopyard.errors import SpecError
from hopyard.server.git_errors import FULL_COMMIT, GitFailed, GitRequest

MAX_FILES = 100_000
_MAX_NAMED = 200  # files that are left out, and pointers
_FETCHES = 3  # of a branch that moves meanwhile
_MAX_LISTING_BYTES, _MAX_ERROR_BYTES = 64 * 2**20, 64 * 1024
_BLOCK_BYTES = 512  # of `ulimit -f`
# settings of the network of the machine, which have no effect on what git runs
_PASSED = ("PATH", "https_proxy", "HTTPS_PROXY", "no_proxy", "NO_PROXY", "SSL_CERT_FILE", "SSL_CERT_DIR")
_PASSED_OF_GIT = ("GIT_SSL_CAINFO",)
# After the end of the server, which closes the input, nothing else would end a git that waits for its server.
_WATCHED = (
    'ulimit -f "$0"; exec 3<&0; { read -r _ <&3; kill -9 0; } >/dev/null 2>&1 & exec "$@" 3<&- </dev/null'
)
_SSH = "ssh -oBatchMode=yes -oStrictHostKeyChecking=yes -oConnectTimeout=20 -oPermitLocalCommand=no"
_SETTINGS = (
    *("http.followRedirects=false", "credential.helper=", "core.hooksPath=/dev/null", "core.fsmonitor=false"),
    *("submodule.recurse=false", "fetch.recurseSubmodules=false", "fetch.fsckObjects=true", "gc.auto=0"),
    *(
        "core.attributesFile=/dev/null",
        "core.excludesFile=/dev/null",
        "core.askPass=",
        "advice.detachedHead=false",
    ),
)


class ExcludedFile(NamedTuple):
    """A file of a commit that is not in the code of a run, and why."""

    path: str
    reason: str


class GitCode(NamedTuple):
    """The packed files of a commit. submodules: their paths, which are empty in the tree. left_out: other
    files of the commit that the tree lacks. lfs_pointers: files that are pointers of Git LFS."""

    tree: PackedTree
    commit: str
    submodules: tuple[str, ...]
    left_out: tuple[ExcludedFile, ...]
    lfs_pointers: tuple[str, ...]


class _CommitFiles(NamedTuple):
    """The entries of a commit: the paths of its submodules, and of all files and links."""

    submodules: tuple[str, ...]
    paths: tuple[bytes, ...]


async def fetch_git_code(folder: Path, address: GitAddress, ref: str, settings: GitSettings) -> GitCode:
    """Returns the code of a branch, tag or commit, "" for the default branch. folder: an empty one, which the
    caller removes. Raises SpecError for a repository that cannot be fetched or is too large, StorageFull."""
    git = _Git(folder, address, settings)
    try:
        async with asyncio.timeout(settings.timeout_s):
            await git.run("init", "--quiet", "--template=")
            await _fetch(git, address, ref)
            commit = (await git.run("rev-parse", "--verify", "FETCH_HEAD^{commit}")).decode().strip()
            listing = _check_listing(
                await git.run("ls-tree", "-r", "-l", "-z", "FETCH_HEAD"), settings.max_bytes
            )
            await git.run("checkout", "--quiet", "--detach", "FETCH_HEAD")
    except TimeoutError:
        raise SpecError(
            f"address: the repository was not fetched within {settings.timeout_s:.0f} s",
            hints=("clone it on your machine, and upload the folder",),
        ) from None
    except GitFailed as failure:
        raise failure.describe(GitRequest(address.url, ref, settings.max_bytes)) from None
    tree, left_out, pointers = await asyncio.to_thread(_pack, folder, listing)
    return GitCode(tree, commit, listing.submodules, left_out, pointers)


async def _fetch(git: _Git, address: GitAddress, ref: str) -> None:
    target = ("--", address.url, ref or "HEAD")
    for attempt in range(_FETCHES):
        try:
            await git.run("fetch", "--quiet", "--depth=1", "--no-tags", "--no-recurse-submodules", *target)
            return
        except GitFailed as failure:
            # A branch was moved between the list of the server's branches and the request of its commit.
            if not failure.lacks_commit or attempt == _FETCHES - 1 or FULL_COMMIT.fullmatch(ref):
                raise


def _pack(
    folder: Path, listing: _CommitFiles
) -> tuple[PackedTree, tuple[ExcludedFile, ...], tuple[str, ...]]:
    shutil.rmtree(folder / ".git")
    # each file is tracked, so `.gitignore` leaves out none
    tree = pack_tree(folder, rules=replace(CODE_RULES, files=(HOPIGNORE,), include_parents=False))
    left_out = itertools.islice(_left_out(tree, listing.paths), _MAX_NAMED)
    return tree, tuple(left_out), tuple(itertools.islice(find_lfs_pointers(tree), _MAX_NAMED))


def _left_out(tree: PackedTree, paths: Sequence[bytes]) -> Iterator[ExcludedFile]:
    manifest = Manifest.decode(tree.encoded)
    packed = {os.fsencode(file.path) for file in manifest.files}
    packed |= {os.fsencode(link.path) for link in manifest.links}
    reasons = {os.fsencode(entry.path.rstrip("/")): entry.reason for entry in tree.left_out}
    reasons |= {os.fsencode(path): "a link out of the code" for path, _ in tree.outside_links}
    for path in paths:
        if path not in packed:
            parts = path.split(b"/")
            above = (b"/".join(parts[: count + 1]) for count in range(len(parts)))
            reason = next((reasons[each] for each in above if each in reasons), "left out by default")
            yield ExcludedFile(escape(path.decode(errors="replace")), escape(reason))


def _check_listing(listing: bytes, max_bytes: int) -> _CommitFiles:
    """Parses the output of `ls-tree -r -l -z`. Raises SpecError for a tree that is too large."""
    submodules, paths = list[str](), list[bytes]()
    total = 0
    for entry in filter(None, listing.split(b"\0")):
        head, _, path = entry.partition(b"\t")
        _, kind, _, size = head.split()
        if kind == b"commit":
            submodules.append(escape(path.decode(errors="replace")))
        else:
            total += int(size)
            paths.append(path)
    if len(paths) + len(submodules) > MAX_FILES or total > max_bytes:
        raise SpecError(
            f"address: the repository has {len(paths):,} files of {format_bytes(total)}, and "
            f"{MAX_FILES:,} files of {format_bytes(max_bytes)} are allowed",
            hints=("push data with `hop dataset push`, and keep the code apart",),
        )
    return _CommitFiles(tuple(submodules), tuple(paths))


class _Git:
    """Runs git in a folder."""

    def __init__(self, folder: Path, address: GitAddress, settings: GitSettings) -> None:
        self._folder = folder
        self._blocks = str(settings.max_bytes // _BLOCK_BYTES)
        self._environment = {
            **{name: os.environ[name] for name in (*_PASSED, *_PASSED_OF_GIT) if name in os.environ},
            "HOME": str(folder / ".git"),
            "LC_ALL": "C",
            "GIT_CONFIG_NOSYSTEM": "1",
            "GIT_CONFIG_GLOBAL": os.devnull,
            "GIT_TERMINAL_PROMPT": "0",
            "GIT_ALLOW_PROTOCOL": address.scheme,
            "GIT_SSH_COMMAND": _SSH,
            "GIT_CEILING_DIRECTORIES": str(folder.parent),
            "GIT_LFS_SKIP_SMUDGE": "1",
        }

    async def run(self, *arguments: str) -> bytes:
        """Returns the output of a command. Raises GitFailed, and SpecError if it prints too much."""
        words = ["git", *(word for setting in _SETTINGS for word in ("-c", setting)), *arguments]
        folder = self._folder.parent
        # Files, not pipes: uvloop leaves the ends of its pipes open in the program that watches git, so they
        # would never end.
        with _open_scratch(folder) as output, _open_scratch(folder) as errors:
            errors.write(bytes(_MAX_ERROR_BYTES))  # the disk may be full when git reports that
            errors.seek(0)
            watched, held = os.pipe()
            try:
                code = await self._wait(words, watched, output, errors)
            finally:
                os.close(watched)
                os.close(held)
            if code:
                text = _begin(errors, _MAX_ERROR_BYTES).rstrip(b"\0")
                raise GitFailed(code, text.decode(errors="replace"))
            listing = _begin(output, _MAX_LISTING_BYTES + 1)
        if len(listing) > _MAX_LISTING_BYTES:
            raise SpecError("address: the repository has too many files", hints=("upload a part of it",))
        return listing

    async def _wait(self, words: Sequence[str], watched: int, output: BinaryIO, errors: BinaryIO) -> int:
        """Returns the exit status of git, which ends with the other end of the pipe `watched`."""
        process = await asyncio.create_subprocess_exec(
            *("/bin/sh", "-c", _WATCHED, self._blocks, *words),
            stdin=watched,
            stdout=output,
            stderr=errors,
            env=self._environment,
            cwd=self._folder,
            start_new_session=True,
        )
        try:
            return await process.wait()
        finally:
            _kill_group(process.pid)
            await process.wait()


def _kill_group(pid: int) -> None:
    """Ends git with the programs that it started, and the one that watches it."""
    with suppress(ProcessLookupError):
        os.killpg(pid, 9)


def _open_scratch(folder: Path) -> BinaryIO:
    return cast(BinaryIO, tempfile.TemporaryFile(dir=folder, buffering=0))


def _begin(file: BinaryIO, limit: int) -> bytes:
    file.seek(0)
    parts = list[bytes]()
    while limit > 0 and (data := file.read(min(limit, 2**20))):
        parts.append(data)
        limit -= len(data)
    return b"".join(parts)
