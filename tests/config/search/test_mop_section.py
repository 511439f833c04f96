"""The gang requested by a study with `parallel: mop`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from hopyard.config.search.search_file import search_from_mapping
from hopyard.errors import SpecError


@pytest.fixture
def search(tmp_path: Path) -> dict[str, Any]:
    (tmp_path / "train.py").write_text(
        "def init(config): ...\n\n\ndef train(state, partition, config): ...\n"
    )
    return {
        "metric": "val_acc",
        "space": {"lr": [0.1]},
        "trials": 1,
        "trainable": "train.py",
        "workers": 4,
        "dataset": "digits",
    }


def gang(search: dict[str, Any], folder: Path) -> list[tuple[str, int, int, bool]]:
    return [
        (role.name, role.replicas, role.cpu_milli, role.cpu_limited)
        for role in search_from_mapping(search, folder).run.roles
    ]


def test_workers_use_the_cores_beside_the_driver(search: dict[str, Any], tmp_path: Path) -> None:
    roles = gang(search, tmp_path)
    assert [(name, replicas, limited) for name, replicas, _, limited in roles] == [
        ("driver", 1, False),
        ("worker", 4, False),
    ]
    assert sum(replicas * cpu_milli for _, replicas, cpu_milli, _ in roles) <= 4000
    assert gang({**search, "resources": {"memory": "4G"}}, tmp_path)[1] == roles[1]


def test_worker_resources_are_requested(search: dict[str, Any], tmp_path: Path) -> None:
    assert gang({**search, "resources": {"cpus": 2}}, tmp_path)[1] == ("worker", 4, 2000, True)


def test_dataset_of_the_study_is_not_listed_again(search: dict[str, Any], tmp_path: Path) -> None:
    with pytest.raises(SpecError, match="`digits` is the study's dataset already"):
        search_from_mapping({**search, "datasets": ["digits"]}, tmp_path)


def budget(search: dict[str, Any], folder: Path) -> tuple[str, int, int, int]:
    """Returns the unit, the largest budget, the units between two evaluations, and the partitions."""
    study = search_from_mapping(search, folder).study
    assert study.mop is not None
    unit, parts = study.budget_unit.value, study.mop.partitions.parts
    return unit, study.max_epochs, study.mop.evaluate_every, parts


@pytest.mark.parametrize(
    ("keys", "expected"),
    [
        ({}, ("epochs", 1, 1, 4)),
        ({"epochs": 6, "evaluate_every": 2}, ("epochs", 6, 2, 4)),
        ({"epochs": 2, "evaluate_every": 0.25}, ("steps", 8, 1, 4)),
        ({"epochs": 2, "evaluate_every": "3 steps"}, ("steps", 8, 3, 4)),
        ({"epochs": 6, "evaluate_every": "8 steps"}, ("epochs", 6, 2, 4)),
        ({"epochs": 1, "evaluate_every": 0.33, "partitions": {"parts": 6}}, ("steps", 6, 2, 6)),
        ({"steps": 10}, ("steps", 10, 4, 4)),
        ({"budget": "steps", "max_steps": 10, "evaluate_every": 2}, ("steps", 10, 2, 4)),
        ({"steps": 10, "evaluate_every": 0.5, "steps_per_epoch": 8}, ("steps", 10, 4, 8)),
    ],
)
def test_budgets_within_an_epoch(
    search: dict[str, Any], tmp_path: Path, keys: dict[str, Any], expected: tuple[str, int, int, int]
) -> None:
    assert budget({**search, **keys}, tmp_path) == expected


@pytest.mark.parametrize(
    ("keys", "problem", "hint"),
    [
        ({"evaluate_every": 0.3}, "0.3 of an epoch with 4 partitions", "parts: 10"),
        ({"evaluate_every": 0.125}, "0.125 of an epoch with 4 partitions", "parts: 8"),
        ({"evaluate_every": 0}, "`0` is no part of an epoch", "0.25"),
        ({"evaluate_every": "often"}, "`often` is no part of an epoch", "2 steps"),
        ({"evaluate_every": True}, "`true` is no part of an epoch", "2 steps"),
        ({"steps_per_epoch": 8, "partitions": {"parts": 4}}, "8 is not the number of partitions", "keep one"),
        ({"steps_per_epoch": 2}, "2 partitions for 4 workers", "parts: 4"),
    ],
)
def test_evaluations_between_visits_are_refused(
    search: dict[str, Any], tmp_path: Path, keys: dict[str, Any], problem: str, hint: str
) -> None:
    with pytest.raises(SpecError) as refused:
        search_from_mapping({**search, **keys}, tmp_path)
    assert problem in str(refused.value)
    assert hint in " ".join(refused.value.hints)


def test_rungs_below_an_epoch(search: dict[str, Any], tmp_path: Path) -> None:
    """A study of one epoch has rungs if it is evaluated within the epoch."""
    asha = {**search, "searcher": "asha", "epochs": 1}
    with pytest.raises(SpecError, match="there is no rung"):
        search_from_mapping(asha, tmp_path)
    study = search_from_mapping({**asha, "evaluate_every": 0.25, "partitions": {"parts": 8}}, tmp_path).study
    assert (study.max_epochs, study.searcher.options["min_epochs"]) == (8, 2)
    with pytest.raises(SpecError) as refused:
        search_from_mapping({**asha, "workers": 2, "evaluate_every": 0.5}, tmp_path)
    assert "the budget is 2 steps" in refused.value.hints[0]


def test_numbers_of_epochs_stay_in_epochs(search: dict[str, Any], tmp_path: Path) -> None:
    asha = {"name": "asha", "eta": 2, "min_epochs": 1}
    within = {**search, "epochs": 4, "evaluate_every": 0.25}
    study = search_from_mapping({**within, "searcher": asha}, tmp_path).study
    assert (study.budget_unit, study.max_epochs, study.searcher.options["min_epochs"]) == ("steps", 16, 4)
    lowest = {"name": "asha", "eta": 2, "min_steps": 1}
    study = search_from_mapping({**within, "searcher": lowest}, tmp_path).study
    assert study.searcher.options["min_epochs"] == 1


def test_evaluations_of_trials_that_are_runs_are_their_reports(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text("")
    search = {
        "metric": "loss",
        "space": {"lr": [0.1]},
        "trials": 1,
        "script": "train.py",
        "evaluate_every": 2,
    }
    with pytest.raises(SpecError, match="it is of `parallel: mop`"):
        search_from_mapping(search, tmp_path)
