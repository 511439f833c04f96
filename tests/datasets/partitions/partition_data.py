"""The same rows in every format, for the tests of partitions."""

from __future__ import annotations

import io
import json
import tarfile
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

ROWS = 101
CLASSES = ("ash", "beech", "cedar")


def labels(rows: int = ROWS) -> np.ndarray:
    """Returns labels sorted by class, as is common in data; half of them are of the first class."""
    return np.sort(np.array([0, 0, 1, 2])[np.arange(rows) % 4])


def numbers(rows: int = ROWS) -> np.ndarray:
    """Returns an array (rows, 3), whose first column identifies the row."""
    return np.arange(rows * 3, dtype=np.float32).reshape(rows, 3)


def npy(folder: Path, rows: int = ROWS) -> None:
    np.save(folder / "x.npy", numbers(rows))
    np.save(folder / "y.npy", labels(rows))


def npz(folder: Path, rows: int = ROWS) -> None:
    half = rows // 2
    np.savez(folder / "a.npz", x=numbers(rows)[:half], y=labels(rows)[:half])
    np.savez(folder / "b.npz", x=numbers(rows)[half:], y=labels(rows)[half:])


def compressed(folder: Path, rows: int = ROWS) -> None:
    for at in range(4):
        own = slice(rows * at // 4, rows * (at + 1) // 4)
        np.savez_compressed(folder / f"{at}.npz", x=numbers(rows)[own], y=labels(rows)[own])


def parquet(folder: Path, rows: int = ROWS) -> None:
    pa = pytest.importorskip("pyarrow")
    from pyarrow import parquet as pq

    half = rows // 2
    for name, own in (("a", slice(0, half)), ("b", slice(half, rows))):
        table = pa.table(
            {
                "x": pa.array(list(numbers(rows)[own])),
                "y": labels(rows)[own],
                "name": [f"row {n}" for n in range(rows)[own]],
            }
        )
        pq.write_table(table, folder / f"{name}.parquet", row_group_size=13)


def images(folder: Path, rows: int = ROWS) -> None:
    image = pytest.importorskip("PIL.Image")
    for at, label in enumerate(labels(rows)):
        (folder / CLASSES[label]).mkdir(exist_ok=True)
        image.fromarray(picture(at)).save(folder / CLASSES[label] / f"{at:04}.png")


def picture(at: int) -> np.ndarray:
    image_array = np.full((5, 4), at, dtype=np.uint8)
    image_array[0, 0] = 255 - at
    return image_array


def tar(folder: Path, rows: int = ROWS) -> None:
    image = pytest.importorskip("PIL.Image")
    half = rows // 2
    for name, own in (("a", range(half)), ("b", range(half, rows))):
        with tarfile.open(folder / f"{name}.tar", "w") as archive:
            for at in own:
                buffer = io.BytesIO()
                image.fromarray(picture(at)).save(buffer, "png")
                add(archive, f"s{at:04}.png", buffer.getvalue())
                add(archive, f"s{at:04}.cls", str(labels(rows)[at]).encode())
                add(archive, f"s{at:04}.json", json.dumps({"at": at}).encode())


def add(archive: tarfile.TarFile, name: str, data: bytes) -> None:
    member = tarfile.TarInfo(name)
    member.size = len(data)
    archive.addfile(member, io.BytesIO(data))


def text(folder: Path, rows: int = ROWS) -> None:
    half = rows // 2
    (folder / "a.txt").write_text("".join(f"line {at}\n" for at in range(half)) + "\n\r\n")
    (folder / "b.txt").write_text("\r\n".join(f"line {at} — déjà vu" for at in range(half, rows)))


WRITE: dict[str, Callable[..., None]] = {
    "npy": npy,
    "npz": npz,
    "compressed": compressed,
    "parquet": parquet,
    "images": images,
    "tar": tar,
    "text": text,
}
LABEL = {
    "npy": "y",
    "npz": "y",
    "compressed": "y",
    "parquet": "y",
    "images": "label",
    "tar": "cls",
    "text": "",
}


def row_of(item: dict[str, object]) -> int:
    """Returns the number of the row in any format."""
    if "x" in item:
        return int(item["x"][0]) // 3  # type: ignore[index]
    if "text" in item:
        return int(str(item["text"]).split()[1])
    picture = item["image"] if "image" in item else item["png"]
    return int(picture[-1][-1])  # type: ignore[index]
