"""Splits a plan into batches: the gangs of one team start while the next batch is still being committed.

Gangs that start together often end together. If a plan were committed at once, its first gang would wait for
its last. If it were committed in batches of a few gangs each, capacity for a large gang would become free
only gradually. A batch therefore contains all placements of one or several teams. Teams have quotas of their
own and hardly wait for each other.
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

MIN_BATCH_PLACEMENTS = 4  # a commit of fewer placements hardly takes less time
MAX_BATCHES = 4  # each batch waits for the disk, or for a remote database


def batches(plan: Plan, snapshot: Snapshot) -> Sequence[Plan]:
    """Returns the plan, made from this snapshot, as batches. Each team is in one batch. Teams, and gangs
    within a team, keep the order of the plan.

    The last batch contains everything that is not a placement. Until then promises stay as they were, except
    for gangs that have started.
    """
    if len(plan.place) < 2 * MIN_BATCH_PLACEMENTS:
        return (plan,)
    *parts, last = _split_placements(plan.place, snapshot.queues)
    parts_of_plan: list[Plan] = []
    promises = dict(snapshot.promises)
    for part in parts:
        for placement in part:
            promises.pop(placement.gang.id, None)
        parts_of_plan.append(Plan(plan.based_on, tuple(part), promises=tuple(promises.values())))
    return (*parts_of_plan, replace(plan, place=tuple(last)))


def _split_placements(placements: Sequence[Placement], tree: QueueTree) -> Sequence[Sequence[Placement]]:
    min_placements = max(MIN_BATCH_PLACEMENTS, -(-len(placements) // MAX_BATCHES))
    parts: list[list[Placement]] = [[]]
    for team in _group_by_team(placements, tree):
        if len(parts[-1]) >= min_placements:
            parts.append([])
        parts[-1].extend(team)
    return parts


def _group_by_team(placements: Sequence[Placement], tree: QueueTree) -> Collection[Sequence[Placement]]:
    """Groups placements by team. A team is a queue of the highest level that has several queues."""
    children = child_queues(tree)
    level = children.get(None, [])
    while len(level) == 1 and level[0] in children:
        level = children[level[0]]
    teams = set(level)

    @cache
    def team_of(queue: QueueName) -> QueueName | None:
        return next((ancestor for ancestor in queue_path(tree, queue) if ancestor in teams), None)

    placements_by_team: dict[QueueName | None, list[Placement]] = {}
    for placement in placements:
        placements_by_team.setdefault(team_of(placement.gang.queue), []).append(placement)
    return placements_by_team.values()
