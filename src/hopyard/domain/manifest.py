"""A tree of files by content: paths, modes and the digests of their bytes.

The encoding is canonical, so equal trees have equal digests whoever packs them.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from hopyard.domain.ids import Digest, is_digest
from hopyard.domain.text import escape
from hopyard.errors import IntegrityError, SpecError

CHUNK_BYTES = 8 * 1024 * 1024  # a file larger than this is cut into blobs of this size
MAX_PART_BYTES = 255  # of a path: what Linux file systems take
_CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f]")
# Folders whose files make a version control program run commands: hooks, monitors, filters. Also as NTFS
# (short names, dots and spaces at the end, streams) and HFS (characters that it ignores) would read them.
_REPOSITORY = re.compile(r"(?:^|/)(?:\.(?:git|hg|jj)|(?:git|hg|jj)~1)[ .]*(?=[/:]|\Z)", re.I)
_IGNORED_BY_HFS = re.compile("[\u200c-\u200f\u202a-\u202e\u206a-\u206f\ufeff]")


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
            for parent in _parents(path)
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
            for parent in _parents(path):
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
        for folder in _repository_folders(seen):
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


def is_repository_name(name: str) -> bool:
    """Whether a file or folder of this name is, on any file system, what git, Mercurial or Jujutsu keep a
    repository in."""
    return _REPOSITORY.search(_hfs_folded(name)) is not None


def _hfs_folded(name: str) -> str:
    """As HFS compares it."""
    return name if name.isascii() else _IGNORED_BY_HFS.sub("", name)


def is_bare_repository(names: Iterable[str]) -> bool:
    """Whether git takes a folder with these entries for a repository, though it is not called `.git`."""
    there = {_hfs_folded(name).casefold() for name in names}
    return "head" in there and ("commondir" in there or {"objects", "refs"} <= there)


def _repository_folders(paths: Iterable[str]) -> Iterator[str]:
    """Folders that git takes for repositories; "" is the tree itself."""
    paths = list(paths)
    inside: dict[str, set[str]] = {path.rpartition("/")[0]: set() for path in paths if _is_git_head(path)}
    for path in paths if inside else ():
        for parent in ("", *_parents(path)):
            if parent in inside:
                inside[parent].add(path[len(parent) + 1 if parent else 0 :].partition("/")[0])
    return (folder for folder, names in inside.items() if is_bare_repository(names))


def _is_git_head(path: str) -> bool:
    return _hfs_folded(path[path.rfind("/") + 1 :]).casefold() == "head"


def _parents(path: str) -> Iterator[str]:
    at = path.rfind("/")
    while at > 0:
        path = path[:at]
        yield path
        at = path.rfind("/")


def check_path(path: str) -> str:
    """Return `path` if it may stand in a manifest: relative, normal, no `..`, no control characters, no part
    longer than a file system takes; else raise SpecError."""
    if not isinstance(path, str) or not path or path.startswith("/") or "\\" in path or _CONTROL.search(path):
        raise SpecError(
            f"`{escape(str(path)[:200])}` is not a path inside a tree",
            hints=("paths are relative, with `/` between parts",),
        )
    if is_repository_name(path):
        raise SpecError(
            f"`{path}` belongs to a repository, whose configuration can run commands of its author",
            hints=("remove it from the tree",),
        )
    if any(part in ("", ".", "..") for part in path.split("/")):
        raise SpecError(
            f"`{path}` leads out of the tree or is not in normal form",
            hints=("remove `..`, `.` and empty parts",),
        )
    try:
        size = len(path.encode())
    except UnicodeEncodeError as bad:
        raise SpecError(f"the path {path!r} is not valid UTF-8", hints=("rename the file",)) from bad
    if size > MAX_PART_BYTES and any(len(part.encode()) > MAX_PART_BYTES for part in path.split("/")):
        raise SpecError(
            f"`{path[:80]}…` has a part longer than {MAX_PART_BYTES} bytes", hints=("rename the file",)
        )
    return path


def is_manifest_path(path: str) -> bool:
    """Whether `check_path` takes it."""
    try:
        check_path(path)
    except SpecError:
        return False
    return True


def link_stays_inside(path: str, target: str) -> bool:
    """Whether a symbolic link at `path` with text `target` points into the tree, whatever other links the
    tree holds.

    `..` may stand only at the beginning: after a name it would go up from where *that* leads, which may be
    another link (`x -> d/up/..` with `d/up -> ..` is the folder above the tree).
    """
    if not target or target.startswith("/") or _CONTROL.search(target):
        return False
    depth, named = path.count("/"), False
    for part in target.split("/"):
        if part == "..":
            depth -= 1
            if named or depth < 0:
                return False
        elif part not in ("", "."):
            named = True
    return _is_encodable(target)


def _is_encodable(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True
