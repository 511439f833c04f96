"""The benchmark of real studies: its data, its reading of a journal, and itself at a tiny size."""

from __future__ import annotations

import gzip
import itertools
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from benchmarks import study_cases
from benchmarks.mop_study import arguments, round_order
from benchmarks.study_journal import Units
from hopyard.config.search.search_file import search_from_mapping
from hopyard.errors import SpecError
from hopyard.searchers.grid import combinations

ROOT = Path(__file__).parents[2]
SIDES = ("mop", "full_copies", "ddp", "ddp_wide")


def test_table_has_requested_size_and_is_created_once(tmp_path: Path) -> None:
    case = study_cases.table(1, 2_000_000)
    folder = case.make_data(tmp_path, tmp_path / "unused")
    x = [np.load(folder / part / "x.npy", mmap_mode="r") for part in ("train", "test")]
    y = [np.load(folder / part / "y.npy") for part in ("train", "test")]
    assert sum(each.nbytes for each in x) == 2_000_000 // 1024 * 1024
    assert [len(each) for each in x] == [len(each) for each in y] and len(y[1]) == (
        len(y[0]) + len(y[1])
    ) // 5
    assert 0.3 < y[0].mean() < 0.7
    before = (folder / "train" / "x.npy").stat().st_mtime_ns
    assert (
        case.make_data(tmp_path, tmp_path / "unused") == folder
        and (folder / "train" / "x.npy").stat().st_mtime_ns == before
    )


@pytest.mark.parametrize(
    "case", [study_cases.digits(3), study_cases.table(3, 2_000_000)], ids=lambda case: case.name
)
def test_study_tries_configurations_of_peers_in_order(case: study_cases.Case, tmp_path: Path) -> None:
    case.write_code(tmp_path / "code", workers=2, seed=4)
    search = search_from_mapping(
        json.loads((tmp_path / "code" / "search.yaml").read_text()), tmp_path / "code"
    )
    assert combinations(search.study.space) == case.configs and len(case.configs) == 8
    assert (search.study.seed, search.study.max_epochs, search.study.mop and search.study.mop.threads) == (
        4,
        3,
        1,
    )


def _idx(array: np.ndarray[Any, Any]) -> bytes:
    return (
        bytes((0, 0, 8, array.ndim))
        + b"".join(size.to_bytes(4, "big") for size in array.shape)
        + array.astype(np.uint8).tobytes()
    )


@pytest.fixture
def mnist(tmp_path: Path) -> Path:
    """A folder in the published layout of MNIST, half of it packed, with very few digits."""
    folder = tmp_path / "mnist"
    folder.mkdir()
    for part, count, pack in (("train", 5, bytes), ("t10k", 3, gzip.compress)):
        end = ".gz" if pack is gzip.compress else ""
        (folder / f"{part}-images-idx3-ubyte{end}").write_bytes(
            pack(_idx(np.arange(count * 784).reshape(count, 28, 28) % 251))
        )
        (folder / f"{part}-labels-idx1-ubyte{end}").write_bytes(pack(_idx(np.arange(count))))
    return folder


def test_published_mnist_files_are_read(mnist: Path, tmp_path: Path) -> None:
    folder = study_cases.digits(1, mnist).make_data(None, tmp_path / "data")
    for part, count in (("train", 5), ("test", 3)):
        x, y = np.load(folder / part / "x.npy"), np.load(folder / part / "y.npy")
        assert x.dtype == y.dtype == np.uint8 and y.tolist() == list(range(count))
        assert np.array_equal(x.ravel(), np.arange(count * 784) % 251)


def test_invalid_mnist_file_is_named(mnist: Path, tmp_path: Path) -> None:
    case = study_cases.digits(1, mnist)
    images = mnist / "train-images-idx3-ubyte"
    data = images.read_bytes()
    for damaged, expected in (
        (data[:-1], "is damaged"),
        (data[:9], "is damaged"),
        (b"x" + data, "is damaged"),
        (_idx(np.zeros((5, 7, 7))), "28 x 28"),
    ):
        images.write_bytes(damaged)
        with pytest.raises(SpecError, match=expected):
            case.make_data(None, tmp_path / "data")
    images.unlink()
    with pytest.raises(SpecError, match="holds no train-images-idx3-ubyte"):
        case.make_data(None, tmp_path / "data")
    assert not (tmp_path / "data" / "mnist").exists()


def test_orders_of_sides_are_balanced() -> None:
    names = ["a", "b", "c", "d"]
    orders = [round_order(names, number) for number in range(8)]
    assert {order[0] for order in orders} == set(names)
    for one, other in itertools.permutations(names, 2):
        assert sum(order.index(one) < order.index(other) for order in orders) == 4


def test_journal_shows_time_per_activity() -> None:
    def hop(n: int, worker: str, began: float, ended: float) -> dict[str, Any]:
        moment = {"began_at": began, "ended_at": ended, "fetch_s": 0.1, "save_s": 0.2}
        return {
            "kind": "hop",
            "n": n,
            "trial": "0",
            "epoch": 0,
            "partitions": [n],
            "workers": [worker],
            "bytes": 500,
            **moment,
        }

    def evaluated(worker: str, epoch: int, accuracy: float, rows: int, began: float) -> dict[str, Any]:
        metrics = {"acc": accuracy, "held": 7 * rows}
        return {
            "kind": "evaluated",
            "trial": "0",
            "epoch": epoch,
            "worker": worker,
            "metrics": metrics,
            "rows": rows,
            "began_at": began,
            "ended_at": began + 1,
        }

    records = [
        {"kind": "asked", "answer": {"trial": "0", "params": {"lr": 0.1}, "budget": 1}},
        {"kind": "asked", "answer": "done"},
        *(hop(0, "a", 100, 103), hop(1, "b", 104, 107)),
        *(evaluated("a", 0, 0.1, 10, 107), evaluated("a", 1, 0.5, 10, 108), evaluated("b", 1, 0.8, 20, 108)),
    ]
    units = Units.of(records)
    assert (units.began_at, units.span_s, units.most("held")) == (100, 9, 140)
    assert units.last("acc", {"lr": 0.1}) == pytest.approx((0.5 * 10 + 0.8 * 20) / 30)
    shares = units.shares()
    assert shares["train_share"] == pytest.approx(6 / 18) and shares["evaluate_share"] == pytest.approx(
        3 / 18
    )
    assert shares["edges_share"] == pytest.approx(4 / 18) and shares["keep_share"] == pytest.approx(0.6 / 18)
    assert sum(shares[name] for name in shares if name.endswith("_share")) == pytest.approx(1)
    assert (shares["gap_ms"], shares["state_bytes"]) == (1000, 500)
    with pytest.raises(RuntimeError, match="not that of an undisturbed"):
        Units.of(records[:2])


def test_invalid_size_is_named(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        arguments().parse_args(["--table-bytes", "much"])
    assert "`much` is not an amount of memory" in capsys.readouterr().err


@pytest.mark.slow
@pytest.mark.torch
def test_benchmark_measures(tmp_path: Path) -> None:
    pytest.importorskip("torch")
    environment = {**os.environ, "TMPDIR": str(tmp_path)}
    environment.pop("HOPYARD_BENCH_PEERS", None)
    command = [sys.executable, "-m", "benchmarks.mop_study", "--no-peer", "--json", "--repeats", "1"]
    result = subprocess.run(
        [*command, "--only", "table", "--table-bytes", "4M", "--table-epochs", "1"],
        cwd=ROOT, env=environment, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert result.returncode == 0, result.stderr
    medians = {m["name"]: m["median"] for m in json.loads(result.stdout)["measurements"]}
    assert {f"table_{side}{of}" for side in SIDES for of in ("", "_whole", "_data")} < medians.keys()
    assert {
        "table_over_task_parallel",
        "table_over_ddp",
        "table_over_ddp_wide",
        "table_best_gap",
        "table_storage_share",
    } < medians.keys()
    assert medians["table_memory_share"] == pytest.approx(0.5, abs=0.01)
    assert medians["table_mop_state"] < 500 and 0 < medians["table_mop_whole"] < medians["table_mop"]
    assert medians["table_best_accuracy"] > 0.5 < medians["table_best_accuracy_sequential"]
    assert not list(tmp_path.iterdir()), "the benchmark left files behind"
