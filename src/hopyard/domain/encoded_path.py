"""Paths with any bytes as text: percent-encoded, for files that a run named oddly.

A path that is not UTF-8, or holds control characters or a backslash, is no path of a manifest. In its encoded
form each such byte, and `%`, is written as `%` with two hexadecimal digits. The form is exact: no two paths
share one.
"""

from __future__ import annotations

import re

from hopyard.domain.path_check import MAX_PART_BYTES, check_path, is_manifest_path, is_repository_name
from hopyard.domain.text import escape
from hopyard.errors import SpecError

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


def is_encoded(text: str) -> bool:
    """Returns whether the text is the encoded form of a path: no other form may hide `/` or `..`."""
    path = decode_path(text)
    return encode_path(path) == text and "\0" not in path


def check_encoded_path(text: str) -> None:
    """Raises SpecError if the text is not the encoded form of a path inside a tree."""
    check_path(text, max_part_bytes=3 * MAX_PART_BYTES)
    path = decode_path(text)
    if not is_encoded(text) or is_repository_name(path):
        raise SpecError(f"`{escape(text[:200])}` is not a path in its encoded form")
    if any(len(part.encode("utf-8", "surrogateescape")) > MAX_PART_BYTES for part in path.split("/")):
        raise SpecError(f"`{escape(text[:80])}…` has a part longer than {MAX_PART_BYTES} bytes")


def to_text(path: str) -> tuple[str, bool]:
    """Returns a path as text, and whether it is encoded: only a path that needs it."""
    return (path, False) if is_manifest_path(path) else (encode_path(path), True)
