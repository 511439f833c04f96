"""Packs, single files and their index as one thing that blocks: what `FolderBlobs` calls from its threads."""

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

LARGE_BYTES = 1024 * 1024  # a blob of this size or more is a file of its own
_OPEN_PACKS = 64


class PackStore:
    """Opening makes the folders, removes what a crash left unfinished and brings the index up to date."""

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

    # -- writing ---------------------------------------------------------------------------------------------

    def store(self, blobs: Mapping[bytes, bytes]) -> None:
        """Write blobs that are not here yet, checked already.
        What is small becomes one pack, so it comes in whole. Raises StorageFull."""
        now = int(time.time())
        small = [(raw, data) for raw, data in blobs.items() if len(data) < LARGE_BYTES]
        try:
            for raw, data in blobs.items():
                if len(data) >= LARGE_BYTES:
                    self._store_own_file(raw, data, now)
            if small:
                self._store_pack(small, now)
        except OSError as error:
            if error.errno in DISK_FULL_ERRNOS:
                raise disk_full_error() from error
            raise

    def _store_own_file(self, raw: bytes, data: bytes, now: int) -> None:
        final = self.large_path(raw)
        make_folder(final.parent)
        written = write_durably(final.parent, [data])
        with self.index.locked():
            written.replace(final)
            self.index.add_own_file(raw, len(data), now)
        flush_folder(final.parent)
        flush_folder(self.large_folder)

    def _store_pack(self, blobs: Sequence[tuple[bytes, bytes]], now: int) -> None:
        pack, offsets, size = self.write_pack(blobs)
        rows = [
            BlobRow(raw, BlobLocation(pack, offset, len(data)))
            for (raw, data), offset in zip(blobs, offsets, strict=True)
        ]
        entered = 0
        try:
            entered = self.index.add_pack(pack, size, rows, now)
        finally:
            if not entered:  # another call stored the same blobs meanwhile, or the index could not be written
                self.remove_pack_file(pack)

    def write_pack(self, blobs: Sequence[tuple[bytes, bytes]]) -> tuple[int, list[int], int]:
        """A new pack on disk, not yet in the index: its number, the offset of each blob, its size."""
        parts, offsets, size = pack_layout(blobs)
        pack = secrets.randbits(62) + 1
        written = write_durably(self.packs_folder, parts)
        written.rename(self.packs_folder / pack_name(pack))
        flush_folder(self.packs_folder)
        return pack, offsets, size

    # -- reading ---------------------------------------------------------------------------------------------

    def read(self, raw: bytes, location: BlobLocation) -> bytes:
        """A blob's bytes, checked. One that is damaged is set aside (IntegrityError)."""
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
            moved = self.index.find([raw]).get(raw)  # a sweep may have rewritten its pack
            if moved == location:
                self._quarantine(raw, location)
                raise IntegrityError(
                    f"blob {raw.hex()[:12]} is damaged on the server's disk",
                    hints=("push the same data again: the damaged blob was set aside and will be replaced",),
                )
            if moved is None:
                raise NotFound(f"no blob {raw.hex()[:12]} here", hints=("push the data again",))
            location = moved

    def _read_own_file(self, raw: bytes, size: int) -> bytes:
        path = self.large_path(raw)
        try:
            descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_DIRECT)
        except OSError as error:
            if error.errno != errno.EINVAL:
                raise
            return path.read_bytes()
        try:  # past the page cache, as it was written: see `files`
            needed = -(-size // mmap.PAGESIZE) * mmap.PAGESIZE
            buffer = self._buffer(needed)
            with memoryview(buffer) as whole:
                at = 0
                while at < size:
                    got = os.preadv(descriptor, [whole[at:needed]], at)
                    at += got
                    if not got or got % mmap.PAGESIZE:
                        break
                data = bytes(whole[:size]) if at == size else b""
            self._spare_buffer = buffer
            return data
        finally:
            os.close(descriptor)

    def _buffer(self, size: int) -> mmap.mmap:
        """An aligned buffer of at least `size` bytes; the one that was used last, if nobody else uses it:
        fresh memory costs as much as the read itself."""
        with self._read_lock:
            spare, self._spare_buffer = self._spare_buffer, None
        return spare if spare is not None and len(spare) >= size else mmap.mmap(-1, size)

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

    # -- removing --------------------------------------------------------------------------------------------

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
        """Forget a blob, and keep what is left of it. The name of a packed one tells its pack, for
        `take_back`."""
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
                pass  # there is nothing left of it, or no room for it: it is damaged all the same

    def _read_remains(self, location: BlobLocation) -> bytes:
        try:
            return self._read_packed(location)
        except OSError:
            return b""

    def restore_quarantined(self) -> None:
        """Enter again what was set aside and is good now, because its file was copied back from elsewhere.
        What is whole again, by that or by a push, needs no remains."""
        aside = {
            path: (bytes.fromhex(path.name[:64]), pack_number(path.name[65:]))
            for path in self._damaged_folder.iterdir()
            if len(path.name) in (64, 81)
        }
        for pack in {pack for _, pack in aside.values() if pack is not None}:
            file = self.packs_folder / pack_name(pack)
            self._close_pack(pack)
            try:
                rows = [
                    BlobRow(raw, BlobLocation(pack, offset, size))
                    for raw, offset, size in read_valid_frames(file)
                ]
                self.index.add_pack(pack, file.stat().st_size, rows, int(time.time()))
            except FileNotFoundError:
                continue  # a sweep removed what was left of it
        for raw in (raw for raw, pack in aside.values() if pack is None):
            file = self.large_path(raw)
            if file.exists():
                self.index.add_own_file(raw, file.stat().st_size, int(time.time()))
        here = self.index.find([raw for raw, _ in aside.values()])
        for path, (raw, _) in aside.items():
            if raw in here:
                path.unlink(missing_ok=True)

    # -- at the start ----------------------------------------------------------------------------------------

    def _reconcile_packs(self) -> None:
        """Enter packs that the index does not know, forget those that are gone."""
        listed, known = set(), self.index.packs()
        for path in self.packs_folder.iterdir():
            pack = pack_number(path.name)
            if pack is not None:
                listed.add(pack)
            elif path.name.startswith(TEMPORARY_PREFIX):
                path.unlink(missing_ok=True)
        for pack in known.keys() - listed:
            self.index.remove_pack(pack)
        for pack in listed - known.keys():
            path = self.packs_folder / pack_name(pack)
            rows = [
                BlobRow(raw, BlobLocation(pack, offset, size))
                for raw, offset, size in read_valid_frames(path)
            ]
            if not self.index.add_pack(pack, path.stat().st_size, rows, int(time.time())):
                path.unlink()  # nothing in it that is not elsewhere, or nothing good

    def _reconcile_large(self) -> None:
        known = {row.digest: row.location for row in self.index.list_pack(OWN_FILE_PACK)}
        now = int(time.time())
        for path in self._large_files():
            raw = bytes.fromhex(path.name)
            if known.pop(raw, None) is None:
                self.index.add_own_file(raw, path.stat().st_size, now)
        for raw, place in known.items():
            self.index.remove(raw, place)

    def _large_files(self) -> Iterator[Path]:
        for folder in self.large_folder.iterdir():
            for path in folder.iterdir():
                if path.name.startswith(TEMPORARY_PREFIX):
                    path.unlink(missing_ok=True)
                elif len(path.name) == 64:
                    yield path
