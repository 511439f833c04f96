"""Folders of images: the folder of an image is its class. Columns `image` and `label`."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from hopyard.datasets.partitions import image_decode
from hopyard.datasets.partitions.arrays import Array, concatenate, np, object_array
from hopyard.datasets.partitions.data_format import FormatInfo, FormatScan
from hopyard.errors import SpecError

_COLUMNS = ("image", "label")
_CHUNK_ROWS = 64


def inspect_files(folder: Path, files: tuple[str, ...], columns: tuple[str, ...], prefix: str) -> FormatInfo:
    del prefix  # only the innermost folder counts
    for column in columns:
        if column not in _COLUMNS:
            raise SpecError(
                f"partitions.columns: images have no column `{column}`", hints=("use `image` and `label`",)
            )
    by_class: dict[str, list[str]] = {}
    for path in files:
        parent, _, _ = path.rpartition("/")
        if not parent:
            raise SpecError(
                f"the image `{path}` has no class: it is not in a folder",
                hints=("use one folder per class: cat/1.jpg, dog/2.jpg",),
            )
        by_class.setdefault(parent.rpartition("/")[2], []).append(path)
    sampled = [
        paths[index * len(paths) // count]
        for paths in by_class.values()
        for count in (min(image_decode.SAMPLE_IMAGES, len(paths)),)
        for index in range(count)
    ]
    inspected = [image_decode.inspect_image(folder / path, path) for path in sampled]
    grey = all(is_grey for is_grey, _ in inspected)
    bytes_each = sum(pixels for _, pixels in inspected) / len(inspected) * (1 if grey else 3)
    inner = {"files": list(files), "grey": grey}
    return FormatInfo(
        columns or _COLUMNS, {"image": bytes_each, "label": 8.0}, len(files), tuple(sorted(by_class)), inner
    )


def scan(folder: Path, info: FormatInfo, stratify: str) -> FormatScan:
    del folder
    if stratify not in ("", "folder", "label"):
        raise SpecError(
            f"partitions.stratify: images have no column `{stratify}`",
            hints=("stratify by `folder`, which is the class",),
        )
    class_numbers = {name: number for number, name in enumerate(info.classes)}
    paths = info.inner["files"]
    labels = np.array([class_numbers[path.split("/")[-2]] for path in paths], dtype=np.int64)
    locators = {"path": np.array([path.encode() for path in paths], dtype=np.bytes_), "label": labels}
    return FormatScan(len(paths), locators, labels if stratify else None)


class ImageReader:
    """Reads any image independently. Returns an array of objects if the sizes of images differ."""

    blocks = None

    def __init__(self, folder: Path, info: FormatInfo, locators: Mapping[str, Array]) -> None:
        self._folder, self._info = folder, info
        self._paths, self._labels = locators["path"], locators["label"]
        self.columns, self.rows = info.columns, len(self._paths)

    def row_bytes(self, columns: Sequence[str]) -> float:
        return sum(self._info.row_bytes[name] for name in columns)

    def take(self, positions: Array, columns: Sequence[str]) -> dict[str, Array]:
        arrays: dict[str, Array] = {}
        for name in columns:
            arrays[name] = (
                self._labels[positions]
                if name == "label"
                else stack_images([self._image(index) for index in positions])
            )
        return arrays

    def chunks(
        self, columns: Sequence[str], blocks: Sequence[int] | None = None
    ) -> Iterator[tuple[Array, dict[str, Array]]]:
        del blocks  # images have no blocks
        order = np.argsort(self._paths, kind="stable")
        for start in range(0, self.rows, _CHUNK_ROWS):
            yield order[start : start + _CHUNK_ROWS], self.take(order[start : start + _CHUNK_ROWS], columns)

    def _image(self, index: int) -> Array:
        path = self._paths[index].decode()
        return image_decode.decode_image(self._folder / path, path, grey=self._info.inner["grey"])


reader = ImageReader


def stack_images(rows: list[Array]) -> Array:
    """Returns one array if all images have one shape and type, else an array of objects."""
    if len({(row.shape, row.dtype) for row in rows}) == 1:
        return concatenate([row[None] for row in rows])
    return object_array(rows)
