"""Reads the text of requirements that `hop run` sends: one file without includes."""

from __future__ import annotations

import os
import re

CONSTRAINT_MARK = b"#:constraint "  # begins a line with a constraint
NO_INDEX = re.compile(rb"^[ \t]*--no-index\b", re.MULTILINE)
_HASHES = re.compile(rb"^(?!#).*\s--hash[=\s]|^--require-hashes\b", re.MULTILINE)
_REQUIREMENT = re.compile(rb"^[A-Za-z0-9]")
_ARCHIVE = re.compile(rb"^(\./[^\s;\[]+\.(?:whl|zip|tgz|tar\.gz|tar\.bz2|tar\.xz))(?![^\s;\[])", re.MULTILINE)


def split_constraints(text: bytes) -> tuple[bytes, bytes]:
    """Returns the requirements and the constraints."""
    lines = text.splitlines(keepends=True)
    constraints = [line.removeprefix(CONSTRAINT_MARK) for line in lines if line.startswith(CONSTRAINT_MARK)]
    return b"".join(line for line in lines if not line.startswith(CONSTRAINT_MARK)), b"".join(constraints)


def hash_lock(text: bytes) -> bytes | None:
    """Returns the text as a lock if it names hashes, None otherwise.

    By pip's rule, one hash makes hashes and exact versions mandatory for all packages. Such a text is a lock
    already, and a resolution would lose the hashes.
    """
    if not _HASHES.search(text):
        return None
    requirements, _ = split_constraints(text)
    kept = [line for line in requirements.splitlines() if line.strip() and not line.startswith(b"#")]
    return b"\n".join(kept) + b"\n"


def local_archives(lock: bytes) -> list[str]:
    """Returns the archives of the code that a lock installs, as paths from the working folder."""
    return [os.fsdecode(path) for path in _ARCHIVE.findall(lock) if b"/../" not in path]


def has_hashes(lock: bytes) -> bool:
    """Returns whether an installation must verify hashes."""
    return _HASHES.search(lock) is not None
