"""Fetches the code of a run from a git repository, and packs it.

Git runs with an empty configuration of its own: without hooks, credentials, filters, submodules, redirects
and other protocols than that of the address.
"""

from __future__ import annotations

import asyncio
import os
import shutil
import tempfile
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import BinaryIO, NamedTuple

from hopyard.config.git_settings import GitSettings
from hopyard.datasets.ignore_rules import HOPIGNORE
from hopyard.datasets.pack import CODE_RULES, pack_tree
from hopyard.datasets.packed_tree import PackedTree
from hopyard.domain.byte_text import format_bytes
from hopyard.domain.git_address import GitAddress
from hopyard.domain.text import escape
from hopyard.errors import SpecError

MAX_FILES = 100_000
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


class GitCode(NamedTuple):
    """The packed files of a commit. submodules: their paths, which are empty in the tree."""

    tree: PackedTree
    commit: str
    submodules: tuple[str, ...]


async def fetch_git_code(folder: Path, address: GitAddress, ref: str, settings: GitSettings) -> GitCode:
    """Returns the code of a branch, tag or commit, "" for the default branch. folder: an empty one, which the
    caller removes. Raises SpecError for a repository that cannot be fetched or is too large."""
    git = _Git(folder, address, settings)
    try:
        async with asyncio.timeout(settings.timeout_s):
            await git.run("init", "--quiet", "--template=")
            target = ("--", address.url, ref or "HEAD")
            await git.run("fetch", "--quiet", "--depth=1", "--no-tags", "--no-recurse-submodules", *target)
            commit = (await git.run("rev-parse", "FETCH_HEAD^{commit}")).decode().strip()
            submodules = _check_listing(
                await git.run("ls-tree", "-r", "-l", "-z", "FETCH_HEAD"), settings.max_bytes
            )
            await git.run("checkout", "--quiet", "--detach", "FETCH_HEAD")
    except TimeoutError:
        raise SpecError(
            f"address: the repository was not fetched within {settings.timeout_s:.0f} s",
            hints=("clone it on your machine, and upload the folder",),
        ) from None
    tree = await asyncio.to_thread(_pack, folder)
    return GitCode(tree, commit, submodules)


def _pack(folder: Path) -> PackedTree:
    shutil.rmtree(folder / ".git")
    # each file is tracked, so `.gitignore` leaves out none
    return pack_tree(folder, rules=replace(CODE_RULES, files=(HOPIGNORE,), include_parents=False))


def _check_listing(listing: bytes, max_bytes: int) -> tuple[str, ...]:
    """Returns the submodules of `ls-tree -r -l -z`. Raises SpecError for a tree that is too large."""
    entries = [entry for entry in listing.split(b"\0") if entry]
    submodules: list[str] = []
    total = 0
    for entry in entries:
        head, _, path = entry.partition(b"\t")
        _, kind, _, size = head.split()
        if kind == b"commit":
            submodules.append(escape(path.decode(errors="replace")))
        else:
            total += int(size)
    if len(entries) > MAX_FILES or total > max_bytes:
        raise SpecError(
            f"address: the repository has {len(entries):,} files of {format_bytes(total)}, and "
            f"{MAX_FILES:,} files of {format_bytes(max_bytes)} are allowed",
            hints=("push data with `hop dataset push`, and keep the code apart",),
        )
    return tuple(submodules)


class _Git:
    """Runs git in a folder. url: for messages."""

    def __init__(self, folder: Path, address: GitAddress, settings: GitSettings) -> None:
        self._folder, self._url = folder, address.url
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
        """Returns the output of a command. Raises SpecError if it fails, or prints too much."""
        words = ["git", *(word for setting in _SETTINGS for word in ("-c", setting)), *arguments]
        folder = self._folder.parent
        # Files, not pipes: uvloop leaves the ends of its pipes open in the program that watches git, so they
        # would never end.
        with tempfile.TemporaryFile(dir=folder) as output, tempfile.TemporaryFile(dir=folder) as errors:
            watched, held = os.pipe()
            try:
                code = await self._wait(words, watched, output, errors)
            finally:
                os.close(watched)
                os.close(held)
            if code:
                raise _failure(self._url, _begin(errors, _MAX_ERROR_BYTES).decode(errors="replace"))
            text = _begin(output, _MAX_LISTING_BYTES + 1)
        if len(text) > _MAX_LISTING_BYTES:
            raise SpecError("address: the repository has too many files", hints=("upload a part of it",))
        return text

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


def _begin(file: BinaryIO, limit: int) -> bytes:
    file.seek(0)
    return file.read(limit)


def _failure(url: str, errors: str) -> SpecError:
    lines: Sequence[str] = [line for line in errors.splitlines() if line.strip()]
    reason = escape(lines[-1].removeprefix("fatal: ")[:300]) if lines else "git failed"
    if any("could not read Username" in line or "Authentication failed" in line for line in lines):
        reason = "it does not exist, or is private"
    if any("couldn't find remote ref" in line for line in lines):
        reason = "it has no such branch or tag"
    return SpecError(
        f"address: {url} cannot be fetched: {reason}",
        hints=("check the address and the branch", "or clone it on your machine, and upload the folder"),
    )
