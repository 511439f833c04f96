"""Paths with any bytes as text: percent-encoded, for files that a run named oddly.

A path that is not UTF-8, or holds control characters or a backslash, is no path of a manifest. In its encoded
form each such byte, and `%`, is written as `%` with two hexadecimal digits. The form is exact: no two paths
share one.
"""

from __future__ import annotations

import re

from hopyard.domain.path_check import MAX_PART_BYTES, is_manifest_path

_ODD = re.compile(r"[\x00-\x1f\x7f-\x9f\\%\udc80-\udcff]")
_ENCODED_BYTES = re.compile("((?:%[0-9A-F]{2})+)")


def encode_path(path: str) -> str:
    """Returns the encoded form. path: as `os.fsdecode` returns it."""
    return _ODD.sub(
        lambda odd: "".join(f"%{byte:02X}" for byte in odd[0].encode("utf-8", "surrogateescape")), path
    )


def decode_path(text: str) -> str:
    """Returns the path of an encoded form, as `os.fsdecode` returns it."""
    return _ENCODED_BYTES.sub(
        lambda found: bytes.fromhex(found[0].replace("%", "")).decode("utf-8", "surrogateescape"), text
    )


def is_encoded_path(text: str) -> bool:
    """Returns whether the text is the encoded form of a path that a file system can hold."""
    path = decode_path(text)
    return encode_path(path) == text and all(
        len(part.encode("utf-8", "surrogateescape")) <= MAX_PART_BYTES for part in path.split("/")
    )


def to_text(path: str) -> tuple[str, bool]:
    """Returns a path as text, and whether it is encoded: only a path that needs it."""
    return (path, False) if is_manifest_path(path) else (encode_path(path), True)
