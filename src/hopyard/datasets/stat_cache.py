"""What the packer remembers of a folder: the manifest it made, and how each file looked when it was read.

One file per folder: a header line that is enough to know that nothing changed, then the manifest and the
files' stamps.

A file that was written in the very moment in which it was read can change again without its stamps telling
(git calls such an entry racily clean). Those are remembered as unknown and read anew the next time.
"""

from __future__ import annotations

import json
import sys
from array import array
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

from blake3 import blake3

from hopyard.datasets.folder_scan import CTIME, INODE, MTIME, SIZE, FolderScan, ScannedFile
from hopyard.domain.ids import Digest
from hopyard.private_files import write_atomically

_FORMAT = 2
_HEADER_BYTES = 4096
# how long after a write its stamp may still repeat, by the stamp's grain
_FINE_TIMESTAMP_NS, _COARSE_TIMESTAMP_NS = 50_000_000, 2_000_000_000
_MASK = (1 << 64) - 1


class TreeSummary(NamedTuple):
    """All that pushing an unchanged tree needs."""

    digest: Digest
    size_bytes: int
    files: int


class CachedFile(NamedTuple):
    """A file as it was when it was read: size, stamps, and the digests of its chunks."""

    size: int
    mtime: int
    ctime: int
    inode: int
    chunks: tuple[Digest, ...]

    def matches(self, file: ScannedFile) -> bool:
        stamps = (file[SIZE], file[MTIME] & _MASK, file[CTIME] & _MASK, file[INODE] & _MASK)
        return stamps == (self.size, self.mtime, self.ctime, self.inode)


class StatCache:
    """The memory of one folder packed under one set of rules.
    Anything wrong with its file means that nothing is known."""

    def __init__(self, folder: Path, root: Path, rules: str) -> None:
        self._path = folder / blake3(f"{rules}\0{root}".encode(errors="surrogateescape")).hexdigest()[:32]

    def summary_if_unchanged(self, scan: FolderScan) -> TreeSummary | None:
        """The tree as it was packed last, if nothing that `scan` tells has changed since."""
        header = self._header()
        if header is None or not header["fingerprint"] or header["fingerprint"] != scan_fingerprint(scan):
            return None
        return TreeSummary(Digest(header["digest"]), header["size_bytes"], header["files"])

    def manifest(self) -> bytes | None:
        """The bytes of the manifest packed last."""
        found = self._load()
        return found[0] if found else None

    def files(self) -> dict[str, CachedFile]:
        """What is known of each file; those that cannot be trusted are left out."""
        found = self._load()
        if found is None:
            return {}
        encoded, stamps = found
        known: dict[str, CachedFile] = {}
        for at, (path, size, _executable, chunks) in enumerate(json.loads(encoded)["files"]):
            mtime, ctime, inode = stamps[3 * at : 3 * at + 3]
            if inode:
                known[path] = CachedFile(size, mtime, ctime, inode, tuple(chunks))
        return known

    def save(self, scan: FolderScan, began_ns: int, summary: TreeSummary, encoded: bytes) -> None:
        """Remember a tree that was looked over at `began_ns`.
        A cache that cannot be written is no reason to fail."""
        stamps, trusted = array("Q"), True
        for file in scan.files:
            if _is_settled(file, began_ns):
                stamps.extend((file[MTIME] & _MASK, file[CTIME] & _MASK, file[INODE] & _MASK))
            else:
                stamps.extend((0, 0, 0))
                trusted = False
        if sys.byteorder != "little":
            stamps.byteswap()
        body = encoded + stamps.tobytes()
        header = {
            "format": _FORMAT,
            "fingerprint": scan_fingerprint(scan) if trusted else "",
            "encoded_bytes": len(encoded),
            "body": blake3(body).hexdigest(),
            **summary._asdict(),
        }
        try:
            write_atomically(self._path, json.dumps(header).encode() + b"\n" + body)
        except OSError:
            pass

    def delete(self) -> None:
        with suppress(OSError):
            self._path.unlink()

    def _header(self) -> dict[str, Any] | None:
        try:
            with self._path.open("rb") as file:
                header = json.loads(file.read(_HEADER_BYTES).partition(b"\n")[0])
        except (OSError, ValueError):
            return None
        return header if isinstance(header, dict) and header.get("format") == _FORMAT else None

    def _load(self) -> tuple[bytes, array[int]] | None:
        header = self._header()
        if header is None:
            return None
        try:
            body = self._path.read_bytes().partition(b"\n")[2]
        except OSError:
            return None
        if blake3(body).hexdigest() != header["body"]:
            return None
        stamps = array("Q")
        stamps.frombytes(body[header["encoded_bytes"] :])
        if sys.byteorder != "little":
            stamps.byteswap()
        return body[: header["encoded_bytes"]], stamps


def scan_fingerprint(scan: FolderScan) -> str:
    """One digest of everything that was looked over: equal only if every path and stamp is."""
    import marshal

    return blake3(marshal.dumps(tuple(scan), 2)).hexdigest()  # version 2: equal values give equal bytes


def _is_settled(file: ScannedFile, began_ns: int) -> bool:
    """Whether a later change of the file would show in its stamps."""
    newest = max(file[MTIME], file[CTIME])
    grain = (
        _COARSE_TIMESTAMP_NS
        if file[MTIME] % 1_000_000_000 == 0 and file[CTIME] % 1_000_000_000 == 0
        else _FINE_TIMESTAMP_NS
    )
    return newest + grain < began_ns
