"""The location of each blob, in an SQLite file of its own. It can be rebuilt from the packs and files beside
it.

Calls block and take one lock; the store makes them in its threads. A commit survives a crash of the server at
once. After a power loss the index may lag behind slightly, so the store compares it with its folders at every
start.
"""

from __future__ import annotations

import os
import sqlite3
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import NamedTuple

from hopyard.private_files import open_file
from hopyard.stores.blobs.durable_files import disk_full_error

OWN_FILE_PACK = 0  # "pack" of a blob that is stored as a separate file
SEEN_REFRESH_INTERVAL_S = 600  # the shortest interval between two marks of a blob as seen
_MAX_PARAMETERS = 500  # digests in one query

_SCHEMA = """
CREATE TABLE IF NOT EXISTS packs (id INTEGER PRIMARY KEY, size INTEGER NOT NULL);
CREATE TABLE IF NOT EXISTS blobs (
    digest BLOB PRIMARY KEY, pack INTEGER NOT NULL, offset INTEGER NOT NULL, size INTEGER NOT NULL,
    seen_at INTEGER NOT NULL
) WITHOUT ROWID;
CREATE INDEX IF NOT EXISTS blobs_by_pack ON blobs (pack);
"""


class BlobLocation(NamedTuple):
    pack: int
    offset: int
    size: int


class BlobRow(NamedTuple):
    digest: bytes
    location: BlobLocation


class BlobIndex:
    """Opens `path`, or creates it. A file that SQLite cannot read is removed and created again."""

    def __init__(self, path: Path) -> None:
        self._lock = threading.RLock()
        self._usage: tuple[int, int] | None = None
        try:
            self._connection = _connect(path)
        except sqlite3.DatabaseError as error:
            if isinstance(error, sqlite3.OperationalError):
                raise  # no permission, disk full …: the file itself may be intact
            for name in (path, path.with_name(path.name + "-wal"), path.with_name(path.name + "-shm")):
                name.unlink(missing_ok=True)
            self._connection = _connect(path)

    def close(self) -> None:
        with self._lock:
            self._connection.close()

    # -- reads -----------------------------------------------------------------------------------------------

    def find(self, digests: Sequence[bytes]) -> dict[bytes, BlobLocation]:
        locations: dict[bytes, BlobLocation] = {}
        for batch in _parameter_batches(digests):
            with self._lock:
                rows = self._connection.execute(
                    f"SELECT digest, pack, offset, size FROM blobs WHERE digest IN ({_placeholders(batch)})",
                    batch,
                )
                locations.update((row[0], BlobLocation(*row[1:])) for row in rows)
        return locations

    def mark_seen(self, digests: Sequence[bytes], now: int) -> set[bytes]:
        """Returns those of `digests` that are stored, and marks them as seen at `now`, so that garbage
        collection keeps them."""
        present: set[bytes] = set()
        for batch in _parameter_batches(digests):
            with self._lock:
                rows = self._connection.execute(
                    f"SELECT digest, seen_at FROM blobs WHERE digest IN ({_placeholders(batch)})", batch
                ).fetchall()
                present.update(row[0] for row in rows)
                stale = [(now, row[0]) for row in rows if row[1] < now - SEEN_REFRESH_INTERVAL_S]
                if stale:
                    with self._write():
                        self._connection.executemany("UPDATE blobs SET seen_at = ? WHERE digest = ?", stale)
        return present

    def packs(self) -> dict[int, int]:
        """Returns every pack with the size of its file."""
        with self._lock:
            return dict(self._connection.execute("SELECT id, size FROM packs").fetchall())

    def list_pack(self, pack: int) -> list[BlobRow]:
        with self._lock:
            rows = self._connection.execute(
                "SELECT digest, pack, offset, size FROM blobs WHERE pack = ? ORDER BY offset", (pack,)
            )
            return [BlobRow(row[0], BlobLocation(*row[1:])) for row in rows]

    def list_after(self, digest: bytes, limit: int) -> list[BlobRow]:
        """Returns the first `limit` blobs after this digest, in its order."""
        with self._lock:
            rows = self._connection.execute(
                "SELECT digest, pack, offset, size FROM blobs WHERE digest > ? ORDER BY digest LIMIT ?",
                (digest, limit),
            )
            return [BlobRow(row[0], BlobLocation(*row[1:])) for row in rows]

    def live_bytes(self) -> dict[int, int]:
        """Returns the total size of the blobs in each pack that holds any."""
        with self._lock:
            return dict(
                self._connection.execute(
                    "SELECT pack, sum(size) FROM blobs WHERE pack != ? GROUP BY pack", (OWN_FILE_PACK,)
                ).fetchall()
            )

    def usage(self) -> tuple[int, int]:
        with self._lock:
            if self._usage is None:
                count, size = self._connection.execute(
                    "SELECT count(*), coalesce(sum(size), 0) FROM blobs"
                ).fetchone()
                self._usage = (int(count), int(size))
            return self._usage

    # -- writes ----------------------------------------------------------------------------------------------

    def add_own_file(self, digest: bytes, size: int, now: int) -> None:
        with self._write() as execute:
            execute("INSERT OR IGNORE INTO blobs VALUES (?, ?, 0, ?, ?)", (digest, OWN_FILE_PACK, size, now))

    def add_pack(self, pack: int, size: int, rows: Iterable[BlobRow], now: int) -> int:
        """Adds a pack with its blobs that have no location yet; returns their number. 0 adds no pack."""
        with self._write() as execute:
            previous_changes = self._connection.total_changes
            self._connection.executemany(
                "INSERT OR IGNORE INTO blobs VALUES (?, ?, ?, ?, ?)",
                ((row.digest, pack, row.location.offset, row.location.size, now) for row in rows),
            )
            added = self._connection.total_changes - previous_changes
            if added:
                execute("INSERT OR REPLACE INTO packs VALUES (?, ?)", (pack, size))
            return added

    def move_blobs(
        self, pack: int, size: int, rows: Iterable[tuple[BlobRow, int]], sources: Iterable[int]
    ) -> None:
        """Records that blobs were copied from the packs `sources` into `pack`: (old row, new offset).

        Removes the sources. A blob whose location changed meanwhile keeps it.
        """
        with self._write() as execute:
            execute("INSERT OR REPLACE INTO packs VALUES (?, ?)", (pack, size))
            self._connection.executemany(
                "UPDATE blobs SET pack = ?, offset = ? WHERE digest = ? AND pack = ? AND offset = ?",
                ((pack, offset, row.digest, row.location.pack, row.location.offset) for row, offset in rows),
            )
            for source in sources:
                execute("DELETE FROM blobs WHERE pack = ?", (source,))
                execute("DELETE FROM packs WHERE id = ?", (source,))

    def remove(self, digest: bytes, location: BlobLocation) -> bool:
        """Removes a blob if its location is still this one; returns whether it was removed."""
        with self._write() as execute:
            return (
                execute(
                    "DELETE FROM blobs WHERE digest = ? AND pack = ? AND offset = ?",
                    (digest, location.pack, location.offset),
                ).rowcount
                > 0
            )

    def remove_pack(self, pack: int) -> None:
        with self._write() as execute:
            execute("DELETE FROM blobs WHERE pack = ?", (pack,))
            execute("DELETE FROM packs WHERE id = ?", (pack,))

    # -- garbage collection ----------------------------------------------------------------------------------

    def mark_in_use(self, in_use: Iterable[bytes]) -> None:
        """Marks the blobs in use for `remove_garbage`, on disk, because there may be millions."""
        with self._write() as execute:
            execute("CREATE TEMP TABLE IF NOT EXISTS in_use (digest BLOB PRIMARY KEY) WITHOUT ROWID")
            execute("DELETE FROM in_use")
            self._connection.executemany(
                "INSERT OR IGNORE INTO in_use VALUES (?)", ((digest,) for digest in in_use)
            )

    def remove_garbage(
        self, before: int, after_digest: bytes, limit: int, on_file: Callable[[bytes], None]
    ) -> tuple[bytes | None, int]:
        """Removes at most `limit` blobs that are not marked and were not seen since `before`, in order of
        digest after `after_digest`.

        Returns the last one (None: there was none), and their total size. Calls `on_file` for each one that
        was a separate file, under the lock, so that no call can store it again meanwhile.
        """
        with self._write() as execute:
            rows = execute(
                "SELECT digest, pack, size FROM blobs WHERE digest > ? AND seen_at < ? "
                "AND NOT EXISTS (SELECT 1 FROM in_use WHERE in_use.digest = blobs.digest) ORDER BY digest "
                "LIMIT ?",
                (after_digest, before, limit),
            ).fetchall()
            self._connection.executemany("DELETE FROM blobs WHERE digest = ?", ((row[0],) for row in rows))
            for digest, pack, _size in rows:
                if pack == OWN_FILE_PACK:
                    on_file(digest)
            return (rows[-1][0] if rows else None), sum(row[2] for row in rows)

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Blocks all other calls, so that a file and its row change together."""
        with self._lock:
            yield

    @contextmanager
    def _write(self) -> Iterator[Callable[..., sqlite3.Cursor]]:
        with self._lock:
            self._usage = None
            try:
                self._connection.execute("BEGIN IMMEDIATE")
                yield self._connection.execute
                self._connection.execute("COMMIT")
            except BaseException as error:
                if self._connection.in_transaction:
                    self._connection.execute("ROLLBACK")
                if (
                    isinstance(error, sqlite3.OperationalError)
                    and error.sqlite_errorcode == sqlite3.SQLITE_FULL
                ):
                    raise disk_full_error() from error
                raise


def _connect(path: Path) -> sqlite3.Connection:
    # SQLite would create it according to the umask. A failure appears again when it is opened.
    with suppress(OSError):
        os.close(open_file(path, os.O_RDONLY | os.O_CREAT))
    connection = sqlite3.connect(path, check_same_thread=False, isolation_level=None, timeout=30.0)
    try:
        connection.execute("PRAGMA journal_mode = WAL")
        connection.execute("PRAGMA synchronous = NORMAL")
        connection.execute("PRAGMA temp_store = FILE")
        connection.executescript(_SCHEMA)
        connection.execute("SELECT count(*) FROM packs").fetchone()
    except BaseException:
        connection.close()
        raise
    return connection


def _parameter_batches(digests: Sequence[bytes]) -> Iterator[Sequence[bytes]]:
    for start in range(0, len(digests), _MAX_PARAMETERS):
        yield digests[start : start + _MAX_PARAMETERS]


def _placeholders(batch: Sequence[bytes]) -> str:
    return ",".join("?" * len(batch))
