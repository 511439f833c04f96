"""The position of an array's numbers in an .npy file or in a member of an .npz file."""

from __future__ import annotations

import struct
import zipfile
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

from hopyard.datasets.partitions.arrays import Array, np
from hopyard.errors import SpecError

_LOCAL_HEADER = 30  # bytes before the name in the local header of a zip member


@dataclass(frozen=True, slots=True)
class StoredArray:
    """One array of one file. member: of an .npz file. offset: of its first number in the file, in bytes; None
    if it is compressed."""

    path: str
    member: str
    offset: int | None
    dtype: str
    shape: tuple[int, ...]

    @property
    def row_bytes(self) -> int:
        return int(np.dtype(self.dtype).itemsize * np.prod(self.shape[1:], dtype=np.int64))

    def memory_map(self, folder: Path) -> Array:
        """Returns the array memory-mapped; only for arrays that are not compressed."""
        assert self.offset is not None
        return np.memmap(
            folder / self.path, dtype=np.dtype(self.dtype), mode="r", offset=self.offset, shape=self.shape
        )


def read_npy_layout(folder: Path, path: str) -> StoredArray:
    """Reads the header. Raises SpecError if the file is not an .npy file or is truncated."""
    with (folder / path).open("rb") as file:
        dtype, shape = _read_header(file, path)
        offset = file.tell()
    array = StoredArray(path, "", offset, dtype, shape)
    if (folder / path).stat().st_size < offset + array.row_bytes * shape[0]:
        raise SpecError(
            f"`{path}` is truncated: {shape[0]:,} rows do not fit into its "
            f"{(folder / path).stat().st_size:,} bytes"
        )
    return array


def read_npz_layout(folder: Path, path: str) -> dict[str, StoredArray]:
    """Returns every array of the file by its name. Raises SpecError as `read_npy_layout`."""
    try:
        with zipfile.ZipFile(folder / path) as archive, (folder / path).open("rb") as raw:
            arrays = {}
            for member in archive.infolist():
                with archive.open(member) as file:
                    dtype, shape = _read_header(file, f"{path}: {member.filename}")
                    header = file.tell()
                raw.seek(member.header_offset)
                name, extra = struct.unpack("<HH", raw.read(_LOCAL_HEADER)[26:30])
                start = member.header_offset + _LOCAL_HEADER + name + extra + header
                compressed = member.compress_type != zipfile.ZIP_STORED
                arrays[member.filename.removesuffix(".npy")] = StoredArray(
                    path, member.filename, None if compressed else start, dtype, shape
                )
            return arrays
    except (zipfile.BadZipFile, OSError, EOFError, struct.error) as error:
        raise SpecError(
            f"`{path}` cannot be read: {error}", hints=("write it again with numpy.savez",)
        ) from error


def _read_header(file: IO[bytes], name: str) -> tuple[str, tuple[int, ...]]:
    try:
        version = np.lib.format.read_magic(file)
        read_header: Any = (
            np.lib.format.read_array_header_1_0 if version == (1, 0) else np.lib.format.read_array_header_2_0
        )
        shape, is_fortran, dtype = read_header(file)
    except (ValueError, EOFError) as error:
        raise SpecError(
            f"`{name}` is not a NumPy array: {error}", hints=("write it with numpy.save",)
        ) from error
    if dtype.hasobject:
        raise SpecError(
            f"`{name}` holds Python objects",
            hints=("store numbers or strings of fixed length, or convert it to Parquet",),
        )
    if not shape:
        raise SpecError(
            f"`{name}` is a single number without rows",
            hints=("exclude it with partitions.columns or partitions.files",),
        )
    if is_fortran and len(shape) > 1:
        raise SpecError(
            f"`{name}` is stored in column-major order",
            hints=("rewrite it: numpy.save(path, numpy.ascontiguousarray(array))",),
        )
    return dtype.str, tuple(shape)
