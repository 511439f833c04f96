"""From a folder to a manifest: reads what is not known yet, hashes it in threads, and says what changed
meanwhile."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from blake3 import blake3

from hopyard.datasets.folder_scan import (
    MODE,
    PATH,
    SIZE,
    FolderScan,
    ScannedFile,
    changed_error,
    is_unchanged,
    scan_folder,
)
from hopyard.datasets.ignore_rules import ALL_FILES_RULES, CODE_RULES, DATA_RULES, EXACT_RULES, IgnoreRules
from hopyard.datasets.packed_tree import PackedTree, unreadable_error
from hopyard.datasets.progress import NO_PROGRESS, ProgressListener
from hopyard.datasets.stat_cache import StatCache, TreeSummary
from hopyard.domain.ids import Digest
from hopyard.domain.manifest import CHUNK_BYTES, FileEntry, LinkEntry, Manifest

__all__ = ["ALL_FILES_RULES", "CODE_RULES", "DATA_RULES", "EXACT_RULES", "IgnoreRules", "pack_tree"]
_THREADS = 2
_GROUP_FILES, _GROUP_BYTES = 256, 4 * 1024 * 1024  # small files that one thread takes at once
_MAX_SEQUENTIAL_FILES = (
    512  # fewer small files than this are hashed without threads: starting them takes longer
)

Chunks = tuple[Digest, ...]


def pack_tree(
    root: Path,
    *,
    rules: IgnoreRules = DATA_RULES,
    cache: Path | None = None,
    excluded: Path | None = None,
    progress: ProgressListener = NO_PROGRESS,
) -> PackedTree:
    """The tree at `root` (a folder, or a single file). `cache` is a folder in which to remember digests,
    `Home.pack_cache`; `excluded` is left out with all it holds: the home itself, which has the owner's token
    and changes while it is read. Other homes are left out, too, and told in `PackedTree.homes`.

    Raises SpecError, naming the file, for what cannot be read or packed, and for a file that changes while it
    is read.
    """
    root = Path(os.path.abspath(root))
    memory = StatCache(cache, root, rules.name) if cache is not None else None
    began_ns = time.time_ns()
    walked = scan_folder(root, rules, excluded=excluded)
    unchanged = memory.summary_if_unchanged(walked) if memory else None
    if memory and unchanged:
        return _tree_from_cache(root, memory, unchanged, rules, excluded, walked.homes)
    digests = _hash_files(root, walked, memory, progress)
    manifest = _build_manifest(walked, digests)
    encoded = manifest.encode()
    summary = TreeSummary(Digest(blake3(encoded).hexdigest()), manifest.size_bytes, len(manifest.files))
    if memory:
        memory.save(walked, began_ns, summary, encoded)
    return _packed_tree(root, summary, lambda: encoded, memory, walked.homes)


def _tree_from_cache(
    root: Path,
    cache: StatCache,
    summary: TreeSummary,
    rules: IgnoreRules,
    excluded: Path | None,
    homes: list[str],
) -> PackedTree:
    def encode() -> bytes:
        found = cache.manifest()
        if found is not None and blake3(found).hexdigest() == summary.digest:
            return found
        again = pack_tree(root, rules=rules, excluded=excluded)  # the memory was lost or damaged meanwhile
        if again.digest != summary.digest:
            raise changed_error(str(root))
        return again.encoded

    return _packed_tree(root, summary, encode, cache, homes)


def _packed_tree(
    root: Path, summary: TreeSummary, encode: Callable[[], bytes], cache: StatCache | None, homes: list[str]
) -> PackedTree:
    forget = cache.delete if cache else lambda: None
    return PackedTree(
        root,
        summary.digest,
        size_bytes=summary.size_bytes,
        files=summary.files,
        encode=encode,
        invalidate_cache=forget,
        single=not root.is_dir(),
        homes=homes,
    )


def _build_manifest(scan: FolderScan, digests: Sequence[Chunks]) -> Manifest:
    files = [
        FileEntry(file[PATH], file[SIZE], chunks, bool(file[MODE] & 0o100))
        for file, chunks in zip(scan.files, digests, strict=True)
    ]
    return Manifest.build(files, [LinkEntry(path, target) for path, target in scan.links], scan.folders)


def _hash_files(
    root: Path, scan: FolderScan, cache: StatCache | None, progress: ProgressListener
) -> list[Chunks]:
    """The chunks of every file, in order."""
    known = cache.files() if cache else {}
    digests: list[Chunks] = [()] * len(scan.files)
    small: list[int] = []
    large: list[int] = []
    for at, file in enumerate(scan.files):
        before = known.get(file[PATH])
        if before is not None and before.matches(file):
            digests[at] = before.chunks
        else:
            (large if file[SIZE] > CHUNK_BYTES else small).append(at)
    progress.begin("hashing", sum(scan.files[at][SIZE] for at in (*small, *large)))
    reader = _FileHasher(root, scan.files, progress)
    if large or len(small) > _MAX_SEQUENTIAL_FILES:
        _hash_in_threads(reader, small, large, digests)
    else:
        for at in small:
            digests[at] = reader.hash_small_file(at)
    return digests


def _hash_in_threads(reader: _FileHasher, small: list[int], large: list[int], digests: list[Chunks]) -> None:
    from concurrent.futures import ThreadPoolExecutor

    with ThreadPoolExecutor(_THREADS, thread_name_prefix="hashing") as threads:
        try:
            groups = [
                (group, threads.submit(reader.hash_group, group)) for group in reader.small_file_groups(small)
            ]
            parts = [
                (
                    at,
                    [
                        threads.submit(reader.hash_chunk, at, number)
                        for number in range(reader.large_file_chunks(at))
                    ],
                )
                for at in large
            ]
            for group, done in groups:
                for at, chunks in zip(group, done.result(), strict=True):
                    digests[at] = chunks
            for at, futures in parts:
                digests[at] = tuple(future.result() for future in futures)
        except BaseException:
            threads.shutdown(cancel_futures=True)
            raise


class _FileHasher:
    """Reads and hashes files of one tree; refuses those that are not what they were when the tree was looked
    over."""

    def __init__(self, root: Path, files: list[ScannedFile], progress: ProgressListener) -> None:
        self._files, self._progress = files, progress
        self._root, self._single = str(root), not root.is_dir()

    def small_file_groups(self, small: list[int]) -> list[list[int]]:
        groups: list[list[int]] = [[]]
        size = 0
        for at in small:
            if len(groups[-1]) >= _GROUP_FILES or size > _GROUP_BYTES:
                groups.append([])
                size = 0
            groups[-1].append(at)
            size += self._files[at][SIZE]
        return groups

    def hash_group(self, group: list[int]) -> list[Chunks]:
        return [self.hash_small_file(at) for at in group]

    def large_file_chunks(self, at: int) -> int:
        return -(-self._files[at][SIZE] // CHUNK_BYTES)

    def hash_small_file(self, at: int) -> Chunks:
        """The digest of a file of one chunk or none."""
        file = self._files[at]
        digest = self._hash(file, 0, file[SIZE])
        return (digest,) if file[SIZE] else ()

    def hash_chunk(self, at: int, number: int) -> Digest:
        file, offset = self._files[at], number * CHUNK_BYTES
        return self._hash(file, offset, min(CHUNK_BYTES, file[SIZE] - offset))

    def _hash(self, file: ScannedFile, offset: int, size: int) -> Digest:
        try:
            descriptor = os.open(
                self._root if self._single else f"{self._root}/{file[PATH]}", os.O_RDONLY | os.O_CLOEXEC
            )
            try:
                data = os.pread(descriptor, size, offset)
                about = os.fstat(descriptor)
            finally:
                os.close(descriptor)
        except OSError as bad:
            raise unreadable_error(file[PATH], bad) from bad
        if len(data) != size or not is_unchanged(file, about):
            raise changed_error(file[PATH])
        self._progress.advance(size)
        return Digest(blake3(data).hexdigest())
