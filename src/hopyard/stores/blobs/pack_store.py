"""Packs, separate files and their index as one blocking store, which `FolderBlobs` calls from its threads."""

from __future__ import annotations

import errno
import mmap
import os
import secrets
import threading
import time
from collections import OrderedDict
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from blake3 import blake3

from hopyard.errors import IntegrityError, NotFound
from hopyard.private_files import make_folder, write_atomically
from hopyard.stores.blobs.durable_files import (
    DISK_FULL_ERRNOS,
    TEMPORARY_PREFIX,
    disk_full_error,
    flush_folder,
    write_durably,
)
from hopyard.stores.blobs.index import OWN_FILE_PACK, BlobIndex, BlobLocation, BlobRow
from hopyard.stores.blobs.packs import pack_layout, pack_name, pack_number, read_valid_frames

LARGE_BYTES = 1024 * 1024  # a blob of this size or more is stored as a separate file
_OPEN_PACKS = 64


class PackStore:
    """Opening creates the folders, removes unfinished files of a crash, and updates the index."""

    def __init__(self, root: Path) -> None:
        self.packs_folder, self.large_folder, self._damaged_folder = (
            root / "packs",
            root / "large",
            root / "damaged",
        )
        for folder in (self.packs_folder, self.large_folder, self._damaged_folder):
            make_folder(folder)
        self.index = BlobIndex(root / "index.db")
        self._pack_descriptors: OrderedDict[int, int] = OrderedDict()  # pack -> descriptor
        self._read_lock = threading.Lock()
        self._spare_buffer: mmap.mmap | None = None
        self._reconcile_packs()
        self._reconcile_large()
        self.restore_quarantined()

    def close(self) -> None:
        with self._read_lock:
            while self._pack_descriptors:
                os.close(self._pack_descriptors.popitem()[1])
        self.index.close()

    # -- writes ----------------------------------------------------------------------------------------------

    def store(self, blobs: Mapping[bytes, bytes]) -> None:
        """Stores checked blobs that are not stored yet. Small blobs become one pack, all or none. Raises
        StorageFull."""
        now = int(time.time())
        small_blobs = [(raw, data) for raw, data in blobs.items() if len(data) < LARGE_BYTES]
        try:
            for raw, data in blobs.items():
                if len(data) >= LARGE_BYTES:
                    self._store_own_file(raw, data, now)
            if small_blobs:
                self._store_pack(small_blobs, now)
        except OSError as error:
            if error.errno in DISK_FULL_ERRNOS:
                raise disk_full_error() from error
            raise

    def _store_own_file(self, raw: bytes, data: bytes, now: int) -> None:
        path = self.large_path(raw)
        make_folder(path.parent)
        temporary_path = write_durably(path.parent, [data])
        with self.index.locked():
            temporary_path.replace(path)
            self.index.add_own_file(raw, len(data), now)
        flush_folder(path.parent)
        flush_folder(self.large_folder)

    def _store_pack(self, blobs: Sequence[tuple[bytes, bytes]], now: int) -> None:
        pack, offsets, size = self.write_pack(blobs)
        rows = [
            BlobRow(raw, BlobLocation(pack, offset, len(data)))
            for (raw, data), offset in zip(blobs, offsets, strict=True)
        ]
        added = 0
        try:
            added = self.index.add_pack(pack, size, rows, now)
        finally:
            if not added:  # another call stored the same blobs meanwhile, or the index could not be written
                self.remove_pack_file(pack)

    def write_pack(self, blobs: Sequence[tuple[bytes, bytes]]) -> tuple[int, list[int], int]:
        """Writes a new pack that is not in the index yet; returns its number, the offset of each blob, and
        its size."""
        parts, offsets, size = pack_layout(blobs)
        pack = secrets.randbits(62) + 1
        temporary_path = write_durably(self.packs_folder, parts)
        temporary_path.rename(self.packs_folder / pack_name(pack))
        flush_folder(self.packs_folder)
        return pack, offsets, size

    # -- reads -----------------------------------------------------------------------------------------------

    def read(self, raw: bytes, location: BlobLocation) -> bytes:
        """Returns the checked bytes of a blob. A damaged blob is set aside (IntegrityError)."""
        while True:
            try:
                data = (
                    self._read_own_file(raw, location.size)
                    if location.pack == OWN_FILE_PACK
                    else self._read_packed(location)
                )
                if len(data) == location.size and blake3(data).digest() == raw:
                    return data
            except FileNotFoundError:
                pass
            except OSError as error:
                if error.errno != errno.EIO:
                    raise
            current = self.index.find([raw]).get(raw)  # garbage collection may have rewritten its pack
            if current == location:
                self._quarantine(raw, location)
                raise IntegrityError(
                    f"blob {raw.hex()[:12]} is damaged on the server's disk",
                    hints=("push the same data again: the damaged blob was set aside and will be replaced",),
                )
            if current is None:
                raise NotFound(f"blob {raw.hex()[:12]} is not stored", hints=("push the data again",))
            location = current

    def _read_own_file(self, raw: bytes, size: int) -> bytes:
        path = self.large_path(raw)
        try:
            descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_DIRECT)
        except OSError as error:
            if error.errno != errno.EINVAL:
                raise
            return path.read_bytes()
        try:  # past the page cache, as it was written: see `durable_files`
            needed = -(-size // mmap.PAGESIZE) * mmap.PAGESIZE
            buffer = self._buffer(needed)
            with memoryview(buffer) as view:
                offset = 0
                while offset < size:
                    count = os.preadv(descriptor, [view[offset:needed]], offset)
                    offset += count
                    if not count or count % mmap.PAGESIZE:
                        break
                data = bytes(view[:size]) if offset == size else b""
            self._spare_buffer = buffer
            return data
        finally:
            os.close(descriptor)

    def _buffer(self, size: int) -> mmap.mmap:
        """Returns an aligned buffer of at least `size` bytes: the last one, if it is free, because fresh
        memory costs as much as the read itself."""
        with self._read_lock:
            buffer, self._spare_buffer = self._spare_buffer, None
        return buffer if buffer is not None and len(buffer) >= size else mmap.mmap(-1, size)

    def _read_packed(self, location: BlobLocation) -> bytes:
        with self._read_lock:
            descriptor = self._pack_descriptors.get(location.pack)
            if descriptor is None:
                descriptor = os.open(self.packs_folder / pack_name(location.pack), os.O_RDONLY | os.O_CLOEXEC)
                self._pack_descriptors[location.pack] = descriptor
                if len(self._pack_descriptors) > _OPEN_PACKS:
                    os.close(self._pack_descriptors.popitem(last=False)[1])
            else:
                self._pack_descriptors.move_to_end(location.pack)
            return os.pread(descriptor, location.size, location.offset)

    # -- removal ---------------------------------------------------------------------------------------------

    def large_path(self, raw: bytes) -> Path:
        name = raw.hex()
        return self.large_folder / name[:2] / name

    def remove_pack_file(self, pack: int) -> None:
        self._close_pack(pack)
        (self.packs_folder / pack_name(pack)).unlink(missing_ok=True)

    def _close_pack(self, pack: int) -> None:
        with self._read_lock:
            descriptor = self._pack_descriptors.pop(pack, None)
            if descriptor is not None:
                os.close(descriptor)

    def _quarantine(self, raw: bytes, location: BlobLocation) -> None:
        """Removes a blob from the index, and keeps its remains. The name of a packed blob's file holds its
        pack, for `restore_quarantined`."""
        with self.index.locked():
            if not self.index.remove(raw, location):
                return
            try:
                if location.pack == OWN_FILE_PACK:
                    self.large_path(raw).replace(self._damaged_folder / raw.hex())
                else:
                    write_atomically(
                        self._damaged_folder / f"{raw.hex()}.{pack_name(location.pack)}",
                        self._read_remains(location),
                    )
            except OSError:
                pass  # nothing is left of it, or the disk is full: the blob is damaged in any case

    def _read_remains(self, location: BlobLocation) -> bytes:
        try:
            return self._read_packed(location)
        except OSError:
            return b""

    def restore_quarantined(self) -> None:
        """Restores quarantined blobs that are intact now, because their file was copied back. Removes the
        remains of all blobs that are intact again, by that or by a push."""
        quarantined = {
            path: (bytes.fromhex(path.name[:64]), pack_number(path.name[65:]))
            for path in self._damaged_folder.iterdir()
            if len(path.name) in (64, 81)
        }
        for pack in {pack for _, pack in quarantined.values() if pack is not None}:
            path = self.packs_folder / pack_name(pack)
            self._close_pack(pack)
            try:
                rows = [
                    BlobRow(raw, BlobLocation(pack, offset, size))
                    for raw, offset, size in read_valid_frames(path)
                ]
                self.index.add_pack(pack, path.stat().st_size, rows, int(time.time()))
            except FileNotFoundError:
                continue  # garbage collection removed the rest of the pack
        for raw in (raw for raw, pack in quarantined.values() if pack is None):
            path = self.large_path(raw)
            if path.exists():
                self.index.add_own_file(raw, path.stat().st_size, int(time.time()))
        present = self.index.find([raw for raw, _ in quarantined.values()])
        for path, (raw, _) in quarantined.items():
            if raw in present:
                path.unlink(missing_ok=True)

    # -- startup ---------------------------------------------------------------------------------------------

    def _reconcile_packs(self) -> None:
        """Adds packs that the index lacks, and removes missing packs from it."""
        present, indexed = set(), self.index.packs()
        for path in self.packs_folder.iterdir():
            pack = pack_number(path.name)
            if pack is not None:
                present.add(pack)
            elif path.name.startswith(TEMPORARY_PREFIX):
                path.unlink(missing_ok=True)
        for pack in indexed.keys() - present:
            self.index.remove_pack(pack)
        for pack in present - indexed.keys():
            path = self.packs_folder / pack_name(pack)
            rows = [
                BlobRow(raw, BlobLocation(pack, offset, size))
                for raw, offset, size in read_valid_frames(path)
            ]
            if not self.index.add_pack(pack, path.stat().st_size, rows, int(time.time())):
                path.unlink()  # all its blobs are stored elsewhere, or damaged

    def _reconcile_large(self) -> None:
        indexed = {row.digest: row.location for row in self.index.list_pack(OWN_FILE_PACK)}
        now = int(time.time())
        for path in self._large_files():
            raw = bytes.fromhex(path.name)
            if indexed.pop(raw, None) is None:
                self.index.add_own_file(raw, path.stat().st_size, now)
        for raw, location in indexed.items():
            self.index.remove(raw, location)

    def _large_files(self) -> Iterator[Path]:
        for folder in self.large_folder.iterdir():
            for path in folder.iterdir():
                if path.name.startswith(TEMPORARY_PREFIX):
                    path.unlink(missing_ok=True)
                elif len(path.name) == 64:
                    yield path
