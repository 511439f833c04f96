"""Names of runs in sentences: the scheduler knows runs by their ids, users by their names."""

from __future__ import annotations

from collections.abc import Callable

from hopyard.domain.ids import GangId

RunNames = Callable[[GangId], str]  # returns the name of a run, or its id if the name is unknown


def run_id(run: GangId) -> str:
    """Returns the id itself, for sentences without names."""
    return run
