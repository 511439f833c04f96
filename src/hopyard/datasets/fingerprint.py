"""Whether a folder is as it was left, told from what the kernel writes down of each file, without reading
any.

Every change of a file's bytes, mode or links sets its ctime, and no program can set that back.
"""

from __future__ import annotations

import os
import stat
from hashlib import blake2b


def fingerprint(top: str | os.PathLike[str], *, excluded: str = "") -> str:
    """Differs after anything below `top` was written, added, removed or renamed, or changed its mode.
    excluded: the name of an entry of `top` that does not count. Raises OSError."""
    found = blake2b(digest_size=16)
    pending = [os.fspath(top)]
    while pending:
        folder = pending.pop()
        with os.scandir(folder) as listing:
            entries = sorted(listing, key=lambda entry: entry.name)
        for entry in entries:
            if entry.name == excluded and folder == os.fspath(top):
                continue
            about = entry.stat(follow_symlinks=False)
            told = [entry.name, about.st_mode, about.st_ino]
            if stat.S_ISDIR(about.st_mode):
                pending.append(entry.path)
            else:
                told += [about.st_size, about.st_mtime_ns, about.st_ctime_ns]
            found.update(repr(told).encode(errors="surrogateescape"))
        found.update(b"\0")
    return found.hexdigest()
