"""Tar files of samples, as WebDataset has them: members `0001.jpg`, `0001.cls` are columns jpg and cls of
sample 0001. They are read where they lie, nothing is unpacked."""

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
MemberPositions = dict[str, tuple[int, int]]  # of one sample: where each column lies


def inspect_files(folder: Path, files: tuple[str, ...], columns: tuple[str, ...], prefix: str) -> FormatInfo:
    """The first samples of the first and the last file."""
    del prefix  # samples are named within
    wanted: tuple[str, ...] = ()
    seen: list[tuple[str, str, MemberPositions]] = []
    for path in dict.fromkeys((files[0], files[-1])):
        for (key, places), _ in zip(_samples(folder, path), range(_SAMPLES), strict=False):
            wanted = wanted or columns or tuple(sorted(places))
            _check_sample(path, key, places, wanted)
            seen.append((path, key, places))
    bytes_each = dict.fromkeys(wanted, 0.0)
    colours = False
    for path, key, places in seen:
        with (folder / path).open("rb") as file:
            for name in wanted:
                at, size = places[name]
                file.seek(at)
                coloured, held = inspect_member(file.read(size), name, f"{path}: {key}.{name}")
                colours |= coloured
                bytes_each[name] += held / len(seen)
    return FormatInfo(wanted, bytes_each, None, (), {"files": list(files), "grey": not colours})


def scan(folder: Path, info: FormatInfo, stratify: str) -> FormatScan:
    if stratify and stratify not in info.columns:
        raise SpecError(
            f"partitions.stratify: samples have no `.{stratify}`",
            hints=unknown_name_hints(stratify, info.columns),
        )
    if stratify and is_image(stratify):
        raise SpecError(
            f"partitions.stratify: `.{stratify}` is an image, not a class",
            hints=("`cls` is what classes are called",),
        )
    shards: list[int] = []
    places: dict[str, list[tuple[int, int]]] = {name: [] for name in info.columns}
    for number, path in enumerate(info.inner["files"]):
        for key, sample in _samples(folder, path):
            _check_sample(path, key, sample, info.columns)
            shards.append(number)
            for name in info.columns:
                places[name].append(sample[name])
    locators: dict[str, Array] = {
        "shard": np.array(shards, dtype=np.int32),
        **{name: np.array(at, dtype=np.int64).reshape(-1, 2) for name, at in places.items()},
    }
    strata = None
    if stratify:
        every = TarReader(folder, info, locators)
        strata = number_strata(every.take(np.arange(len(shards)), (stratify,))[stratify])
    return FormatScan(len(shards), locators, strata)


def _samples(folder: Path, path: str) -> Iterator[tuple[str, MemberPositions]]:
    """The samples of one file in order: members that follow one another and whose names are alike up to the
    first dot."""
    key, sample = "", MemberPositions()
    length = (folder / path).stat().st_size
    try:
        with tarfile.open(folder / path, "r:") as archive:
            for member in archive:
                parent, _, name = member.name.rpartition("/")
                stem, dot, suffix = name.partition(".")
                if not member.isfile() or not dot or not stem:
                    continue
                if sample and key != f"{parent}/{stem}":
                    yield key.removeprefix("/"), sample
                    sample = MemberPositions()
                key = f"{parent}/{stem}"
                if suffix in sample:
                    raise SpecError(f"`{path}`: sample `{key.removeprefix('/')}` has `.{suffix}` twice")
                sample[suffix] = (member.offset_data, member.size)
                if member.offset_data + member.size > length:
                    raise SpecError(
                        f"`{path}` is cut short within `{member.name}`",
                        hints=("write it anew, and push the dataset again",),
                    )
    except tarfile.TarError as bad:
        hint = "members are read where they lie, so the file itself must not be compressed: gunzip it"
        raise SpecError(f"`{path}` is no tar file: {bad}", hints=(hint,)) from bad
    if sample:
        yield key.removeprefix("/"), sample


def _check_sample(path: str, key: str, sample: MemberPositions, columns: Sequence[str]) -> None:
    for name in columns:
        if name not in sample:
            hint = (
                f"it has {', '.join(f'.{suffix}' for suffix in sorted(sample))}; `columns` says which "
                "are needed"
            )
            raise SpecError(f"`{path}`: sample `{key}` has no `.{name}`", hints=(hint,))


class TarReader:
    """Any sample at once, by its offset."""

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
        read: dict[str, Array] = {}
        for name in columns:
            values = [
                decode_member(
                    self._read(at, name), name, self._member_name(at, name), grey=self._info.inner["grey"]
                )
                for at in positions
            ]
            read[name] = stack_images(values) if is_image(name) and values else stack_values(values)
        return read

    def chunks(
        self, columns: Sequence[str], blocks: Sequence[int] | None = None
    ) -> Iterator[tuple[Array, dict[str, Array]]]:
        del blocks  # it has none
        order = np.lexsort((self._member_positions[self.columns[0]][:, 0], self._shard))
        for at in range(0, self.rows, _CHUNK_ROWS):
            yield order[at : at + _CHUNK_ROWS], self.take(order[at : at + _CHUNK_ROWS], columns)

    def _read(self, at: int, name: str) -> bytes:
        offset, size = self._member_positions[name][at]
        number = int(self._shard[at])
        if number not in self._files:
            if len(self._files) >= _OPEN_FILES:
                os.close(self._files.pop(next(iter(self._files))))
            self._files[number] = os.open(
                self._folder / self._info.inner["files"][number], os.O_RDONLY | os.O_CLOEXEC
            )
        return os.pread(self._files[number], int(size), int(offset))

    def _member_name(self, at: int, name: str) -> str:
        return (
            f"{self._info.inner['files'][int(self._shard[at])]}: the .{name} at byte "
            f"{int(self._member_positions[name][at][0]):,}"
        )


reader = TarReader
