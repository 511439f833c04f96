"""A frame as partitions: assignment of rows, refused frames, and supported stores."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from pyarrow import fs

from hopyard.errors import SpecError
from hopyard.spark.partition_reader import StoredPartitions
from hopyard.spark.partition_writer import remove_partitions, write_partitions
from hopyard.spark.stores.arrow import s3_settings
from hopyard.spark.stores.select import select_store
from tests.spark.conftest import files_of


def frame_of(spark: Any, rows: int = 600) -> Any:
    chance = np.random.default_rng(0)
    x = chance.normal(size=(rows, 2))
    data = [(float(a), float(b), float(2.0 * a - 3.0 * b), int(a > 0)) for a, b in x]
    return spark.createDataFrame(data, "a double, b double, target double, side int")


def _write(frame: Any, url: str, storage: dict[str, str] | None = None, **changed: Any) -> Any:
    options: dict[str, Any] = {
        "features": ["a", "b"],
        "label": "target",
        "partition_count": 2,
        "validation": 0.25,
        "seed": 3,
    } | changed
    return write_partitions(frame, select_store(frame.sparkSession, url, storage or {}), **options)


def _open(written: Any, part: int, kind: Any = "train") -> Any:
    return StoredPartitions(written, None).open(part, kind)  # type: ignore[arg-type]


def _rows(written: Any, kind: str) -> list[set[tuple[float, ...]]]:
    opened = [_open(written, part, kind) for part in range(written.partition_count)]
    return [
        {(float(x[0]), float(x[1]), float(y)) for x, y in zip(partition["x"], partition["y"], strict=True)}
        for partition in opened
    ]


def test_partitions_hold_every_row_once_for_any_frame_layout(spark: Any, tmp_path: Path) -> None:
    frame = frame_of(spark)
    one = _write(frame, (tmp_path / "one").as_uri())
    other = _write(frame.repartition(5), str(tmp_path / "other"))
    train, held_out = _rows(one, "train"), _rows(one, "validation")
    assert (train, held_out) == (_rows(other, "train"), _rows(other, "validation"))
    assert sum(map(len, [*train, *held_out])) == 600 == len(set().union(*train, *held_out))
    assert 100 <= sum(one.validation_rows) <= 200
    assert np.array_equal(_open(one, 0)["x"], _open(other, 0)["x"]), "the order of rows, too"


def test_classes_are_stratified_on_request(spark: Any, tmp_path: Path) -> None:
    written = _write(frame_of(spark), (tmp_path / "w").as_uri(), label="side", validation=0.2, stratify=True)
    shares = [
        float(_open(written, part, kind)["y"].mean()) for part in range(2) for kind in ("train", "validation")
    ]
    assert max(shares) - min(shares) < 0.03


# -- where they lie ------------------------------------------------------------------------------------------


def test_repeated_spark_task_duplicates_no_row_on_s3(spark: Any, s3: dict[str, str], tmp_path: Path) -> None:
    """Each task writes its file and then fails once. The file of the first attempt is on the store but is not
    read."""
    files = files_of(s3)
    url = "s3://hop/twice/rows"
    store = select_store(spark, url, s3)

    def attempt(batches: Any) -> Any:
        from pyspark import TaskContext

        said = list(batches)
        if TaskContext.get().attemptNumber() == 0:  # type: ignore[union-attr]
            raise RuntimeError("this machine went away")
        yield from said

    class FailsOnce:
        url = store.url
        check, remove = store.check, store.remove

        def write(self, frame: Any) -> Any:
            return store.write(_FrameWithFinalStep(frame, attempt))

    written = write_partitions(
        frame_of(spark),
        FailsOnce(),
        features=["a", "b"],
        label="target",
        partition_count=2,
        validation=0.25,
        seed=3,
    )
    condition = [
        entry.path
        for entry in files.get_file_info(fs.FileSelector("hop/twice/rows", recursive=True))
        if entry.path.endswith(".parquet")
    ]
    assert len(condition) == 2 * len(written.chunks), "of each task, two attempts have written"
    plain = _write(frame_of(spark), (tmp_path / "plain").as_uri())
    assert _rows(replace(written, store=store), "train") == _rows(plain, "train")
    remove_partitions(store, spark)
    assert not [
        entry
        for entry in files.get_file_info(fs.FileSelector("hop/twice", recursive=True))
        if entry.is_file and entry.size
    ]


class _FrameWithFinalStep:
    """A frame that adds a final step after every mapped function."""

    def __init__(self, frame: Any, then: Any) -> None:
        self._frame, self._then = frame, then

    def mapInArrow(self, function: Any, schema: str) -> Any:
        then = self._then
        return self._frame.mapInArrow(lambda batches: then(function(batches)), schema)


def test_unsupported_s3_options_are_refused(spark: Any, s3: dict[str, str]) -> None:
    with pytest.raises(SpecError, match="SIGNATURE_DOES_NOT_MATCH") as error:
        _write(frame_of(spark, 10), "s3://hop/x", s3 | {"secret_access_key": "guessed"})
    assert "guessed" not in f"{error.value}{error.value.hints}"
    with pytest.raises(SpecError, match="`secret` is not a setting of s3"):
        select_store(spark, "s3://hop/x", {"secret": "a"})
    with pytest.raises(SpecError, match="secret_access_key is missing"):
        s3_settings({"access_key_id": "a"}, {"AWS_SECRET_ACCESS_KEY": "of another key"})
    environ = {
        "AWS_ACCESS_KEY_ID": "a",
        "AWS_SECRET_ACCESS_KEY": "b",
        "AWS_DEFAULT_REGION": "eu-1",
        "AWS_ENDPOINT_URL": "http://all",
        "AWS_ENDPOINT_URL_S3": "http://s3",
    }
    result = {"access_key_id": "a", "secret_access_key": "b", "region": "eu-2", "endpoint_url": "http://s3"}
    assert s3_settings({"region": "eu-2"}, environ) == result
    assert "b" not in repr(select_store(spark, "s3://x/y", result)).replace("s3://x/y", "").replace(
        "ArrowStore(url='')", ""
    )


@pytest.mark.slow
def test_hadoop_file_systems_of_spark_are_supported(spark: Any, lake: Path) -> None:
    """Arrow cannot read viewfs:// here, since it has no libhdfs. Spark writes the files, and a worker fetches
    them through Spark."""
    written = _write(frame_of(spark), "viewfs://lake/data/frame")
    assert sum(written.train_rows) + sum(written.validation_rows) == 600
    assert [len(_open(written, part)) for part in range(2)] == list(written.train_rows)
    assert list(lake.glob("frame/**/*.parquet"))
    remove_partitions(written.store, spark)
    assert not (lake / "frame").exists()


@pytest.mark.parametrize(
    ("url", "words", "hint"),
    [
        ("s3a://bucket/x", "cannot be written: .*S3AFileSystem", "s3://bucket/x needs no jars"),
        ("nowhere://x/y", "No FileSystem for scheme", "add its jar"),
        (
            "file:///proc/x",
            "file:///proc/x cannot be written",
            "choose a folder that this machine can write to",
        ),
    ],
)
def test_invalid_stores_are_refused_before_computation(spark: Any, url: str, words: str, hint: str) -> None:
    with pytest.raises(SpecError, match=words) as error:
        _write(frame_of(spark, 10), url)
    assert any(hint in one for one in error.value.hints)


# -- what they hold ------------------------------------------------------------------------------------------


def test_vectors_and_arrays_become_matrices(spark: Any, tmp_path: Path) -> None:
    from pyspark.ml.linalg import Vectors

    rows = [
        (
            Vectors.dense([n, 1.0]) if n % 2 else Vectors.sparse(2, [0], [float(n)]),
            [float(n), 2.0, 3.0],
            float(n),
            n,
        )
        for n in range(40)
    ]
    frame = spark.createDataFrame(rows, ["a.vector", "list", "number", "side"])
    written = _write(frame, (tmp_path / "v").as_uri(), features=["a.vector"], label="number", validation=0.0)
    x, y = (np.concatenate([_open(written, part)[name] for part in range(2)]) for name in "xy")
    assert x.shape == (40, 2)
    assert np.array_equal(x[:, 0], y)
    assert np.array_equal(x[:, 1], y % 2), "what a sparse vector does not say is 0"
    lists = _write(frame, (tmp_path / "l").as_uri(), features=["list"], label="a.vector", validation=0.0)
    assert (_open(lists, 0)["x"].shape[1:], _open(lists, 0)["y"].shape[1:]) == ((3,), (2,))


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"features": ["a", "nowhere"]}, "features: the frame has no column `nowhere`"),
        ({"features": []}, "no column is given"),
        ({"features": ["a", "a"]}, "`a` is named twice"),
        ({"label": "a"}, "is also a feature"),
        ({"label": "name"}, "labels: `name` holds text, not numbers"),
        ({"label": "day"}, r"labels: `day` \(date\) does not contain numbers"),
        ({"features": ["a", "name"]}, "features: `name` holds text"),
        ({"features": ["a", "list"]}, r"`list` \(array<double>\) is not one number per row"),
        ({"features": ["map"]}, "has a type that workers cannot read"),
        ({"validation": 1.0}, "validation: 1.0 is not a share"),
        ({"validation": -0.1}, "validation: -0.1 is not a share"),
        ({"validation": float("nan")}, "validation: nan is not a share"),
        ({"features": ["gap"]}, "column `gap`: 3 of 30 rows have no value"),
        ({"features": ["gaps"]}, "column `gaps`: 3 of 30 rows have no value"),
        ({"features": ["ragged"]}, "column `ragged`: its vectors have from 1 to 2 elements"),
        ({"partition_count": 40}, "too few for 40 partitions"),
        ({"rows": 0}, "the frame has no rows"),
    ],
)
def test_unusable_frames_are_refused(
    spark: Any, mixed_frame: Any, tmp_path: Path, change: dict[str, Any], words: str
) -> None:
    options = {"features": ["a"], "label": "target", "validation": 0.2, "rows": 30} | change
    with pytest.raises(SpecError, match=words):
        _write(mixed_frame.where(f"number < {options.pop('rows')}"), (tmp_path / "w").as_uri(), **options)
    assert not list(tmp_path.rglob("*.parquet")), "nothing stays"


@pytest.fixture(scope="module")
def mixed_frame(spark: Any, tmp_path_factory: pytest.TempPathFactory) -> Any:
    from pyspark.ml.linalg import Vectors
    from pyspark.sql import functions as f

    rows = [
        (n, [float(n), None if n % 10 == 0 else 1.0], Vectors.dense([1.0] * (1 + n % 2))) for n in range(30)
    ]
    frame = spark.createDataFrame(rows, ["number", "gaps", "ragged"])
    return frame.select(
        "*",
        f.col("number").cast("double").alias("a"),
        f.col("number").cast("double").alias("target"),
        f.expr("cast(number as string)").alias("name"),
        f.expr("date '2026-11-20'").alias("day"),
        f.expr("array(1.0D, 2.0D)").alias("list"),
        f.expr("map('a', 1)").alias("map"),
        f.expr("if(number % 10 = 0, null, number)").alias("gap"),
    ).cache()


def test_partitions_on_disk_invisible_to_workers_are_refused(spark: Any, tmp_path: Path) -> None:
    written = _write(frame_of(spark, 50), (tmp_path / "gone").as_uri())
    remove_partitions(written.store, spark)
    with pytest.raises(SpecError, match="cannot be read") as lacking:
        _open(written, 0)
    assert "use a shared folder" in lacking.value.hints[0]
