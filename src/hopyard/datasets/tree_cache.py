"""Read-only trees that runs share on one machine: filled once, evicted by last use, never while in use.

```text
<root>/<manifest>/          a complete tree
<root>/.<manifest>.lock     flock: shared while the tree is in use, exclusive during a fill or an eviction;
                            its mtime is the last use; it holds the tree's size, the boot in which it was
                            written, and its fingerprint, which reveals a changed tree at its next use
<root>/.<manifest>.sample   the digests of some of its files, see `datasets.tree_sample`
<root>/.<manifest>.mend     flock: held while a changed tree is replaced, without waiting for its users
<root>/.<manifest>.part/    a tree that is being filled
<root>/.gone-*/             a tree that is being removed
```

The kernel releases the locks of a process when it dies. So a crash leaves no tree locked and no tree
half-visible.
"""

from __future__ import annotations

import fcntl
import json
import os
import shutil
import stat
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import NamedTuple

from hopyard.datasets.fingerprint import fingerprint
from hopyard.datasets.pack import EXACT_RULES, pack_tree
from hopyard.datasets.progress import NO_PROGRESS, ProgressListener
from hopyard.datasets.transfer import download_blobs
from hopyard.datasets.transport import Fetch, FetchSource
from hopyard.datasets.tree_sample import find_sample_damage, write_sample
from hopyard.domain.ids import Digest, check_digest
from hopyard.errors import HopyardError, NotFound
from hopyard.private_files import make_folder, open_file, remove_tree

_FLUSH_BYTES = 64 * 1024 * 1024
_ABANDONED_AFTER_S = 24 * 3600.0  # after this time, a fetch that was interrupted and not resumed is abandoned
# while other processes poll, too; a process that fills a tree locks out all others until it is done
_POLL_INTERVAL_S = 0.005
_BOOT_ID = Path("/proc/sys/kernel/random/boot_id")


class _LockRecord(NamedTuple):
    """The content of a lock file.

    boot: the boot in which the tree was written or checked; "" once it is surely on disk. seen: the
    fingerprint at that time; "" for a tree from a version without fingerprints.
    """

    size_bytes: int
    boot: str
    seen: str = ""


class TreeCache:
    """Any number of processes can use one `root` at once.

    limit_bytes: limits the retained trees, not those in use; None means half of the available disk space.
    on_changed: called with each tree that was changed on disk and is fetched again.
    """

    def __init__(
        self,
        root: Path,
        limit_bytes: int | None = None,
        *,
        on_changed: Callable[[Digest], None] = lambda _manifest: None,
    ) -> None:
        self._root, self._limit, self._on_changed = root, limit_bytes, on_changed

    @contextmanager
    def open_tree(
        self, manifest: Digest, fetch: Fetch | None, *, progress: ProgressListener = NO_PROGRESS
    ) -> Iterator[Path]:
        """Yields the tree's folder, which does not change until the block ends.

        fetch: fetches a missing tree (a `BlobTransport`'s `fetch`). One of several concurrent callers
        fetches, the others wait. The blobs of an interrupted fetch are kept. Raises IntegrityError,
        StorageFull, and the errors of `fetch`. Without `fetch`, raises NotFound if the tree is missing.
        """
        check_digest(manifest)
        make_folder(self._root)
        lock = self._lock_tree(manifest, fetch, progress)
        try:
            yield self._root / manifest
        finally:
            os.close(lock)

    def find_damage(self, manifest: Digest) -> str:
        """Reads some files of a tree in use. Returns the path of one with wrong bytes, or "" without one.
        A damaged tree is checked as a whole at its next use, and fetched again."""
        damaged = find_sample_damage(self._root / manifest, self._sample_path(manifest))
        if damaged:
            lock = self._lock(manifest, fcntl.LOCK_SH)
            try:
                _write_lock_record(lock, _read_lock_record(lock)._replace(seen="damaged"))
                self._sample_path(manifest).unlink(missing_ok=True)  # it may be what is damaged
            finally:
                os.close(lock)
        return damaged

    def checkout(self, manifest: Digest, dest: Path, fetch: Fetch | None = None) -> None:
        """Makes a private, writable copy at `dest`, which must be missing or empty. Raises the errors of
        `open_tree`."""
        with self.open_tree(manifest, fetch) as tree:
            _copy(str(tree), str(dest))

    def trim(self) -> int:
        """Evicts trees until the limit holds, the least recently used first; returns the freed bytes. Keeps
        trees in use."""
        for leftover in self._root.glob(".gone-*"):
            remove_tree(leftover)
        self._remove_abandoned()
        trees = sorted(self._list_trees(), key=lambda tree: tree[1])
        total, freed = sum(size for _, _, size in trees), 0
        limit = (shutil.disk_usage(self._root).free + total) // 2 if self._limit is None else self._limit
        for manifest, _, size in trees:
            if total - freed <= limit:
                break
            if self._evict(manifest):
                freed += size
        return freed

    # -- filling ---------------------------------------------------------------------------------------------

    def _lock_tree(self, manifest: Digest, fetch: Fetch | None, progress: ProgressListener) -> int:
        """Returns a descriptor of the lock file with a shared lock, once the tree is present and complete."""
        while True:
            lock = self._lock(manifest, fcntl.LOCK_SH)
            try:
                if self._is_intact(lock) and (
                    (self._root / manifest).is_dir() or _read_lock_record(lock).seen
                ):
                    if not self._is_unchanged(manifest, lock):
                        self._repair(manifest, lock, fetch, progress)
                    os.utime(lock)
                    return lock
            except BaseException:
                os.close(lock)
                raise
            os.close(lock)
            try:
                # Does not wait for the lock: the filling process keeps it shared while it uses the tree,
                # which may outlast the wait.
                lock = self._lock(manifest, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                time.sleep(_POLL_INTERVAL_S)
                continue
            try:
                self._fill(manifest, lock, fetch, progress)
                # Downgrades to a shared lock without releasing it: otherwise a tree above the limit could be
                # evicted before its use.
                fcntl.flock(lock, fcntl.LOCK_SH)
                self.trim()
                if (self._root / manifest).is_dir() and self._is_current(lock, manifest):
                    return lock
            except BaseException:
                os.close(lock)
                raise
            # Between exclusive and shared, the kernel passed the lock to another process, which evicted the
            # tree.
            os.close(lock)

    def _fill(self, manifest: Digest, lock: int, fetch: Fetch | None, progress: ProgressListener) -> None:
        """Creates the tree, or checks the existing one. Needs the exclusive lock."""
        tree = self._root / manifest
        if tree.is_dir():
            if self._is_intact(lock):
                return  # another process filled it in the meantime
            if _matches(tree, manifest):
                _write_lock_record(lock, _LockRecord(_make_read_only(tree), _boot_id(), fingerprint(tree)))
                return
            self._discard(tree)
        self._fetch(manifest, lock, fetch, progress)

    def _repair(self, manifest: Digest, lock: int, fetch: Fetch | None, progress: ProgressListener) -> None:
        """Replaces a tree that was changed on disk. Needs a shared lock.

        Users of the tree see the correct one from now on. A running run that changed it does not block other
        runs.
        """
        tree, record = self._root / manifest, _read_lock_record(lock)
        repair_lock = open_file(self._root / f".{manifest}.mend", os.O_RDWR | os.O_CREAT)
        try:
            fcntl.flock(repair_lock, fcntl.LOCK_EX)
            if self._is_unchanged(manifest, lock):
                return  # another process repaired it in the meantime
            if tree.is_dir() and _matches(tree, manifest):
                # The bytes match: a file got a hard link, or its mode was changed.
                _write_lock_record(lock, _LockRecord(_make_read_only(tree), record.boot, fingerprint(tree)))
                return
            if record.seen and tree.is_dir():
                self._on_changed(manifest)
            if fetch is None:
                raise NotFound(f"the tree {manifest[:12]} was changed on this machine")
            self._fetch(manifest, lock, fetch, progress)
        finally:
            os.close(repair_lock)

    def _fetch(self, manifest: Digest, lock: int, fetch: Fetch | None, progress: ProgressListener) -> None:
        """Fetches a tree, and replaces the existing one, if any."""
        tree, part = self._root / manifest, self._root / f".{manifest}.part"
        if fetch is None:
            raise NotFound(f"the tree {manifest[:12]} is not on this machine")
        os.utime(lock)  # see `_remove_abandoned`
        make_folder(part)
        write_sample(
            download_blobs(manifest, part, FetchSource(fetch), progress), self._sample_path(manifest)
        )
        size = _make_read_only(part)
        boot = _boot_id()
        if size >= _FLUSH_BYTES and _sync_file_system(part):
            boot = ""
        _write_lock_record(lock, _LockRecord(size, boot, fingerprint(part)))
        trash = self._root / f".gone-{os.urandom(8).hex()}"
        with suppress(FileNotFoundError):
            tree.rename(trash)
        part.rename(tree)
        if trash.is_dir():
            remove_tree(trash)

    def verify(self) -> Iterator[tuple[Digest, bool]]:
        """Reads every tree and yields it with whether its bytes are correct."""
        for path in sorted(self._root.glob(".*.lock")):
            manifest = Digest(path.name[1:-5])
            if (self._root / manifest).is_dir():
                yield manifest, _matches(self._root / manifest, manifest)

    def list_manifests(self) -> list[Digest]:
        """Returns the manifests of all trees."""
        return sorted(manifest for manifest, _, _ in self._list_trees())

    def _is_unchanged(self, manifest: Digest, lock: int) -> bool:
        try:
            return _read_lock_record(lock).seen == fingerprint(self._root / manifest)
        except OSError:
            return False

    def _is_intact(self, lock: int) -> bool:
        """Returns whether the tree is as it was written.

        A machine that lost power may have lost bytes written shortly before. Large trees are flushed when
        they are filled; small trees are checked at their first use after a reboot.
        """
        return _read_lock_record(lock).boot in ("", _boot_id())

    # -- removing --------------------------------------------------------------------------------------------

    def _list_trees(self) -> Iterator[tuple[Digest, float, int]]:
        """Yields every tree with its last use (Unix time) and its size in bytes."""
        for path in self._root.glob(".*.lock"):
            manifest = Digest(path.name[1:-5])
            with suppress(OSError):
                if (self._root / manifest).is_dir():
                    yield manifest, path.stat().st_mtime, _parse_lock_record(path.read_bytes()).size_bytes

    def _remove_abandoned(self) -> None:
        """Removes the files of fetches that were interrupted long ago and never resumed."""
        for part in self._root.glob(".*.part"):
            manifest = Digest(part.name[1:-5])
            with suppress(FileNotFoundError):
                if (
                    self._lock_path(manifest).stat().st_mtime < time.time() - _ABANDONED_AFTER_S
                    and not (self._root / manifest).is_dir()
                ):
                    self._evict(manifest)

    def _evict(self, manifest: Digest) -> bool:
        try:
            lock = self._lock(manifest, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        try:
            for folder in (self._root / manifest, self._root / f".{manifest}.part"):
                if folder.is_dir():
                    self._discard(folder)
            (self._root / f".{manifest}.mend").unlink(missing_ok=True)
            self._sample_path(manifest).unlink(missing_ok=True)
            # a process that waits for the lock notices the removal
            self._lock_path(manifest).unlink(missing_ok=True)
        finally:
            os.close(lock)
        return True

    def _discard(self, tree: Path) -> None:
        trash = self._root / f".gone-{os.urandom(8).hex()}"
        tree.rename(trash)
        remove_tree(trash)

    # -- locks -----------------------------------------------------------------------------------------------

    def _lock_path(self, manifest: Digest) -> Path:
        return self._root / f".{manifest}.lock"

    def _sample_path(self, manifest: Digest) -> Path:
        return self._root / f".{manifest}.sample"

    def _lock(self, manifest: Digest, lock_mode: int) -> int:
        path = self._lock_path(manifest)
        while True:
            descriptor = open_file(path, os.O_RDWR | os.O_CREAT)
            try:
                fcntl.flock(descriptor, lock_mode)
                if self._is_current(descriptor, manifest):
                    return descriptor
            except BaseException:
                os.close(descriptor)
                raise
            os.close(descriptor)

    def _is_current(self, lock: int, manifest: Digest) -> bool:
        """Returns whether the lock is on the current lock file; an eviction removes the file."""
        try:
            return os.path.samestat(os.fstat(lock), os.stat(self._lock_path(manifest)))
        except FileNotFoundError:
            return False


def _matches(tree: Path, manifest: Digest) -> bool:
    try:
        return pack_tree(tree, rules=EXACT_RULES).digest == manifest
    except HopyardError:
        return False


def _make_read_only(top: Path) -> int:
    """Removes all permissions below and at `top` but the owner's right to read; returns the total size of the
    files."""
    size = 0
    with os.scandir(top) as entries:
        for entry in entries:
            if entry.is_symlink():
                continue
            if entry.is_dir():
                size += _make_read_only(Path(entry.path))
            else:
                file_stat = entry.stat()
                size += file_stat.st_size
                os.chmod(entry.path, stat.S_IMODE(file_stat.st_mode) & 0o100 | 0o400)
    os.chmod(top, 0o500)
    return size


def _copy(source: str, dest: str) -> None:
    os.makedirs(dest, exist_ok=True)
    with os.scandir(source) as entries:
        for entry in entries:
            target = f"{dest}/{entry.name}"
            if entry.is_symlink():
                os.symlink(os.readlink(entry.path), target)
            elif entry.is_dir():
                _copy(entry.path, target)
            else:
                shutil.copyfile(entry.path, target)
                if entry.stat().st_mode & 0o100:
                    os.chmod(target, 0o777 & ~_umask_of(target))


def _umask_of(path: str) -> int:
    """Returns the umask, derived from a file that was just created with mode 0666."""
    return ~os.stat(path).st_mode & 0o666 | (~os.stat(path).st_mode & 0o444) >> 2


def _boot_id() -> str:
    """Returns an ID of the current boot; "unknown" if the kernel has none, which counts as one boot."""
    try:
        return _BOOT_ID.read_text().strip()
    except OSError:
        return "unknown"


def _sync_file_system(path: Path) -> bool:
    """Flushes the whole file system of `path` to disk; returns whether this succeeded."""
    import ctypes

    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        return bool(ctypes.CDLL(None, use_errno=True).syncfs(descriptor) == 0)
    except (AttributeError, OSError):
        return False
    finally:
        os.close(descriptor)


def _read_lock_record(lock: int) -> _LockRecord:
    return _parse_lock_record(os.pread(lock, 4096, 0))


def _parse_lock_record(data: bytes) -> _LockRecord:
    """Parses a lock file; returns a size of 0 and the boot "none" if the content is unusable."""
    try:
        fields = json.loads(data)
        return _LockRecord(int(fields["size_bytes"]), str(fields["boot"]), str(fields.get("seen", "")))
    except (ValueError, KeyError, TypeError):
        return _LockRecord(0, "none")


def _write_lock_record(lock: int, record: _LockRecord) -> None:
    data = json.dumps(record._asdict()).encode()
    os.pwrite(lock, data.ljust(256), 0)  # one write of constant length: other processes read it concurrently
