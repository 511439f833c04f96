"""Packages that requirements take from the disk: archives of the code, folders of links, local indexes.

An environment with such packages belongs to its user alone. Its key covers their bytes, or their times in an
index.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from urllib.parse import unquote, urlsplit

from blake3 import blake3

from hopyard.replica.errors import PrepareFailed
from hopyard.replica.requirement_text import local_archives

FIND_LINKS = re.compile(rb"^\s*(?:-f|--find-links)(?:\s+|=)(\S+)", re.MULTILINE)
_LOCAL_INDEX = re.compile(rb"^\s*(?:-i|--(?:extra-)?index-url)(?:\s+|=)(file:\S+)", re.MULTILINE)


def local_links(lock: bytes) -> list[str]:
    """Returns the local folders from which a lock takes packages (`--find-links`)."""
    links = (os.fsdecode(link).removeprefix("file://") for link in FIND_LINKS.findall(lock))
    return [link for link in links if "://" not in link]


def _local_indexes(lock: bytes) -> list[Path]:
    """Returns the folders that a lock uses as package indexes (`--index-url file:///…`)."""
    urls = (os.fsdecode(url) for url in _LOCAL_INDEX.findall(lock))
    return [Path(unquote(urlsplit(url).path)) for url in urls]


def is_local(lock: bytes) -> bool:
    """Returns whether a package comes from the disk, where another one may be at another time."""
    return bool(local_links(lock) or _local_indexes(lock) or local_archives(lock))


def _index_digest(lock: bytes, versions: Mapping[str, str]) -> bytes:
    """Returns a digest of the files that these indexes have of the packages of the lock."""
    digests = b""
    for index in _local_indexes(lock):
        for name in sorted(versions):
            with suppress(OSError):  # uv reports it
                for file in sorted((index / name).iterdir()):
                    seen = file.stat()
                    digests += f"\n{name}/{file.name} {seen.st_size} {seen.st_mtime_ns}".encode(
                        errors="surrogateescape"
                    )
    return digests


def _link_folder_digest(links: Sequence[str], cwd: Path) -> bytes:
    """Returns a digest of the files in these folders: other files make another environment."""
    digests = b""
    for link in links:
        with suppress(OSError):  # uv reports it
            for file in sorted(path for path in (cwd / link).iterdir() if path.is_file()):
                digests += b"\n" + os.fsencode(file.name) + blake3(file.read_bytes()).digest()
    return digests


def local_digest(lock: bytes, versions: Mapping[str, str], cwd: Path) -> bytes:
    """Returns a digest of all that a lock takes from the disk. versions: of its packages. cwd: the base of
    relative paths. Raises PrepareFailed for an archive that was not packed."""
    return (
        _link_folder_digest(local_links(lock), cwd)
        + _index_digest(lock, versions)
        + _archive_digest(local_archives(lock), cwd)
    )


def _archive_digest(archives: Sequence[str], cwd: Path) -> bytes:
    """Returns a digest of archives of the code. Raises PrepareFailed for one that was not packed."""
    digests = b""
    for archive in archives:
        try:
            digests += b"\n" + blake3((cwd / archive).read_bytes()).digest()
        except OSError as error:
            raise PrepareFailed(
                f"{archive}, which the requirements install, is not in the packed code"
            ) from error
    return digests


def reject_local_requirements(lock: str) -> None:
    archives = set(local_archives(lock.encode(errors="surrogateescape")))
    for line in lock.splitlines():
        if line.split(" ")[0] in archives:
            continue
        if FIND_LINKS.search(os.fsencode(line)) or _LOCAL_INDEX.search(os.fsencode(line)):
            continue
        if line.startswith(("-e", ".", "/")) or "file://" in line:
            raise PrepareFailed(
                f"the requirements install a local folder (`{line.strip()}`), which other runs cannot "
                "share; the code of the run is importable without it"
            )
