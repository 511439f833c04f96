"""Packs a folder into a manifest: reads and hashes new or changed files in threads, and detects files that
change meanwhile."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Sequence, Set
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
# starting threads takes longer than hashing fewer small files than this
_MAX_SEQUENTIAL_FILES = 512

Chunks = tuple[Digest, ...]


def pack_tree(
    root: Path,
    *,
    rules: IgnoreRules = DATA_RULES,
    cache: Path | None = None,
    excluded: Path | None = None,
    progress: ProgressListener = NO_PROGRESS,
    tracked: Set[str] = frozenset(),
) -> PackedTree:
    """Packs the tree at `root`, a folder or a single file.

    cache: a folder that stores digests of earlier packs, `Home.pack_cache`. excluded: a folder to skip with
    its content: the home, which holds the owner's token and changes during the read. Other homes are skipped,
    too, and listed in `PackedTree.homes`. tracked: files that git tracks although its ignore files name them.

    Raises SpecError with the file's name for a file that cannot be read or packed, or that changes meanwhile.
    """
    root = Path(os.path.abspath(root))
    stat_cache = StatCache(cache, root, rules.name) if cache is not None else None
    began_ns = time.time_ns()
    scan = scan_folder(root, rules, excluded=excluded, tracked=tracked)
    unchanged = stat_cache.summary_if_unchanged(scan) if stat_cache else None
    if stat_cache and unchanged:
        return _tree_from_cache(root, stat_cache, unchanged, rules, excluded, scan, tracked)
    digests = _hash_files(root, scan, stat_cache, progress)
    manifest = _build_manifest(scan, digests)
    encoded = manifest.encode()
    summary = TreeSummary(Digest(blake3(encoded).hexdigest()), manifest.size_bytes, len(manifest.files))
    if stat_cache:
        stat_cache.save(scan, began_ns, summary, encoded)
    return _packed_tree(root, summary, lambda: encoded, stat_cache, scan)


def _tree_from_cache(
    root: Path,
    cache: StatCache,
    summary: TreeSummary,
    rules: IgnoreRules,
    excluded: Path | None,
    scan: FolderScan,
    tracked: Set[str],
) -> PackedTree:
    def encode() -> bytes:
        cached = cache.manifest()
        if cached is not None and blake3(cached).hexdigest() == summary.digest:
            return cached
        repacked = pack_tree(
            root, rules=rules, excluded=excluded, tracked=tracked
        )  # the cache was lost or damaged meanwhile
        if repacked.digest != summary.digest:
            raise changed_error(str(root))
        return repacked.encoded

    return _packed_tree(root, summary, encode, cache, scan)


def _packed_tree(
    root: Path, summary: TreeSummary, encode: Callable[[], bytes], cache: StatCache | None, scan: FolderScan
) -> PackedTree:
    invalidate_cache = cache.delete if cache else lambda: None
    return PackedTree(
        root,
        summary.digest,
        size_bytes=summary.size_bytes,
        files=summary.files,
        encode=encode,
        invalidate_cache=invalidate_cache,
        single=not root.is_dir(),
        homes=scan.homes,
        left_out=scan.left_out,
        outside_links=scan.outside_links,
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
    """Returns the chunks of every file, in order."""
    cached_files = cache.files() if cache else {}
    digests: list[Chunks] = [()] * len(scan.files)
    small: list[int] = []
    large: list[int] = []
    for index, file in enumerate(scan.files):
        cached = cached_files.get(file[PATH])
        if cached is not None and cached.matches(file):
            digests[index] = cached.chunks
        else:
            (large if file[SIZE] > CHUNK_BYTES else small).append(index)
    progress.begin("hashing", sum(scan.files[index][SIZE] for index in (*small, *large)))
    reader = _FileHasher(root, scan.files, progress)
    if large or len(small) > _MAX_SEQUENTIAL_FILES:
        _hash_in_threads(reader, small, large, digests)
    else:
        for index in small:
            digests[index] = reader.hash_small_file(index)
    return digests


def _hash_in_threads(reader: _FileHasher, small: list[int], large: list[int], digests: list[Chunks]) -> None:
    from concurrent.futures import ThreadPoolExecutor

    with ThreadPoolExecutor(_THREADS, thread_name_prefix="hashing") as executor:
        try:
            groups = [
                (group, executor.submit(reader.hash_group, group))
                for group in reader.small_file_groups(small)
            ]
            parts = [
                (
                    index,
                    [
                        executor.submit(reader.hash_chunk, index, number)
                        for number in range(reader.large_file_chunks(index))
                    ],
                )
                for index in large
            ]
            for group, result in groups:
                for index, chunks in zip(group, result.result(), strict=True):
                    digests[index] = chunks
            for index, futures in parts:
                digests[index] = tuple(future.result() for future in futures)
        except BaseException:
            executor.shutdown(cancel_futures=True)
            raise


class _FileHasher:
    """Reads and hashes the files of one tree; raises SpecError for files that changed after the scan."""

    def __init__(self, root: Path, files: list[ScannedFile], progress: ProgressListener) -> None:
        self._files, self._progress = files, progress
        self._root, self._single = str(root), not root.is_dir()

    def small_file_groups(self, small: list[int]) -> list[list[int]]:
        groups: list[list[int]] = [[]]
        size = 0
        for index in small:
            if len(groups[-1]) >= _GROUP_FILES or size > _GROUP_BYTES:
                groups.append([])
                size = 0
            groups[-1].append(index)
            size += self._files[index][SIZE]
        return groups

    def hash_group(self, group: list[int]) -> list[Chunks]:
        return [self.hash_small_file(index) for index in group]

    def large_file_chunks(self, index: int) -> int:
        return -(-self._files[index][SIZE] // CHUNK_BYTES)

    def hash_small_file(self, index: int) -> Chunks:
        """Returns the digest of a file of at most one chunk."""
        file = self._files[index]
        digest = self._hash(file, 0, file[SIZE])
        return (digest,) if file[SIZE] else ()

    def hash_chunk(self, index: int, number: int) -> Digest:
        file, offset = self._files[index], number * CHUNK_BYTES
        return self._hash(file, offset, min(CHUNK_BYTES, file[SIZE] - offset))

    def _hash(self, file: ScannedFile, offset: int, size: int) -> Digest:
        try:
            descriptor = os.open(
                self._root if self._single else f"{self._root}/{file[PATH]}", os.O_RDONLY | os.O_CLOEXEC
            )
            try:
                data = os.pread(descriptor, size, offset)
                file_stat = os.fstat(descriptor)
            finally:
                os.close(descriptor)
        except OSError as error:
            raise unreadable_error(file[PATH], error) from error
        if len(data) != size or not is_unchanged(file, file_stat):
            raise changed_error(file[PATH])
        self._progress.advance(size)
        return Digest(blake3(data).hexdigest())
