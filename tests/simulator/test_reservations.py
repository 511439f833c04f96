"""Reservations of a cluster file, through `hop simulate`."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hopyard.config.cluster_reservations import read_reservations
from hopyard.config.yaml_section import YamlSection
from hopyard.simulator.settings import SimulatedCluster
from tests.cli.in_process import hop
from tests.simulator.workloads import cluster, run_simulation, workload_run

CLUSTER = """
pools: [{name: a100, count: 1, cpus: 64, memory: 512G, gpus: A100:8}]
queues: {vision: {}, nlp: {}}
default: nlp
"""
EXAM = "reservations: [{name: exam, from: +2h, for: 1h, nodes: [a100-0000], users: [alice]}]\n"
LESSON = (
    "reservations: [{name: lesson, from: +1h, for: 1h, every: 3h, until: +5h, resources: {gpus: 4}, "
    "queue: vision}]\n"
)
RUNS = """submit,duration,gpus,user,queue,limit
0,90m,8,bob,nlp,90m
1h,1h,8,bob,nlp,1h
1h,30m,4,bob,nlp,30m
2h10m,30m,8,alice,nlp,30m
"""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def report(
    capfd: pytest.CaptureFixture[str], folder: Path, reservations: str, runs: str, *words: str
) -> dict[str, Any]:
    (folder / "cluster.yaml").write_text(CLUSTER + reservations)
    (folder / "runs.csv").write_text(runs)
    result = hop(capfd, "simulate", "runs.csv", "--cluster", "cluster.yaml", "--limits", "--json", *words)
    assert result.code == 0, result.err
    output: dict[str, Any] = json.loads(result.out)["reports"][0]
    return output


@pytest.mark.parametrize("store", ["memory", "sqlite"])
def test_only_the_owner_starts_in_a_reservation(
    folder: Path, capfd: pytest.CaptureFixture[str], store: str
) -> None:
    """Bob's second run would overlap alice's hour, so the short run goes first and the other waits until her
    reservation ends."""
    result = report(capfd, folder, EXAM, RUNS, "--store", store)
    assert result["waits"] == [0, 0, 30 * 60, 2 * 3600]
    assert result["reservations"] == [
        {
            "name": "exam",
            "nodes": ["a100-0000"],
            "times": 1,
            "reserved": 8.0,
            "used": 4.0,
            "taken": 0.0,
            "by_gpu": True,
            "ratio": 0.5,
        }
    ]
    without = report(capfd, folder, "", RUNS, "--store", store)
    assert (without["reservations"], without["waits"]) == ([], [0, 30 * 60, 50 * 60, 90 * 60])


def test_recurring_pieces_for_a_queue(folder: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """Half of the node is reserved twice: during that time, runs of another queue with four GPUs run one at a
    time."""
    runs = (
        "submit,duration,gpus,queue,limit\n0,1m,1,nlp,1m\n1h1m,50m,4,nlp,50m\n1h1m,50m,4,nlp,50m\n"
        "4h,30m,4,vision,30m\n4h,2h,4,nlp,2h\n"
    )
    result = report(capfd, folder, LESSON, runs)
    (lesson,) = result["reservations"]
    assert result["waits"] == [0, 0, 0, 0, 50 * 60]
    assert (lesson["times"], lesson["reserved"], lesson["used"], lesson["taken"]) == (2, 8.0, 2.0, 0.0)


def test_policy_without_reservations_shows_the_violation(
    folder: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "120")  # both policies side by side
    results = report(capfd, folder, EXAM, RUNS, "--policy", "fifo")
    (exam,) = results["reservations"]
    assert exam["taken"] > 0
    result = hop(
        capfd,
        "simulate",
        "runs.csv",
        "--cluster",
        "cluster.yaml",
        "--limits",
        "--policy",
        "hopyard",
        "--policy",
        "fifo",
    )
    (line,) = [line for line in result.out.splitlines() if "exam" in line]
    assert "50.0% of 8.0 GPU hours" in line and f"{exam['taken']:.1f} taken by others" in line


def test_reservations_hold_with_added_nodes(folder: Path, capfd: pytest.CaptureFixture[str]) -> None:
    (folder / "cluster.yaml").write_text(CLUSTER + EXAM)
    (folder / "runs.csv").write_text(RUNS)
    result = hop(
        capfd, "simulate", "runs.csv", "--cluster", "cluster.yaml", "--limits", "--add", "1 x a100", "--json"
    )
    assert [report["reservations"][0]["nodes"] for report in json.loads(result.out)["reports"]] == [
        ["a100-0000"]
    ] * 2


@pytest.mark.parametrize(
    ("section", "error", "hint"),
    [
        (EXAM.replace("0000", "0007"), "reservations.0.nodes.0: there is no node `a100-0007`", "a100-0000"),
        (LESSON.replace("gpus: 4", "gpus: 9"), "reservations.0: it cannot be honoured", "fewer pieces"),
        (EXAM.replace("+2h", "2025-01-01"), "reservations.0.from: it is before the workload", "+2h"),
        (EXAM.replace("alice", "1"), "reservations.0.users.0: `1` is not a name", "quotes"),
    ],
)
def test_invalid_reservations_are_refused_with_hints(
    folder: Path, capfd: pytest.CaptureFixture[str], section: str, error: str, hint: str
) -> None:
    (folder / "cluster.yaml").write_text(CLUSTER + section)
    (folder / "runs.csv").write_text(RUNS)
    result = hop(capfd, "simulate", "runs.csv", "--cluster", "cluster.yaml")
    assert (result.code, result.out) == (2, "")
    assert error in result.err and hint in result.err


minutes = st.integers(0, 600).map(lambda minute: minute * 60.0)


@given(
    st.lists(
        st.tuples(
            minutes, st.integers(1, 300), st.sampled_from([1, 2, 4, 8]), st.sampled_from(["alice", "bob"])
        ),
        max_size=12,
    ),
    st.integers(5, 400),
    st.integers(1, 200),
    st.sampled_from(
        ["nodes: [n0]", "resources: {gpus: 4}", "resources: {gpus: 2}, count: 3", "resources: {cpus: 40}"]
    ),
    st.booleans(),
)
@settings(max_examples=40, deadline=None)
def test_other_users_use_no_active_reservation(
    runs: list[tuple[float, int, int, str]], start: int, lasts: int, what: str, again: bool
) -> None:
    """The law for runs with known limits; and every run starts eventually."""
    import yaml

    text = (
        f"{{name: r, from: +{start}m, for: {lasts}m, {what}, users: "
        f"[alice]{', every: 500m' if again else ''}}}"
    )
    reservations = read_reservations(YamlSection("file", "", {"reservations": [yaml.safe_load(text)]}))
    played = [
        workload_run(at_s, length * 60.0, gpus, user=user, time_limit_s=length * 60.0)
        for at_s, length, gpus, user in runs
    ]
    report = run_simulation(
        played,
        SimulatedCluster(cluster(2).nodes, requested_reservations=reservations),
        "hopyard",
        know_time_limits=True,
    )
    (result,) = report.reservations
    assert report.ended == len(runs)
    assert result.taken == 0 and 0 <= result.used <= result.reserved
