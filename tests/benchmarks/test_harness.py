"""Rounds, statistics, limits and their file."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from benchmarks import all as every
from benchmarks.harness import (
    LIMITS_FILE,
    Limit,
    Measurement,
    Report,
    alternate,
    alternate_many,
    ratio,
    read_limits,
    record_limits,
    table,
)


def test_sides_alternate_and_warm_up_rounds_do_not_count() -> None:
    calls: list[str] = []

    def side(name: str) -> float:
        calls.append(name)
        return float(len(calls))

    result = alternate(2, {"a": lambda: side("a"), "b": lambda: side("b")}, warm_up=1)
    assert calls == ["a", "b"] * 3
    assert result == {"a": (3.0, 5.0), "b": (4.0, 6.0)}


def test_side_may_measure_several_values() -> None:
    result = alternate_many(3, [lambda: {"push": 1.0, "pull": 2.0}, lambda: {"peer": 3.0}], warm_up=0)
    assert result == {"push": (1.0,) * 3, "pull": (2.0,) * 3, "peer": (3.0,) * 3}


def test_ratio_is_computed_per_round() -> None:
    assert ratio("peer_over_ours", [8.0, 2.0, 9.0], [2.0, 1.0, 3.0]).values == (4.0, 2.0, 3.0)


@pytest.mark.parametrize(
    ("direction", "value", "holds"),
    [("at most", 5, True), ("at most", 5.1, False), ("at least", 5, True), ("at least", 4.9, False)],
)
def test_a_limit_holds_up_to_its_value(direction: str, value: float, holds: bool) -> None:
    assert Limit("a.b", 5, direction, "s").holds(value) is holds  # type: ignore[arg-type]


def test_every_limit_belongs_to_a_benchmark() -> None:
    assert {name.partition(".")[0] for name in read_limits()} == set(every.NAMES)
    assert len(json.loads(LIMITS_FILE.read_text())["limits"]) == len(read_limits())


def test_a_report_shows_spread_and_verdict() -> None:
    report = Report("throughput", {}, [Measurement("runs", "runs/s", (30.0, 10.0, 20.0))])
    report_json = report.as_json()
    assert (
        report_json["measurements"][0]["median"],
        report_json["measurements"][0]["min"],
        report_json["measurements"][0]["max"],
    ) == (20.0, 10.0, 30.0)
    assert report_json["limits"][0]["holds"] is False
    line = next(line for line in table(report_json).splitlines() if line.startswith("  runs (runs/s)"))
    assert line.split() == ["runs", "(runs/s)", "20", "10", "30", "3", "at", "least", "25", "MISSED"]


def test_recording_retains_limits_and_writes_measurements(tmp_path: Path) -> None:
    file = tmp_path / "limits.json"
    file.write_text(LIMITS_FILE.read_text())
    record_limits(
        [Report("throughput", {}, [Measurement("runs", "runs/s", (30.0, 40.0, 50.0))]).as_json()], file
    )
    before, after = read_limits(), read_limits(file)
    assert {n: (x.limit, x.direction) for n, x in before.items()} == {
        n: (x.limit, x.direction) for n, x in after.items()
    }
    measured = after["throughput.runs"].measured
    assert measured is not None and (measured["median"], measured["min"], measured["max"], measured["n"]) == (
        40.0,
        30.0,
        50.0,
        3,
    )


def test_verdicts_name_missing_measurements() -> None:
    lines, good = every.verdicts(
        [Report("datasets", {}, [Measurement("repush_many", "s", (0.05,))]).as_json()]
    )
    assert good
    assert any("ok" in line and "datasets.repush_many" in line for line in lines)
    assert any("not measured" in line and "datasets.push_many_ratio" in line for line in lines)
