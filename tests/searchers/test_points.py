"""Known points are the first trials of every searcher that draws its own trials."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from hopyard.config.search.search_file import search_from_mapping
from hopyard.domain.trial import Proposal, Report
from hopyard.errors import SpecError
from hopyard.searchers.registry import build

MAPPING = {
    "metric": "loss",
    "command": "true",
    "trials": 8,
    "epochs": 9,
    "space": {
        "lr": "loguniform(1e-4, 1.0)",
        "kind": {"choice": {"sgd": {"momentum": "uniform(0.0, 0.9)"}, "adam": None}},
        "width": {"int": [8, 64]},
    },
}


@pytest.mark.parametrize("name", ["random", "asha", "hyperband", "halving", "pbt", "tpe", "bohb", "median"])
def test_first_trials_are_the_points(tmp_path: Path, name: str) -> None:
    points = [{"lr": 1, "kind": "adam", "width": 16}, {"kind": "sgd", "momentum": 0.5}]
    searcher = {"name": name, **({"startup": 2} if name == "tpe" else {})}
    spec = search_from_mapping({**MAPPING, "searcher": searcher, "points": points}, tmp_path).study
    built = build(spec, pytest.fail)
    proposals: list[Proposal] = []
    for _ in range(4):
        answer = built.ask()
        assert isinstance(answer, Proposal)
        proposals.append(answer)
        built.tell(Report(answer.trial, answer.budget, float(len(proposals))))
    assert proposals[0].params == {"lr": 1.0, "kind": "adam", "width": 16}
    assert (proposals[1].params["kind"], proposals[1].params["momentum"]) == ("sgd", 0.5)
    assert 1e-4 <= float(proposals[1].params["lr"] or 0) <= 1.0


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        ({"points": [{"lr": 2.0}]}, "points.0.lr: `2.0` is outside the range"),
        ({"points": [{"rl": 0.1}]}, "points.0.rl: there is no such parameter"),
        ({"points": [{"width": 8.5}]}, "points.0.width: `8.5` is outside the range"),
        ({"points": [{"lr": 0.1}], "searcher": {"name": "grid", "points": 2}}, "`grid` decides all trials"),
    ],
)
def test_invalid_point_is_refused(tmp_path: Path, change: dict[str, Any], problem: str) -> None:
    with pytest.raises(SpecError) as refused:
        search_from_mapping({**MAPPING, **change}, tmp_path)
    assert problem in refused.value.message
