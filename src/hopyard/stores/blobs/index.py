"""Where each blob lies, in an SQLite file of its own. Everything in it can be told from the packs and files
beside it.

Calls block and take one lock; the store makes them from its threads. A commit survives a crash of the server
at once; after a power cut the index may be a moment behind, which is why the store compares it with its
folders at every start.
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

OWN_FILE_PACK = 0  # "pack" of a blob that is a file of its own
SEEN_REFRESH_INTERVAL_S = 600  # a blob that is asked for is marked as seen at most this often
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
    """Opens `path`, or makes it. A file that SQLite cannot read is put aside and begun anew."""

    def __init__(self, path: Path) -> None:
        self._lock = threading.RLock()
        self._usage: tuple[int, int] | None = None
        try:
            self._connection = _connect(path)
        except sqlite3.DatabaseError as error:
            if isinstance(error, sqlite3.OperationalError):
                raise  # no permission, disk full …: the file itself may be good
            for name in (path, path.with_name(path.name + "-wal"), path.with_name(path.name + "-shm")):
                name.unlink(missing_ok=True)
            self._connection = _connect(path)

    def close(self) -> None:
        with self._lock:
            self._connection.close()

    # -- looking ---------------------------------------------------------------------------------------------

    def find(self, digests: Sequence[bytes]) -> dict[bytes, BlobLocation]:
        found: dict[bytes, BlobLocation] = {}
        for part in _parameter_batches(digests):
            with self._lock:
                rows = self._connection.execute(
                    f"SELECT digest, pack, offset, size FROM blobs WHERE digest IN ({_placeholders(part)})",
                    part,
                )
                found.update((row[0], BlobLocation(*row[1:])) for row in rows)
        return found

    def mark_seen(self, digests: Sequence[bytes], now: int) -> set[bytes]:
        """Those of `digests` that are here. They count as seen at `now`, so that a sweep spares them."""
        here: set[bytes] = set()
        for part in _parameter_batches(digests):
            with self._lock:
                rows = self._connection.execute(
                    f"SELECT digest, seen_at FROM blobs WHERE digest IN ({_placeholders(part)})", part
                ).fetchall()
                here.update(row[0] for row in rows)
                stale = [(now, row[0]) for row in rows if row[1] < now - SEEN_REFRESH_INTERVAL_S]
                if stale:
                    with self._write():
                        self._connection.executemany("UPDATE blobs SET seen_at = ? WHERE digest = ?", stale)
        return here

    def packs(self) -> dict[int, int]:
        """Every pack with its file's size."""
        with self._lock:
            return dict(self._connection.execute("SELECT id, size FROM packs").fetchall())

    def list_pack(self, pack: int) -> list[BlobRow]:
        with self._lock:
            rows = self._connection.execute(
                "SELECT digest, pack, offset, size FROM blobs WHERE pack = ? ORDER BY offset", (pack,)
            )
            return [BlobRow(row[0], BlobLocation(*row[1:])) for row in rows]

    def list_after(self, digest: bytes, limit: int) -> list[BlobRow]:
        """The first `limit` blobs behind this digest, in its order."""
        with self._lock:
            rows = self._connection.execute(
                "SELECT digest, pack, offset, size FROM blobs WHERE digest > ? ORDER BY digest LIMIT ?",
                (digest, limit),
            )
            return [BlobRow(row[0], BlobLocation(*row[1:])) for row in rows]

    def live_bytes(self) -> dict[int, int]:
        """For each pack that holds something, the sum of its blobs."""
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

    # -- changing --------------------------------------------------------------------------------------------

    def add_own_file(self, digest: bytes, size: int, now: int) -> None:
        with self._write() as run:
            run("INSERT OR IGNORE INTO blobs VALUES (?, ?, 0, ?, ?)", (digest, OWN_FILE_PACK, size, now))

    def add_pack(self, pack: int, size: int, rows: Iterable[BlobRow], now: int) -> int:
        """Enter a pack with those of its blobs that have no place yet; how many these were.
        0 enters nothing."""
        with self._write() as run:
            before = self._connection.total_changes
            self._connection.executemany(
                "INSERT OR IGNORE INTO blobs VALUES (?, ?, ?, ?, ?)",
                ((row.digest, pack, row.location.offset, row.location.size, now) for row in rows),
            )
            added = self._connection.total_changes - before
            if added:
                run("INSERT OR REPLACE INTO packs VALUES (?, ?)", (pack, size))
            return added

    def move_blobs(
        self, pack: int, size: int, rows: Iterable[tuple[BlobRow, int]], sources: Iterable[int]
    ) -> None:
        """Blobs were copied from the packs `sources` into `pack`: (where from, new offset).
        Forget the sources. A blob that has another place by now keeps it."""
        with self._write() as run:
            run("INSERT OR REPLACE INTO packs VALUES (?, ?)", (pack, size))
            self._connection.executemany(
                "UPDATE blobs SET pack = ?, offset = ? WHERE digest = ? AND pack = ? AND offset = ?",
                ((pack, offset, row.digest, row.location.pack, row.location.offset) for row, offset in rows),
            )
            for source in sources:
                run("DELETE FROM blobs WHERE pack = ?", (source,))
                run("DELETE FROM packs WHERE id = ?", (source,))

    def remove(self, digest: bytes, location: BlobLocation) -> bool:
        """Forget a blob, if that is still its place."""
        with self._write() as run:
            return (
                run(
                    "DELETE FROM blobs WHERE digest = ? AND pack = ? AND offset = ?",
                    (digest, location.pack, location.offset),
                ).rowcount
                > 0
            )

    def remove_pack(self, pack: int) -> None:
        with self._write() as run:
            run("DELETE FROM blobs WHERE pack = ?", (pack,))
            run("DELETE FROM packs WHERE id = ?", (pack,))

    # -- sweeping --------------------------------------------------------------------------------------------

    def mark_in_use(self, in_use: Iterable[bytes]) -> None:
        """Remember which blobs are in use, for `garbage` and `remove_garbage`.
        On disk, because they may be millions."""
        with self._write() as run:
            run("CREATE TEMP TABLE IF NOT EXISTS in_use (digest BLOB PRIMARY KEY) WITHOUT ROWID")
            run("DELETE FROM in_use")
            self._connection.executemany(
                "INSERT OR IGNORE INTO in_use VALUES (?)", ((digest,) for digest in in_use)
            )

    def remove_garbage(
        self, before: int, after_digest: bytes, limit: int, on_file: Callable[[bytes], None]
    ) -> tuple[bytes | None, int]:
        """Forget at most `limit` blobs that are not marked and were not seen since `before`, in order of
        digest beginning behind `after_digest`. Returns the last one (None: there was none) and the sum of
        their bytes. `on_file` is called for each that was a file of its own, still under the lock: nobody can
        put it anew meanwhile."""
        with self._write() as run:
            rows = run(
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
        """Keep every other call out, so that a file and its row change together."""
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
    with suppress(OSError):  # SQLite would make it as the umask says; a failure shows again when it is opened
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
    for at in range(0, len(digests), _MAX_PARAMETERS):
        yield digests[at : at + _MAX_PARAMETERS]


def _placeholders(batch: Sequence[bytes]) -> str:
    return ",".join("?" * len(batch))
