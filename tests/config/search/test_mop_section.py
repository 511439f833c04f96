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
