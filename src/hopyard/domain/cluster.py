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

PREEMPT_GRACE_S = 60.0  # by default, to reach a safe point and save a checkpoint


@dataclass(frozen=True, slots=True)
class Node:
    """A machine with its total capacity for runs (not the free part).

    ready: its engine reports it. cordoned: an administrator blocks new starts on it; cordon_reason: why.
    trouble: why the engine cannot start runs on it for now, "" if it can. extras: other countable resources
    by name. holds: keys of the datasets and environments in its cache, as in `Gang.input_digests`.
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
        """Whether runs can start on it."""
        return self.ready and not self.cordoned and not self.trouble

    @property
    def unschedulable_state(self) -> str:
        """The state that blocks starts on it, for use after "is": `cordoned`; "" if it is schedulable."""
        if not self.ready:
            return "not ready"
        return "cordoned" if self.cordoned else f"out of service: {self.trouble}" if self.trouble else ""

    def as_schedulable(self) -> Node:
        """Returns the node in a state that allows starts."""
        return self if self.schedulable else replace(self, ready=True, cordoned=False, trouble="")


@dataclass(frozen=True, slots=True)
class ServerRecord:
    """A server of this database.

    engine: the engine of its nodes. place: its machine and home. seen_at: when it last recorded that it is
    up. url: its address for the other servers, "" if unknown. key: signs requests of other servers to it; it
    changes with each start of the server.
    """

    engine: str
    place: str
    seen_at: datetime
    url: str = ""
    key: str = field(default="", repr=False)


@dataclass(frozen=True, slots=True)
class Running:
    """A gang that holds resources: it starts, runs, or is being stopped.

    started_at: when its processes started, None while it prepares. saved_at: the time of this attempt's
    newest checkpoint, None without one. A stop now would lose the work since then. stopping: its stop was
    requested; preempt_requested_at: when, if known. preempted_for: the gang for which it is preempted.
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
    """A promise to a waiting gang: it starts at `start_at` or earlier, on these nodes as far as they are
    known. has_preempted: runs were preempted for it."""

    gang: GangId
    start_at: datetime
    given_at: datetime
    nodes: tuple[NodeId, ...] = ()
    has_preempted: bool = False


@dataclass(frozen=True, slots=True)
class Breach:
    """A promise that cannot be kept: the cause, and the new expected start (None if unknown).

    displaced_by: the gang that goes first, if that is the cause.
    """

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

    pending: waiting gangs without `backing_off`, which are requeued gangs that must not start before their
    time. running: gangs that hold resources. Both are immutable; a store returns them as
    `PersistentSequence`. past_usage: the past usage of users, by queue and user. promises: promises that are
    neither kept nor withdrawn. durations: seconds that the newest finished runs took, newest last, by the
    keys of `domain.duration_keys`.

    max_placements: after this number of placements, a policy may leave other gangs to the next plan; 0 means
    no limit. preempt_grace_s: seconds that a preempted run may take before it is killed.
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
        """Returns the engine of an attempt, which is that of its nodes; None if none of them exists any
        more."""
        return next(
            (
                self.nodes[assignment.node].engine
                for assignment in running.placement.assignments
                if assignment.node in self.nodes
            ),
            None,
        )


@dataclass(frozen=True, slots=True)
class Hold:
    """A gang that is not placed. `position` counts from 1 in the order of its queue.

    blocked_by: the first few blockers, as "run:ID", "queue:NAME", "reservation:NAME", "node:ID".
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
    """A live attempt is asked to save a checkpoint and stop, so that `for_gang` can start; `for_gang` is ""
    for a reservation."""

    attempt: AttemptId
    gang: GangId
    for_gang: GangId
    cause: PreemptionCause


@dataclass(frozen=True, slots=True)
class Plan:
    """The decisions of a policy: every pending gang exactly once, in `place` or in `hold`. A plan itself has
    no effects.

    hold: may be a lazy sequence, for a queue of a hundred thousand gangs. preempt: attempts to preempt.
    promises: all promises from now on, including earlier ones that are not broken. breaches: promises that
    this plan withdraws. next_cycle_at: when to plan again even without changes (a reservation begins, a run
    has been served long enough).
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
    """The committed part of a plan.

    attempts: the new attempt of each gang in `applied`. rejected: by gang, why it no longer fits. preempted:
    attempts with a requested preemption.
    """

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
