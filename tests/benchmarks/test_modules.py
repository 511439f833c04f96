"""Every benchmark runs as its users run it, at a tiny size, without peers."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from tests.web.visit import CHROMIUM

ROOT = Path(__file__).parents[2]
SMALL = {
    "submit_latency": [],
    "throughput": ["--runs", "3"],
    "submissions": ["--runs", "50", "--connections", "4"],
    "log_calls": ["--calls", "200", "--points", "300", "--history", "100"],
    "series": ["--runs", "2", "--points", "3000"],
    "event_clients": ["--clients", "6", "--writes", "20"],
    "ui": [
        *("--runs", "300", "--live", "3", "--curves", "5", "--points", "500"),
        *("--nodes", "20", "--waiting", "20", "--trials", "20", "--lines", "20"),
    ],
    "live_control": ["--points", "1000"],
    "preempted_run": [],
    "datasets": ["--files", "20", "--file-bytes", "100", "--large-bytes", "9000000"],
    "store": ["--waiting", "180", "--running", "30", "--nodes", "40", "--turns", "2"],
    "placements": ["--nodes", "20,30", "--count", "20", "--shapes", "10"],
    "mop_hops": ["--size-mb", "0.1", "--unit-s", "0.01", "--epochs", "2"],
    "footprint": ["--runs", "1", "--idle", "0.2", "--idle-repeats", "1"],
    "plan_scale": ["--nodes", "40", "--waiting", "200", "--queues", "10", "--users", "40"],
    "starvation": ["--gpus", "8", "--takes", "120", "--every", "14"],
    "kueue": ["--share", "0.03"],
}
FOUND = {
    "submit_latency": {"bare", "hop_run", "above_bare"},
    "throughput": {"runs"},
    "submissions": {"durable", "sqlite_single", "sqlite_batched", "fsync", "over_sqlite_single"},
    "log_calls": {"one_metric", "three_metrics", "durable", "logging", "read_back", "read_again"},
    "series": {
        *("first", "chart", "all_columns", "zoom", "unchanged", "memory"),
        *("plain_numpy", "chart_over_plain_numpy"),
    },
    "event_clients": {
        *(
            f"{side}_{what}"
            for side in ("none", "reading", "stalled")
            for what in ("writes", "p50", "p99", "cpu", "memory")
        ),
        *(f"{side}_{what}" for side in ("reading", "stalled") for what in ("delivered", "over_none")),
    },
    "ui": {
        *("first_page", "first_page_kb", "sort", "type", "filter", "select", "next_row", "last_row"),
        *("scroll", "compare", "smooth", "log_axis", "memory", "bundle"),
        *("nodes", "nodes_colour", "nodes_filter", "waiting", "trials", "trials_sort", "parallel"),
    },
    "live_control": {
        *("safe_point", "bare_call", "over_bare_call"),
        *("set_later", "set_spread", "pause_later", "pause_spread"),
    },
    "preempted_run": {"back", "whole", "to_start_urgent", "to_next_step", "urgent_script", "bare"},
    "datasets": {f"{what}_{name}" for what in ("push", "pull", "repush", "cp") for name in ("many", "large")},
    "store": {
        *(
            "snapshot_after_one",
            "snapshot_unchanged",
            "apply_20",
            "record_unchanged",
            "holds_again",
            "gang_cpu",
        ),
        *("bare_read", "bare_commit", "snapshot_over_read", "apply_over_commit"),
    },
    "placements": {f"{what}_{nodes}" for what in ("at", "scan", "over_scan") for nodes in (20, 30)},
    "mop_hops": {"gap", "gap_p90", "deciding", "copying_twice", "bytes"},
    "footprint": {"help", "bare_python", "server_rss", "server_and_spawner_pss", "server_cpu"},
    "plan_scale": {
        *("first", "memory", "after_an_end", "after_a_submission", "after_a_node_was_lost", "after_nothing"),
        *("holds", "empty_first", "empty"),
    },
    "starvation": {"stated", "learned", "unknown"},
    "kueue": {
        *("all_done", "bound", "simulated", "over_bound", "preemptions", "cpu"),
        *(
            f"wait_{kind}{what}"
            for kind in ("small", "medium", "large")
            for what in ("", "_simulated", "_over_simulated")
        ),
        *(
            f"stage_{name}"
            for name in ("observed", "recorded", "turn_begins", "planned", "applied", "launched")
        ),
    },
}


def run(tmp_path: Path, *words: str) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "TMPDIR": str(tmp_path)}
    environment.pop("HOPYARD_BENCH_PEERS", None)
    return subprocess.run(
        [sys.executable, "-m", *words], cwd=ROOT, env=environment, capture_output=True, text=True, check=False
    )


@pytest.mark.parametrize("name", sorted(SMALL))
def test_benchmark_modules_measure(name: str, tmp_path: Path) -> None:
    if name == "ui" and CHROMIUM is None:
        pytest.skip("needs chromium")
    check_module(name, SMALL[name], tmp_path)


def check_module(name: str, arguments: Sequence[str], tmp_path: Path) -> None:
    """Runs a benchmark once, and checks its report."""
    done = run(tmp_path, f"benchmarks.{name}", "--no-peer", "--json", "--repeats", "1", *arguments)
    assert done.returncode == 0, done.stderr
    report: dict[str, Any] = json.loads(done.stdout)
    assert report["benchmark"] == name
    assert {m["name"] for m in report["measurements"]} == FOUND[name]
    assert all(m["n"] >= 1 and m["min"] <= m["median"] <= m["max"] for m in report["measurements"])
    assert not list(tmp_path.iterdir()), "the benchmark left files behind"


def test_all_reports_failed_benchmark_and_fails(tmp_path: Path) -> None:
    done = run(
        tmp_path, "benchmarks.all", "--only", "footprint", "--peer-python", str(tmp_path / "none"), "--peer"
    )
    assert done.returncode == 1
    assert "BROKE  footprint" in done.stdout
    assert "hint:" in done.stderr


def test_requested_peer_must_be_installed(tmp_path: Path) -> None:
    done = run(tmp_path, "benchmarks.throughput", "--peer")
    assert done.returncode == 2
    assert "benchmarks.peers install" in done.stderr


def test_missing_peers_are_reported(tmp_path: Path) -> None:
    done = run(tmp_path, "benchmarks.peers", "show")
    assert (done.returncode, done.stdout) == (0, "no peers: HOPYARD_BENCH_PEERS is not set\n")
