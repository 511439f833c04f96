"""Looks up and lists the files of a stored tree by path, without its objects: about 100 bytes a file beside
its path."""

from __future__ import annotations

from array import array
from bisect import bisect_left
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from enum import StrEnum
from itertools import accumulate, pairwise
from typing import Any

import msgspec

from hopyard.domain.ids import Digest

_DIGEST_BYTES = 32
_FILE_BYTES = 90  # of one file beside its path: a string, a reference, a size and an offset
_AFTER_SLASH = chr(ord("/") + 1)


class EntryKind(StrEnum):
    FILE = "file"
    FOLDER = "folder"
    LINK = "link"


@dataclass(frozen=True, slots=True)
class TreeEntry:
    """A file, a symbolic link, or a folder with all files below it. path: relative to the tree, in the form
    of the manifest. files: the number of files, 0 for a link. target: of a link."""

    path: str
    kind: EntryKind
    size_bytes: int
    files: int
    target: str = ""

    @property
    def key(self) -> str:
        """The place of the entry in the order of a listing."""
        return f"{self.path}/" if self.kind is EntryKind.FOLDER else self.path


@dataclass(frozen=True, slots=True)
class FileIndex:
    """The files and links of a tree, sorted by path. sizes[i]: the total size of the files before `i`.
    chunk_offsets[i]: the number of chunks before `i`. chunks: their raw digests. encoded: as in
    `Manifest`."""

    paths: list[str]
    sizes: array[int]
    chunk_offsets: array[int]
    chunks: bytes
    links: Mapping[str, str]
    encoded: bool

    @classmethod
    def of_manifest(cls, data: bytes) -> FileIndex:
        """Reads the bytes of a manifest that was checked when it was stored."""
        tree: Any = msgspec.json.decode(data)
        links = dict(tree["links"])
        rows = [(path, size, chunks) for path, size, _, chunks in tree["files"]]
        if links:
            rows = sorted([*rows, *((path, 0, ()) for path in links)], key=lambda row: row[0])
        return cls(
            [row[0] for row in rows],
            array("Q", accumulate((row[1] for row in rows), initial=0)),
            array("Q", accumulate((len(row[2]) for row in rows), initial=0)),
            b"".join(bytes.fromhex(chunk) for row in rows for chunk in row[2]),
            links,
            "encoded" in tree,
        )

    @property
    def memory_bytes(self) -> int:
        """About the memory of the index."""
        return len(self.chunks) + sum(map(len, self.paths)) + _FILE_BYTES * len(self.paths)

    def find(self, path: str) -> tuple[int, list[Digest]] | None:
        """Returns the size of a file, and its chunks. Returns None for an unknown path, a folder or a
        link."""
        at = bisect_left(self.paths, path)
        if at == len(self.paths) or self.paths[at] != path or path in self.links:
            return None
        begin, end = self.chunk_offsets[at], self.chunk_offsets[at + 1]
        offsets = range(begin * _DIGEST_BYTES, (end + 1) * _DIGEST_BYTES, _DIGEST_BYTES)
        digests = [Digest(self.chunks[start:stop].hex()) for start, stop in pairwise(offsets)]
        return self.sizes[at + 1] - self.sizes[at], digests

    def children(self, folder: str, *, after: str = "") -> Iterator[TreeEntry]:
        """Yields what a folder contains directly, by path; "" is the top. after: only entries after this
        `key`. Yields nothing for an unknown folder."""
        prefix = f"{folder}/" if folder else ""
        end = self._end_of(prefix)
        at = max(bisect_left(self.paths, prefix), self._position_after(after))
        while at < end:
            path = self.paths[at]
            name, separator, _ = path[len(prefix) :].partition("/")
            if not separator:
                yield self._entry(at)
                at += 1
                continue
            past = self._end_of(f"{prefix}{name}/")
            files = past - at - (self._count_links(at, past) if self.links else 0)
            yield TreeEntry(prefix + name, EntryKind.FOLDER, self.sizes[past] - self.sizes[at], files)
            at = past

    def search(self, text: str, *, folder: str = "", after: str = "") -> Iterator[TreeEntry]:
        """Yields the files and links below a folder that have a text in their path, in any case. after: only
        entries after this `key`."""
        prefix = f"{folder}/" if folder else ""
        begin = max(bisect_left(self.paths, prefix), self._position_after(after))
        wanted = text.casefold()
        for at in range(begin, self._end_of(prefix)):
            if wanted in self.paths[at].casefold():
                yield self._entry(at)

    def has_folder(self, folder: str) -> bool:
        """Returns whether a file or link is below this folder."""
        prefix = f"{folder}/" if folder else ""
        return bisect_left(self.paths, prefix) < self._end_of(prefix)

    def _entry(self, at: int) -> TreeEntry:
        path = self.paths[at]
        target = self.links.get(path)
        if target is not None:
            return TreeEntry(path, EntryKind.LINK, 0, 0, target)
        return TreeEntry(path, EntryKind.FILE, self.sizes[at + 1] - self.sizes[at], 1)

    def _position_after(self, key: str) -> int:
        if not key:
            return 0
        if key.endswith("/"):
            return self._end_of(key)
        at = bisect_left(self.paths, key)
        return at + 1 if at < len(self.paths) and self.paths[at] == key else at

    def _end_of(self, prefix: str) -> int:
        """Returns the position after the last path with this prefix, which is "" or ends in a slash."""
        return bisect_left(self.paths, prefix[:-1] + _AFTER_SLASH) if prefix else len(self.paths)

    def _count_links(self, begin: int, end: int) -> int:
        return sum(self.paths[at] in self.links for at in range(begin, end))
