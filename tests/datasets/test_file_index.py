"""The files of a tree by path, compared with the tree itself."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from hopyard.datasets.file_index import EntryKind, FileIndex, TreeEntry
from hopyard.domain.ids import Digest
from hopyard.domain.manifest import CHUNK_BYTES, FileEntry, LinkEntry, Manifest

NAMES = st.sampled_from(["a", "a-b", "b", "B.png", "b0", "\U0010ffffz", "é"])
PATHS = st.lists(NAMES, min_size=1, max_size=3).map("/".join)


def digest(number: int) -> Digest:
    return Digest(f"{number:064x}")


def make_index(sizes: dict[str, int], links: dict[str, str] | None = None) -> FileIndex:
    """Returns the index of a tree; a file and a folder of one name are not checked here."""
    files, number = [], 0
    for path, size in sizes.items():
        chunks = -(-size // CHUNK_BYTES)
        files.append(FileEntry(path, size, tuple(digest(number + at) for at in range(chunks))))
        number += chunks
    tree = Manifest.build(files, [LinkEntry(path, target) for path, target in (links or {}).items()])
    return FileIndex.of_manifest(tree.encode())


def without_conflicts(paths: list[str]) -> list[str]:
    return [path for path in paths if not any(other.startswith(f"{path}/") for other in paths)]


def all_entries(index: FileIndex, folder: str) -> list[TreeEntry]:
    """Returns the children of a folder, read one at a time."""
    found: list[TreeEntry] = []
    while (entry := next(index.children(folder, after=found[-1].key if found else ""), None)) is not None:
        found.append(entry)
    return found


@given(st.lists(PATHS, unique=True, max_size=12).map(without_conflicts), st.integers(0, 2 * CHUNK_BYTES))
def test_folders_contain_each_file_once(paths: list[str], size: int) -> None:
    index = make_index({path: size + at for at, path in enumerate(paths)})
    sizes = {path: size + at for at, path in enumerate(paths)}
    for folder in {"", *("/".join(path.split("/")[:depth]) for path in paths for depth in (1, 2))} - {*paths}:
        prefix = f"{folder}/" if folder else ""
        below = [path for path in paths if path.startswith(prefix)]
        names = sorted({path[len(prefix) :].split("/")[0] for path in below})
        entries = all_entries(index, folder)
        assert entries == list(index.children(folder))
        assert sorted(entry.path for entry in entries) == sorted(prefix + name for name in names)
        for entry in entries:
            inside = [path for path in below if path == entry.path or path.startswith(f"{entry.path}/")]
            assert (entry.files, entry.size_bytes) == (len(inside), sum(sizes[path] for path in inside))
            assert (entry.kind is EntryKind.FILE) == (entry.path in sizes)
        assert index.has_folder(folder) == bool(below)
    assert [entry.path for entry in index.search("B")] == sorted(
        path for path in paths if "b" in path.lower()
    )


def test_file_is_found_with_its_size_and_chunks() -> None:
    index = make_index({"a": 0, "b/c": CHUNK_BYTES + 1, "b/d": 5}, {"b/link": "c"})
    assert index.find("a") == (0, [])
    assert index.find("b/c") == (CHUNK_BYTES + 1, [digest(0), digest(1)])
    assert index.find("b/d") == (5, [digest(2)])
    assert [index.find(path) for path in ("b", "b/link", "c", "", "zz")] == [None] * 5
    assert list(index.children("")) == [
        TreeEntry("a", EntryKind.FILE, 0, 1),
        TreeEntry("b", EntryKind.FOLDER, CHUNK_BYTES + 6, 2),
    ]
    assert list(index.children("b"))[-1] == TreeEntry("b/link", EntryKind.LINK, 0, 0, "c")
    assert list(index.children("missing")) == []
    assert index.memory_bytes > 0
