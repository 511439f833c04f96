"""Trees that runs share on one machine: filled once, read-only, evicted by least use and never while in use.

```text
<root>/<manifest>/          a whole tree
<root>/.<manifest>.lock     flock: shared while the tree is used, exclusive while it is filled or evicted;
                            its time stamp is the last use, its text the tree's size, the boot it was written
                            in, and its fingerprint: a tree that is changed afterwards is noticed at its next
                            use
<root>/.<manifest>.mend     flock: held while a changed tree is replaced, which does not wait for those that
                            use it
<root>/.<manifest>.part/    a tree that is being filled
<root>/.gone-*/             a tree that is being removed
```
The kernel drops a process's locks when it dies, however it dies, so a crash leaves nothing in use and
nothing half-visible.
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
from hopyard.domain.ids import Digest, check_digest
from hopyard.errors import HopyardError, NotFound
from hopyard.private_files import make_folder, open_file

_FLUSH_BYTES = 64 * 1024 * 1024
_ABANDONED_AFTER_S = 24 * 3600.0  # a broken-off fetch that nobody went on with for so long is given up
_POLL_INTERVAL_S = 0.005  # while others look too; whoever fills lets nobody look until it is done
_BOOT_ID = Path("/proc/sys/kernel/random/boot_id")


class _LockRecord(NamedTuple):
    """What the lock file says. boot: the boot in which the tree was written or checked; "" once it is on disk
    for sure. seen: its fingerprint then; "" of a tree that was made before there were fingerprints."""

    size_bytes: int
    boot: str
    seen: str = ""


class TreeCache:
    """Any number of processes may use one `root` at once. `limit_bytes` bounds what is kept, not what is in
    use; None takes half of what the disk could give. on_changed: told of each tree that was not what had been
    put there, and is fetched anew."""

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
        """The tree's folder, which stays as it is until the block ends. `fetch` (a `BlobTransport`'s) is
        called when the tree is not there; of many who ask at once, one fetches and the others wait, and what
        a broken-off fetch brought is kept. Raises IntegrityError, StorageFull, what `fetch` raises; without
        `fetch`, NotFound when the tree is not here."""
        check_digest(manifest)
        make_folder(self._root)
        lock = self._lock_tree(manifest, fetch, progress)
        try:
            yield self._root / manifest
        finally:
            os.close(lock)

    def checkout(self, manifest: Digest, dest: Path, fetch: Fetch | None = None) -> None:
        """A private, writable copy at `dest`, which must not exist or be empty. Raises as `use`."""
        with self.open_tree(manifest, fetch) as tree:
            _copy(str(tree), str(dest))

    def trim(self) -> int:
        """Evict trees, the longest unused first, until the limit holds; the bytes freed.
        Trees in use stay."""
        for left in self._root.glob(".gone-*"):
            remove_tree(left)
        self._remove_abandoned()
        found = sorted(self._list_trees(), key=lambda tree: tree[1])
        total, freed = sum(size for _, _, size in found), 0
        limit = (shutil.disk_usage(self._root).free + total) // 2 if self._limit is None else self._limit
        for manifest, _, size in found:
            if total - freed <= limit:
                break
            if self._evict(manifest):
                freed += size
        return freed

    # -- filling ---------------------------------------------------------------------------------------------

    def _lock_tree(self, manifest: Digest, fetch: Fetch | None, progress: ProgressListener) -> int:
        """A descriptor of the lock file with a shared lock, the tree being there and whole."""
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
                # Never waited for: whoever fills it meanwhile keeps it shared as long as it is used, which
                # may be until we are there too.
                lock = self._lock(manifest, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                time.sleep(_POLL_INTERVAL_S)
                continue
            try:
                self._fill(manifest, lock, fetch, progress)
                # Shared from here on, never let go of: a tree that is larger than the limit would be evicted
                # before its use.
                fcntl.flock(lock, fcntl.LOCK_SH)
                self.trim()
                if (self._root / manifest).is_dir() and self._is_current(lock, manifest):
                    return lock
            except BaseException:
                os.close(lock)
                raise
            # the kernel gave the lock to somebody else between exclusive and shared, who evicted the tree
            os.close(lock)

    def _fill(self, manifest: Digest, lock: int, fetch: Fetch | None, progress: ProgressListener) -> None:
        """Under the exclusive lock: make the tree, or check the one that is there."""
        tree = self._root / manifest
        if tree.is_dir():
            if self._is_intact(lock):
                return  # another process filled it while this one waited
            if _matches(tree, manifest):
                _write_lock_record(lock, _LockRecord(_make_read_only(tree), _boot_id(), fingerprint(tree)))
                return
            self._discard(tree)
        self._fetch(manifest, lock, fetch, progress)

    def _repair(self, manifest: Digest, lock: int, fetch: Fetch | None, progress: ProgressListener) -> None:
        """Under a shared lock: replace a tree that was changed since it was put there. Those that use it see
        the right one from now on: a run that changed it, and goes on, keeps no other waiting."""
        tree, note = self._root / manifest, _read_lock_record(lock)
        mending = open_file(self._root / f".{manifest}.mend", os.O_RDWR | os.O_CREAT)
        try:
            fcntl.flock(mending, fcntl.LOCK_EX)
            if self._is_unchanged(manifest, lock):
                return  # another process did it while this one waited
            if tree.is_dir() and _matches(tree, manifest):
                # Its bytes are right: a hard link was made of a file, or the modes were changed.
                _write_lock_record(lock, _LockRecord(_make_read_only(tree), note.boot, fingerprint(tree)))
                return
            if note.seen and tree.is_dir():
                self._on_changed(manifest)
            if fetch is None:
                raise NotFound(f"the tree {manifest[:12]} was changed on this machine")
            self._fetch(manifest, lock, fetch, progress)
        finally:
            os.close(mending)

    def _fetch(self, manifest: Digest, lock: int, fetch: Fetch | None, progress: ProgressListener) -> None:
        """Fetch a tree, and put it in place of the one that is there, if any."""
        tree, part = self._root / manifest, self._root / f".{manifest}.part"
        if fetch is None:
            raise NotFound(f"the tree {manifest[:12]} is not on this machine")
        os.utime(lock)  # see `_give_up_abandoned`
        make_folder(part)
        download_blobs(manifest, part, FetchSource(fetch), progress)
        size = _make_read_only(part)
        boot = _boot_id()
        if size >= _FLUSH_BYTES and _sync_file_system(part):
            boot = ""
        _write_lock_record(lock, _LockRecord(size, boot, fingerprint(part)))
        gone = self._root / f".gone-{os.urandom(8).hex()}"
        with suppress(FileNotFoundError):
            tree.rename(gone)
        part.rename(tree)
        if gone.is_dir():
            remove_tree(gone)

    def verify(self) -> Iterator[tuple[Digest, bool]]:
        """Every tree with whether its bytes are right, read whole."""
        for path in sorted(self._root.glob(".*.lock")):
            manifest = Digest(path.name[1:-5])
            if (self._root / manifest).is_dir():
                yield manifest, _matches(self._root / manifest, manifest)

    def _is_unchanged(self, manifest: Digest, lock: int) -> bool:
        try:
            return _read_lock_record(lock).seen == fingerprint(self._root / manifest)
        except OSError:
            return False

    def _is_intact(self, lock: int) -> bool:
        """Whether the tree is what was written: a machine that lost power may have lost the bytes of files
        written just before. Large trees are flushed when they are filled; small ones are checked at their
        first use after a restart."""
        return _read_lock_record(lock).boot in ("", _boot_id())

    # -- removing --------------------------------------------------------------------------------------------

    def _list_trees(self) -> Iterator[tuple[Digest, float, int]]:
        """Every tree with its last use and its size."""
        for path in self._root.glob(".*.lock"):
            manifest = Digest(path.name[1:-5])
            with suppress(OSError):
                if (self._root / manifest).is_dir():
                    yield manifest, path.stat().st_mtime, _parse_lock_record(path.read_bytes()).size_bytes

    def _remove_abandoned(self) -> None:
        """Remove what broken-off fetches left that began long ago and that nobody goes on with."""
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
            self._lock_path(manifest).unlink(missing_ok=True)  # whoever waits for it notices that it is gone
        finally:
            os.close(lock)
        return True

    def _discard(self, tree: Path) -> None:
        gone = self._root / f".gone-{os.urandom(8).hex()}"
        tree.rename(gone)
        remove_tree(gone)

    # -- locks -----------------------------------------------------------------------------------------------

    def _lock_path(self, manifest: Digest) -> Path:
        return self._root / f".{manifest}.lock"

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
        """Whether the lock is on the file that others find; an eviction removes it."""
        try:
            return os.path.samestat(os.fstat(lock), os.stat(self._lock_path(manifest)))
        except FileNotFoundError:
            return False


def remove_tree(path: Path) -> None:
    """Remove a folder, also one whose folders are read-only. What vanishes meanwhile is no error."""
    with suppress(OSError):
        os.chmod(path, 0o700)
        for folder, names, _ in os.walk(path):
            for name in names:
                full = os.path.join(folder, name)
                if not os.path.islink(full):
                    os.chmod(full, 0o700)
    shutil.rmtree(path, ignore_errors=True)


def _matches(tree: Path, manifest: Digest) -> bool:
    try:
        return pack_tree(tree, rules=EXACT_RULES).digest == manifest
    except HopyardError:
        return False


def _make_read_only(top: Path) -> int:
    """Leave the owner the right to read, and nobody any other, below `top` and in it; the sum of the files'
    sizes."""
    size = 0
    with os.scandir(top) as entries:
        for entry in entries:
            if entry.is_symlink():
                continue
            if entry.is_dir():
                size += _make_read_only(Path(entry.path))
            else:
                about = entry.stat()
                size += about.st_size
                os.chmod(entry.path, stat.S_IMODE(about.st_mode) & 0o100 | 0o400)
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
    """The umask, told from a file that was just made with mode 0666."""
    return ~os.stat(path).st_mode & 0o666 | (~os.stat(path).st_mode & 0o444) >> 2


def _boot_id() -> str:
    """Names this boot of the machine; "unknown" where the kernel does not tell, which counts as one and the
    same boot."""
    try:
        return _BOOT_ID.read_text().strip()
    except OSError:
        return "unknown"


def _sync_file_system(path: Path) -> bool:
    """Bring everything on the file system of `path` to disk; whether that could be done."""
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
    """What a lock file says; a size of 0 and no boot at all where it says nothing usable."""
    try:
        said = json.loads(data)
        return _LockRecord(int(said["size_bytes"]), str(said["boot"]), str(said.get("seen", "")))
    except (ValueError, KeyError, TypeError):
        return _LockRecord(0, "none")


def _write_lock_record(lock: int, record: _LockRecord) -> None:
    data = json.dumps(record._asdict()).encode()
    os.pwrite(lock, data.ljust(256), 0)  # in one go, and as long as any other: others read it meanwhile
