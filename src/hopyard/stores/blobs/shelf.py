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
from hopyard.stores.blobs.files import FULL, TEMPORARY, flush_folder, full, write_durably
from hopyard.stores.blobs.index import ALONE, Index, Place, Row
from hopyard.stores.blobs.packs import layout, pack_name, pack_number, scan

LARGE_BYTES = 1024 * 1024  # a blob of this size or more is a file of its own
_OPEN_PACKS = 64


class Shelf:
    """Opening makes the folders, removes what a crash left unfinished and brings the index up to date."""

    def __init__(self, root: Path) -> None:
        self.packs, self.large, self._damaged = root / "packs", root / "large", root / "damaged"
        for folder in (self.packs, self.large, self._damaged):
            make_folder(folder)
        self.index = Index(root / "index.db")
        self._readers: OrderedDict[int, int] = OrderedDict()  # pack -> descriptor
        self._reading = threading.Lock()
        self._spare: mmap.mmap | None = None
        self._reconcile_packs()
        self._reconcile_large()
        self.take_back()

    def close(self) -> None:
        with self._reading:
            while self._readers:
                os.close(self._readers.popitem()[1])
        self.index.close()

    # -- writing
    # -------------------------------------------------------------------------------------------------

    def store(self, blobs: Mapping[bytes, bytes]) -> None:
        """Write blobs that are not here yet, checked already.
        What is small becomes one pack, so it comes in whole. Raises StorageFull."""
        now = int(time.time())
        small = [(raw, data) for raw, data in blobs.items() if len(data) < LARGE_BYTES]
        try:
            for raw, data in blobs.items():
                if len(data) >= LARGE_BYTES:
                    self._store_alone(raw, data, now)
            if small:
                self._store_pack(small, now)
        except OSError as bad:
            if bad.errno in FULL:
                raise full() from bad
            raise

    def _store_alone(self, raw: bytes, data: bytes, now: int) -> None:
        final = self.large_path(raw)
        make_folder(final.parent)
        written = write_durably(final.parent, [data])
        with self.index.exclusive():
            written.replace(final)
            self.index.add_alone(raw, len(data), now)
        flush_folder(final.parent)
        flush_folder(self.large)

    def _store_pack(self, blobs: Sequence[tuple[bytes, bytes]], now: int) -> None:
        pack, offsets, size = self.write_pack(blobs)
        rows = [
            Row(raw, Place(pack, offset, len(data)))
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
        parts, offsets, size = layout(blobs)
        pack = secrets.randbits(62) + 1
        written = write_durably(self.packs, parts)
        written.rename(self.packs / pack_name(pack))
        flush_folder(self.packs)
        return pack, offsets, size

    # -- reading
    # -------------------------------------------------------------------------------------------------

    def read(self, raw: bytes, place: Place) -> bytes:
        """A blob's bytes, checked. One that is damaged is set aside (IntegrityError)."""
        while True:
            try:
                data = self._read_alone(raw, place.size) if place.pack == ALONE else self._read_packed(place)
                if len(data) == place.size and blake3(data).digest() == raw:
                    return data
            except FileNotFoundError:
                pass
            except OSError as bad:
                if bad.errno != errno.EIO:
                    raise
            moved = self.index.find([raw]).get(raw)  # a sweep may have rewritten its pack
            if moved == place:
                self._set_aside(raw, place)
                raise IntegrityError(
                    f"blob {raw.hex()[:12]} is damaged on the server's disk",
                    hints=("push the same data again: the damaged blob was set aside and will be replaced",),
                )
            if moved is None:
                raise NotFound(f"no blob {raw.hex()[:12]} here", hints=("push the data again",))
            place = moved

    def _read_alone(self, raw: bytes, size: int) -> bytes:
        path = self.large_path(raw)
        try:
            descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_DIRECT)
        except OSError as bad:
            if bad.errno != errno.EINVAL:
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
            self._spare = buffer
            return data
        finally:
            os.close(descriptor)

    def _buffer(self, size: int) -> mmap.mmap:
        """An aligned buffer of at least `size` bytes; the one that was used last, if nobody else uses it:
        fresh memory costs as much as the read itself."""
        with self._reading:
            spare, self._spare = self._spare, None
        return spare if spare is not None and len(spare) >= size else mmap.mmap(-1, size)

    def _read_packed(self, place: Place) -> bytes:
        with self._reading:
            descriptor = self._readers.get(place.pack)
            if descriptor is None:
                descriptor = os.open(self.packs / pack_name(place.pack), os.O_RDONLY | os.O_CLOEXEC)
                self._readers[place.pack] = descriptor
                if len(self._readers) > _OPEN_PACKS:
                    os.close(self._readers.popitem(last=False)[1])
            else:
                self._readers.move_to_end(place.pack)
            return os.pread(descriptor, place.size, place.offset)

    # -- removing
    # ------------------------------------------------------------------------------------------------

    def large_path(self, raw: bytes) -> Path:
        name = raw.hex()
        return self.large / name[:2] / name

    def remove_pack_file(self, pack: int) -> None:
        self._forget_reader(pack)
        (self.packs / pack_name(pack)).unlink(missing_ok=True)

    def _forget_reader(self, pack: int) -> None:
        with self._reading:
            descriptor = self._readers.pop(pack, None)
            if descriptor is not None:
                os.close(descriptor)

    def _set_aside(self, raw: bytes, place: Place) -> None:
        """Forget a blob, and keep what is left of it. The name of a packed one tells its pack, for
        `take_back`."""
        with self.index.exclusive():
            if not self.index.remove(raw, place):
                return
            try:
                if place.pack == ALONE:
                    self.large_path(raw).replace(self._damaged / raw.hex())
                else:
                    write_atomically(
                        self._damaged / f"{raw.hex()}.{pack_name(place.pack)}", self._left_of(place)
                    )
            except OSError:
                pass  # there is nothing left of it, or no room for it: it is damaged all the same

    def _left_of(self, place: Place) -> bytes:
        try:
            return self._read_packed(place)
        except OSError:
            return b""

    def take_back(self) -> None:
        """Enter again what was set aside and is good now, because its file was copied back from elsewhere.
        What is whole again, by that or by a push, needs no remains."""
        aside = {
            path: (bytes.fromhex(path.name[:64]), pack_number(path.name[65:]))
            for path in self._damaged.iterdir()
            if len(path.name) in (64, 81)
        }
        for pack in {pack for _, pack in aside.values() if pack is not None}:
            file = self.packs / pack_name(pack)
            self._forget_reader(pack)
            try:
                rows = [Row(raw, Place(pack, offset, size)) for raw, offset, size in scan(file)]
                self.index.add_pack(pack, file.stat().st_size, rows, int(time.time()))
            except FileNotFoundError:
                continue  # a sweep removed what was left of it
        for raw in (raw for raw, pack in aside.values() if pack is None):
            file = self.large_path(raw)
            if file.exists():
                self.index.add_alone(raw, file.stat().st_size, int(time.time()))
        here = self.index.find([raw for raw, _ in aside.values()])
        for path, (raw, _) in aside.items():
            if raw in here:
                path.unlink(missing_ok=True)

    # -- at the start
    # --------------------------------------------------------------------------------------------

    def _reconcile_packs(self) -> None:
        """Enter packs that the index does not know, forget those that are gone."""
        listed, known = set(), self.index.packs()
        for path in self.packs.iterdir():
            pack = pack_number(path.name)
            if pack is not None:
                listed.add(pack)
            elif path.name.startswith(TEMPORARY):
                path.unlink(missing_ok=True)
        for pack in known.keys() - listed:
            self.index.remove_pack(pack)
        for pack in listed - known.keys():
            path = self.packs / pack_name(pack)
            rows = [Row(raw, Place(pack, offset, size)) for raw, offset, size in scan(path)]
            if not self.index.add_pack(pack, path.stat().st_size, rows, int(time.time())):
                path.unlink()  # nothing in it that is not elsewhere, or nothing good

    def _reconcile_large(self) -> None:
        known = {row.digest: row.place for row in self.index.in_pack(ALONE)}
        now = int(time.time())
        for path in self._large_files():
            raw = bytes.fromhex(path.name)
            if known.pop(raw, None) is None:
                self.index.add_alone(raw, path.stat().st_size, now)
        for raw, place in known.items():
            self.index.remove(raw, place)

    def _large_files(self) -> Iterator[Path]:
        for folder in self.large.iterdir():
            for path in folder.iterdir():
                if path.name.startswith(TEMPORARY):
                    path.unlink(missing_ok=True)
                elif len(path.name) == 64:
                    yield path
