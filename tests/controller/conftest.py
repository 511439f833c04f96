"""Shared setup of the controller's tests."""

from __future__ import annotations

import math

import pytest

from hopyard.controller import scheduling_loop


@pytest.fixture(autouse=True)
def _policy_on_the_event_loop(monkeypatch: pytest.MonkeyPatch) -> None:
    """Keeps the policy on the event loop.

    On a busy machine a cycle may take long and then moves to a thread, which `settle` does not see.
    """
    monkeypatch.setattr(scheduling_loop, "POLICY_THREAD_THRESHOLD_S", math.inf)
