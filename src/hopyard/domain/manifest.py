"""A tree of files by content: paths, modes and the digests of their bytes.

The encoding is canonical, so equal trees have equal digests whoever packs them.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from hopyard.domain.ids import Digest, is_digest
from hopyard.domain.path_check import check_path, link_stays_inside, parent_paths, repository_folders
from hopyard.errors import IntegrityError, SpecError

CHUNK_BYTES = 8 * 1024 * 1024  # a file larger than this is cut into blobs of this size


@dataclass(frozen=True, slots=True)
class FileEntry:
    """One file: bytes = the blobs `chunks` one after another (none for an empty file)."""

    path: str  # relative, "/" between parts
    size: int
    chunks: tuple[Digest, ...]
    executable: bool = False


@dataclass(frozen=True, slots=True)
class LinkEntry:
    """A symbolic link inside the tree; `target` is relative and stays inside."""

    path: str
    target: str


@dataclass(frozen=True, slots=True)
class Manifest:
    """Sorted by path; each path once. Empty folders are kept in `folders`."""

    files: tuple[FileEntry, ...] = ()
    links: tuple[LinkEntry, ...] = ()
    folders: tuple[str, ...] = ()

    @property
    def size_bytes(self) -> int:
        return sum(f.size for f in self.files)

    def blob_sizes(self) -> dict[Digest, int]:
        """How many bytes each blob has to have. Raises IntegrityError where two files say otherwise of
        one."""
        sizes: dict[Digest, int] = {}
        for entry in self.files:
            left = entry.size
            for chunk in entry.chunks:
                size = min(left, CHUNK_BYTES)
                if sizes.setdefault(chunk, size) != size:
                    raise IntegrityError(f"manifest: a chunk of `{entry.path}` has another size elsewhere")
                left -= size
        return sizes

    def blobs(self) -> Iterator[Digest]:
        """Every blob that the files need, in file order, repeats included."""
        for entry in self.files:
            yield from entry.chunks

    def encode(self) -> bytes:
        """The canonical bytes; their BLAKE3 digest names the manifest."""
        body = {
            "files": [[f.path, f.size, 1 if f.executable else 0, list(f.chunks)] for f in self.files],
            "folders": list(self.folders),
            "links": [[link.path, link.target] for link in self.links],
            "v": 1,
        }
        return json.dumps(body, ensure_ascii=False, separators=(",", ":"), sort_keys=True).encode()

    @classmethod
    def build(
        cls, files: Iterable[FileEntry], links: Iterable[LinkEntry] = (), folders: Iterable[str] = ()
    ) -> Manifest:
        """Sort, and drop the folders that the paths of others imply, so that equal trees give equal
        manifests."""
        files, links, given = (
            sorted(files, key=lambda f: f.path),
            sorted(links, key=lambda link: link.path),
            set(folders),
        )
        implied = {
            parent
            for path in (*(f.path for f in files), *(link.path for link in links), *given)
            for parent in parent_paths(path)
        }
        return cls(tuple(files), tuple(links), tuple(sorted(given - implied)))

    @classmethod
    def decode(cls, data: bytes) -> Manifest:
        """Parse and check. Raises IntegrityError for anything that no packer of ours would write: a path that
        leaves the tree, a path twice, a file inside a link, a folder named although it is not empty, sizes
        that do not agree, an encoding that is not the canonical one."""
        try:
            body = json.loads(data)
            if body["v"] != 1:
                raise IntegrityError(
                    f"manifest of version {body['v']!r}, this program knows version 1",
                    hints=("upgrade hopyard",),
                )
            found = cls(
                tuple(FileEntry(p, s, tuple(c), bool(x)) for p, s, x, c in body["files"]),
                tuple(LinkEntry(p, t) for p, t in body["links"]),
                tuple(body["folders"]),
            )
            found.check()
            again = found.encode()
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as bad:
            raise IntegrityError(f"not a manifest: {bad}") from bad
        if again != data:
            raise IntegrityError("not a manifest in its canonical form")
        return found

    def check(self) -> None:
        """Raise IntegrityError unless paths are safe, sorted and unique, and sizes agree with the chunks."""
        seen: set[str] = set()
        links = {link.path for link in self.links}
        for paths in ([f.path for f in self.files], [link.path for link in self.links], list(self.folders)):
            if paths != sorted(paths):
                raise IntegrityError("manifest is not sorted")
            for path in paths:
                try:
                    check_path(path)
                except SpecError as bad:
                    raise IntegrityError(bad.message) from bad
                if path in seen:
                    raise IntegrityError(f"manifest holds `{path}` twice")
                seen.add(path)
        files, folders = {f.path for f in self.files}, set(self.folders)
        for path in seen:
            for parent in parent_paths(path):
                if parent in folders:
                    raise IntegrityError(f"manifest names the folder `{parent}`, which is not empty")
                if parent in links or parent in files:
                    raise IntegrityError(f"manifest puts `{path}` below `{parent}`, which is no folder")
        for entry in self.files:
            # not a bool either
            if (
                type(entry.size) is not int
                or entry.size < 0
                or len(entry.chunks) != -(-entry.size // CHUNK_BYTES)
            ):
                raise IntegrityError(f"manifest: size and chunks of `{entry.path}` do not agree")
            if not all(is_digest(chunk) for chunk in entry.chunks):
                raise IntegrityError(f"manifest: a chunk of `{entry.path}` is not a digest")
        for link in self.links:
            if not link_stays_inside(link.path, link.target):
                raise IntegrityError(f"manifest: link `{link.path}` leads out of the tree")
        self.blob_sizes()
        for folder in repository_folders(seen):
            raise IntegrityError(
                f"manifest: the folder `{folder or '.'}` is a git repository: its configuration can "
                "run commands of its author"
            )


def referenced_blobs(data: bytes) -> set[Digest]:
    """The blobs that a manifest's files refer to, whether or not its paths are good today.
    Raises IntegrityError."""
    try:
        found = {chunk for file in json.loads(data)["files"] for chunk in file[3]}
    except (ValueError, KeyError, TypeError, IndexError, RecursionError) as bad:
        raise IntegrityError(f"not a manifest: {bad}") from bad
    if not all(isinstance(chunk, str) and is_digest(chunk) for chunk in found):
        raise IntegrityError("not a manifest: a chunk is not a digest")
    return found
