"""The index on the node is built once for concurrent users and is complete or absent after kills. A worker
uses only its share of memory."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import numpy as np
import psutil
import pytest

from hopyard.datasets.partitions.build_once import build_once
from hopyard.datasets.partitions.split import split_dataset
from hopyard.domain.study import PartitionPlan
from hopyard.errors import IntegrityError, SpecError
from tests.datasets.partitions import partition_data as data

PLAN = PartitionPlan(parts=2)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "data").mkdir()
    data.npy(tmp_path / "data")
    return tmp_path / "data"


def test_concurrent_requests_build_index_once(tmp_path: Path) -> None:
    """Processes count themselves in a file."""
    code = f"""
from pathlib import Path
import os, sys
from hopyard.datasets.partitions.build_once import build_once
def write(file):
    with open({str(tmp_path / "writers")!r}, "a") as told:
        told.write("x")
    sys.stdin.readline()
    file.write(b"whole")
print("asks", flush=True)
build_once(Path({str(tmp_path / "there.bin")!r}), write, is_valid=lambda path: path.read_bytes() == b"whole")
print("has", flush=True)
"""
    processes = [
        subprocess.Popen(
            [sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        for _ in range(4)
    ]
    try:
        for process in processes:
            assert process.stdout is not None and process.stdout.readline() == "asks\n"
        while not (tmp_path / "writers").exists():
            time.sleep(0.01)
        for one in processes:
            assert one.stdin is not None
            one.stdin.write("\n")
            one.stdin.flush()
        for one in processes:
            assert one.communicate(timeout=60)[0] == "has\n"
    finally:
        for one in processes:
            one.kill()
            one.wait()
    assert (tmp_path / "writers").read_text() == "x"
    assert [path.name for path in tmp_path.glob("there*")] == ["there.bin"]


def test_killed_split_is_completed_by_next_process(folder: Path, tmp_path: Path) -> None:
    """Killed with half an index written; another waits meanwhile, and makes it."""
    code = f"""
import os, sys
from pathlib import Path
from hopyard.datasets.partitions import split
from hopyard.domain.study import PartitionPlan
whole = split.np.savez
def half(file, **arrays):
    whole(file, **arrays)
    file.truncate(file.tell() // 2)
    file.flush()
    print("half", flush=True)
    sys.stdin.readline()
split.np.savez = half
split.split_dataset(Path({str(folder)!r}), PartitionPlan(parts=2), "m", Path({str(tmp_path / "cache")!r}))
"""
    first = subprocess.Popen(
        [sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    try:
        assert first.stdout is not None and first.stdout.readline() == "half\n"
        results: list[object] = []
        second = threading.Thread(
            target=lambda: results.append(split_dataset(folder, PLAN, "m", tmp_path / "cache"))
        )
        second.start()
        assert not list((tmp_path / "cache").glob("*.npz"))
        first.send_signal(signal.SIGKILL)
        first.wait()
        second.join(timeout=60)
    finally:
        first.kill()
        first.wait()
    assert len(results) == 1
    assert split_dataset(folder, PLAN, "m", tmp_path / "cache").rows() == (51, 50)


def test_damaged_index_is_rebuilt_or_reported(folder: Path, tmp_path: Path) -> None:
    split_dataset(folder, PLAN, "m", tmp_path / "cache")
    (index,) = (tmp_path / "cache").glob("*.npz")
    index_bytes = index.read_bytes()
    for damaged in (b"", index_bytes[: len(index_bytes) // 2]):
        index.write_bytes(damaged)
        assert split_dataset(folder, PLAN, "m", tmp_path / "cache").open(0)["y"].shape == (51,)
        assert index.read_bytes() == index_bytes
    index.write_bytes(
        index_bytes.replace(index_bytes[200:260], index_bytes[200:259] + bytes([index_bytes[259] ^ 1]), 1)
    )
    with pytest.raises(IntegrityError, match="is damaged"):
        split_dataset(folder, PLAN, "m", tmp_path / "cache").open(0)
    assert split_dataset(folder, PLAN, "m", tmp_path / "cache").open(0)["y"].shape == (51,)


def test_index_unused_for_a_month_is_removed(tmp_path: Path) -> None:
    for name, age in (("old.npz", 31), ("new.npz", 1), ("old.txt", 31)):
        (tmp_path / name).write_bytes(b"x")
        os.utime(tmp_path / name, (time.time() - age * 86400,) * 2)
    build_once(tmp_path / "mine.npz", lambda file: None, is_valid=lambda path: True)
    assert sorted(path.name for path in tmp_path.glob("[a-z]*")) == ["mine.npz", "new.npz", "old.txt"]


MEMORY = """
import json, sys
from pathlib import Path
import psutil
from hopyard.datasets.partitions.split import split_dataset
from hopyard.domain.study import PartitionPlan
import numpy
try:
    from pyarrow import parquet
except ImportError:
    pass
process = psutil.Process()
before = process.memory_info().rss
part = split_dataset(Path(sys.argv[1]), PartitionPlan(parts=4), "m", Path(sys.argv[2])).open(1)
peak = before
for name in part.columns:
    part[name]
grown = process.memory_info().rss - before
print(json.dumps({"grown": grown, "loaded": part.bytes_loaded, "rows": len(part)}))
"""


@pytest.mark.parametrize("format", ["npy", "parquet"])
def test_worker_uses_its_share_of_memory(tmp_path: Path, format: str) -> None:
    """Of 160 MB in four partitions."""
    (tmp_path / "data").mkdir()
    rows, width = 200_000, 100
    x = np.random.Generator(np.random.PCG64(0)).random((rows, width), dtype=np.float32)
    if format == "npy":
        np.save(tmp_path / "data" / "x.npy", x)
        np.save(tmp_path / "data" / "y.npy", np.zeros(rows, dtype=np.int64))
    else:
        pa = pytest.importorskip("pyarrow")
        from pyarrow import parquet as pq

        pq.write_table(
            pa.table({f"c{at}": x[:, at] for at in range(width)}),
            tmp_path / "data" / "x.parquet",
            row_group_size=50_000,
        )
    total_bytes = x.nbytes
    del x
    split_dataset(tmp_path / "data", PartitionPlan(parts=4), "m", tmp_path / "cache")
    result = subprocess.run(
        [sys.executable, "-c", MEMORY, tmp_path / "data", tmp_path / "cache"],
        capture_output=True,
        text=True,
        check=True,
    )
    report = json.loads(result.stdout)
    assert report["rows"] == rows / 4
    assert total_bytes / 4 <= report["loaded"] <= total_bytes / 4 * 1.05
    assert report["grown"] < total_bytes / 4 + 40e6, "its own rows, and what reading a chunk takes"
    assert psutil.virtual_memory().total > 0


def test_memory_setting_is_parsed(folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    part = split_dataset(folder, PLAN, "m", tmp_path / "cache").open(0)
    monkeypatch.setenv("HOPYARD_PARTITION_MEMORY", "lots")
    with pytest.raises(SpecError, match="`lots` is not an amount of memory"):
        part["x"]
    monkeypatch.setenv("HOPYARD_PARTITION_MEMORY", "0.5K")
    with pytest.raises(SpecError, match="takes about 0 MB, more than the limit of 0 MB"):
        part["x"]
    assert sum(len(batch["x"]) for batch in part.batches(10)) == 51
