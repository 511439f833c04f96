"""When a run is idle."""

from __future__ import annotations

from typing import Any

import pytest

from hopyard.domain.idle_rule import ReplicaUse, idle_reason, idle_time_s


def sample(at: float, cpu: float = 0.0, *gpus: float) -> dict[str, Any]:
    return {"t": at, "cpu_percent": cpu, "gpus": [{"utilisation_percent": gpu} for gpu in gpus]}


def use(*samples: dict[str, Any]) -> ReplicaUse:
    seen = ReplicaUse()
    for each in samples:
        seen = seen.with_sample(each)
    return seen


def idle(*replicas: ReplicaUse, connected_at: float = 0.0, size: int = 1) -> float:
    return idle_time_s(replicas, size=size, started_at=100.0, connected_at=connected_at, now=1000.0)


@pytest.mark.parametrize(
    ("samples", "expected"),
    [
        ([sample(990)], 890),  # since its start
        ([sample(300, 10.0), sample(990)], 690),
        ([sample(300, 9.9), sample(990)], 890),
        ([sample(500, 0.0, 0.0, 1.0), sample(990)], 490),
        ([sample(995, 50.0)], 0),
    ],
)
def test_each_use_begins_the_idle_time_again(samples: list[dict[str, Any]], expected: float) -> None:
    assert idle(use(*samples)) == expected


def test_a_connection_begins_the_idle_time_again() -> None:
    assert idle(use(sample(990)), connected_at=900.0) == 90
    assert idle(use(sample(990)), connected_at=1000.0) == 0


def test_run_is_used_as_long_as_one_of_its_replicas_works() -> None:
    assert idle(use(sample(990)), use(sample(800, 90.0), sample(995)), size=2) == 190


def test_run_with_unknown_use_is_not_idle() -> None:
    assert idle(use(sample(939))) == 0  # no recent sample
    assert idle(use(sample(990)), size=2) == 0  # none of the second replica
    assert idle() == 0


def test_reason_names_the_time() -> None:
    assert idle_reason(1800.0) == "idle for 30 min: no use of CPU or GPU, and no connection"
