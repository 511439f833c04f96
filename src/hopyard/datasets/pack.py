"""From a folder to a manifest: reads what is not known yet, hashes it in threads, and says what changed
meanwhile."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from blake3 import blake3

from hopyard.datasets.ignore import CODE, DATA, EVERYTHING, EXACT, Rules
from hopyard.datasets.progress import SILENT, Progress
from hopyard.datasets.statcache import StatCache, Summary
from hopyard.datasets.tree import PackedTree, unreadable
from hopyard.datasets.walk import MODE, PATH, SIZE, Seen, Walked, changed, same, walk
from hopyard.domain.ids import Digest
from hopyard.domain.manifest import CHUNK_BYTES, FileEntry, LinkEntry, Manifest

__all__ = ["CODE", "DATA", "EVERYTHING", "EXACT", "Rules", "pack"]
_THREADS = 2
_GROUP_FILES, _GROUP_BYTES = 256, 4 * 1024 * 1024  # small files that one thread takes at once
_IN_TURN = 512  # fewer small files than this are hashed without threads: starting them takes longer

Chunks = tuple[Digest, ...]


def pack(
    root: Path,
    *,
    rules: Rules = DATA,
    cache: Path | None = None,
    without: Path | None = None,
    progress: Progress = SILENT,
) -> PackedTree:
    """The tree at `root` (a folder, or a single file). `cache` is a folder in which to remember digests,
    `Home.pack_cache`; `without` is left out with all it holds: the home itself, which has the owner's token
    and changes while it is read. Other homes are left out, too, and told in `PackedTree.homes`.

    Raises SpecError, naming the file, for what cannot be read or packed, and for a file that changes while it
    is read.
    """
    root = Path(os.path.abspath(root))
    memory = StatCache(cache, root, rules.name) if cache is not None else None
    began_ns = time.time_ns()
    walked = walk(root, rules, without=without)
    unchanged = memory.unchanged(walked) if memory else None
    if memory and unchanged:
        return _remembered(root, memory, unchanged, rules, without, walked.homes)
    digests = _digests(root, walked, memory, progress)
    manifest = _manifest(walked, digests)
    encoded = manifest.encode()
    summary = Summary(Digest(blake3(encoded).hexdigest()), manifest.size_bytes, len(manifest.files))
    if memory:
        memory.save(walked, began_ns, summary, encoded)
    return _tree(root, summary, lambda: encoded, memory, walked.homes)


def _remembered(
    root: Path, memory: StatCache, summary: Summary, rules: Rules, without: Path | None, homes: list[str]
) -> PackedTree:
    def encode() -> bytes:
        found = memory.manifest()
        if found is not None and blake3(found).hexdigest() == summary.digest:
            return found
        again = pack(root, rules=rules, without=without)  # the memory was lost or damaged meanwhile
        if again.digest != summary.digest:
            raise changed(str(root))
        return again.encoded

    return _tree(root, summary, encode, memory, homes)


def _tree(
    root: Path, summary: Summary, encode: Callable[[], bytes], memory: StatCache | None, homes: list[str]
) -> PackedTree:
    forget = memory.forget if memory else lambda: None
    return PackedTree(
        root,
        summary.digest,
        size_bytes=summary.size_bytes,
        files=summary.files,
        encode=encode,
        forget=forget,
        single=not root.is_dir(),
        homes=homes,
    )


def _manifest(walked: Walked, digests: Sequence[Chunks]) -> Manifest:
    files = [
        FileEntry(file[PATH], file[SIZE], chunks, bool(file[MODE] & 0o100))
        for file, chunks in zip(walked.files, digests, strict=True)
    ]
    return Manifest.build(files, [LinkEntry(path, target) for path, target in walked.links], walked.folders)


def _digests(root: Path, walked: Walked, memory: StatCache | None, progress: Progress) -> list[Chunks]:
    """The chunks of every file, in order."""
    known = memory.files() if memory else {}
    digests: list[Chunks] = [()] * len(walked.files)
    small: list[int] = []
    large: list[int] = []
    for at, file in enumerate(walked.files):
        before = known.get(file[PATH])
        if before is not None and before.fits(file):
            digests[at] = before.chunks
        else:
            (large if file[SIZE] > CHUNK_BYTES else small).append(at)
    progress.begin("hashing", sum(walked.files[at][SIZE] for at in (*small, *large)))
    reader = _Reader(root, walked.files, progress)
    if large or len(small) > _IN_TURN:
        _in_threads(reader, small, large, digests)
    else:
        for at in small:
            digests[at] = reader.small(at)
    return digests


def _in_threads(reader: _Reader, small: list[int], large: list[int], digests: list[Chunks]) -> None:
    from concurrent.futures import ThreadPoolExecutor

    with ThreadPoolExecutor(_THREADS, thread_name_prefix="hashing") as threads:
        try:
            groups = [(group, threads.submit(reader.group, group)) for group in reader.groups(small)]
            parts = [
                (at, [threads.submit(reader.chunk, at, number) for number in range(reader.chunks(at))])
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


class _Reader:
    """Reads and hashes files of one tree; refuses those that are not what they were when the tree was looked
    over."""

    def __init__(self, root: Path, files: list[Seen], progress: Progress) -> None:
        self._files, self._progress = files, progress
        self._root, self._single = str(root), not root.is_dir()

    def groups(self, small: list[int]) -> list[list[int]]:
        groups: list[list[int]] = [[]]
        size = 0
        for at in small:
            if len(groups[-1]) >= _GROUP_FILES or size > _GROUP_BYTES:
                groups.append([])
                size = 0
            groups[-1].append(at)
            size += self._files[at][SIZE]
        return groups

    def group(self, group: list[int]) -> list[Chunks]:
        return [self.small(at) for at in group]

    def chunks(self, at: int) -> int:
        return -(-self._files[at][SIZE] // CHUNK_BYTES)

    def small(self, at: int) -> Chunks:
        """The digest of a file of one chunk or none."""
        file = self._files[at]
        digest = self._hash(file, 0, file[SIZE])
        return (digest,) if file[SIZE] else ()

    def chunk(self, at: int, number: int) -> Digest:
        file, offset = self._files[at], number * CHUNK_BYTES
        return self._hash(file, offset, min(CHUNK_BYTES, file[SIZE] - offset))

    def _hash(self, file: Seen, offset: int, size: int) -> Digest:
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
            raise unreadable(file[PATH], bad) from bad
        if len(data) != size or not same(file, about):
            raise changed(file[PATH])
        self._progress.advance(size)
        return Digest(blake3(data).hexdigest())
