"""Lines of text files in UTF-8, without blank lines. One column, `text`."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from hopyard.datasets.partitions.arrays import Array, np, object_array
from hopyard.datasets.partitions.data_format import FormatInfo, FormatScan
from hopyard.errors import SpecError

_SPAN_BYTES = 8 * 1024 * 1024
_OBJECT_BYTES = 57  # of a str, without its characters


def inspect_files(folder: Path, files: tuple[str, ...], columns: tuple[str, ...], prefix: str) -> FormatInfo:
    del prefix  # paths mean nothing
    for column in columns:
        if column != "text":
            raise SpecError(
                f"partitions.columns: lines of text have no column `{column}`",
                hints=("the only column is `text`",),
            )
    with (folder / files[0]).open("rb") as file:
        sample = file.read(64 * 1024)
    lines = sample.count(b"\n") or 1
    return FormatInfo(
        ("text",), {"text": len(sample) / lines + _OBJECT_BYTES}, None, (), {"files": list(files)}
    )


def scan(folder: Path, info: FormatInfo, stratify: str) -> FormatScan:
    if stratify:
        raise SpecError(
            f"partitions.stratify: lines of text have no column `{stratify}`", hints=("remove `stratify`",)
        )
    file_lines = [_lines(folder / path) for path in info.inner["files"]]
    numbers = np.repeat(np.arange(len(file_lines), dtype=np.int32), [len(starts) for starts, _ in file_lines])
    locators = {
        "file": numbers,
        "at": np.concatenate([starts for starts, _ in file_lines]),
        "size": np.concatenate([sizes for _, sizes in file_lines]),
    }
    return FormatScan(len(numbers), locators)


def _lines(path: Path) -> tuple[Array, Array]:
    """Returns the start of each line that is not blank, and its length without the line ending."""
    ends: list[Array] = []
    file_size = 0
    with path.open("rb") as file:
        while block := file.read(_SPAN_BYTES):
            ends.append(np.flatnonzero(np.frombuffer(block, dtype=np.uint8) == 10) + file_size)
            file_size += len(block)
    line_ends = np.concatenate(ends) if ends else np.empty(0, dtype=np.int64)
    if not len(line_ends) or line_ends[-1] != file_size - 1:
        line_ends = np.append(line_ends, file_size)  # the last line has no line ending
    starts = np.concatenate([[0], line_ends[:-1] + 1])
    sizes = line_ends - starts
    one_byte_lines = np.flatnonzero(sizes == 1)
    if len(one_byte_lines):  # a blank line that ends with CR LF
        sizes[one_byte_lines[np.memmap(path, dtype=np.uint8, mode="r")[starts[one_byte_lines]] == 13]] = 0
    not_blank = sizes > 0
    return starts[not_blank].astype(np.int64), sizes[not_blank].astype(np.int64)


class TextReader:
    """Reads any line independently."""

    blocks = None

    def __init__(self, folder: Path, info: FormatInfo, locators: Mapping[str, Array]) -> None:
        self._folder, self._files = folder, list(info.inner["files"])
        self._file, self._line_starts, self._size = locators["file"], locators["at"], locators["size"]
        self.columns, self.rows = info.columns, len(self._line_starts)
        self._mean = float(self._size.mean()) + _OBJECT_BYTES if self.rows else 0.0

    def row_bytes(self, columns: Sequence[str]) -> float:
        return self._mean * len(columns)

    def take(self, positions: Array, columns: Sequence[str]) -> dict[str, Array]:
        lines: list[str] = [""] * len(positions)
        for number in np.unique(self._file[positions]):
            with (self._folder / self._files[number]).open("rb") as file:
                for index in np.flatnonzero(self._file[positions] == number):
                    position = positions[index]
                    file.seek(self._line_starts[position])
                    lines[index] = self._text(file.read(self._size[position]), position)
        return dict.fromkeys(columns, object_array(lines))

    def chunks(
        self, columns: Sequence[str], blocks: Sequence[int] | None = None
    ) -> Iterator[tuple[Array, dict[str, Array]]]:
        del blocks  # lines have no blocks
        order = np.lexsort((self._line_starts, self._file))
        for number in np.unique(self._file):
            file_positions = order[self._file[order] == number]
            with (self._folder / self._files[number]).open("rb") as file:
                for positions in _read_spans(file_positions, self._line_starts):
                    first = self._line_starts[positions[0]]
                    file.seek(first)
                    span = file.read(self._line_starts[positions[-1]] + self._size[positions[-1]] - first)
                    lines = [
                        self._text(
                            span[self._line_starts[position] - first :][: self._size[position]], position
                        )
                        for position in positions
                    ]
                    yield positions, dict.fromkeys(columns, object_array(lines))

    def _text(self, line: bytes, position: int) -> str:
        try:
            return line.removesuffix(b"\r").decode()
        except UnicodeDecodeError as error:
            location = (
                f"`{self._files[self._file[position]]}`, the line at byte {self._line_starts[position]:,}"
            )
            raise SpecError(
                f"{location} is not UTF-8", hints=("convert it with `iconv -f latin1 -t utf-8`",)
            ) from error


reader = TextReader


def _read_spans(positions: Array, starts: Array) -> Iterator[Array]:
    """Yields lines in storage order, grouped by span."""
    span_numbers = starts[positions] // _SPAN_BYTES
    for group in np.split(positions, np.flatnonzero(np.diff(span_numbers)) + 1):
        if len(group):
            yield group
