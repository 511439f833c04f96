"""The replay of a trace with a few hundred synthetic runs: many short, few long, more than fit at once."""

from __future__ import annotations

import json
from datetime import datetime, timedelta
from pathlib import Path
from random import Random

import pytest

from benchmarks import philly
from hopyard.domain.queue import GPU
from hopyard.simulator.traces.philly import read_trace
from hopyard.simulator.workload import Workload

RUNS = 160


@pytest.fixture
def trace(tmp_path: Path) -> Path:
    chance, rows = Random(7), ["timestamp,duration,num_gpus,gpu_time,cluster"]
    at = datetime(2017, 10, 1)
    for _ in range(RUNS):
        at += timedelta(seconds=chance.randrange(60))
        gpus = chance.choice([1, 1, 1, 1, 2, 4, 8, 16])
        seconds = chance.choice([30, 60, 90, 120, 600, 20_000])
        rows.append(f"{at:%Y-%m-%d %H:%M:%S},{seconds}.0,{gpus},{seconds * gpus}.0,{chance.choice('abc')}vc")
    file = tmp_path / "trace.csv"
    file.write_text("\n".join(rows) + "\n")
    return file


def workload(trace: Path) -> Workload:
    return read_trace(trace, replica_gpus=8)


def test_each_policy_has_line_with_figures_of_its_replay(
    trace: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    named = ("fifo", "capacity", "las", "hopyard")
    assert philly.run(["--trace", str(trace), "--nodes", "3", "--quiet", "--json"]) == 0
    out, err = capsys.readouterr()
    lines = {line["policy"]: line for line in map(json.loads, out.splitlines())}
    assert tuple(lines) == named
    for line in lines.values():
        assert (line["runs"], line["ended"], line["nodes"], line["gpus"]) == (RUNS, RUNS, 3, 24)
        assert 0 < line["median_jct_h"] <= line["p99_jct_h"] <= line["max_jct_h"]
        assert line["mean_jct_h"] > line["mean_wait_h"] >= 0
    assert lines["fifo"]["preemptions"] == lines["capacity"]["preemptions"] == 0
    assert lines["las"]["preemptions"] > 0 and lines["las"]["lost_gpu_h"] > 0
    assert lines["hopyard"]["mean_jct_h"] < min(lines[name]["mean_jct_h"] for name in ("fifo", "capacity"))
    assert [told.split(" / ")[0] for told in err.splitlines()] == ["mean: hopyard", "p99: hopyard"]
    assert all("ok)" in told or "MISSED)" in told for told in err.splitlines())


def test_no_run_waits_with_unlimited_machines(trace: Path, capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ["--trace", str(trace), "--limit", "60", "--nodes", "60", "--quiet", "--json"]
    assert philly.run([*arguments, "--policy", "fifo", "--policy", "best-fit"]) == 0
    fifo, best_fit = map(json.loads, capsys.readouterr().out.splitlines())
    assert fifo["runs"] == 60
    assert fifo["mean_wait_h"] == 0.0
    assert fifo["mean_jct_h"] == best_fit["mean_jct_h"]


def test_cluster_has_requested_load_and_room_for_largest_run(trace: Path) -> None:
    runs = workload(trace)
    seconds = sum(philly.gpus_of(run) * run.duration_s for run in runs.runs)
    span = runs.runs[-1].at_s - runs.runs[0].at_s
    assert philly.nodes_for(runs, 8, 0.5) == pytest.approx(seconds / span / 8 / 0.5, rel=0.1)
    assert philly.nodes_for(runs, 8, 1e9) == 2, "the largest asks for 16 GPUs"


def test_virtual_cluster_guarantees_are_bounded_by_demand_and_capacity(trace: Path) -> None:
    _, tree = philly.in_virtual_clusters(workload(trace), 100)
    sure = {name: queue.guarantee[GPU] for name, queue in tree.queues.items()}
    assert sorted(sure) == ["avc", "bvc", "cvc"]
    assert 99_990 <= sum(sure.values()) <= 100_000
    assert all(queue.time_slices for queue in tree.queues.values())


def test_invalid_trace_file_is_refused_by_name(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "other.csv"
    file.write_text("a,b\n1,2\n")
    assert philly.run(["--trace", str(file)]) == 2
    assert str(file) in capsys.readouterr().err


def test_no_runs_are_an_error(trace: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert philly.run(["--trace", str(trace), "--first", str(RUNS + 1)]) == 2
    assert "no runs are left" in capsys.readouterr().err


def test_unknown_policy_is_refused_with_list_of_policies(
    trace: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit):
        philly.run(["--trace", str(trace), "--policy", "best"])
    assert "best-fit" in capsys.readouterr().err
