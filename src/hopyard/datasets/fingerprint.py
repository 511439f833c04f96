"""Detects changes below a folder from the metadata of its files, without reading them.

Every change of a file's bytes, mode or links sets its ctime, and no program can reset the ctime.
"""

from __future__ import annotations

import os
import stat
from hashlib import blake2b


def fingerprint(top: str | os.PathLike[str], *, excluded: str = "") -> str:
    """Returns a digest that changes when an entry below `top` is written, added, removed or renamed, or
    changes its mode.

    excluded: the name of an entry of `top` to skip. Raises OSError.
    """
    digest = blake2b(digest_size=16)
    pending = [os.fspath(top)]
    while pending:
        folder = pending.pop()
        with os.scandir(folder) as listing:
            entries = sorted(listing, key=lambda entry: entry.name)
        for entry in entries:
            if entry.name == excluded and folder == os.fspath(top):
                continue
            entry_stat = entry.stat(follow_symlinks=False)
            metadata = [entry.name, entry_stat.st_mode, entry_stat.st_ino]
            if stat.S_ISDIR(entry_stat.st_mode):
                pending.append(entry.path)
            else:
                metadata += [entry_stat.st_size, entry_stat.st_mtime_ns, entry_stat.st_ctime_ns]
            digest.update(repr(metadata).encode(errors="surrogateescape"))
        digest.update(b"\0")
    return digest.hexdigest()
