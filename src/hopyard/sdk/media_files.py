"""Reads media from files and bytes, and finds their type by their first bytes."""

from __future__ import annotations

import os
import stat
from collections.abc import Collection

from hopyard.domain.media import MAX_ITEM_BYTES
from hopyard.errors import SpecError

_SIGNATURES: tuple[tuple[bytes, int, str], ...] = (
    (b"\x89PNG\r\n\x1a\n", 0, "image/png"),
    (b"\xff\xd8\xff", 0, "image/jpeg"),
    (b"GIF8", 0, "image/gif"),
    (b"WEBP", 8, "image/webp"),
    (b"WAVE", 8, "audio/wav"),
    (b"fLaC", 0, "audio/flac"),
    (b"OggS", 0, "audio/ogg"),
    (b"ID3", 0, "audio/mpeg"),
    (b"\xff\xfb", 0, "audio/mpeg"),
    (b"\xff\xf3", 0, "audio/mpeg"),
    (b"ftyp", 4, "video/mp4"),
    (b"\x1aE\xdf\xa3", 0, "video/webm"),
)


def find_type(data: bytes, accepted: Collection[str], *, what: str) -> str:
    """Returns the media type of encoded data. Raises SpecError if it is not one of the accepted types. what:
    names the class for the message."""
    for signature, offset, type_ in _SIGNATURES:
        if data[offset : offset + len(signature)] == signature and type_ in accepted:
            return type_
    names = ", ".join(sorted(type_.partition("/")[2] for type_ in accepted))
    raise SpecError(f"the data of {what} has none of the formats {names}", hints=("convert it first",))


def read_file(path: str | os.PathLike[str]) -> bytes:
    """Returns the content of a regular file. Raises SpecError for a larger one than an item may be, and for
    one that cannot be read."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        with os.fdopen(descriptor, "rb") as file:
            info = os.fstat(descriptor)
            if not stat.S_ISREG(info.st_mode):
                raise SpecError(f"{os.fspath(path)} is not a file")
            if info.st_size > MAX_ITEM_BYTES:
                raise SpecError(
                    f"{os.fspath(path)} has {info.st_size:,} bytes, more than {MAX_ITEM_BYTES:,}",
                    hints=("write it to the working folder: it becomes an output of the run",),
                )
            return file.read()
    except OSError as error:
        raise SpecError(f"{os.fspath(path)} cannot be read: {error.strerror or error}") from error
