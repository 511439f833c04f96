"""`hop.log`: recorded and refused values, and the effect of a full disk."""

from __future__ import annotations

import math
import os
import resource
import subprocess
from contextlib import suppress
from decimal import Decimal
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from hopyard.domain.metric_records import NO_STEP, Point, read_records
from hopyard.errors import SpecError
from hopyard.replica.stream_shipper import complete_record_bytes
from hopyard.sdk import warn_once as warn_once_module
from hopyard.sdk.metrics import MetricStream, to_float
from tests.sdk.scripts import Replica, finish


def points_of(path: Path) -> list[tuple[str, Point]]:
    names: dict[int, str] = {}
    *points, consumed = read_records(path.read_bytes(), names)
    assert consumed == path.stat().st_size
    return [(names[p.series], p) for p in points if isinstance(p, Point)]


@pytest.fixture
def stream(tmp_path: Path) -> MetricStream:
    return MetricStream(str(tmp_path / "metrics"))


def test_points_round_trip(stream: MetricStream, tmp_path: Path) -> None:
    stream.write(3, {"loss": 0.5, "val/acc": 1})
    stream.write(None, {"loss": math.inf})
    stream.write(np.int64(4), {"loss": math.nan})
    result = points_of(tmp_path / "metrics")
    assert [(n, p.step, p.value) for n, p in result[:3]] == [
        ("loss", 3, 0.5),
        ("val/acc", 3, 1.0),
        ("loss", NO_STEP, math.inf),
    ]
    assert result[3][1].step == 4 and math.isnan(result[3][1].value)
    assert stream.latest["val/acc"] == 1.0 and math.isnan(stream.latest["loss"])


class Tensor:
    """A stand-in for a tensor with one element, without the library."""

    def item(self) -> float:
        return 2.5


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        *[
            (1, 1.0),
            (True, 1.0),
            (np.float32(0.5), 0.5),
            (np.array([3]), 3.0),
            (np.array(4), 4.0),
            (Tensor(), 2.5),
            (Decimal("0.5"), 0.5),
        ],
        *[
            (Fraction(1, 2), 0.5),
            pytest.param(10**400, math.inf, id="huge"),
            pytest.param(-(10**400), -math.inf, id="minus-huge"),
        ],
    ],
)
def test_numeric_types_are_recorded(value: Any, expected: float) -> None:
    assert to_float("x", value) == expected


@pytest.mark.parametrize(
    "value",
    ["0.5", None, [1.0], {"a": 1}, 1j, np.array([1, 2]), np.array("a"), b"1", object(), np.complex64(1)],
)
def test_non_number_is_reported_once_and_skipped(
    stream: MetricStream, tmp_path: Path, value: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    warn_once_module._shown_kinds.clear()
    for step in (1, 2):
        stream.write(step, {"loss": 0.5, "acc": value})
    stream.write(None, {"acc": value})
    assert [(name, p.step) for name, p in points_of(tmp_path / "metrics")] == [("loss", 1), ("loss", 2)]
    assert capsys.readouterr().err.count("hop.log: `acc` is a ") == 1
    assert stream.metric_counts == {"acc": 0} and stream.latest == {"loss": 0.5}


def test_value_that_is_a_medium_is_reported_with_its_type(
    stream: MetricStream, capsys: pytest.CaptureFixture[str]
) -> None:
    image = pytest.importorskip("PIL.Image").new("L", (2, 2))
    for name, value, hint in (("picture", image, "hop.Image(picture)"), ("words", "ok", "hop.Text(words)")):
        warn_once_module._shown_kinds.clear()
        stream.write(1, {name: value})
        assert capsys.readouterr().err.strip().endswith(f"it is skipped (log it as {hint})")


@pytest.mark.parametrize("step", [1.5, "3", 2**63, -(2**64), [1]])
def test_step_must_be_integer(stream: MetricStream, step: Any) -> None:
    with pytest.raises(SpecError):
        stream.write(step, {"loss": 0.5})


@pytest.mark.parametrize("name", ["", "x" * 1025, 3, "\udc80"])
def test_invalid_metric_name_is_reported_and_skipped(
    stream: MetricStream, tmp_path: Path, name: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    warn_once_module._shown_kinds.clear()
    stream.write(1, {name: 0.5, "loss": 1.0})
    assert [name for name, _ in points_of(tmp_path / "metrics")] == ["loss"]
    assert "it is skipped" in capsys.readouterr().err


@pytest.mark.torch
def test_tensors_are_recorded(stream: MetricStream, tmp_path: Path) -> None:
    torch = pytest.importorskip("torch")
    stream.write(
        torch.tensor(2),
        {"loss": torch.tensor(0.5, requires_grad=True), "b": torch.tensor([1], dtype=torch.bfloat16)},
    )
    assert [(p.step, p.value) for _, p in points_of(tmp_path / "metrics")] == [(2, 0.5), (2, 1.0)]
    with pytest.raises(SpecError, match=r"of shape \(2,\)"):
        to_float("loss", torch.zeros(2))


def test_log_accepts_all_call_forms(replica: Replica) -> None:
    replica.run(
        "import hopyard as hop\nhop.log({'a/b': 1.0, 'step': 2.0}, step=5, c=3.0)\nhop.log(7, d=4.0)\n"
        "hop.log(e=1)\n"
    )
    points = [(n, p.step, p.value) for n, p in replica.points]
    assert points == [("a/b", 5, 1.0), ("step", 5, 2.0), ("c", 5, 3.0), ("d", 7, 4.0), ("e", NO_STEP, 1.0)]


def test_threads_forks_and_processes_share_one_stream(replica: Replica) -> None:
    code = """
import os, subprocess, sys, threading
import hopyard as hop
hop.params()  # imported before anything forks
def work(name, n):
    for i in range(n):
        hop.log({name: float(i), name + "/b": 1.0}, step=i)
if len(sys.argv) > 1:
    work(sys.argv[1], 500)
    sys.exit()
others = [subprocess.Popen([sys.executable, __file__, f"process{k}"]) for k in range(3)]
threads = [threading.Thread(target=work, args=(f"thread{k}", 500)) for k in range(4)]
for t in threads: t.start()
for k in range(2):
    if os.fork() == 0:
        work(f"fork{k}", 500)
        os._exit(0)
for t in threads: t.join()
assert [o.wait() for o in others] == [0, 0, 0]
assert [os.wait()[1] for _ in range(2)] == [0, 0]
"""
    replica.run(code)
    points = replica.points
    assert len(points) == 9 * 500 * 2
    for name in ("process2", "thread3", "fork1"):
        assert [p.step for n, p in points if n == name] == list(range(500))


def test_full_disk_is_reported_once_and_no_record_is_torn(replica: Replica) -> None:
    """A file size limit makes writes short exactly as a full disk does.
    Another process continues afterwards."""
    code = """
import resource, signal
import hopyard as hop
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
hop.log(loss=0.0, step=0)
soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
resource.setrlimit(resource.RLIMIT_FSIZE, (1000, hard))
for i in range(1, 101):
    hop.log(loss=float(i), acc=1.0, step=i)
resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
hop.log(loss=101.0, new=1.0, step=101)
print("went on")
"""
    done = replica.run(code)
    assert done.stdout == "went on\n"
    assert done.stderr.count("hopyard:") == 1 and "records are lost" in done.stderr
    steps = [p.step for n, p in replica.points if n == "loss"]
    assert steps == [*range(len(steps) - 1), 101] and 5 < len(steps) < 101


@pytest.mark.skipif(os.geteuid() != 0, reason="mounts a small disk")
def test_two_processes_share_full_disk_without_torn_records(replica: Replica) -> None:
    streams = replica.folder / "streams"
    if subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=64k", "tmpfs", str(streams)], check=False, capture_output=True
    ).returncode:
        pytest.skip("mounting is not allowed here")
    try:
        code = """
import sys, time
import hopyard as hop
from pathlib import Path
folder = Path(__file__).parent
me = sys.argv[1] if len(sys.argv) > 1 else "a"
if me == "a":
    import subprocess
    other = subprocess.Popen([sys.executable, __file__, "b"])
for i in range(20_000):
    hop.log({me: float(i), me + "/twice": 2.0 * i}, step=i)
(folder / f"full-{me}").touch()
deadline = time.monotonic() + 60
while not (folder / "freed").exists() and time.monotonic() < deadline:
    time.sleep(0.01)
hop.log({me: -1.0, me + "/late": 1.0}, step=20_000)
hop.summary(acc=1.0)
if me == "a":
    sys.exit(other.wait())
"""
        (streams / "ballast").write_bytes(b"x" * 20_000)
        process = replica.start(code)
        shipped = b""
        while not ((replica.folder / "full-a").exists() and (replica.folder / "full-b").exists()):
            assert process.poll() is None, process.communicate()
            with suppress(FileNotFoundError), (streams / "metrics").open("rb", buffering=0) as file:
                file.seek(len(shipped))
                data = file.read()
                shipped += data[: complete_record_bytes("metrics", data)]
        (streams / "ballast").unlink()
        (replica.folder / "freed").touch()
        done = finish(process)
        assert "No space left" in done.stderr
        points = replica.points
        assert {n for n, p in points if p.step == 20_000} == {"a", "a/late", "b", "b/late"}
        assert len(points) < 80_000
        assert (streams / "metrics").read_bytes().startswith(shipped), "what was shipped can never change"
    finally:
        subprocess.run(["umount", "-l", str(streams)], check=True)


def test_unwritable_folder_never_stops_script(replica: Replica) -> None:
    code = """
import hopyard as hop
p = hop.params(lr=0.1)
best = hop.bind(acc=0.0)
for epoch in hop.loop(range(2)):
    hop.log(loss=1.0, step=epoch)
hop.summary(acc=1.0)
print("done", p.lr)
"""
    done = replica.run(code, HOPYARD_REPLICA_DIR="/proc/nowhere")
    assert done.stdout == "done 0.1\n" and "hopyard:" in done.stderr and "Traceback" not in done.stderr


def test_resource_limits_are_restored() -> None:
    assert resource.getrlimit(resource.RLIMIT_FSIZE)[0] == resource.RLIM_INFINITY
