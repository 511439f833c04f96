"""What `make explore` changes in the suite: only property tests run, with random seeds, more examples and
larger inputs each round.

Otherwise every function returns the value that the test states, and Hypothesis draws the same examples each
time.
"""

from __future__ import annotations

import os
from random import Random

import pytest
from hypothesis import HealthCheck, settings

ROUND = int(os.environ.get("HOPYARD_EXPLORE_ROUND", "0"))  # 0: no exploration; else the factor of all sizes
SEED = int(os.environ.get("HOPYARD_EXPLORE_SEED", "0"))
seeded = pytest.mark.seeded


def load_profile() -> None:
    """Loads the Hypothesis profile. Must run before any test module is imported, since `settings` take their
    defaults from the profile of that moment."""
    slow = [HealthCheck.too_slow]
    settings.register_profile(
        "fixed", deadline=None, suppress_health_check=slow, derandomize=True, print_blob=True
    )
    settings.register_profile(
        "explore",
        deadline=None,
        suppress_health_check=slow,
        derandomize=False,
        database=None,
        print_blob=True,
    )
    settings.load_profile("explore" if ROUND else "fixed")


def seeds(*fixed: int) -> list[int]:
    """Returns the seeds of a test that is marked `seeded`: the given ones, or random ones, whose number grows
    with each round."""
    if not ROUND:
        return list(fixed)
    random = Random(SEED)
    return [random.randrange(1_000_000) for _ in range(len(fixed) * ROUND)]


def scaled_size(size: int) -> int:
    """Returns the largest size of drawn inputs, which grows with each round."""
    return size * max(1, ROUND)


def split_property_tests(items: list[pytest.Item]) -> tuple[list[pytest.Item], list[pytest.Item]]:
    """Returns the property tests, with more examples, and all other tests."""
    laws, others = [], []
    scaled: set[object] = set()  # a parametrized property test is one function and many items
    for item in items:
        law = getattr(getattr(item, "obj", None), "is_hypothesis_test", False)
        (laws if law or item.get_closest_marker("seeded") else others).append(item)
        if law:
            _increase_examples(item, scaled)
    return laws, others


def _increase_examples(item: pytest.Item, scaled: set[object]) -> None:
    function = getattr(item.obj, "__func__", item.obj)  # type: ignore[attr-defined]
    machine = getattr(item, "cls", None)
    owner = machine if hasattr(function, "_hypothesis_state_machine_class") else function
    if owner in scaled:
        return
    scaled.add(owner)
    if owner is machine:
        machine.settings = _scaled_settings(machine.settings)
    else:  # Hypothesis has no public way to change the settings of a decorated test
        owner._hypothesis_internal_use_settings = _scaled_settings(owner._hypothesis_internal_use_settings)


def _scaled_settings(before: settings) -> settings:
    steps = before.stateful_step_count * ROUND
    return settings(
        before,
        max_examples=before.max_examples * ROUND,
        stateful_step_count=steps,
        derandomize=False,
        database=None,
    )
