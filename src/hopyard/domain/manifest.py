"""A tree of files by content: paths, modes and the digests of their bytes.

The encoding is canonical, so equal trees have equal digests on every machine.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator

from hopyard.backports import dataclass
from hopyard.domain.encoded_path import check_encoded_path, is_encoded
from hopyard.domain.ids import Digest, is_digest
from hopyard.domain.path_check import check_path, link_stays_inside, parent_paths, repository_folders
from hopyard.errors import IntegrityError, SpecError

CHUNK_BYTES = 8 * 1024 * 1024  # a larger file is cut into blobs of this size


@dataclass(frozen=True, slots=True)
class FileEntry:
    """One file: its bytes are the blobs `chunks`, concatenated (none for an empty file)."""

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
    """A tree, sorted by path, without duplicates. Empty folders are listed in `folders`.

    encoded: whether its paths and targets are in the form of `encoded_path.encode_path`. Only outputs of runs
    are stored so, if one of them has an odd name.
    """

    files: tuple[FileEntry, ...] = ()
    links: tuple[LinkEntry, ...] = ()
    folders: tuple[str, ...] = ()
    encoded: bool = False

    @property
    def size_bytes(self) -> int:
        return sum(file.size for file in self.files)

    def blob_sizes(self) -> dict[Digest, int]:
        """Returns the size of each blob in bytes. Raises IntegrityError if two files imply different sizes of
        one blob."""
        sizes: dict[Digest, int] = {}
        for entry in self.files:
            remaining = entry.size
            for chunk in entry.chunks:
                size = min(remaining, CHUNK_BYTES)
                if sizes.setdefault(chunk, size) != size:
                    raise IntegrityError(f"manifest: a chunk of `{entry.path}` has another size elsewhere")
                remaining -= size
        return sizes

    def blobs(self) -> Iterator[Digest]:
        """Yields every blob of the files, in file order, repeats included."""
        for entry in self.files:
            yield from entry.chunks

    def encode(self) -> bytes:
        """Returns the canonical bytes; their BLAKE3 digest names the manifest."""
        body = {
            "files": [
                [file.path, file.size, 1 if file.executable else 0, list(file.chunks)] for file in self.files
            ],
            "folders": list(self.folders),
            "links": [[link.path, link.target] for link in self.links],
            "v": 1,
            **({"encoded": 1} if self.encoded else {}),
        }
        return json.dumps(body, ensure_ascii=False, separators=(",", ":"), sort_keys=True).encode()

    @classmethod
    def build(
        cls, files: Iterable[FileEntry], links: Iterable[LinkEntry] = (), folders: Iterable[str] = ()
    ) -> Manifest:
        """Sorts the entries, and drops folders that other paths imply, so that equal trees give equal
        manifests."""
        files, links, folder_set = (
            sorted(files, key=lambda file: file.path),
            sorted(links, key=lambda link: link.path),
            set(folders),
        )
        implied_folders = {
            parent
            for path in (*(file.path for file in files), *(link.path for link in links), *folder_set)
            for parent in parent_paths(path)
        }
        return cls(tuple(files), tuple(links), tuple(sorted(folder_set - implied_folders)))

    @classmethod
    def decode(cls, data: bytes) -> Manifest:
        """Parses and checks a manifest.

        Raises IntegrityError for content that no packer writes. Examples are a path that leaves the tree, a
        duplicate path, a file below a link, a listed folder that is not empty, inconsistent sizes, and an
        encoding that is not canonical.
        """
        try:
            body = json.loads(data)
            if body["v"] != 1:
                raise IntegrityError(
                    f"manifest of version {body['v']!r}, this program knows version 1",
                    hints=("upgrade hopyard",),
                )
            manifest = cls(
                tuple(
                    FileEntry(path, size, tuple(chunks), bool(executable))
                    for path, size, executable, chunks in body["files"]
                ),
                tuple(LinkEntry(path, target) for path, target in body["links"]),
                tuple(body["folders"]),
                encoded="encoded" in body,
            )
            manifest.check()
            reencoded = manifest.encode()
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
            raise IntegrityError(f"not a manifest: {error}") from error
        if reencoded != data:
            raise IntegrityError("not a manifest in its canonical form")
        return manifest

    def check(self) -> None:
        """Raises IntegrityError unless paths are safe, sorted and unique, and sizes match the chunks."""
        checked: set[str] = set()
        links = {link.path for link in self.links}
        for paths in (
            [file.path for file in self.files],
            [link.path for link in self.links],
            list(self.folders),
        ):
            if paths != sorted(paths):
                raise IntegrityError("manifest is not sorted")
            for path in paths:
                try:
                    if self.encoded:
                        check_encoded_path(path)
                    else:
                        check_path(path)
                except SpecError as error:
                    raise IntegrityError(error.message) from error
                if path in checked:
                    raise IntegrityError(f"manifest holds `{path}` twice")
                checked.add(path)
        files, folders = {file.path for file in self.files}, set(self.folders)
        for path in checked:
            for parent in parent_paths(path):
                if parent in folders:
                    raise IntegrityError(f"manifest names the folder `{parent}`, which is not empty")
                if parent in links or parent in files:
                    raise IntegrityError(f"manifest puts `{path}` below `{parent}`, which is not a folder")
        for entry in self.files:
            # excludes bool
            if (
                type(entry.size) is not int
                or entry.size < 0
                or len(entry.chunks) != -(-entry.size // CHUNK_BYTES)
            ):
                raise IntegrityError(f"manifest: size and chunks of `{entry.path}` do not agree")
            if not all(is_digest(chunk) for chunk in entry.chunks):
                raise IntegrityError(f"manifest: a chunk of `{entry.path}` is not a digest")
        for link in self.links:
            is_plain = not self.encoded or is_encoded(link.target)
            if not is_plain or not link_stays_inside(link.path, link.target):
                raise IntegrityError(f"manifest: link `{link.path}` leads out of the tree")
        self.blob_sizes()
        for folder in repository_folders(checked):
            raise IntegrityError(
                f"manifest: the folder `{folder or '.'}` is a git repository: its configuration can "
                "run commands of its author"
            )


def referenced_blobs(data: bytes) -> set[Digest]:
    """Returns the blobs that the files of a manifest refer to, without checking its paths. Raises
    IntegrityError."""
    try:
        digests = {chunk for file in json.loads(data)["files"] for chunk in file[3]}
    except (ValueError, KeyError, TypeError, IndexError, RecursionError) as error:
        raise IntegrityError(f"not a manifest: {error}") from error
    if not all(isinstance(chunk, str) and is_digest(chunk) for chunk in digests):
        raise IntegrityError("not a manifest: a chunk is not a digest")
    return digests
