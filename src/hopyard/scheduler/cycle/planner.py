"""The policy: with a memory, or without."""

from __future__ import annotations

from hopyard.domain.cluster import Plan, Snapshot
from hopyard.scheduler.cycle.standing import Standing
from hopyard.scheduler.cycle.turn import Turn


class Planner:
    """Remembers the last snapshot and works out only what is different in the next.
    Its plans are those of `plan`."""

    def __init__(self) -> None:
        self._standing: Standing | None = None

    def __call__(self, snapshot: Snapshot, /) -> Plan:
        # lost if anything goes wrong: then the next turn begins anew
        standing, self._standing = self._standing, None
        if standing is None:
            standing = Standing(snapshot)
        else:
            standing.follow(snapshot)
        wanted = Turn(standing).plan()
        self._standing = standing
        return wanted


def plan(snapshot: Snapshot, /) -> Plan:
    """What should happen. Pure: equal snapshots give equal plans, in whatever order things are told."""
    return Turn(Standing(snapshot)).plan()
