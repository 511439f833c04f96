"""Recognises files that a killed process wrote only in part. Only formats that show their end are checked."""

from __future__ import annotations

import json
import os
import zipfile
from pathlib import Path

_MAX_JSON_BYTES = 16 * 1024 * 1024
_MAX_HEADER_BYTES = 100 * 1024 * 1024
_HDF_SUFFIXES = (".h5", ".hdf5")
_HDF_SIGNATURE = b"\x89HDF\r\n\x1a\n"
_ZIP_SUFFIXES = (".pt", ".pth", ".ckpt", ".bin", ".npz", ".zip", ".keras")


def has_end(path: Path) -> bool | None:
    """Returns whether the file is complete; None for a format that does not show its end."""
    suffix = path.suffix.lower()
    try:
        size = path.stat().st_size
        if suffix == ".json":
            return None if size > _MAX_JSON_BYTES else _is_json(path)
        if suffix == ".safetensors":
            return _has_all_tensors(path, size)
        if suffix in _ZIP_SUFFIXES:
            if size == 0:
                return False
            return zipfile.is_zipfile(path) if _begins_as_zip(path) else None
        if suffix in _HDF_SUFFIXES:
            return _has_hdf_end(path, size)
        return _ends_as_pickle(path, size) if suffix in (".pkl", ".pickle") else None
    except OSError:
        return False


def _has_hdf_end(path: Path, size: int) -> bool | None:
    """HDF5 has the address of its end in the superblock (HDF5 File Format Specification 3.0, section II.A).
    None for another format."""
    with path.open("rb") as file:
        data = file.read(64)
    if not data.startswith(_HDF_SIGNATURE):
        return False if _HDF_SIGNATURE.startswith(data) else None
    if len(data) < 64:
        return False
    version = data[8]
    address_bytes = data[13] if version < 2 else data[9]
    # behind versions, sizes and flags: base address, (free space or extension), end
    start = {0: 24, 1: 28}.get(version, 12) + 2 * address_bytes
    return size == int.from_bytes(data[start : start + address_bytes], "little")


def _begins_as_zip(path: Path) -> bool:
    with path.open("rb") as file:
        return b"PK\x03\x04".startswith(file.read(4))


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
