"""Reads the blobs in the folders of a home or a backup. It needs no server and changes nothing."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path

from blake3 import blake3

from hopyard.backup.layout import LARGE_BLOBS, PACKS
from hopyard.domain.ids import Digest
from hopyard.stores.blobs.index import OWN_FILE_PACK
from hopyard.stores.blobs.packs import pack_number, read_frames, read_valid_frames

_READ_BYTES = 4 * 1024 * 1024


class BlobFolderReader:
    """Finds and reads blobs below `root`: a home or a backup.

    index: an index of these blobs, in a file of its own. The headers of packs that the index lacks are read.
    """

    def __init__(self, root: Path, index: Path) -> None:
        self._root = root
        self.large_folder = {
            path.name: path.relative_to(root)
            for path in (root / LARGE_BLOBS).glob("??/*")
            if len(path.name) == 64
        }
        self._packs_folder = {
            pack: PACKS / path.name
            for path in (root / PACKS).glob("*")
            if (pack := pack_number(path.name)) is not None
        }
        self._locations: dict[bytes, tuple[int, int, int]] = {}
        indexed_packs = set[int]()
        if index.exists():
            with closing(sqlite3.connect(f"{index.absolute().as_uri()}?mode=ro", uri=True)) as connection:
                indexed_packs = {row[0] for row in connection.execute("SELECT id FROM packs")}
                rows = connection.execute(
                    "SELECT digest, pack, offset, size FROM blobs WHERE pack != ?", (OWN_FILE_PACK,)
                )
                self._locations = {
                    digest: location for digest, *location in rows if location[0] in self._packs_folder
                }
        for pack in self._packs_folder.keys() - indexed_packs:
            for digest, offset, size in read_frames(root / self._packs_folder[pack]):
                self._locations.setdefault(digest, (pack, offset, size))

    def find(self, digest: Digest) -> Path | None:
        """Returns the file that holds the blob, relative to `root`; None if it is not stored."""
        if digest in self.large_folder:
            return self.large_folder[digest]
        location = self._locations.get(bytes.fromhex(digest))
        return None if location is None else self._packs_folder[location[0]]

    def read(self, digest: Digest) -> bytes | None:
        """Returns the blob, or None if it is missing or damaged."""
        path = self.find(digest)
        if path is None:
            return None
        try:
            with (self._root / path).open("rb") as file:
                if digest in self.large_folder:
                    data = file.read()
                else:
                    _, offset, size = self._locations[bytes.fromhex(digest)]
                    file.seek(offset)
                    data = file.read(size)
        except OSError:
            return None
        return data if blake3(data).hexdigest() == digest else None


def is_intact(path: Path) -> bool:
    """Returns whether a pack or a large blob matches its digests."""
    if len(path.name) == 64:
        digest = blake3()
        with path.open("rb") as file:
            while block := file.read(_READ_BYTES):
                digest.update(block)
        return digest.hexdigest() == path.name
    heads = list(read_frames(path))
    end = heads[-1][1] + heads[-1][2] if heads else 0
    return end == path.stat().st_size and len(list(read_valid_frames(path))) == len(heads)
