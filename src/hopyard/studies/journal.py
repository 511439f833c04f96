"""The journal of a study: decisions and events, in order, written before their effect.

One JSON object per line, with `t` (unix seconds) and, last, `crc`: CRC-32 of the line up to it, in
hexadecimal digits. It is a stream of the driver's replica: shipped as it grows, and read back over all
attempts. A file begins with an empty line. So a partial line of an earlier attempt does not corrupt the first
line of the next one.
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
CONTINUED = "continued"  # all earlier records belong to the study that this one continues
_CHECKSUM_BYTES = len(b',"crc":"00000000"}')


def encode_record(record: JournalRecord) -> bytes:
    """Returns one line, including its end."""
    text = json.dumps(record, separators=(",", ":")).encode()[:-1]
    return text + _append_checksum(text) + b"\n"


def _append_checksum(text: bytes) -> bytes:
    return b',"crc":"%08x"}' % zlib.crc32(text)


def read_records(data: bytes) -> Iterator[JournalRecord]:
    """Yields the whole records in `data`, without their `crc`. Partial and damaged lines are skipped."""
    for line in data.split(b"\n"):
        text, checksum = line[:-_CHECKSUM_BYTES], line[-_CHECKSUM_BYTES:]
        if not text or checksum != _append_checksum(text):
            continue
        try:
            record = json.loads(text + b"}")
        except ValueError:
            continue
        if isinstance(record, dict):
            yield record


class Journal:
    """Appends to the file of this attempt. `past_records`: the whole records that an earlier process wrote to
    it.

    wait_for_space: called when the disk fails; returns True (after a while) to retry, False to give up. Then
    StorageFull is raised. Raises OSError if the file cannot be created for another reason.
    """

    def __init__(self, file: Path, *, wait_for_space: Callable[[OSError], bool] = lambda _: False) -> None:
        self._wait_for_space = wait_for_space
        self._file = self._open(file)
        self._lock = threading.Lock()
        data = _read_all(self._file)
        complete_bytes = data.rfind(b"\n") + 1
        if complete_bytes < len(data):  # the partial line of a process that was killed; it was never shipped
            os.ftruncate(self._file, complete_bytes)
        self.past_records = list(read_records(data[:complete_bytes]))
        if not complete_bytes:
            self._write_line(b"\n")

    def _open(self, file: Path) -> int:
        while True:
            try:
                make_folder(file.parent)
                return open_file(file, os.O_RDWR | os.O_APPEND | os.O_CREAT)
            except OSError as error:
                if error.errno not in (errno.ENOSPC, errno.EDQUOT):
                    raise
                if not self._wait_for_space(error):
                    raise _is_storage_full(error) from error

    def write(self, kind: str, /, **fields: Any) -> None:
        """Appends one record. Raises StorageFull once `wait_for_space` gives up: an unrecorded action must
        not happen."""
        self._write_line(encode_record({"kind": kind, **fields, "t": round(time.time(), 6)}))

    def _write_line(self, line: bytes) -> None:
        with self._lock:
            while True:
                try:
                    self._append(line)
                    return
                except OSError as error:
                    if not self._wait_for_space(error):
                        raise _is_storage_full(error) from error

    def copy_record(self, record: JournalRecord) -> None:
        """Appends a record of another journal unchanged, with its time. Raises StorageFull as
        `write` does."""
        self._write_line(encode_record(record))

    def _append(self, line: bytes) -> None:
        written = os.write(self._file, line)
        if written != len(line):  # removed again: a partial line is never shipped
            os.ftruncate(self._file, os.fstat(self._file).st_size - written)
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    def read(self) -> list[JournalRecord]:
        """Returns all records in it now."""
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
    offset = 0
    while part := os.pread(descriptor, 1024 * 1024, offset):
        parts.append(part)
        offset += len(part)
    return b"".join(parts)
