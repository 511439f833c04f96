"""The digests of some files of a cached tree. They are compared with the bytes on disk before a run reads
them: metadata alone does not show that a disk returns other bytes than were written."""

from __future__ import annotations

import json
import os
import random
from contextlib import suppress
from pathlib import Path

from blake3 import blake3

from hopyard.domain.manifest import CHUNK_BYTES, Manifest
from hopyard.private_files import write_atomically

_STORED_FILES = 64  # of a tree
_READ_FILES = 3  # at each use


def write_sample(tree: Manifest, path: Path) -> None:
    """Stores the first digests of some files, evenly spread. Without space the tree has no sample."""
    files = [file for file in tree.files if file.chunks]
    step = -(-len(files) // _STORED_FILES) or 1
    entries = [[file.path, file.size, file.chunks[0]] for file in files[::step]]
    with suppress(OSError):
        write_atomically(path, b"" if tree.encoded else json.dumps(entries).encode())


def find_sample_damage(tree: Path, path: Path) -> str:
    """Returns the path of a file of `tree` with another size or other first bytes than stored; "" if there is
    none. Reads a few files, chosen at random."""
    try:
        entries = json.loads(path.read_bytes())
    except (OSError, ValueError):
        return ""  # a tree of an earlier version, or without space for the sample
    for name, size, digest in random.sample(entries, min(_READ_FILES, len(entries))):
        try:
            with (tree / name).open("rb") as file:
                is_intact = os.fstat(file.fileno()).st_size == size
                if not is_intact or blake3(file.read(CHUNK_BYTES)).hexdigest() != digest:
                    return str(name)
        except OSError:
            return str(name)
    return ""
