"""What `make explore` changes in the suite: the laws alone, with seeds by chance, more examples and larger
worlds each round.

Without it every function returns what stands in the test, and Hypothesis draws the same examples each time.
"""

from __future__ import annotations

import os
from random import Random

import pytest
from hypothesis import HealthCheck, settings

ROUND = int(os.environ.get("HOPYARD_EXPLORE_ROUND", "0"))  # 0: not exploring; then 1, 2, 3 …: how much larger
SEED = int(os.environ.get("HOPYARD_EXPLORE_SEED", "0"))
seeded = pytest.mark.seeded


def load_profile() -> None:
    """Before any test module is imported: what its `settings` leave open is taken from the profile of that
    moment."""
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
    """Seeds of a test that is marked `seeded`: these, or others by chance, more of them each round."""
    if not ROUND:
        return list(fixed)
    random = Random(SEED)
    return [random.randrange(1_000_000) for _ in range(len(fixed) * ROUND)]


def scaled_size(size: int) -> int:
    """The largest size of what a law draws: grows with the rounds."""
    return size * max(1, ROUND)


def split_property_tests(items: list[pytest.Item]) -> tuple[list[pytest.Item], list[pytest.Item]]:
    """The tests that chance changes, with more examples, and the others."""
    laws, others = [], []
    scaled: set[object] = set()  # a law with parameters is one function and many items
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
    else:  # Hypothesis has no public way to change what a test was decorated with
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
