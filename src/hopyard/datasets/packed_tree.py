"""A tree that was packed: its manifest, and where on this machine each of its blobs can be read."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Sequence
from functools import cached_property
from pathlib import Path
from typing import NamedTuple

from blake3 import blake3

from hopyard.datasets.folder_scan import changed_error
from hopyard.domain.ids import Digest
from hopyard.domain.manifest import CHUNK_BYTES
from hopyard.errors import HopyardError, SpecError


class FileSlice(NamedTuple):
    """A part of a file."""

    path: str
    offset: int
    size: int


class PackedTree:
    """What `pack` found. `digest` names the manifest; `size_bytes` and `files` count what it holds.
    `homes` are the homes of Hopyard below it that were left out, and parts of them.

    The manifest's bytes are produced only when they are needed: pushing a tree that did not change needs its
    digest alone.
    """

    def __init__(
        self,
        root: Path,
        digest: Digest,
        *,
        size_bytes: int,
        files: int,
        encode: Callable[[], bytes],
        invalidate_cache: Callable[[], None],
        single: bool,
        homes: Sequence[str] = (),
    ) -> None:
        self.root, self.digest, self.size_bytes, self.files, self.homes = (
            root,
            digest,
            size_bytes,
            files,
            tuple(homes),
        )
        self._encode, self._invalidate_cache, self._single = encode, invalidate_cache, single

    @cached_property
    def encoded(self) -> bytes:
        """The manifest's canonical bytes."""
        return self._encode()

    @cached_property
    def sources(self) -> dict[Digest, FileSlice]:
        """Where each blob of the tree can be read (the manifest itself excepted)."""
        import json

        found: dict[Digest, FileSlice] = {}
        for path, size, _executable, chunks in json.loads(self.encoded)["files"]:
            for number, digest in enumerate(chunks):
                offset = number * CHUNK_BYTES
                found.setdefault(digest, FileSlice(path, offset, min(CHUNK_BYTES, size - offset)))
        return found

    def blobs(self) -> list[Digest]:
        """Every blob that a server needs to hold the tree, each once, the manifest last."""
        return [*self.sources, self.digest]

    def size_of(self, digests: Iterable[Digest]) -> int:
        return sum(
            len(self.encoded) if digest == self.digest else self.sources[digest].size for digest in digests
        )

    def read(self, digest: Digest) -> bytes:
        """A blob's bytes, read anew and checked. Raises SpecError when the file changed since it was
        packed."""
        if digest == self.digest:
            return self.encoded
        path, offset, size = self.sources[digest]
        full = str(self.root) if self._single else f"{self.root}/{path}"
        try:
            descriptor = os.open(full, os.O_RDONLY | os.O_CLOEXEC)
            try:
                data = os.pread(descriptor, size, offset)
            finally:
                os.close(descriptor)
        except OSError as bad:
            self._invalidate_cache()
            raise unreadable_error(path, bad) from bad
        if len(data) != size or blake3(data).hexdigest() != digest:
            # so that the next try reads the file again, whatever its time stamps say
            self._invalidate_cache()
            raise changed_error(path)
        return data


def unreadable_error(path: str, error: OSError) -> HopyardError:
    if isinstance(error, PermissionError):
        return SpecError(
            f"`{path}` may not be read",
            hints=("`chmod u+r` makes a file of yours readable; or name it in `.hopignore`",),
        )
    if isinstance(error, FileNotFoundError):
        return changed_error(path)
    return SpecError(f"`{path}` cannot be read: {error.strerror}")
