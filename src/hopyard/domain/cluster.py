"""The input of a policy (Snapshot), its output (Plan), and the observation of an engine (Observation)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime

from hopyard.domain.attempt import AttemptStatus
from hopyard.domain.breach_causes import BreachCause, BreachDetail
from hopyard.domain.gang import Gang, Placement
from hopyard.domain.hold_causes import HoldCause
from hopyard.domain.hold_reason import HoldReason
from hopyard.domain.ids import DEFAULT_POOL, AttemptId, GangId, NodeId, PoolName, QueueName, Version
from hopyard.domain.preemption_causes import PreemptionCause
from hopyard.domain.queue import SINGLE_QUEUE_TREE, PastUsage, QueueTree
from hopyard.domain.reservation import Reservation
from hopyard.domain.resources import Gpu

PREEMPT_GRACE_S = 60.0  # to reach a safe point and save a checkpoint, unless something else is said


@dataclass(frozen=True, slots=True)
class Node:
    """A machine: what of it may be given to runs, in total (not what is free).

    ready: the engine sees it. cordoned: an administrator lets nothing new start on it; cordon_reason: what
    they said why. trouble: why the engine can start nothing on it for now, "" where it can. extras: other
    countable things by name. holds: keys of the datasets and environments in its cache, as
    `Gang.input_digests` names them.
    """

    id: NodeId
    engine: str
    cpu_milli: int
    memory_bytes: int
    gpus: tuple[Gpu, ...] = ()
    pool: PoolName = DEFAULT_POOL
    ready: bool = True
    labels: Mapping[str, str] = field(default_factory=dict)
    cordoned: bool = False
    extras: Mapping[str, int] = field(default_factory=dict)
    holds: frozenset[str] = frozenset()
    cordon_reason: str = ""
    trouble: str = ""

    @property
    def schedulable(self) -> bool:
        """Whether something may start on it."""
        return self.ready and not self.cordoned and not self.trouble

    @property
    def unschedulable_state(self) -> str:
        """What keeps everything from starting on it, behind "is": `cordoned`; "" where it is open."""
        if not self.ready:
            return "not ready"
        return "cordoned" if self.cordoned else f"out of service: {self.trouble}" if self.trouble else ""

    def as_schedulable(self) -> Node:
        """The node as it is when nothing keeps anything from starting on it."""
        return self if self.schedulable else replace(self, ready=True, cordoned=False, trouble="")


@dataclass(frozen=True, slots=True)
class ServerRecord:
    """A server of this database. engine: the one whose nodes are its own. place: its machine and home.
    seen_at: when it recorded last that it is up. url: where the other servers reach it, "" where it did not
    say. key: what they sign requests to it with; it is another one after each start of the server."""

    engine: str
    place: str
    seen_at: datetime
    url: str = ""
    key: str = field(default="", repr=False)


@dataclass(frozen=True, slots=True)
class Running:
    """A gang that holds resources: it starts, runs, or is being stopped.

    started_at: when its processes began, None while it is prepared. saved_at: when the newest checkpoint of
    this attempt was saved, None where there is none: what it did since then is lost if it is ended now.
    stopping: it was asked to end; preempt_requested_at: when, where that is known. preempted_for: the gang
    that it makes room for.
    """

    placement: Placement
    placed_at: datetime
    attempt: AttemptId = AttemptId("")
    started_at: datetime | None = None
    saved_at: datetime | None = None
    stopping: bool = False
    preempted_for: GangId | None = None
    preempt_requested_at: datetime | None = None

    @property
    def gang(self) -> Gang:
        return self.placement.gang


@dataclass(frozen=True, slots=True)
class Promise:
    """A blocked gang starts at `start_at` or earlier, on these nodes as far as is known.
    has_preempted: runs were asked to leave for it."""

    gang: GangId
    start_at: datetime
    given_at: datetime
    nodes: tuple[NodeId, ...] = ()
    has_preempted: bool = False


@dataclass(frozen=True, slots=True)
class Breach:
    """A promise that cannot be kept: why, and what is expected instead (None: nothing can be said).

    displaced_by: the gang that goes before this one, where the cause is that."""

    gang: GangId
    detail: BreachDetail
    promised_at: datetime
    expected_at: datetime | None = None
    displaced_by: GangId | None = None

    @property
    def cause(self) -> BreachCause:
        return self.detail.cause


@dataclass(frozen=True, slots=True)
class Snapshot:
    """One consistent, immutable view of the cluster. The only input of a policy.

    pending: gangs that wait, but for `backing_off`: those that were put back and are not to start before
    their time. running: gangs that hold resources. Both are immutable; a store gives them as
    `PersistentSequence`. past_usage: what users have used in the past, by queue and user. promises: those
    given and not yet kept or withdrawn. durations: seconds that the newest finished runs took, newest last,
    by the keys of `scheduler.duration_estimates`. max_placements: a policy may leave others to the next plan
    once it has placed so many; 0: it places whoever fits. preempt_grace_s: seconds that a run which is asked
    to make room may take before it is killed.
    """

    version: Version
    now: datetime
    nodes: Mapping[NodeId, Node]
    pending: Sequence[Gang] = ()
    running: Sequence[Running] = ()
    queues: QueueTree = SINGLE_QUEUE_TREE
    past_usage: Mapping[tuple[QueueName, str], PastUsage] = field(default_factory=dict)
    reservations: tuple[Reservation, ...] = ()
    promises: Mapping[GangId, Promise] = field(default_factory=dict)
    durations: Mapping[str, tuple[float, ...]] = field(default_factory=dict)
    max_placements: int = 0
    preempt_grace_s: float = PREEMPT_GRACE_S
    backing_off: tuple[Gang, ...] = ()

    def engine_of(self, running: Running) -> str | None:
        """The engine that an attempt runs with: that of its nodes.
        None where none of them is there any more."""
        return next(
            (self.nodes[one.node].engine for one in running.placement.assignments if one.node in self.nodes),
            None,
        )


@dataclass(frozen=True, slots=True)
class Hold:
    """A gang that is not placed. `position` counts from 1 in the order of its queue.

    blocked_by: what stands in the way, as "run:ID", "queue:NAME", "reservation:NAME", "node:ID", the first
    few.
    """

    gang: GangId
    cause: HoldCause
    position: int
    blocked_by: tuple[str, ...] = ()

    @property
    def reason(self) -> HoldReason:
        return self.cause.reason


@dataclass(frozen=True, slots=True)
class Preemption:
    """A live attempt is asked to save a checkpoint and end, so that `for_gang` can start; for a reservation
    that is no gang, `""`."""

    attempt: AttemptId
    gang: GangId
    for_gang: GangId
    cause: PreemptionCause


@dataclass(frozen=True, slots=True)
class Plan:
    """What a policy wants: every pending gang exactly once, in `place` or in `hold`.
    It does nothing by itself.

    hold: may be a lazy sequence, for a queue of a hundred thousand. preempt: attempts to ask to end.
    promises: all that hold from now on, those given before and not broken included. breaches: those that this
    plan withdraws. next_cycle_at: when to plan anew although nothing changes (a reservation begins, a run has
    been served long enough).
    """

    based_on: Version
    place: tuple[Placement, ...] = ()
    hold: Sequence[Hold] = ()
    preempt: tuple[Preemption, ...] = ()
    promises: tuple[Promise, ...] = ()
    breaches: tuple[Breach, ...] = ()
    next_cycle_at: datetime | None = None


@dataclass(frozen=True, slots=True)
class PlanResult:
    """What of a plan was committed. attempts: the new attempt of each gang in `applied`.
    rejected: per gang why it no longer fitted. preempted: attempts that are to be asked to make room."""

    applied: tuple[GangId, ...]
    rejected: Mapping[GangId, str]
    version: Version
    attempts: tuple[AttemptId, ...] = ()
    preempted: tuple[AttemptId, ...] = ()


@dataclass(frozen=True, slots=True)
class Observation:
    """The current state of an engine: all its nodes and all attempts that it knows. Never a diff."""

    nodes: tuple[Node, ...]
    attempts: tuple[AttemptStatus, ...] = ()
