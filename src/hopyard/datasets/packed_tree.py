"""A packed tree: its manifest, and the location of each of its blobs on this machine."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Sequence
from functools import cached_property
from pathlib import Path
from typing import NamedTuple

from blake3 import blake3

from hopyard.datasets.folder_scan import IgnoredEntry, changed_error
from hopyard.domain.ids import Digest
from hopyard.domain.manifest import CHUNK_BYTES
from hopyard.errors import HopyardError, SpecError


class FileSlice(NamedTuple):
    """A slice of a file."""

    path: str
    offset: int
    size: int


class PackedTree:
    """The result of `pack_tree`.

    digest: of the manifest. size_bytes, files: of the tree. homes: the excluded homes of Hopyard below it,
    and parts of them. left_out: what ignore files exclude. outside_links: links of code that lead out of the
    tree, with absolute targets; the manifest does not hold them. The bytes of the manifest are produced on
    demand: a push of an unchanged tree needs only its digest.
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
        left_out: Sequence[IgnoredEntry] = (),
        outside_links: Sequence[tuple[str, str]] = (),
    ) -> None:
        self.root, self.digest, self.size_bytes, self.files, self.homes = (
            root,
            digest,
            size_bytes,
            files,
            tuple(homes),
        )
        self.left_out, self.outside_links = tuple(left_out), tuple(outside_links)
        self._encode, self._invalidate_cache, self._single = encode, invalidate_cache, single

    @cached_property
    def encoded(self) -> bytes:
        """Returns the canonical bytes of the manifest."""
        return self._encode()

    @cached_property
    def sources(self) -> dict[Digest, FileSlice]:
        """Returns the location of each blob of the tree, without the manifest."""
        import json

        slices: dict[Digest, FileSlice] = {}
        for path, size, _executable, chunks in json.loads(self.encoded)["files"]:
            for number, digest in enumerate(chunks):
                offset = number * CHUNK_BYTES
                slices.setdefault(digest, FileSlice(path, offset, min(CHUNK_BYTES, size - offset)))
        return slices

    def blobs(self) -> list[Digest]:
        """Returns every blob that a server needs to store the tree, without duplicates, the manifest last."""
        return [*self.sources, self.digest]

    def size_of(self, digests: Iterable[Digest]) -> int:
        return sum(
            len(self.encoded) if digest == self.digest else self.sources[digest].size for digest in digests
        )

    def read(self, digest: Digest) -> bytes:
        """Reads and checks the bytes of a blob. Raises SpecError if the file changed after it was packed."""
        if digest == self.digest:
            return self.encoded
        path, offset, size = self.sources[digest]
        full_path = str(self.root) if self._single else f"{self.root}/{path}"
        try:
            descriptor = os.open(full_path, os.O_RDONLY | os.O_CLOEXEC)
            try:
                data = os.pread(descriptor, size, offset)
            finally:
                os.close(descriptor)
        except OSError as error:
            self._invalidate_cache()
            raise unreadable_error(path, error) from error
        if len(data) != size or blake3(data).hexdigest() != digest:
            # The next pack then reads the file again, for any timestamps.
            self._invalidate_cache()
            raise changed_error(path)
        return data


def unreadable_error(path: str, error: OSError) -> HopyardError:
    if isinstance(error, PermissionError):
        return SpecError(
            f"`{path}` may not be read",
            hints=("run `chmod u+r` on a file of yours, or add it to `.hopignore`",),
        )
    if isinstance(error, FileNotFoundError):
        return changed_error(path)
    return SpecError(f"`{path}` cannot be read: {error.strerror}")
