"""Recognises files that a killed process wrote only in part. Only formats that show their end are checked."""

from __future__ import annotations

import json
import os
import zipfile
from pathlib import Path

_MAX_JSON_BYTES = 16 * 1024 * 1024
_MAX_HEADER_BYTES = 100 * 1024 * 1024
_ZIP_SUFFIXES = (".pt", ".pth", ".ckpt", ".bin", ".npz", ".zip", ".keras")


def is_torn(path: Path) -> bool:
    """Returns whether the file is certainly incomplete: empty or cut off. False for an unknown format."""
    suffix = path.suffix.lower()
    try:
        size = path.stat().st_size
        if suffix == ".json":
            return size <= _MAX_JSON_BYTES and not _is_json(path)
        if suffix == ".safetensors":
            return not _has_all_tensors(path, size)
        if suffix in _ZIP_SUFFIXES:
            return size == 0 or (_begins_as_zip(path) and not zipfile.is_zipfile(path))
        return suffix in (".pkl", ".pickle") and not _ends_as_pickle(path, size)
    except OSError:
        return True


def _begins_as_zip(path: Path) -> bool:
    with path.open("rb") as file:
        return file.read(4) == b"PK\x03\x04"


def _is_json(path: Path) -> bool:
    """Returns whether the file is JSON, or has lines of JSON of which the last is complete."""
    data = path.read_bytes()
    lines = data.splitlines() if data.endswith(b"\n") else []
    return _parses_as_json(data) or bool(
        len(lines) > 1 and _parses_as_json(lines[0]) and _parses_as_json(lines[-1])
    )


def _parses_as_json(data: bytes) -> bool:
    try:
        json.loads(data)
    except (ValueError, RecursionError):
        return False
    return True


def _has_all_tensors(path: Path, size: int) -> bool:
    with path.open("rb") as file:
        header_bytes = int.from_bytes(file.read(8), "little")
        if size < 8 or header_bytes > min(size - 8, _MAX_HEADER_BYTES):
            return False
        try:
            header = json.loads(file.read(header_bytes))
            ends = [tensor["data_offsets"][1] for name, tensor in header.items() if name != "__metadata__"]
        except (ValueError, TypeError, KeyError, IndexError, AttributeError):
            return False
    return bool(size >= 8 + header_bytes + max(ends, default=0))


def _ends_as_pickle(path: Path, size: int) -> bool:
    if size == 0:
        return False
    with path.open("rb") as file:
        file.seek(-1, os.SEEK_END)
        return file.read(1) == b"."
