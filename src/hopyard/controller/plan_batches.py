"""A plan in portions: what one team gets is committed and starts while that of the next is still being
committed.

What starts together ends together. Were a plan committed in one go, whoever comes first in it would wait for
whoever comes last, and again when they end; in portions of a few gangs each, a large gang would find its room
free only bit by bit. So a portion is what a team gets, or several of them do: teams have quotas of their own,
and hardly wait for one another.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import replace
from functools import cache

from hopyard.domain.cluster import Plan, Snapshot
from hopyard.domain.effective_limits import child_queues, queue_path
from hopyard.domain.gang import Placement
from hopyard.domain.ids import QueueName
from hopyard.domain.queue import QueueTree

MIN_BATCH_PLACEMENTS = 4  # placements: a commit of fewer hardly takes less time
MAX_BATCHES = 4  # portions: each has its wait for the disk, or for a database elsewhere


def batches(plan: Plan, snapshot: Snapshot) -> Sequence[Plan]:
    """Together they are the plan that was made of this snapshot. A team is in one of them; teams, and gangs
    within a team, come in the order of the plan. All that is not a start comes with the last one: until then
    promises stand as they did, but for those that were kept."""
    if len(plan.place) < 2 * MIN_BATCH_PLACEMENTS:
        return (plan,)
    *parts, last = _split_placements(plan.place, snapshot.queues)
    found: list[Plan] = []
    standing = dict(snapshot.promises)
    for part in parts:
        for placement in part:
            standing.pop(placement.gang.id, None)
        found.append(Plan(plan.based_on, tuple(part), promises=tuple(standing.values())))
    return (*found, replace(plan, place=tuple(last)))


def _split_placements(placements: Sequence[Placement], tree: QueueTree) -> Sequence[Sequence[Placement]]:
    fewest = max(MIN_BATCH_PLACEMENTS, -(-len(placements) // MAX_BATCHES))
    parts: list[list[Placement]] = [[]]
    for team in _group_by_team(placements, tree):
        if len(parts[-1]) >= fewest:
            parts.append([])
        parts[-1].extend(team)
    return parts


def _group_by_team(placements: Sequence[Placement], tree: QueueTree) -> Collection[Sequence[Placement]]:
    """A team is one of the queues of the highest level that has several."""
    below = child_queues(tree)
    level = below.get(None, [])
    while len(level) == 1 and level[0] in below:
        level = below[level[0]]
    teams = set(level)

    @cache
    def team_of(queue: QueueName) -> QueueName | None:
        return next((one for one in queue_path(tree, queue) if one in teams), None)

    found: dict[QueueName | None, list[Placement]] = {}
    for placement in placements:
        found.setdefault(team_of(placement.gang.queue), []).append(placement)
    return found.values()
