"""The cache of the packer for one folder: the manifest of the last pack, and the metadata of each file.

One file per folder: a header line that suffices to detect that nothing changed, then the manifest and the
timestamps of the files.

A file that is written at the moment of the read can change again with equal timestamps (git calls such an
entry racily clean). The cache stores such files as unknown, and the next pack reads them again.
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
# how long after a write its timestamp may still repeat, by the resolution of the timestamp
_FINE_TIMESTAMP_NS, _COARSE_TIMESTAMP_NS = 50_000_000, 2_000_000_000
_MASK = (1 << 64) - 1


class TreeSummary(NamedTuple):
    """Everything that a push of an unchanged tree needs."""

    digest: Digest
    size_bytes: int
    files: int


class CachedFile(NamedTuple):
    """A file as it was read: size, timestamps, and the digests of its chunks."""

    size: int
    mtime: int
    ctime: int
    inode: int
    chunks: tuple[Digest, ...]

    def matches(self, file: ScannedFile) -> bool:
        stamps = (file[SIZE], file[MTIME] & _MASK, file[CTIME] & _MASK, file[INODE] & _MASK)
        return stamps == (self.size, self.mtime, self.ctime, self.inode)


class StatCache:
    """The cache of one folder packed under one set of rules. A damaged cache file counts as empty."""

    def __init__(self, folder: Path, root: Path, rules: str) -> None:
        self._path = folder / blake3(f"{rules}\0{root}".encode(errors="surrogateescape")).hexdigest()[:32]

    def summary_if_unchanged(self, scan: FolderScan) -> TreeSummary | None:
        """Returns the last packed tree if nothing in `scan` has changed since; else None."""
        header = self._header()
        if header is None or not header["fingerprint"] or header["fingerprint"] != scan_fingerprint(scan):
            return None
        return TreeSummary(Digest(header["digest"]), header["size_bytes"], header["files"])

    def manifest(self) -> bytes | None:
        """Returns the bytes of the last packed manifest."""
        contents = self._load()
        return contents[0] if contents else None

    def files(self) -> dict[str, CachedFile]:
        """Returns the cached files by path, without those that cannot be trusted."""
        contents = self._load()
        if contents is None:
            return {}
        encoded, stamps = contents
        files: dict[str, CachedFile] = {}
        for index, (path, size, _executable, chunks) in enumerate(json.loads(encoded)["files"]):
            mtime, ctime, inode = stamps[3 * index : 3 * index + 3]
            if inode:
                files[path] = CachedFile(size, mtime, ctime, inode, tuple(chunks))
        return files

    def save(self, scan: FolderScan, began_ns: int, summary: TreeSummary, encoded: bytes) -> None:
        """Stores a tree that was scanned at `began_ns`. Ignores a cache that cannot be written."""
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
    """Returns one digest of all that is packed: equal only if every path and timestamp is equal."""
    import marshal

    packed = (scan.files, scan.links, scan.folders, scan.homes)
    return blake3(marshal.dumps(packed, 2)).hexdigest()  # version 2: equal values give equal bytes


def _is_settled(file: ScannedFile, began_ns: int) -> bool:
    """Returns whether a later change of the file would change its timestamps."""
    newest = max(file[MTIME], file[CTIME])
    resolution_ns = (
        _COARSE_TIMESTAMP_NS
        if file[MTIME] % 1_000_000_000 == 0 and file[CTIME] % 1_000_000_000 == 0
        else _FINE_TIMESTAMP_NS
    )
    return newest + resolution_ns < began_ns
