"""Reads TensorBoard event files while they are written.

An event file is a sequence of TFRecords, each with one `Event` message of protocol buffers. This module reads
the few fields that matter. The package for it (`tensorboard`) would bring gRPC, Werkzeug and a web server
into every user's environment. Format: tensorflow/core/lib/io/record_writer.h.
"""

from __future__ import annotations

import os
import re
import struct
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import NamedTuple

from hopyard.domain.byte_text import format_bytes
from hopyard.private_files import open_no_follow
from hopyard.replica.checksum import masked_crc, masked_crcs
from hopyard.replica.event_file_prefix import EventFilePrefixes
from hopyard.replica.protobuf import Buffer
from hopyard.replica.summary_values import (
    EventValue,
    Hyperparameters,
    MediaValue,
    Scalar,
    SessionStart,
    SkippedValue,
    decode_values,
)

EVENT_FILE_NAME = re.compile(r"events\.out\.tfevents\.")
_SKIPPED_FOLDERS = frozenset({".git", "__pycache__", "node_modules", ".venv", ".tox", ".mypy_cache"})
_LENGTH = struct.Struct("<QI")
_CRC = struct.Struct("<I")
_HEADER_BYTES, _FRAME_BYTES = _LENGTH.size, _LENGTH.size + _CRC.size
_BLOCK_BYTES = 1024 * 1024
# a larger event may contain a graph. Its checksum is computed only if it contains values
_MAX_CHECKED_BYTES = 64 * 1024
_MAX_RECORD_BYTES = 64 * 1024**2  # a larger event is skipped unread
_MAX_KNOWN_LENGTHS = 10_000
_TIMESTAMP_GRANULARITY_NS = 2_000_000_000  # the granularity that a folder's time stamp may have
_UNSUPPORTED_WORDS = {"pr_curves": "PR curves", "mesh": "meshes"}


class FilePosition(NamedTuple):
    """How far an event file was read. ignored: it belongs to another run."""

    inode: int
    offset: int
    ignored: bool
    accepted: bool


class EventFiles:
    """Follows every event file below `root`, also those that appear later.

    The scalars of a file in a sub-folder get a prefix, see `EventFilePrefixes`. is_own: returns whether the
    run wrote the file of this path; it is called until it returns True. may_read: returns whether the run may
    read the opened file, given its real path.
    """

    def __init__(
        self,
        root: Path | str,
        is_own: Callable[[str], bool] = lambda _: True,
        may_read: Callable[[str], bool] = lambda _: True,
    ) -> None:
        self.root = os.fspath(root)
        self._is_own, self._may_read = is_own, may_read
        self._folders: dict[str, int] = {self.root: -1}  # with their time stamp when they were listed
        self._files: dict[str, _EventFile] = {}
        self._prefixes = EventFilePrefixes()

    def skip_existing(self, *, appended: bool) -> None:
        """Skips what the files contain now. appended: reads what is added to them later."""
        self._scan_folders(existing=True)
        for file in self._files.values():
            file.skip_to_end(forever=not appended)

    def positions(self) -> dict[str, FilePosition]:
        """Returns how far each file was read, by its path."""
        return {path: file.position() for path, file in self._files.items()}

    def prefixes(self) -> Mapping[str, str]:
        """Returns the prefixes of the names of the scalars, by the folder of their file."""
        return self._prefixes.assigned

    def restore(self, positions: Mapping[str, FilePosition], prefixes: Mapping[str, str]) -> None:
        """Continues where an earlier process stopped, with its names."""
        self._prefixes.restore(prefixes)
        for path, position in positions.items():
            if EVENT_FILE_NAME.search(os.path.basename(path)):
                file = self._files[path] = self._new_file(path)
                file.restore(position)
                if position.accepted:
                    self._prefixes.add(file.folder)

    def poll(self) -> Iterator[list[EventValue]]:
        """Yields the values that were written since the last call, in batches: those of one block of a file,
        or of one large record. Partial records are left for the next call.

        A batch counts as read once it is yielded. An empty one lets the caller end the reading.
        """
        self._scan_folders()
        for path in list(self._files):
            file = self._files[path]
            try:
                if not self._accept(file):
                    continue
                for values in file.read():
                    yield self._in_folder(values, file.folder)
            except FileNotFoundError:
                del self._files[path]
            except OSError:
                continue  # unreadable now, perhaps readable later

    def _in_folder(self, values: list[EventValue], folder: str) -> list[EventValue]:
        """Returns the values with the prefix of their folder. Starts of sessions get the tags of the scalars
        that the files of the folder have so far."""
        if any(isinstance(value, SessionStart) for value in values):
            files = (file for file in self._files.values() if file.folder == folder and file.is_accepted)
            tags = tuple({tag: None for file in files for tag in file.scalar_tags()})
            values = [
                SessionStart(value.step, tags) if isinstance(value, SessionStart) else value
                for value in values
            ]
        return _with_prefix(values, self._prefixes.prefix(folder)) if values else values

    def follow(self, path: str) -> None:
        """Follows one file outside of the root, which a process of the run opened."""
        if path not in self._files:
            self._add(path, existing=False)

    def unsupported(self) -> dict[str, set[str]]:
        """Returns the tags of the values that are not read, by their kind, such as `meshes`."""
        found: dict[str, set[str]] = {}
        for file in self._files.values():
            for tag, kind in file.unsupported() if file.is_accepted else ():
                found.setdefault(kind, set()).add(self._prefixes.prefix(file.folder) + tag)
        return found

    def unread_bytes(self) -> int:
        """Returns how many bytes of the files were not read yet."""
        self._scan_folders()
        return sum(file.unread_bytes() for file in self._files.values())

    def _scan_folders(self, *, existing: bool = False) -> None:
        """Lists the changed folders: a new entry changes its folder's time stamp, so the others need no
        listing."""
        pending, found = list(self._folders), list[str]()
        while pending:
            folder = pending.pop()
            try:
                changed_ns = os.stat(folder).st_mtime_ns
                if changed_ns == self._folders[folder]:
                    continue
                # A change in the same tick as the listing would not change the stamp, so a recent stamp is
                # not
                # trusted.
                is_settled = time.time_ns() - changed_ns > _TIMESTAMP_GRANULARITY_NS
                pending += self._list(folder, found)
                self._folders[folder] = changed_ns if is_settled else -1
            except OSError:
                if folder != self.root:
                    self._folders.pop(folder, None)
        # the time of creation is a part of the name
        for path in sorted(found, key=lambda path: (os.path.basename(path), path)):
            self._add(path, existing=existing)

    def _list(self, folder: str, found: list[str]) -> list[str]:
        """Adds the new event files in `folder` to `found` and returns its new sub-folders."""
        new_folders: list[str] = []
        with os.scandir(folder) as entries:
            for entry in entries:
                if entry.is_dir(follow_symlinks=False):
                    if entry.name not in _SKIPPED_FOLDERS and entry.path not in self._folders:
                        self._folders[entry.path] = -1
                        new_folders.append(entry.path)
                elif (
                    EVENT_FILE_NAME.search(entry.name)
                    and entry.path not in self._files
                    and entry.is_file(follow_symlinks=False)
                ):
                    found.append(entry.path)
        return new_folders

    def _new_file(self, path: str) -> _EventFile:
        return _EventFile(path, os.path.relpath(os.path.dirname(path), self.root), self._may_read)

    def _add(self, path: str, *, existing: bool) -> None:
        self._files[path] = self._new_file(path)
        if not existing:
            self._accept(self._files[path])

    def _accept(self, file: _EventFile) -> bool:
        """Returns whether the file counts. A file that existed counts once more is written to it."""
        if not file.is_accepted and file.unread_bytes() and self._is_own(file.path):
            file.is_accepted = True
            self._prefixes.add(file.folder)
        return file.is_accepted


class _EventFile:
    """One file, read record by record from the end of the last read."""

    def __init__(self, path: str, folder: str, may_read: Callable[[str], bool]) -> None:
        self.path, self.folder, self._may_read = path, folder, may_read
        self.is_accepted = False
        self._offset, self._inode = 0, -1
        self._known_bytes = 0  # an earlier process read them; they are read again for the plugins of the tags
        # the offset of a record with a wrong checksum, and the size of the file then
        self._suspect_size: tuple[int, int] | None = None
        self._is_corrupt = False
        self._ignored_inode = -1
        self._length_checks: dict[int, int] = {}  # the checksum of each length that a record had
        self._plugins: dict[str, str] = {}

    def skip_to_end(self, *, forever: bool) -> None:
        try:
            stat_result = os.stat(self.path)
        except OSError:
            return
        self._inode, self._offset = stat_result.st_ino, stat_result.st_size
        if forever:
            self._ignored_inode = stat_result.st_ino

    def position(self) -> FilePosition:
        offset = max(self._offset, self._known_bytes)
        return FilePosition(self._inode, offset, self._inode == self._ignored_inode != -1, self.is_accepted)

    def restore(self, position: FilePosition) -> None:
        self._inode, self._known_bytes = position.inode, position.offset
        self._ignored_inode = position.inode if position.ignored else -1
        self.is_accepted = position.accepted

    def scalar_tags(self) -> Iterator[str]:
        return (tag for tag, plugin in self._plugins.items() if plugin == "scalars")

    def unsupported(self) -> Iterator[tuple[str, str]]:
        for tag, plugin in self._plugins.items():
            if plugin in _UNSUPPORTED_WORDS:
                yield tag, _UNSUPPORTED_WORDS[plugin]

    def unread_bytes(self) -> int:
        try:
            stat_result = os.stat(self.path)
        except OSError:
            return 0
        if self._is_corrupt or stat_result.st_ino == self._ignored_inode:
            return 0
        known = max(self._offset, self._known_bytes)
        is_same = stat_result.st_ino == self._inode and stat_result.st_size >= known
        return stat_result.st_size - (known if is_same else 0)

    def read(self) -> Iterator[list[EventValue]]:
        stat_result = os.stat(self.path)
        known = max(self._offset, self._known_bytes)
        if stat_result.st_ino != self._inode or stat_result.st_size < known:  # another file of this name
            self._inode = stat_result.st_ino
            known = self._offset = self._known_bytes = 0
            self._is_corrupt, self._suspect_size = False, None
            self._plugins.clear()
        if self._is_corrupt or stat_result.st_size <= known or stat_result.st_ino == self._ignored_inode:
            return
        with os.fdopen(open_no_follow(self.path, os.O_RDONLY), "rb") as file:
            # the script may have replaced a folder on the way by a link
            if self._may_read(os.readlink(f"/proc/self/fd/{file.fileno()}")):
                yield from self._records(file.fileno(), stat_result.st_size)

    def _records(self, descriptor: int, size: int) -> Iterator[list[EventValue]]:
        while self._offset + _HEADER_BYTES <= size:
            block = os.pread(descriptor, _BLOCK_BYTES, self._offset)
            if len(block) < _HEADER_BYTES:
                return
            records, is_wrong = self._split(block)
            if not records and not is_wrong:
                values = self._large_record(descriptor, size, block)
                if values is None:
                    return
                yield values
                continue
            values = []
            for record, check, expected in zip(
                records, masked_crcs(records), self._expected_checks(block, records), strict=True
            ):
                if check != expected:
                    is_wrong = True
                    break
                values += self._new_values(record)
                self._offset += _FRAME_BYTES + len(record)
                self._suspect_size = None
            if is_wrong:
                self._retry_or_mark_corrupt(size)
            yield values
            if is_wrong:
                return

    def _new_values(self, record: Buffer) -> Iterator[EventValue]:
        """Returns the values of a record; none of one that an earlier process read, of which only the plugins
        of its tags are needed."""
        return decode_values(record, self._plugins, skip=self._offset < self._known_bytes)

    def _split(self, block: bytes) -> tuple[list[bytes], bool]:
        """Returns the whole records of a block up to the first large one, and whether the length of the next
        record is wrong."""
        records: list[bytes] = []
        offset = 0
        while offset + _HEADER_BYTES <= len(block):
            length, check = _LENGTH.unpack_from(block, offset)
            if self._length_checks.get(length) != check:
                if masked_crc(block[offset : offset + 8]) != check:
                    return records, True
                if len(self._length_checks) < _MAX_KNOWN_LENGTHS:
                    self._length_checks[length] = check
            if length > _MAX_CHECKED_BYTES or offset + _FRAME_BYTES + length > len(block):
                break
            records.append(block[offset + _HEADER_BYTES : offset + _HEADER_BYTES + length])
            offset += _FRAME_BYTES + length
        return records, False

    @staticmethod
    def _expected_checks(block: bytes, records: list[bytes]) -> Iterator[int]:
        offset = 0
        for record in records:
            offset += _HEADER_BYTES + len(record)
            yield _CRC.unpack_from(block, offset)[0]
            offset += _CRC.size

    def _large_record(self, descriptor: int, size: int, block: bytes) -> list[EventValue] | None:
        """Reads one record that is large or incomplete. Returns its values; None if it is incomplete."""
        length, _ = _LENGTH.unpack_from(block, 0)
        if self._offset + _FRAME_BYTES + length > size:
            return None
        values: list[EventValue] = []
        if length <= _MAX_RECORD_BYTES:
            # parts of a memoryview are no copies
            data = memoryview(os.pread(descriptor, length + _CRC.size, self._offset + _HEADER_BYTES))
            if len(data) < length + _CRC.size:
                return None
            record = data[:length]
            values += self._new_values(record)
            is_checked = bool(values) or length <= _MAX_CHECKED_BYTES
            if is_checked and masked_crc(record) != _CRC.unpack_from(data, length)[0]:
                self._retry_or_mark_corrupt(size)
                return None
        elif self._offset >= self._known_bytes:
            limit = format_bytes(_MAX_RECORD_BYTES)
            reason = f"an event of {format_bytes(length)} is larger than {limit}; it is skipped"
            values.append(SkippedValue("", reason))
        self._offset += _FRAME_BYTES + length
        self._suspect_size = None
        return values

    def _retry_or_mark_corrupt(self, size: int) -> None:
        """Bytes may reach a file out of order. A record is corrupt if it is still wrong after more bytes have
        followed."""
        if (
            self._suspect_size is not None
            and self._suspect_size[0] == self._offset
            and size > self._suspect_size[1]
        ):
            self._is_corrupt = True
        elif self._suspect_size is None:
            self._suspect_size = (self._offset, size)


def _with_prefix(values: list[EventValue], prefix: str) -> list[EventValue]:
    """Returns the values with the prefix before their names."""
    if not prefix:
        return values
    return [_prefixed(value, prefix) for value in values]


def _prefixed(value: EventValue, prefix: str) -> EventValue:
    match value:
        case Scalar(tag, step, wall_time, number):
            return Scalar(prefix + tag, step, wall_time, number)
        case MediaValue(tag, step, wall_time, content):
            return MediaValue(prefix + tag, step, wall_time, content)
        case Hyperparameters(params):
            return Hyperparameters({prefix + name: param for name, param in params.items()})
        case SessionStart(step, tags):
            return SessionStart(step, tuple(prefix + tag for tag in tags))
        case SkippedValue(tag, reason):
            return SkippedValue(prefix + tag if tag else "", reason)
