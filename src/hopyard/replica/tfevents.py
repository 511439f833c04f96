"""Reads scalars from TensorBoard event files while they are written.

An event file is a sequence of TFRecords, each with one `Event` message of protocol buffers. This module reads
the few fields that matter. The package for it (`tensorboard`) would bring gRPC, Werkzeug and a web server
into every user's environment. Formats: tensorflow/core/lib/io/record_writer.h, core/util/event.proto,
core/framework/summary.proto.
"""

from __future__ import annotations

import os
import re
import struct
import time
from collections.abc import Callable, Generator, Iterator, Mapping
from pathlib import Path
from typing import NamedTuple

from hopyard.private_files import open_no_follow
from hopyard.replica.checksum import masked_crc, masked_crcs
from hopyard.replica.event_file_prefix import EventFilePrefixes
from hopyard.replica.protobuf import MalformedMessage, WireType, decode_text, iterate_fields, scalar_of_tensor

EVENT_FILE_NAME = re.compile(r"events\.out\.tfevents\.")
_SKIPPED_FOLDERS = frozenset({".git", "__pycache__", "node_modules", ".venv", ".tox", ".mypy_cache"})
_LENGTH = struct.Struct("<QI")
_CRC = struct.Struct("<I")
_DOUBLE, _FLOAT = struct.Struct("<d"), struct.Struct("<f")
_HEADER_BYTES, _FRAME_BYTES = _LENGTH.size, _LENGTH.size + _CRC.size
_BLOCK_BYTES = 1024 * 1024
# a larger event contains images or graphs. Its checksum is computed only if it contains scalars as well
_MAX_CHECKED_BYTES = 64 * 1024
_MAX_RECORD_BYTES = 64 * 1024**2  # a larger event is skipped unread
_TIMESTAMP_GRANULARITY_NS = 2_000_000_000  # the granularity that a folder's time stamp may have
# the fields of `Summary.Value` with the old form of a value of a plugin
_MEDIA = {4: "images", 5: "histograms", 6: "audio"}
_MEDIA_WORDS = {
    "text": "texts",
    "images": "images",
    "histograms": "histograms",
    "audio": "audio",
    "pr_curves": "PR curves",
    "mesh": "meshes",
}
# an event with one number, as PyTorch, tensorboardX and TensorFlow 1 write it: time, step, tag, value
_PLAIN_EVENT = re.compile(
    rb"\x09(.{8})(?:\x10([\x80-\xff]{0,9}[\x00-\x7f]))?\x2a([\x00-\x7f]|[\x80-\xff][\x00-\x7f])"
    rb"\x0a([\x00-\x7f]|[\x80-\xff][\x00-\x7f])\x0a([\x01-\x7f])(.+)\x15(.{4})",
    re.DOTALL,
)


class Scalar(NamedTuple):
    tag: str
    step: int
    wall_time: float  # unix seconds
    value: float


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

    def poll(self) -> Iterator[Scalar]:
        """Yields the scalars that were written since the last call. Partial records are left for the next
        call."""
        self._scan_folders()
        for path in list(self._files):
            file = self._files[path]
            try:
                if not self._accept(file):
                    continue
                for tag, step, wall_time, value in file.read():
                    yield Scalar(self._prefixes.prefix(file.folder) + tag, step, wall_time, value)
            except FileNotFoundError:
                del self._files[path]
            except OSError:
                continue  # unreadable now, perhaps readable later

    def follow(self, path: str) -> None:
        """Follows one file outside of the root, which a process of the run opened."""
        if path not in self._files:
            self._add(path, existing=False)

    def media(self) -> dict[str, set[str]]:
        """Returns the tags of the values that are no numbers, by their kind, such as `texts`."""
        found: dict[str, set[str]] = {}
        for file in self._files.values():
            for tag, kind in file.media() if file.is_accepted else ():
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

    def media(self) -> Iterator[tuple[str, str]]:
        for tag, plugin in self._plugins.items():
            if plugin in _MEDIA_WORDS:
                yield tag, _MEDIA_WORDS[plugin]

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

    def read(self) -> Iterator[Scalar]:
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

    def _records(self, descriptor: int, size: int) -> Iterator[Scalar]:
        while self._offset + _HEADER_BYTES <= size:
            block = os.pread(descriptor, _BLOCK_BYTES, self._offset)
            if len(block) < _HEADER_BYTES:
                return
            records, is_wrong = self._split(block)
            if not records and not is_wrong:
                if not (yield from self._large_record(descriptor, size, block)):
                    return
                continue
            for record, check, expected in zip(
                records, masked_crcs(records), self._expected_checks(block, records), strict=True
            ):
                if check != expected:
                    self._retry_or_mark_corrupt(size)
                    return
                yield from self._new_scalars(record)
                self._offset += _FRAME_BYTES + len(record)
                self._suspect_size = None
            if is_wrong:
                self._retry_or_mark_corrupt(size)
                return

    def _new_scalars(self, record: bytes) -> Iterator[Scalar]:
        """Returns the scalars of a record; none of one that an earlier process read."""
        scalars = decode_scalars(record, self._plugins)
        if self._offset >= self._known_bytes:
            return scalars
        for _ in scalars:
            pass  # only the plugins of its tags are needed
        return iter(())

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

    def _large_record(self, descriptor: int, size: int, block: bytes) -> Generator[Scalar, None, bool]:
        """Reads one record that is large or incomplete. Returns whether it was complete."""
        length, _ = _LENGTH.unpack_from(block, 0)
        if self._offset + _FRAME_BYTES + length > size:
            return False
        if length <= _MAX_RECORD_BYTES:
            data = os.pread(descriptor, length + _CRC.size, self._offset + _HEADER_BYTES)
            if len(data) < length + _CRC.size:
                return False
            record = data[:length]
            scalars = list(self._new_scalars(record))
            is_checked = bool(scalars) or length <= _MAX_CHECKED_BYTES
            if is_checked and masked_crc(record) != _CRC.unpack_from(data, length)[0]:
                self._retry_or_mark_corrupt(size)
                return False
            yield from scalars
        self._offset += _FRAME_BYTES + length
        self._suspect_size = None
        return True

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


def decode_scalars(event: bytes, plugins: dict[str, str]) -> Iterator[Scalar]:
    """Yields the scalars in one `Event` message; none for events of other kinds and for bytes that are not a
    message.

    plugins: the plugin of each tag that earlier events of the file stated, which this call extends. The first
    one counts, as in TensorBoard: later values need not repeat it.
    """
    plain = _PLAIN_EVENT.fullmatch(event)
    if plain is not None:
        time_bytes, step_bytes, outer, inner, tag_length, tag_bytes, value_bytes = plain.groups()
        inner_length = tag_length[0] + 7
        # otherwise, the bytes of the parts only look like these fields
        if (
            tag_length[0] == len(tag_bytes)
            and _read_varint(inner) == inner_length
            and _read_varint(outer) == inner_length + 1 + len(inner)
        ):
            step, tag = _read_varint(step_bytes or b"\0"), decode_text(tag_bytes)
            if plugins.setdefault(tag, "scalars") == "scalars":
                yield Scalar(
                    tag,
                    step - 2**64 if step >= 2**63 else step,
                    _DOUBLE.unpack(time_bytes)[0],
                    _FLOAT.unpack(value_bytes)[0],
                )
            return
    try:
        wall_time, step, summary = 0.0, 0, b""
        for number, kind, value in iterate_fields(event):
            if number == 1 and kind is WireType.FIXED64 and isinstance(value, bytes):
                (wall_time,) = struct.unpack("<d", value)
            elif number == 2 and isinstance(value, int):
                step = value - 2**64 if value >= 2**63 else value
            elif number == 5 and isinstance(value, bytes):
                summary = value
        for number, _, value in iterate_fields(summary):
            if number == 1 and isinstance(value, bytes):
                scalar = _summary_value(value, plugins)
                if scalar is not None:
                    yield Scalar(scalar[0], step, wall_time, scalar[1])
    except MalformedMessage:
        return


def _read_varint(data: bytes) -> int:
    value = 0
    for shift, byte in enumerate(data):
        value |= (byte & 0x7F) << 7 * shift
    return value & 0xFFFFFFFFFFFFFFFF


def _summary_value(data: bytes, plugins: dict[str, str]) -> tuple[str, float] | None:
    """Returns tag and number of one `Summary.Value`; None for images, histograms, text and others."""
    tag, number_value, plugin = "", None, ""
    for number, kind, value in iterate_fields(data):
        if number == 1 and isinstance(value, bytes):
            tag = decode_text(value)
        elif number == 2 and kind is WireType.FIXED32 and isinstance(value, bytes):
            (number_value,) = struct.unpack("<f", value)
            plugin = "scalars"
        elif number in _MEDIA:
            plugin = _MEDIA[number]
        elif number == 8 and isinstance(value, bytes):
            number_value = scalar_of_tensor(value)
        elif number == 9 and isinstance(value, bytes):
            plugin = plugin or _plugin(value)
    is_scalar = (plugins.setdefault(tag, plugin) if plugin else plugins.get(tag)) == "scalars"
    return (tag, number_value) if is_scalar and tag and number_value is not None else None


def _plugin(metadata: bytes) -> str:
    for number, _, value in iterate_fields(metadata):
        if number == 1 and isinstance(value, bytes):
            for inner, _, name in iterate_fields(value):
                if inner == 1 and isinstance(name, bytes):
                    return decode_text(name)
    return ""
