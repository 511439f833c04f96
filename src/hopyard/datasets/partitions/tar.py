"""Tar files of samples in the format of WebDataset: the members `0001.jpg` and `0001.cls` are the columns jpg
and cls of sample 0001. They are read from the tar file; nothing is unpacked."""

from __future__ import annotations

import os
import tarfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from hopyard.datasets.partitions.arrays import Array, np
from hopyard.datasets.partitions.data_format import FormatInfo, FormatScan, number_strata
from hopyard.datasets.partitions.images import stack_images
from hopyard.datasets.partitions.name_errors import unknown_name_hints
from hopyard.datasets.partitions.tar_members import decode_member, inspect_member, is_image, stack_values
from hopyard.errors import SpecError

_CHUNK_ROWS = 64
_SAMPLES = 16
_OPEN_FILES = 64
MemberPositions = dict[str, tuple[int, int]]  # of one sample: offset and size of each column


def inspect_files(folder: Path, files: tuple[str, ...], columns: tuple[str, ...], prefix: str) -> FormatInfo:
    """Reads the first samples of the first and the last file."""
    del prefix  # paths are not part of sample names
    selected: tuple[str, ...] = ()
    samples: list[tuple[str, str, MemberPositions]] = []
    for path in dict.fromkeys((files[0], files[-1])):
        for (key, members), _ in zip(_samples(folder, path), range(_SAMPLES), strict=False):
            selected = selected or columns or tuple(sorted(members))
            _check_sample(path, key, members, selected)
            samples.append((path, key, members))
    bytes_each = dict.fromkeys(selected, 0.0)
    has_colour = False
    for path, key, members in samples:
        with (folder / path).open("rb") as file:
            for name in selected:
                offset, size = members[name]
                file.seek(offset)
                is_coloured, size_bytes = inspect_member(file.read(size), name, f"{path}: {key}.{name}")
                has_colour |= is_coloured
                bytes_each[name] += size_bytes / len(samples)
    return FormatInfo(selected, bytes_each, None, (), {"files": list(files), "grey": not has_colour})


def scan(folder: Path, info: FormatInfo, stratify: str) -> FormatScan:
    if stratify and stratify not in info.columns:
        raise SpecError(
            f"partitions.stratify: samples have no `.{stratify}`",
            hints=unknown_name_hints(stratify, info.columns),
        )
    if stratify and is_image(stratify):
        raise SpecError(
            f"partitions.stratify: `.{stratify}` is an image, not a class",
            hints=("stratify by a column of classes, such as `cls`",),
        )
    shards: list[int] = []
    positions: dict[str, list[tuple[int, int]]] = {name: [] for name in info.columns}
    for number, path in enumerate(info.inner["files"]):
        for key, sample in _samples(folder, path):
            _check_sample(path, key, sample, info.columns)
            shards.append(number)
            for name in info.columns:
                positions[name].append(sample[name])
    locators: dict[str, Array] = {
        "shard": np.array(shards, dtype=np.int32),
        **{
            name: np.array(column_positions, dtype=np.int64).reshape(-1, 2)
            for name, column_positions in positions.items()
        },
    }
    strata = None
    if stratify:
        reader = TarReader(folder, info, locators)
        strata = number_strata(reader.take(np.arange(len(shards)), (stratify,))[stratify])
    return FormatScan(len(shards), locators, strata)


def _samples(folder: Path, path: str) -> Iterator[tuple[str, MemberPositions]]:
    """Yields the samples of one file in order: consecutive members with equal names up to the first dot."""
    key, sample = "", MemberPositions()
    length = (folder / path).stat().st_size
    try:
        with tarfile.open(folder / path, "r:") as archive:
            for member in archive:
                parent, _, name = member.name.rpartition("/")
                sample_name, has_suffix, suffix = name.partition(".")
                if not member.isfile() or not has_suffix or not sample_name:
                    continue
                if sample and key != f"{parent}/{sample_name}":
                    yield key.removeprefix("/"), sample
                    sample = MemberPositions()
                key = f"{parent}/{sample_name}"
                if suffix in sample:
                    raise SpecError(f"`{path}`: sample `{key.removeprefix('/')}` has `.{suffix}` twice")
                sample[suffix] = (member.offset_data, member.size)
                if member.offset_data + member.size > length:
                    raise SpecError(
                        f"`{path}` is truncated within `{member.name}`",
                        hints=("write it again, and push the dataset again",),
                    )
    except tarfile.TarError as error:
        hint = "members are read from the file itself, so it must not be compressed: gunzip it"
        raise SpecError(f"`{path}` is not a tar file: {error}", hints=(hint,)) from error
    if sample:
        yield key.removeprefix("/"), sample


def _check_sample(path: str, key: str, sample: MemberPositions, columns: Sequence[str]) -> None:
    for name in columns:
        if name not in sample:
            hint = (
                f"it has {', '.join(f'.{suffix}' for suffix in sorted(sample))}; select the needed ones with "
                "`columns`"
            )
            raise SpecError(f"`{path}`: sample `{key}` has no `.{name}`", hints=(hint,))


class TarReader:
    """Reads any sample independently, by its offset."""

    blocks = None

    def __init__(self, folder: Path, info: FormatInfo, locators: Mapping[str, Array]) -> None:
        self._folder, self._info, self._member_positions = folder, info, locators
        self._shard = locators["shard"]
        self.columns, self.rows = info.columns, len(self._shard)
        self._files: dict[int, int] = {}

    def __del__(self) -> None:
        for descriptor in self._files.values():
            os.close(descriptor)

    def row_bytes(self, columns: Sequence[str]) -> float:
        return sum(self._info.row_bytes[name] for name in columns)

    def take(self, positions: Array, columns: Sequence[str]) -> dict[str, Array]:
        arrays: dict[str, Array] = {}
        for name in columns:
            values = [
                decode_member(
                    self._read(index, name),
                    name,
                    self._member_name(index, name),
                    grey=self._info.inner["grey"],
                )
                for index in positions
            ]
            arrays[name] = stack_images(values) if is_image(name) and values else stack_values(values)
        return arrays

    def chunks(
        self, columns: Sequence[str], blocks: Sequence[int] | None = None
    ) -> Iterator[tuple[Array, dict[str, Array]]]:
        del blocks  # samples have no blocks
        order = np.lexsort((self._member_positions[self.columns[0]][:, 0], self._shard))
        for start in range(0, self.rows, _CHUNK_ROWS):
            yield order[start : start + _CHUNK_ROWS], self.take(order[start : start + _CHUNK_ROWS], columns)

    def _read(self, index: int, name: str) -> bytes:
        offset, size = self._member_positions[name][index]
        number = int(self._shard[index])
        if number not in self._files:
            if len(self._files) >= _OPEN_FILES:
                os.close(self._files.pop(next(iter(self._files))))
            self._files[number] = os.open(
                self._folder / self._info.inner["files"][number], os.O_RDONLY | os.O_CLOEXEC
            )
        return os.pread(self._files[number], int(size), int(offset))

    def _member_name(self, index: int, name: str) -> str:
        return (
            f"{self._info.inner['files'][int(self._shard[index])]}: the .{name} at byte "
            f"{int(self._member_positions[name][index][0]):,}"
        )


reader = TarReader
