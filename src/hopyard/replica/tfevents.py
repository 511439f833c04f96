"""Reading the scalars out of TensorBoard event files while they are written.

An event file is a sequence of TFRecords, each holding one `Event` message of protocol buffers. Both are read
here, in the few fields that matter, because the package that can do it (`tensorboard`) brings gRPC, Werkzeug
and a web server into every user's environment. Formats: tensorflow/core/lib/io/record_writer.h,
core/util/event.proto, core/framework/summary.proto.
"""

from __future__ import annotations

import os
import re
import struct
import time
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from hopyard.private_files import open_no_follow
from hopyard.replica.protobuf import MalformedMessage, WireType, decode_text, iterate_fields, scalar_of_tensor

_PATTERN = re.compile(r"events\.out\.tfevents\.")
_SKIPPED_FOLDERS = frozenset({".git", "__pycache__", "node_modules", ".venv", ".tox", ".mypy_cache"})
# Parts of a path that say where logs lie, not what they are: they would make the same curve a stranger in
# every run.
_LOG_FOLDER_PATTERN = re.compile(
    r"(runs?|logs?|tb|tb_logs|tensorboard|lightning_logs|tensorboard_logs|events|summaries|version_\d+"
    r"|[A-Z][a-z]{2}\d{2}_\d{2}-\d{2}-\d{2}_.*|\d{8}[-_]\d{6}|\d{4}-\d{2}-\d{2}.*)"
)
_LENGTH = struct.Struct("<QI")
_CRC = struct.Struct("<I")
_BLOCK_BYTES = 1024 * 1024
# an event that is larger carries pictures or graphs, no scalars: it is passed over unread
_MAX_RECORD_BYTES = 256 * 1024
_TIMESTAMP_GRANULARITY_NS = 2_000_000_000  # how coarse a folder's time stamp may be


class Scalar(NamedTuple):
    tag: str
    step: int
    wall_time: float  # unix seconds
    value: float


class EventFiles:
    """Follows every event file below `root`, also those that appear later. A file in a sub-folder gives its
    scalars the folder's name in front (`validation/loss`), less parts that only name a place (`runs`, `logs`,
    a time)."""

    def __init__(self, root: Path | str) -> None:
        self._root = os.fspath(root)
        self._folders: dict[str, int] = {self._root: -1}  # with the time stamp at which they were listed
        self._files: dict[str, _EventFile] = {}

    def poll(self) -> Iterator[Scalar]:
        """The scalars that were written since the last call. What is not yet whole is left for the next."""
        self._scan_folders()
        for path in list(self._files):
            try:
                yield from self._files[path].read()
            except FileNotFoundError:
                del self._files[path]
            except OSError:
                continue  # unreadable now; perhaps not later

    def _scan_folders(self) -> None:
        """List the folders that changed: a new entry changes its folder's time stamp, so the others need no
        listing."""
        waiting = list(self._folders)
        while waiting:
            folder = waiting.pop()
            try:
                changed_ns = os.stat(folder).st_mtime_ns
                if changed_ns == self._folders[folder]:
                    continue
                # A change in the same tick as the listing would leave the stamp as it is: a young one is not
                # believed.
                settled = time.time_ns() - changed_ns > _TIMESTAMP_GRANULARITY_NS
                waiting += self._list(folder)
                self._folders[folder] = changed_ns if settled else -1
            except OSError:
                if folder != self._root:
                    self._folders.pop(folder, None)

    def _list(self, folder: str) -> list[str]:
        """Take note of the event files in `folder`; its sub-folders that are new."""
        fresh: list[str] = []
        with os.scandir(folder) as entries:
            for entry in entries:
                if entry.is_dir(follow_symlinks=False):
                    if entry.name not in _SKIPPED_FOLDERS and entry.path not in self._folders:
                        self._folders[entry.path] = -1
                        fresh.append(entry.path)
                elif (
                    _PATTERN.search(entry.name)
                    and entry.path not in self._files
                    and entry.is_file(follow_symlinks=False)
                ):
                    self._files[entry.path] = _EventFile(entry.path, self._prefix(folder))
        return fresh

    def _prefix(self, folder: str) -> str:
        relative = os.path.relpath(folder, self._root)
        parts = [] if relative == "." else relative.split(os.sep)
        return "".join(part + "/" for part in parts if not _LOG_FOLDER_PATTERN.fullmatch(part))


class _EventFile:
    """One file, read record by record from where the last call stopped."""

    def __init__(self, path: str, prefix: str) -> None:
        self._path, self._prefix = path, prefix
        self._offset, self._inode = 0, -1
        # where a record did not add up, and how long the file was then
        self._suspect_size: tuple[int, int] | None = None
        self._is_corrupt = False

    def read(self) -> Iterator[Scalar]:
        about = os.stat(self._path)
        if about.st_ino != self._inode or about.st_size < self._offset:  # another file of that name
            self._inode, self._offset, self._is_corrupt, self._suspect_size = about.st_ino, 0, False, None
        if self._is_corrupt or about.st_size <= self._offset:
            return
        with os.fdopen(open_no_follow(self._path, os.O_RDONLY), "rb") as file:
            yield from self._records(file.fileno(), about.st_size)

    def _records(self, descriptor: int, size: int) -> Iterator[Scalar]:
        block, start = b"", self._offset
        while self._offset + _LENGTH.size <= size:
            offset = self._offset - start
            if len(block) - offset < _LENGTH.size:
                block, start, offset = os.pread(descriptor, _BLOCK_BYTES, self._offset), self._offset, 0
                if len(block) < _LENGTH.size:
                    return
            length, check = _LENGTH.unpack_from(block, offset)
            if _masked_crc(block[offset : offset + 8]) != check:
                self._retry_or_mark_corrupt(size)
                return
            whole = _LENGTH.size + length + _CRC.size
            if self._offset + whole > size:
                return
            if length <= _MAX_RECORD_BYTES:
                if len(block) - offset < whole:
                    block, start, offset = (
                        os.pread(descriptor, max(_BLOCK_BYTES, whole), self._offset),
                        self._offset,
                        0,
                    )
                    if len(block) < whole:
                        return
                data = block[offset + _LENGTH.size : offset + _LENGTH.size + length]
                (check,) = _CRC.unpack_from(block, offset + _LENGTH.size + length)
                if _masked_crc(data) != check:
                    self._retry_or_mark_corrupt(size)
                    return
                for tag, step, wall_time, value in decode_scalars(data):
                    yield Scalar(self._prefix + tag, step, wall_time, value)
            self._offset += whole
            self._suspect_size = None

    def _retry_or_mark_corrupt(self, size: int) -> None:
        """Bytes may reach a file out of order; a record that is still wrong when more has come behind it
        stays wrong."""
        if (
            self._suspect_size is not None
            and self._suspect_size[0] == self._offset
            and size > self._suspect_size[1]
        ):
            self._is_corrupt = True
        elif self._suspect_size is None:
            self._suspect_size = (self._offset, size)


def decode_scalars(event: bytes) -> Iterator[Scalar]:
    """The scalars in one `Event` message; nothing for events of other kinds and for bytes that are no
    message."""
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
                found = _summary_value(value)
                if found is not None:
                    yield Scalar(found[0], step, wall_time, found[1])
    except MalformedMessage:
        return


def _summary_value(data: bytes) -> tuple[str, float] | None:
    """Tag and number of one `Summary.Value`; None for pictures, histograms, texts …"""
    tag, found, plugin = "", None, ""
    for number, kind, value in iterate_fields(data):
        if number == 1 and isinstance(value, bytes):
            tag = decode_text(value)
        elif number == 2 and kind is WireType.FIXED32 and isinstance(value, bytes):
            (found,) = struct.unpack("<f", value)
        elif number == 8 and isinstance(value, bytes):
            found = scalar_of_tensor(value)
        elif number == 9 and isinstance(value, bytes):
            plugin = _plugin(value)
    if not tag or found is None or plugin not in ("", "scalars"):
        return None
    return tag, found


def _plugin(metadata: bytes) -> str:
    for number, _, value in iterate_fields(metadata):
        if number == 1 and isinstance(value, bytes):
            for inner, _, name in iterate_fields(value):
                if inner == 1 and isinstance(name, bytes):
                    return decode_text(name)
    return ""


# -- CRC-32C, as TFRecords mask it ---------------------------------------------------------------------------


def _table() -> tuple[int, ...]:
    table = []
    for byte in range(256):
        remainder = byte
        for _ in range(8):
            remainder = remainder >> 1 ^ (0x82F63B78 if remainder & 1 else 0)
        table.append(remainder)
    return tuple(table)


_TABLE = _table()


def _masked_crc(data: bytes) -> int:
    crc, table = 0xFFFFFFFF, _TABLE
    for byte in data:
        crc = table[(crc ^ byte) & 0xFF] ^ crc >> 8
    crc ^= 0xFFFFFFFF
    return ((crc >> 15 | crc << 17) + 0xA282EAD8) & 0xFFFFFFFF
