"""The journal of a study: what was decided and what happened, in order, before its effect.

One JSON object a line, with `t` (unix seconds) and, last, `crc`: CRC-32 of the line up to it, in hexadecimal
digits. It is a stream of the driver's replica: shipped as it grows, and read back over all attempts. A file
begins with an empty line, so that half a line that an attempt left at its end spoils none of the next one's.
"""

from __future__ import annotations

import errno
import json
import os
import threading
import time
import zlib
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from hopyard.errors import StorageFull
from hopyard.private_files import make_folder, open_file

JournalRecord = Mapping[str, Any]  # `kind`, `t` and the fields of its kind
STREAM = "journal"
CONTINUED = "continued"  # all records before are of the study that this one continues
_CHECKSUM_BYTES = len(b',"crc":"00000000"}')


def encode_record(record: JournalRecord) -> bytes:
    """One line, its end included."""
    text = json.dumps(record, separators=(",", ":")).encode()[:-1]
    return text + _append_checksum(text) + b"\n"


def _append_checksum(text: bytes) -> bytes:
    return b',"crc":"%08x"}' % zlib.crc32(text)


def read_records(data: bytes) -> Iterator[JournalRecord]:
    """The whole records in `data`, without their `crc`. Lines that are torn or damaged are passed over."""
    for line in data.split(b"\n"):
        text, mark = line[:-_CHECKSUM_BYTES], line[-_CHECKSUM_BYTES:]
        if not text or mark != _append_checksum(text):
            continue
        try:
            found = json.loads(text + b"}")
        except ValueError:
            continue
        if isinstance(found, dict):
            yield found


class Journal:
    """Appends to the file of this attempt. `past_records`: the whole records that are in it already, from an
    earlier process.

    wait_for_space: asked when the disk refuses; True to try again (after a while), False to give up. Raises
    StorageFull then, OSError where the file cannot be made for another reason.
    """

    def __init__(self, file: Path, *, wait_for_space: Callable[[OSError], bool] = lambda _: False) -> None:
        self._wait_for_space = wait_for_space
        self._file = self._open(file)
        self._lock = threading.Lock()
        data = _read_all(self._file)
        whole = data.rfind(b"\n") + 1
        if whole < len(data):  # what a process left that was killed as it wrote; it was never shipped
            os.ftruncate(self._file, whole)
        self.past_records = list(read_records(data[:whole]))
        if not whole:
            self._write_line(b"\n")

    def _open(self, file: Path) -> int:
        while True:
            try:
                make_folder(file.parent)
                return open_file(file, os.O_RDWR | os.O_APPEND | os.O_CREAT)
            except OSError as failed:
                if failed.errno not in (errno.ENOSPC, errno.EDQUOT):
                    raise
                if not self._wait_for_space(failed):
                    raise _is_storage_full(failed) from failed

    def write(self, kind: str, /, **fields: Any) -> None:
        """Append one record. Raises StorageFull once `wait` gives up: what cannot be written down must not be
        done."""
        self._write_line(encode_record({"kind": kind, **fields, "t": round(time.time(), 6)}))

    def _write_line(self, line: bytes) -> None:
        with self._lock:
            while True:
                try:
                    self._append(line)
                    return
                except OSError as failed:
                    if not self._wait_for_space(failed):
                        raise _is_storage_full(failed) from failed

    def copy_record(self, record: JournalRecord) -> None:
        """Append a record of another journal as it is, with its time. Raises StorageFull as `write` does."""
        self._write_line(encode_record(record))

    def _append(self, line: bytes) -> None:
        written = os.write(self._file, line)
        if written != len(line):  # taken back: half a line is never shipped
            os.ftruncate(self._file, os.fstat(self._file).st_size - written)
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    def read(self) -> list[JournalRecord]:
        """All that is in it now."""
        with self._lock:
            return list(read_records(_read_all(self._file)))

    def close(self) -> None:
        os.close(self._file)


def _is_storage_full(error: OSError) -> StorageFull:
    return StorageFull(
        f"the study's journal cannot be written: {error.strerror}",
        hints=("free space on its disk: run `hop rm` to delete old runs",),
    )


def _read_all(descriptor: int) -> bytes:
    parts = []
    at = 0
    while part := os.pread(descriptor, 1024 * 1024, at):
        parts.append(part)
        at += len(part)
    return b"".join(parts)
