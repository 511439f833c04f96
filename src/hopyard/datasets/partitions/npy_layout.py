"""Where the numbers of an array lie in an .npy file or in a member of an .npz file."""

from __future__ import annotations

import struct
import zipfile
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

from hopyard.datasets.partitions.arrays import Array, np
from hopyard.errors import SpecError

_LOCAL_HEADER = 30  # bytes before the name, of a member of a zip file


@dataclass(frozen=True, slots=True)
class StoredArray:
    """One array of one file. member: of an .npz file. offset: of its first number in the file; None where it
    is compressed."""

    path: str
    member: str
    offset: int | None
    dtype: str
    shape: tuple[int, ...]

    @property
    def row_bytes(self) -> int:
        return int(np.dtype(self.dtype).itemsize * np.prod(self.shape[1:], dtype=np.int64))

    def memory_map(self, folder: Path) -> Array:
        """Memory-mapped; for arrays that are not compressed."""
        assert self.offset is not None
        return np.memmap(
            folder / self.path, dtype=np.dtype(self.dtype), mode="r", offset=self.offset, shape=self.shape
        )


def read_npy_layout(folder: Path, path: str) -> StoredArray:
    """Raises SpecError for a file that is none, or cut short."""
    with (folder / path).open("rb") as file:
        dtype, shape = _read_header(file, path)
        offset = file.tell()
    stored = StoredArray(path, "", offset, dtype, shape)
    if (folder / path).stat().st_size < offset + stored.row_bytes * shape[0]:
        raise SpecError(
            f"`{path}` is cut short: {shape[0]:,} rows do not fit into its "
            f"{(folder / path).stat().st_size:,} bytes"
        )
    return stored


def read_npz_layout(folder: Path, path: str) -> dict[str, StoredArray]:
    """Every array of the file by its name. Raises SpecError as `of_npy`."""
    try:
        with zipfile.ZipFile(folder / path) as archive, (folder / path).open("rb") as raw:
            found = {}
            for member in archive.infolist():
                with archive.open(member) as file:
                    dtype, shape = _read_header(file, f"{path}: {member.filename}")
                    header = file.tell()
                raw.seek(member.header_offset)
                name, extra = struct.unpack("<HH", raw.read(_LOCAL_HEADER)[26:30])
                start = member.header_offset + _LOCAL_HEADER + name + extra + header
                compressed = member.compress_type != zipfile.ZIP_STORED
                found[member.filename.removesuffix(".npy")] = StoredArray(
                    path, member.filename, None if compressed else start, dtype, shape
                )
            return found
    except (zipfile.BadZipFile, OSError, EOFError, struct.error) as bad:
        raise SpecError(f"`{path}` cannot be read: {bad}", hints=("write it anew with numpy.savez",)) from bad


def _read_header(file: IO[bytes], name: str) -> tuple[str, tuple[int, ...]]:
    try:
        version = np.lib.format.read_magic(file)
        read: Any = (
            np.lib.format.read_array_header_1_0 if version == (1, 0) else np.lib.format.read_array_header_2_0
        )
        shape, fortran, dtype = read(file)
    except (ValueError, EOFError) as bad:
        raise SpecError(
            f"`{name}` is no array of NumPy: {bad}", hints=("numpy.save writes such files",)
        ) from bad
    if dtype.hasobject:
        raise SpecError(
            f"`{name}` holds Python objects",
            hints=("save numbers or strings of fixed length, or make it Parquet",),
        )
    if not shape:
        raise SpecError(
            f"`{name}` is one number and has no rows",
            hints=("leave it out: partitions.columns or partitions.files",),
        )
    if fortran and len(shape) > 1:
        raise SpecError(
            f"`{name}` is stored column by column",
            hints=("numpy.save(path, numpy.ascontiguousarray(array))",),
        )
    return dtype.str, tuple(shape)
