"""Errors of data or plan are named with file and hint, and are reported by `check` if file headers show
them."""

from __future__ import annotations

import io
import tarfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from hopyard.datasets.partitions.split import check_partitions, split_dataset
from hopyard.domain.study import PartitionPlan
from hopyard.errors import SpecError
from tests.datasets.partitions import partition_data as data


def plan(**given: Any) -> PartitionPlan:
    return PartitionPlan(**{"parts": 2, **given})


def both(folder: Path) -> None:
    data.npy(folder)
    (folder / "lines.txt").write_text("one\n")


def unaligned(folder: Path) -> None:
    data.npy(folder)
    np.save(folder / "y.npy", np.zeros(7))


def changing(folder: Path) -> None:
    for name, width in (("a", 2), ("b", 3)):
        (folder / name).mkdir()
        np.save(folder / name / "x.npy", np.zeros((4, width)))


def cut_npy(folder: Path) -> None:
    data.npy(folder)
    (folder / "x.npy").write_bytes((folder / "x.npy").read_bytes()[:500])


def broken_npz(folder: Path) -> None:
    data.npz(folder)
    (folder / "b.npz").write_bytes((folder / "b.npz").read_bytes()[:500])


def broken_parquet(folder: Path) -> None:
    data.parquet(folder)
    (folder / "b.parquet").write_bytes((folder / "b.parquet").read_bytes()[:-20])


def other_parquet(folder: Path) -> None:
    data.parquet(folder)
    import pyarrow as pa
    from pyarrow import parquet as pq

    pq.write_table(pa.table({"x": ["text"], "y": [1], "name": ["a"]}), folder / "c.parquet")


def broken_image(folder: Path) -> None:
    data.images(folder, rows=8)
    (folder / "ash" / "0000.png").write_bytes(b"no picture")


def no_class(folder: Path) -> None:
    data.images(folder, rows=8)
    (folder / "ash" / "0000.png").rename(folder / "0000.png")


def empty_class(folder: Path) -> None:
    data.images(folder, rows=8)
    (folder / "yew").mkdir()


def one_tar(folder: Path, members: list[tuple[str, bytes]]) -> None:
    with tarfile.open(folder / "a.tar", "w") as archive:
        for name, content in members:
            data.add(archive, name, content)


def lacking_member(folder: Path) -> None:
    one_tar(folder, [("1.cls", b"1"), ("1.txt", b"one"), ("2.txt", b"two")])


def broken_member(folder: Path) -> None:
    one_tar(folder, [*((f"{at}.cls", b"1") for at in range(20)), ("20.cls", b"two")])


def zipped_tar(folder: Path) -> None:
    with tarfile.open(folder / "a.tar", "w:gz") as archive:
        data.add(archive, "1.cls", b"1")


def cut_tar(folder: Path) -> None:
    one_tar(folder, [("1.npy", bytes(5000)), ("2.npy", bytes(5000))])
    (folder / "a.tar").write_bytes((folder / "a.tar").read_bytes()[:8000])


def npy_objects(folder: Path) -> None:
    np.save(folder / "x.npy", np.array([{"a": 1}, None], dtype=object))


def by_columns(folder: Path) -> None:
    np.save(folder / "x.npy", np.asfortranarray(np.zeros((4, 3))))


def one_number(folder: Path) -> None:
    np.save(folder / "x.npy", np.float64(3))


def npy_text(folder: Path) -> None:
    (folder / "x.npy").write_text("not an array at all")


CASES: list[tuple[Callable[[Path], None], dict[str, Any], str, str]] = [
    (both, {}, "several formats: `lines.txt` .text., `x.npy` .npy.", "select one"),
    (unaligned, {}, "different numbers of rows: `x.npy` has 101 rows, `y.npy` has 7 rows", "columns"),
    (changing, {}, "column `x` changes between files: `b/x.npy`", ""),
    (cut_npy, {}, "`x.npy` is truncated", ""),
    (broken_npz, {}, "`b.npz` cannot be read", "savez"),
    (npy_objects, {}, "`x.npy` holds Python objects", "Parquet"),
    (by_columns, {}, "`x.npy` is stored in column-major order", "ascontiguousarray"),
    (one_number, {}, "`x.npy` is a single number", ""),
    (npy_text, {}, "`x.npy` is not a NumPy array", "numpy.save"),
    (broken_parquet, {}, "`b.parquet` is not a Parquet file", "files"),
    (other_parquet, {}, "`c.parquet` has column `x` of type string, `a.parquet` of", "available"),
    (broken_image, {}, "image `ash/0000.png` cannot be read: not an image", "remove it"),
    (no_class, {}, "image `0000.png` has no class", "one folder per class"),
    (empty_class, {}, "class `yew` is empty", "remove the folder"),
    (lacking_member, {}, "`a.tar`: sample `2` has no `.cls`", "it has .txt"),
    (zipped_tar, {}, "`a.tar` is not a tar file", "gunzip"),
    (cut_tar, {}, "`a.tar` is truncated within `2.npy`", "write it again"),
    (lambda folder: None, {}, "the dataset has no files for training", "hop dataset push"),
    (lambda folder: (folder / "a.npy").touch(), {}, "`a.npy` is an empty file", "exclude it"),  # type: ignore[arg-type,return-value]
    (
        lambda folder: (folder / "a.csv").write_text("a,b\n"),
        {},
        "known format; the first is `a.csv`",
        "to_parquet",
    ),  # type: ignore[arg-type,return-value]
    (
        lambda folder: (folder / "a.xyz").write_text("a"),
        {},
        "known format; the first is `a.xyz`",
        "format: text",
    ),  # type: ignore[arg-type,return-value]
    (data.npy, {"columns": ("x", "z")}, "no column `z`", "available: x, y"),
    (data.npy, {"stratify": "z"}, "stratify: there is no column `z`", "available: x, y"),
    (data.npy, {"files": "*.parquet"}, "matches `.\\.parquet`", "matches any part"),
    (data.npy, {"parts": 0}, "must be at least 1", "one partition per worker"),
    (data.npy, {"parts": 102}, "101 rows for training cannot be split into 102", "at most 101 workers"),
    (data.npy, {"validation": 1.0}, "1.0 is not a share", "0.2"),
    (data.npy, {"validation": 0.001}, "0 rows for validation", "validation"),
    (
        data.npy,
        {"validation": 0.1, "validation_from": "x"},
        "`validation` and `validation_from` exclude each other",
        "a share",
    ),
    (data.npy, {"validation_from": "test"}, "no path starts with `test`", "start of"),
    (data.npy, {"format": "csv"}, "unknown format `csv`", "one of parquet"),
    (data.images, {"columns": ("picture",)}, "no column `picture`", "`image` and `label`"),
    (data.text, {"stratify": "y"}, "no column `y`", ""),
]


@pytest.mark.parametrize(("write", "options", "message", "hint"), CASES)
def test_check_names_the_error(
    tmp_path: Path, write: Callable[[Path], None], options: dict[str, Any], message: str, hint: str
) -> None:
    pytest.importorskip("pyarrow")
    (tmp_path / "data").mkdir()
    write(tmp_path / "data")
    with pytest.raises(SpecError, match=message) as error:
        check_partitions(tmp_path / "data", plan(**options))
    assert hint in "; ".join(error.value.hints) or any(
        one in "; ".join(error.value.hints) for one in hint.split("|")
    )
    with pytest.raises(SpecError, match=message):
        split_dataset(tmp_path / "data", plan(**options), "m", tmp_path / "cache")
    assert not list((tmp_path / "cache").glob("*.npz"))


@pytest.mark.parametrize(
    ("write", "options", "message"),
    [
        (
            data.npy,
            {"stratify": "label"},
            "partitions.stratify: dataset `digits`: there is no column `label`",
        ),
        (data.npy, {"columns": ("x", "z")}, "partitions.columns: dataset `digits`: there is no column `z`"),
        (data.npy, {"files": "*.parquet"}, "partitions.files: dataset `digits`: no file matches `*.parquet`"),
        (
            data.npy,
            {"validation": 0.001},
            (
                "partitions.validation: dataset `digits`: 0 rows for validation cannot be split into 2 "
                "partitions"
            ),
        ),
        (
            lambda folder: (folder / "x.npy").write_bytes(b""),
            {},
            "dataset `digits`: `x.npy` is an empty file",
        ),
    ],
)
def test_errors_name_dataset_by_user_visible_name(
    tmp_path: Path, write: Callable[[Path], object], options: dict[str, Any], message: str
) -> None:
    """Its folder on a node is named by a digest, which is meaningless to users."""
    (tmp_path / ("f" * 64)).mkdir()
    write(tmp_path / ("f" * 64))
    for look in (
        lambda: check_partitions(tmp_path / ("f" * 64), plan(**options), dataset="digits"),
        lambda: split_dataset(
            tmp_path / ("f" * 64), plan(**options), "m", tmp_path / "cache", dataset="digits"
        ),
    ):
        with pytest.raises(SpecError) as error:
            look()
        assert error.value.message == message


@pytest.mark.parametrize("write", [data.npy, data.parquet])
def test_list_column_is_refused_as_class_column(tmp_path: Path, write: Callable[[Path], object]) -> None:
    pytest.importorskip("pyarrow")
    write(tmp_path)
    with pytest.raises(
        SpecError, match=r"partitions\.stratify: column `x` has [\dx ]+ values per row instead of one"
    ):
        check_partitions(tmp_path, plan(stratify="x"))


def test_errors_visible_only_on_read_are_reported_then(tmp_path: Path) -> None:
    (tmp_path / "data").mkdir()
    broken_member(tmp_path / "data")
    with pytest.raises(SpecError, match=r"`a.tar: the .cls at byte 20,992` cannot be read"):
        split_dataset(tmp_path / "data", plan(stratify="cls"), "m", tmp_path / "cache")
    (tmp_path / "lines").mkdir()
    (tmp_path / "lines" / "a.txt").write_bytes("über\n".encode("latin1") * 3)
    part = split_dataset(tmp_path / "lines", plan(), "m", tmp_path / "cache").open(0)
    with pytest.raises(SpecError, match=r"`a.txt`, the line at byte \d+ is not UTF-8"):
        part["text"]
    with pytest.raises(SpecError, match="no row 2"):
        part.rows([0, 2])
    with pytest.raises(SpecError, match="no column `x`") as error:
        part["x"]
    assert error.value.hints == ("available: text",)
    with pytest.raises(SpecError, match="there is no train partition 2"):
        split_dataset(tmp_path / "lines", plan(), "m", tmp_path / "cache").open(2)
    with pytest.raises(SpecError, match="uses no rows for validation") as error:
        split_dataset(tmp_path / "lines", plan(), "m", tmp_path / "cache").open(0, "validation")
    assert "0.2" in error.value.hints[0]


def test_real_numbers_are_refused_as_classes(tmp_path: Path) -> None:
    np.save(tmp_path / "x.npy", np.arange(40.0))
    with pytest.raises(SpecError, match="`x` has 40 different values in 40 rows: too many for classes"):
        split_dataset(tmp_path, plan(stratify="x"), "m", tmp_path / "cache")


def test_links_are_followed_without_cycles(tmp_path: Path) -> None:
    for name in ("data", "elsewhere"):
        (tmp_path / name).mkdir()
        data.npy(tmp_path / name)
    (tmp_path / "data" / "more").symlink_to(tmp_path / "elsewhere")
    (tmp_path / "data" / "circle").symlink_to(tmp_path / "data")
    (tmp_path / "elsewhere" / "circle").symlink_to(tmp_path / "elsewhere")
    assert check_partitions(tmp_path / "data", plan()).rows == 2 * data.ROWS


def test_missing_integer_values_are_named(tmp_path: Path) -> None:
    pa = pytest.importorskip("pyarrow")
    from pyarrow import parquet as pq

    pq.write_table(
        pa.table({"age": pa.array([1, None, 3, 4]), "size": pa.array([1.0, None, 3.0, 4.0])}),
        tmp_path / "a.parquet",
    )
    with pytest.raises(SpecError, match=r"`a.parquet`: column `age` \(int64\) has missing values") as error:
        check_partitions(tmp_path, plan())
    assert "fillna" in error.value.hints[0]
    part = split_dataset(tmp_path, plan(parts=1, columns=("size",)), "m", tmp_path / "cache").open(0)
    assert np.isnan(part["size"]).sum() == 1


def test_validation_is_read_from_separate_files(tmp_path: Path) -> None:
    for name, rows in (("train", 20), ("test", 6)):
        (tmp_path / "npy" / name).mkdir(parents=True)
        data.npy(tmp_path / "npy" / name, rows)
        (tmp_path / "images" / name).mkdir(parents=True)
        data.images(tmp_path / "images" / name, rows)
    for folder, label in (("npy", "y"), ("images", "label")):
        parts = split_dataset(tmp_path / folder, plan(validation_from="test"), folder, tmp_path / "cache")
        assert (parts.rows(), parts.rows("validation")) == ((10, 10), (3, 3))
        validation = parts.open(0, "validation")
        assert all(item[label] == data.labels(6)[data.row_of(item)] for item in validation.items())
    (tmp_path / "images" / "test" / "yew").mkdir()
    (tmp_path / "images" / "test" / "yew" / "1.png").write_bytes(
        (tmp_path / "images" / "test" / "ash" / "0000.png").read_bytes()
    )
    with pytest.raises(SpecError, match="no training file is of class `yew`"):
        check_partitions(tmp_path / "images", plan(validation_from="test"))
    flat = tmp_path / "flat"
    flat.mkdir()
    data.npy(flat, 20)
    np.save(flat / "test_x.npy", data.numbers(6))
    np.save(flat / "test_y.npy", data.labels(6))
    assert split_dataset(flat, plan(validation_from="test_"), "flat", tmp_path / "cache").open(
        1, "validation"
    ).columns == ("x", "y")


def test_columns_and_files_are_selected(tmp_path: Path) -> None:
    data.npy(tmp_path)
    (tmp_path / "README.md").write_text("about it")
    (tmp_path / "notes.txt").write_text("a line")
    np.save(tmp_path / "names.npy", np.zeros(3))
    parts = split_dataset(tmp_path, plan(files="*.npy", columns=("x",)), "m", tmp_path / "cache")
    assert parts.columns == ("x",) and sum(parts.rows()) == data.ROWS
    assert split_dataset(tmp_path, plan(files="[xy].npy"), "m", tmp_path / "cache").columns == ("x", "y")
    lines = split_dataset(
        tmp_path, plan(parts=1, format="text", files="README.md"), "m", tmp_path / "cache"
    ).open(0)
    assert list(lines["text"]) == ["about it"]


def test_images_of_several_sizes_and_modes_are_read(tmp_path: Path) -> None:
    image = pytest.importorskip("PIL.Image")
    (tmp_path / "data" / "a").mkdir(parents=True)
    image.fromarray(np.zeros((4, 5), dtype=np.uint8)).save(tmp_path / "data" / "a" / "grey.png")
    image.fromarray(np.zeros((4, 5, 4), dtype=np.uint8)).save(tmp_path / "data" / "a" / "clear.png")
    image.fromarray(np.zeros((6, 5, 3), dtype=np.uint8)).convert("P").save(
        tmp_path / "data" / "a" / "palette.gif"
    )
    part = split_dataset(tmp_path / "data", plan(parts=1), "m", tmp_path / "cache").open(0)
    assert part.classes == ("a",)
    assert sorted(picture.shape for picture in part["image"]) == [(4, 5, 3), (4, 5, 3), (6, 5, 3)]
    buffer = io.BytesIO()
    image.fromarray(np.zeros((4, 5), dtype=np.uint8)).save(buffer, "png")
    (tmp_path / "tar").mkdir()
    one_tar(
        tmp_path / "tar",
        [
            ("1.x.png", buffer.getvalue()),
            ("1.json", b"[1]"),
            ("1.bin", b"\0"),
            ("2.x.png", buffer.getvalue()),
            ("2.json", b"[2]"),
            ("2.bin", b"\1"),
        ],
    )
    samples = split_dataset(tmp_path / "tar", plan(parts=1), "tar", tmp_path / "cache").open(0)
    assert (
        samples["x.png"].shape == (2, 4, 5)
        and sorted(samples["json"].tolist()) == [[1], [2]]
        and sorted(samples["bin"]) == [b"\0", b"\1"]
    )
