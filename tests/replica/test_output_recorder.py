"""The order of stdout and stderr, recorded while a real process writes them."""

from __future__ import annotations

import subprocess
import sys
from itertools import pairwise
from pathlib import Path

import pytest

from hopyard.replica import output_recorder
from hopyard.replica.output_recorder import OutputRecorder
from hopyard.replica.replica_dir import ReplicaDir

_MIXED = """
import sys
for number in range(30):
    sys.stdout.write(f"out {number}\\n")
    sys.stderr.write(f"err {number}\\n")
raise ValueError("the end")
"""


def run_recorded(folder: Path, script: str, *, limit_bytes: int = 0) -> ReplicaDir:
    replica = ReplicaDir(folder)
    replica.create()
    with (
        open(replica.streams / "stdout", "ab") as stdout,
        open(replica.streams / "stderr", "ab") as stderr,
    ):
        recorder = OutputRecorder(replica, limit_bytes)
        recorder.start()
        subprocess.run([sys.executable, "-uc", script], stdout=stdout, stderr=stderr, check=False)
    recorder.close()
    return replica


def read_in_order(replica: ReplicaDir) -> list[bytes]:
    """Returns the lines of both streams in the order of the index."""
    texts = [(replica.streams / name).read_bytes() for name in ("stdout", "stderr")]
    positions, merged = [0, 0], b""
    for line in (replica.streams / "output_index").read_bytes().splitlines():
        stream, end = map(int, line.split()[1:])
        merged += texts[stream][positions[stream] : end]
        positions[stream] = end
    assert positions == [len(text) for text in texts]
    return merged.splitlines()


def test_lines_of_both_streams_are_in_order(tmp_path: Path) -> None:
    lines = read_in_order(run_recorded(tmp_path, _MIXED))
    outputs, errors = [b"out %d" % n for n in range(30)], [b"err %d" % n for n in range(30)]
    assert [line for line in lines if line.startswith(b"out")] == outputs
    assert [line for line in lines if line.startswith(b"err")] == errors
    # the kernel may report a write a moment after its bytes, so a few lines change places on a busy machine
    changes = sum(before[:3] != after[:3] for before, after in pairwise(lines[:60]))
    assert changes > 30
    assert lines[-1] == b"ValueError: the end"


def test_order_without_inotify_has_all_bytes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(output_recorder, "_watch_files", lambda _: (-1, []))
    lines = read_in_order(run_recorded(tmp_path, _MIXED))
    assert [line for line in lines if line.startswith(b"out")] == [b"out %d" % n for n in range(30)]


def test_index_ends_where_a_stream_is_cut(tmp_path: Path) -> None:
    replica = run_recorded(tmp_path, "print('x' * 200_000)", limit_bytes=100_000)
    assert (replica.streams / "output_index").read_bytes().split()[2] == str(100_000 - 65_536).encode()


def test_index_of_a_long_output_of_one_stream_is_short(tmp_path: Path) -> None:
    replica = run_recorded(tmp_path, "for n in range(20_000): print(n)")
    assert (replica.streams / "output_index").stat().st_size < 2_000
