"""Schemas of queues.

Amounts are by resource: `cpu` in thousandths of a core, `memory` in bytes, `gpu` and `gpu:model` in
thousandths of a GPU, other resources in whole units.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any

from msgspec import UNSET, Meta, Struct, UnsetType

from hopyard.config.queues.export import QueueChange
from hopyard.config.schemas.fields import LINE, RequestModel
from hopyard.domain.effective_limits import effective_admins, effective_submitters
from hopyard.domain.queue import QueueTree
from hopyard.scheduler.quota.queue_report import QueueReport, UserReport
from hopyard.server.schemas.reservations import ReservationOut

OutAmounts = Mapping[str, int]


class TreeIn(RequestModel):
    """tree: the content of a queue file, with the keys and amounts that `hop queue apply` accepts. file: its
    name in error messages."""

    tree: dict[str, Any]
    file: Annotated[str, Meta(min_length=1, max_length=1024, pattern=LINE)] = "queues"


class ApplyQuery(RequestModel):
    dry_run: Annotated[
        int, Meta(ge=0, le=1, description="1: only checks, and returns the changes that would be made")
    ] = 0


class ChangeOut(Struct, frozen=True):
    """kind: added, removed or changed. queue: null for settings of the whole tree. detail: a description of
    the change."""

    kind: str
    queue: str | None
    detail: str


class ApplyOut(Struct, frozen=True):
    """warnings: sentences about settings that are allowed but probably not intended. applied: false for a dry
    run, and if nothing differs."""

    changes: list[ChangeOut]
    warnings: list[str]
    applied: bool


class QueueUserOut(Struct, frozen=True, kw_only=True):
    """share: the current dominant share of the cluster. past_share: the average dominant share of the past,
    weighted by half for each half-life ago. score: users are scheduled in ascending order of it."""

    user: str
    used: OutAmounts
    share: float
    past_share: float
    score: float
    running: int
    waiting: int


class QueueOut(Struct, frozen=True, kw_only=True):
    """A queue with everything below it. depth counts from 0 at the top.

    guarantee: its own, or the sum of those below it. maximum: the limit of its use, from its maximum and its
    borrow limit. share: the dominant share of the cluster that it uses. borrowed: use beyond the guarantee.
    lent: the part of its guarantee that other queues use. running, waiting: numbers of runs.

    submitters: empty for all users. admins: in addition to the owner. declared: false for a queue that was
    removed from the tree and is still used. users and reservations: in the response for a single queue;
    reservations are active or future ones, for the queue or an ancestor. why: in the same response, one
    sentence why another queue gets more of the cluster, or that none does.
    """

    name: str
    parent: str | None
    depth: int
    leaf: bool
    declared: bool
    weight: float
    guarantee: OutAmounts
    maximum: OutAmounts
    borrow_limit: OutAmounts
    lend_limit: OutAmounts
    user_limit: OutAmounts
    used: OutAmounts
    share: float
    borrowed: OutAmounts
    lent: OutAmounts
    running: int
    waiting: int
    submitters: tuple[str, ...]
    admins: tuple[str, ...]
    priorities: tuple[int, int]
    user_priorities: Mapping[str, int]
    default_priority: int
    reclaims: bool
    preempts_lower: bool
    time_slices: bool
    no_preempt: bool
    users: list[QueueUserOut] | UnsetType = UNSET
    reservations: list[ReservationOut] | UnsetType = UNSET
    why: str | UnsetType = UNSET


class QueuesOut(Struct, frozen=True, kw_only=True):
    """queues: parents before their children. tree: the content of a file that declares the queues. cluster:
    the resources of the schedulable nodes."""

    default: str
    half_life_s: float
    owner: str
    cluster: OutAmounts
    queues: list[QueueOut]
    tree: dict[str, Any]


def to_change_out(change: QueueChange) -> ChangeOut:
    return ChangeOut(change.kind, change.queue, change.detail)


def to_user_out(use: UserReport) -> QueueUserOut:
    return QueueUserOut(
        user=use.user,
        used=use.used,
        share=use.share,
        past_share=use.historical_share,
        score=use.score,
        running=use.running,
        waiting=use.pending,
    )


def to_queue_out(
    tree: QueueTree,
    use: QueueReport,
    users: list[QueueUserOut] | UnsetType = UNSET,
    reservations: list[ReservationOut] | UnsetType = UNSET,
    why: str | UnsetType = UNSET,
) -> QueueOut:
    queue = use.queue
    return QueueOut(
        name=queue.name,
        parent=queue.parent,
        depth=use.depth,
        leaf=use.leaf,
        declared=queue.name in tree.queues,
        weight=queue.weight,
        guarantee=use.guarantee,
        maximum=use.maximum,
        borrow_limit=queue.borrow_limit,
        lend_limit=queue.lend_limit,
        user_limit=queue.user_limit,
        used=use.used,
        share=use.share,
        borrowed=use.borrowed,
        lent=use.lent,
        running=use.running,
        waiting=use.pending,
        submitters=effective_submitters(tree, queue.name),
        admins=effective_admins(tree, queue.name),
        priorities=queue.priorities,
        user_priorities=queue.user_priorities,
        default_priority=queue.default_priority,
        reclaims=queue.reclaims,
        preempts_lower=queue.preempts_lower,
        time_slices=queue.time_slices,
        no_preempt=queue.no_preempt,
        users=users,
        reservations=reservations,
        why=why,
    )
