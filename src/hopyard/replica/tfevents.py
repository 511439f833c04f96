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
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from hopyard.private_files import open_no_follow
from hopyard.replica.protobuf import MalformedMessage, WireType, decode_text, iterate_fields, scalar_of_tensor

_PATTERN = re.compile(r"events\.out\.tfevents\.")
_SKIPPED_FOLDERS = frozenset({".git", "__pycache__", "node_modules", ".venv", ".tox", ".mypy_cache"})
# Parts of a path that name the place of the logs, not their meaning. With them the same curve would have
# another
# name in every run.
_LOG_FOLDER_PATTERN = re.compile(
    r"(runs?|logs?|tb|tb_logs|tensorboard|lightning_logs|tensorboard_logs|events|summaries|version_\d+"
    r"|[A-Z][a-z]{2}\d{2}_\d{2}-\d{2}-\d{2}_.*|\d{8}[-_]\d{6}|\d{4}-\d{2}-\d{2}.*)"
)
_LENGTH = struct.Struct("<QI")
_CRC = struct.Struct("<I")
_BLOCK_BYTES = 1024 * 1024
# a larger event contains images or graphs, not scalars: it is skipped unread
_MAX_RECORD_BYTES = 256 * 1024
_TIMESTAMP_GRANULARITY_NS = 2_000_000_000  # the granularity that a folder's time stamp may have


class Scalar(NamedTuple):
    tag: str
    step: int
    wall_time: float  # unix seconds
    value: float


class EventFiles:
    """Follows every event file below `root`, also those that appear later.

    The scalars of a file in a sub-folder get the folder's name as a prefix (`validation/loss`). Parts that
    only name a place (`runs`, `logs`, a time) are left out.
    """

    def __init__(self, root: Path | str) -> None:
        self._root = os.fspath(root)
        self._folders: dict[str, int] = {self._root: -1}  # with their time stamp when they were listed
        self._files: dict[str, _EventFile] = {}

    def poll(self) -> Iterator[Scalar]:
        """Yields the scalars that were written since the last call. Partial records are left for the next
        call."""
        self._scan_folders()
        for path in list(self._files):
            try:
                yield from self._files[path].read()
            except FileNotFoundError:
                del self._files[path]
            except OSError:
                continue  # unreadable now, perhaps readable later

    def _scan_folders(self) -> None:
        """Lists the changed folders: a new entry changes its folder's time stamp, so the others need no
        listing."""
        pending = list(self._folders)
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
                pending += self._list(folder)
                self._folders[folder] = changed_ns if is_settled else -1
            except OSError:
                if folder != self._root:
                    self._folders.pop(folder, None)

    def _list(self, folder: str) -> list[str]:
        """Registers the event files in `folder` and returns its new sub-folders."""
        new_folders: list[str] = []
        with os.scandir(folder) as entries:
            for entry in entries:
                if entry.is_dir(follow_symlinks=False):
                    if entry.name not in _SKIPPED_FOLDERS and entry.path not in self._folders:
                        self._folders[entry.path] = -1
                        new_folders.append(entry.path)
                elif (
                    _PATTERN.search(entry.name)
                    and entry.path not in self._files
                    and entry.is_file(follow_symlinks=False)
                ):
                    self._files[entry.path] = _EventFile(entry.path, self._prefix(folder))
        return new_folders

    def _prefix(self, folder: str) -> str:
        relative = os.path.relpath(folder, self._root)
        parts = [] if relative == "." else relative.split(os.sep)
        return "".join(part + "/" for part in parts if not _LOG_FOLDER_PATTERN.fullmatch(part))


class _EventFile:
    """One file, read record by record from the end of the last read."""

    def __init__(self, path: str, prefix: str) -> None:
        self._path, self._prefix = path, prefix
        self._offset, self._inode = 0, -1
        # the offset of a record with a wrong checksum, and the size of the file then
        self._suspect_size: tuple[int, int] | None = None
        self._is_corrupt = False

    def read(self) -> Iterator[Scalar]:
        stat_result = os.stat(self._path)
        if (
            stat_result.st_ino != self._inode or stat_result.st_size < self._offset
        ):  # another file with the same name
            self._inode, self._offset, self._is_corrupt, self._suspect_size = (
                stat_result.st_ino,
                0,
                False,
                None,
            )
        if self._is_corrupt or stat_result.st_size <= self._offset:
            return
        with os.fdopen(open_no_follow(self._path, os.O_RDONLY), "rb") as file:
            yield from self._records(file.fileno(), stat_result.st_size)

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
            record_bytes = _LENGTH.size + length + _CRC.size
            if self._offset + record_bytes > size:
                return
            if length <= _MAX_RECORD_BYTES:
                if len(block) - offset < record_bytes:
                    block, start, offset = (
                        os.pread(descriptor, max(_BLOCK_BYTES, record_bytes), self._offset),
                        self._offset,
                        0,
                    )
                    if len(block) < record_bytes:
                        return
                data = block[offset + _LENGTH.size : offset + _LENGTH.size + length]
                (check,) = _CRC.unpack_from(block, offset + _LENGTH.size + length)
                if _masked_crc(data) != check:
                    self._retry_or_mark_corrupt(size)
                    return
                for tag, step, wall_time, value in decode_scalars(data):
                    yield Scalar(self._prefix + tag, step, wall_time, value)
            self._offset += record_bytes
            self._suspect_size = None

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


def decode_scalars(event: bytes) -> Iterator[Scalar]:
    """Yields the scalars in one `Event` message; none for events of other kinds and for bytes that are not a
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
                scalar = _summary_value(value)
                if scalar is not None:
                    yield Scalar(scalar[0], step, wall_time, scalar[1])
    except MalformedMessage:
        return


def _summary_value(data: bytes) -> tuple[str, float] | None:
    """Returns tag and number of one `Summary.Value`; None for images, histograms, text and others."""
    tag, number_value, plugin = "", None, ""
    for number, kind, value in iterate_fields(data):
        if number == 1 and isinstance(value, bytes):
            tag = decode_text(value)
        elif number == 2 and kind is WireType.FIXED32 and isinstance(value, bytes):
            (number_value,) = struct.unpack("<f", value)
        elif number == 8 and isinstance(value, bytes):
            number_value = scalar_of_tensor(value)
        elif number == 9 and isinstance(value, bytes):
            plugin = _plugin(value)
    if not tag or number_value is None or plugin not in ("", "scalars"):
        return None
    return tag, number_value


def _plugin(metadata: bytes) -> str:
    for number, _, value in iterate_fields(metadata):
        if number == 1 and isinstance(value, bytes):
            for inner, _, name in iterate_fields(value):
                if inner == 1 and isinstance(name, bytes):
                    return decode_text(name)
    return ""


# -- CRC-32C, masked as in TFRecords
# ---------------------------------------------------------------------------


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
