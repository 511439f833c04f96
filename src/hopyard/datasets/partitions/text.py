"""Lines of text files, UTF-8; blank ones do not count. One column, `text`."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from hopyard.datasets.partitions.arrays import Array, np, object_array
from hopyard.datasets.partitions.data_format import FormatInfo, FormatScan
from hopyard.errors import SpecError

_SPAN_BYTES = 8 * 1024 * 1024
_OBJECT_BYTES = 57  # of a str, beside its letters


def inspect_files(folder: Path, files: tuple[str, ...], columns: tuple[str, ...], prefix: str) -> FormatInfo:
    del prefix  # the names of files mean nothing
    for column in columns:
        if column != "text":
            raise SpecError(
                f"partitions.columns: lines of text have no column `{column}`",
                hints=("they have one column, `text`",),
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
            f"partitions.stratify: lines of text have no column `{stratify}`", hints=("leave `stratify` out",)
        )
    found = [_lines(folder / path) for path in info.inner["files"]]
    numbers = np.repeat(np.arange(len(found), dtype=np.int32), [len(starts) for starts, _ in found])
    locators = {
        "file": numbers,
        "at": np.concatenate([starts for starts, _ in found]),
        "size": np.concatenate([sizes for _, sizes in found]),
    }
    return FormatScan(len(numbers), locators)


def _lines(path: Path) -> tuple[Array, Array]:
    """Where each line that is not blank begins, and its length without what ends it."""
    ends: list[Array] = []
    at = 0
    with path.open("rb") as file:
        while piece := file.read(_SPAN_BYTES):
            ends.append(np.flatnonzero(np.frombuffer(piece, dtype=np.uint8) == 10) + at)
            at += len(piece)
    stops = np.concatenate(ends) if ends else np.empty(0, dtype=np.int64)
    if not len(stops) or stops[-1] != at - 1:
        stops = np.append(stops, at)  # a last line without an end
    starts = np.concatenate([[0], stops[:-1] + 1])
    sizes = stops - starts
    single = np.flatnonzero(sizes == 1)
    if len(single):  # a blank line that ends as Windows ends them
        sizes[single[np.memmap(path, dtype=np.uint8, mode="r")[starts[single]] == 13]] = 0
    held = sizes > 0
    return starts[held].astype(np.int64), sizes[held].astype(np.int64)


class TextReader:
    """Any line at once."""

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
                for nth in np.flatnonzero(self._file[positions] == number):
                    at = positions[nth]
                    file.seek(self._line_starts[at])
                    lines[nth] = self._text(file.read(self._size[at]), at)
        return dict.fromkeys(columns, object_array(lines))

    def chunks(
        self, columns: Sequence[str], blocks: Sequence[int] | None = None
    ) -> Iterator[tuple[Array, dict[str, Array]]]:
        del blocks  # it has none
        order = np.lexsort((self._line_starts, self._file))
        for number in np.unique(self._file):
            own = order[self._file[order] == number]
            with (self._folder / self._files[number]).open("rb") as file:
                for positions in _read_spans(own, self._line_starts):
                    first = self._line_starts[positions[0]]
                    file.seek(first)
                    piece = file.read(self._line_starts[positions[-1]] + self._size[positions[-1]] - first)
                    lines = [
                        self._text(piece[self._line_starts[p] - first :][: self._size[p]], p)
                        for p in positions
                    ]
                    yield positions, dict.fromkeys(columns, object_array(lines))

    def _text(self, line: bytes, position: int) -> str:
        try:
            return line.removesuffix(b"\r").decode()
        except UnicodeDecodeError as bad:
            where = f"`{self._files[self._file[position]]}`, the line at byte {self._line_starts[position]:,}"
            raise SpecError(f"{where} is not UTF-8", hints=("iconv -f latin1 -t utf-8 makes it so",)) from bad


reader = TextReader


def _read_spans(positions: Array, starts: Array) -> Iterator[Array]:
    """Lines in order of storage, as many together as lie within one span."""
    which = starts[positions] // _SPAN_BYTES
    for piece in np.split(positions, np.flatnonzero(np.diff(which)) + 1):
        if len(piece):
            yield piece
