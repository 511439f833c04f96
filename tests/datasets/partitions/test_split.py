"""Splits and reads every format: properties of the split, and equal batches with any memory."""

from __future__ import annotations

import tracemalloc
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hopyard.datasets.partitions.partition import Partition, partition_of_arrays
from hopyard.datasets.partitions.row_assignment import assign_rows, split_validation, stratified_order
from hopyard.datasets.partitions.seeded_order import batch_bounds, epoch_order
from hopyard.datasets.partitions.split import PartitionSet, check_partitions, split_dataset
from hopyard.domain.study import PartitionPlan
from hopyard.errors import SpecError
from tests.datasets.partitions import partition_data as data

FORMATS = sorted(data.WRITE)


@pytest.fixture(params=FORMATS)
def format(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def folder(format: str, tmp_path: Path) -> Path:
    (tmp_path / "data").mkdir()
    data.WRITE[format](tmp_path / "data")
    return tmp_path / "data"


def split_of(folder: Path, **plan: Any) -> PartitionSet:
    return split_dataset(folder, PartitionPlan(**{"parts": 3, **plan}), "m1", folder.parent / "cache")


def row_numbers(partition: Partition) -> list[int]:
    return [data.row_of(item) for item in partition.items()]


def test_every_row_is_in_exactly_one_partition(format: str, folder: Path) -> None:
    parts = split_of(folder, validation=0.2)
    seen = [
        row
        for kind in ("train", "validation")
        for at in range(3)
        for row in row_numbers(parts.open(at, kind))
    ]  # type: ignore[arg-type]
    assert sorted(seen) == list(range(data.ROWS))
    assert parts.rows("train") == (27, 27, 27)
    assert sorted(parts.rows("validation")) == [6, 7, 7]
    assert row_numbers(parts.open(0)) != sorted(row_numbers(parts.open(0)))
    assert row_numbers(split_of(folder, validation=0.2, seed=1).open(0)) != row_numbers(parts.open(0))


def test_columns_of_row_stay_together(format: str, folder: Path) -> None:
    part = split_of(folder).open(1)
    if data.LABEL[format]:
        for item in part.items():
            assert item[data.LABEL[format]] == data.labels()[data.row_of(item)]
    column = part[part.columns[0]]
    assert len(column) == len(part)
    assert [data.row_of({**item}) for item in part.items()] == row_numbers(part)


def test_classes_are_stratified(format: str, folder: Path) -> None:
    if not data.LABEL[format]:
        with pytest.raises(SpecError, match="no column `y`"):
            split_of(folder, stratify="y")
        return
    parts = split_of(folder, parts=4, stratify=data.LABEL[format], validation=0.25)
    for kind in ("train", "validation"):
        counts = [
            Counter(int(label) for label in parts.open(at, kind)[data.LABEL[format]]) for at in range(4)
        ]  # type: ignore[arg-type]
        for label in range(3):
            assert max(c[label] for c in counts) - min(c[label] for c in counts) <= 1
    rows = parts.rows("train")
    assert max(rows) - min(rows) <= 1


def test_batches_are_independent_of_memory(format: str, folder: Path) -> None:
    parts = split_of(folder)
    in_memory, streamed = parts.open(2), parts.open(2, memory_bytes=0)
    for seed in (None, 7):
        one, other = list(in_memory.batches(8, seed)), list(streamed.batches(8, seed))
        assert len(one) == len(other) == 5
        for a, b in zip(one, other, strict=True):
            for name in in_memory.columns:
                assert same(a[name], b[name])
    assert in_memory.bytes_loaded > 0 == streamed.bytes_loaded
    orders = [
        [
            data.row_of({n: b[n][at] for n in b})
            for b in in_memory.batches(8, seed)
            for at in range(len(b[in_memory.columns[0]]))
        ]
        for seed in (7, 8)
    ]
    assert orders[0] != orders[1]
    assert sorted(orders[0]) == sorted(orders[1]) == sorted(row_numbers(in_memory))
    picked = [3, -1, 3, 0]
    for name in in_memory.columns:
        assert same(in_memory.rows(picked)[name], streamed.rows(picked)[name])
    with pytest.raises(SpecError, match="takes about"):
        streamed[streamed.columns[0]]


def same(one: np.ndarray, other: np.ndarray) -> bool:
    return (
        one.dtype == other.dtype
        and len(one) == len(other)
        and all(np.array_equal(a, b) for a, b in zip(one, other, strict=True))
    )


@pytest.mark.parametrize("seed", [None, 7])
def test_windows_are_read_sequentially(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, seed: int | None
) -> None:
    """A block format holds at most one window in memory; the batches equal those from memory."""
    monkeypatch.setattr("hopyard.datasets.partitions.split._WINDOW_BYTES", 2000)
    (tmp_path / "data").mkdir()
    data.parquet(tmp_path / "data", rows=1000)
    parts = split_of(tmp_path / "data")
    in_memory, streamed = parts.open(1), parts.open(1, memory_bytes=0)
    assert len(streamed.view(x="x", y="y")) == 333
    for a, b in zip(
        in_memory.batches(8, seed, drop_last=True), streamed.batches(8, seed, drop_last=True), strict=True
    ):
        assert same(a["x"], b["x"]) and same(a["y"], b["y"])
    groups = [
        int(row) // 3 // 13
        for batch in streamed.batches(50, seed, columns=("x",))
        for row in batch["x"][:, 0]
    ]
    assert all(len(set(groups[at : at + 30])) < 30 for at in range(0, 300, 30)), (
        "rows of a block are near each other"
    )
    assert groups != sorted(groups)


def test_equal_plans_share_one_index(format: str, folder: Path, tmp_path: Path) -> None:
    plan = PartitionPlan(parts=3, validation=0.1)
    first = split_dataset(folder, plan, "m1", tmp_path / "cache")
    written = next((tmp_path / "cache").glob("*.npz"))
    second = split_dataset(folder, plan, "m1", tmp_path / "other")
    assert first.key == second.key == written.stem
    assert written.read_bytes() == next((tmp_path / "other").glob("*.npz")).read_bytes()
    before = written.stat().st_ino
    split_dataset(folder, plan, "m1", tmp_path / "cache")
    assert written.stat().st_ino == before
    assert split_dataset(folder, plan, "m2", tmp_path / "cache").key != first.key
    assert first.open(0).key != first.open(1).key != first.open(1, "validation").key


def test_check_reports_errors_before_reading(format: str, folder: Path) -> None:
    result = check_partitions(folder, PartitionPlan(parts=3, validation=0.2))
    assert result.rows in (None, data.ROWS)
    assert result.columns == split_of(folder).columns
    with pytest.raises(SpecError, match="cannot be split into 102 partitions"):
        split_of(folder, parts=102)
    with pytest.raises(SpecError, match="for validation cannot be split"):
        split_of(folder, parts=3, validation=0.01)


def test_pytorch_data_loader_reads_partition(format: str, folder: Path) -> None:
    torch = pytest.importorskip("torch")
    parts = split_of(folder)
    for memory in (10**9, 0):
        dataset = parts.open(0, memory_bytes=memory).torch_dataset()
        loader = torch.utils.data.DataLoader(dataset, batch_size=8)
        assert sum(len(batch[parts.columns[0]]) for batch in loader) == parts.rows()[0]


# -- laws of dealing -----------------------------------------------------------------------------------------


@given(
    st.lists(st.integers(0, 4), min_size=1, max_size=200),
    st.integers(1, 9),
    st.floats(0, 0.9),
    st.integers(0, 5),
    st.booleans(),
)
def test_rows_are_distributed_evenly(
    classes: list[int], parts: int, share: float, seed: int, in_blocks: bool
) -> None:
    strata = np.array(classes)
    rest, apart = split_validation(stratified_order(len(strata), strata, seed), share)
    assert sorted([*rest, *apart]) == list(range(len(strata)))
    assert len(apart) == int(len(strata) * share + 0.5)
    for label in set(classes):
        assert (
            abs((strata[apart] == label).sum() - classes.count(label) * len(apart) / len(classes)) < 1 + 1e-9
        )
    blocks = np.arange(len(strata)) // 7 if in_blocks else None
    for turn in (rest, apart):
        pieces = assign_rows(turn, parts, blocks, 20, seed)
        assert sorted(row for piece in pieces for row in piece) == sorted(turn)
        for label in [None, *set(classes)]:
            counts = [
                len(piece) if label is None else int((strata[piece] == label).sum()) for piece in pieces
            ]
            assert max(counts) - min(counts) <= 1


@given(st.integers(0, 300), st.integers(0, 9), st.integers(1, 20), st.integers(1, 90))
def test_epoch_visits_every_row_and_block_once(rows: int, seed: int, block: int, window: int) -> None:
    blocks = np.sort(np.arange(rows) // block)
    order = epoch_order(rows, seed, blocks, window)
    assert sorted(order) == list(range(rows))
    assert sorted(epoch_order(rows, seed, None, 0)) == list(range(rows))
    spans = [np.flatnonzero(blocks[order] == b) for b in set(blocks.tolist())]
    assert all(span.max() - span.min() < window + block for span in spans)


@given(st.integers(1, 200), st.integers(1, 50), st.booleans())
def test_batch_bounds_cover_all_rows(rows: int, size: int, drop_last: bool) -> None:
    result = batch_bounds(rows, size, drop_last=drop_last)
    assert [b for b, _ in result] == [size * n for n in range(len(result))]
    assert rows - sum(e - b for b, e in result) == (rows % size if drop_last else 0)
    steps = -(-rows // size)
    even = [e - b for b, e in batch_bounds(rows, size, steps=steps)]
    assert len(even) == steps and sum(even) == rows and max(even) <= size and max(even) - min(even) <= 1


def test_order_of_seed_is_stable_across_versions() -> None:
    """Studies are replayed with later versions of everything."""
    assert epoch_order(10, 3, None, 0).tolist() == [1, 4, 9, 0, 6, 7, 8, 5, 2, 3]


def test_batches_use_bounded_memory() -> None:
    """For any memory layout of the user's arrays."""
    wide = np.zeros((64, 20_000), np.float32)
    partition = partition_of_arrays(
        {
            "turned": wide.T,
            "part": np.zeros((20_000, 65), np.float32)[:, 1:],
            "plain": np.ascontiguousarray(wide.T),
        }
    )
    tracemalloc.start()
    try:
        next(partition.batches(32, seed=1))
        partition.rows([5, 3])
        assert tracemalloc.get_traced_memory()[1] < wide.nbytes / 4
    finally:
        tracemalloc.stop()


def test_views_share_available_memory(tmp_path: Path) -> None:
    (tmp_path / "data").mkdir()
    data.npy(tmp_path / "data")
    part = split_of(tmp_path / "data", parts=1).open(0, memory_bytes=2 * data.numbers().nbytes - 1)
    assert part.view(z="x").load() and not part.view(w="x").load() and not part.load(("x",))
    assert part.bytes_loaded == data.numbers().nbytes == part.view(z="x").bytes_loaded


def test_views_return_matrices() -> None:
    part = partition_of_arrays(
        {"a": np.arange(6), "b": np.arange(6) * 10.0, "y": np.arange(6) % 2, "z": np.zeros((6, 2))}, key="k"
    )
    view = part.view(x=("a", "b"), y="y")
    assert view is part.view(y="y", x=("a", "b"))
    assert view["x"].dtype == np.float32 and view["x"].tolist() == [[n, n * 10] for n in range(6)]
    assert view["y"].tolist() == [0, 1] * 3
    assert (view.key, view.peers) != (part.key, ())
    with pytest.raises(SpecError, match="column `z` is not one number per row"):
        part.view(x=("a", "z"))["x"]
    with pytest.raises(SpecError, match="no column `c`"):
        part.view(x=("a", "c"))
    with pytest.raises(SpecError, match="different lengths"):
        partition_of_arrays({"a": np.arange(6), "b": np.arange(5)})
