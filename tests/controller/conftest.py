"""What the tests of the controller have in common."""

from __future__ import annotations

import math

import pytest

from hopyard.controller import scheduling_loop


@pytest.fixture(autouse=True)
def _thinks_on_the_loop(monkeypatch: pytest.MonkeyPatch) -> None:
    """A busy machine may take long to think, which goes to a thread then: nobody who waits until nothing
    happens any more sees that."""
    monkeypatch.setattr(scheduling_loop, "POLICY_THREAD_THRESHOLD_S", math.inf)
