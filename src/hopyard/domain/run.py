"""A run: what a user asked for, and what became of it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from enum import StrEnum

from hopyard.domain.attempt import Exit
from hopyard.domain.gang import ANYWHERE, Role, Topology, Where
from hopyard.domain.ids import AttemptId, Digest, QueueName, RunId, RunName
from hopyard.domain.resources import Resources

ParamValue = str | int | float | bool | None
MAX_REPLICAS = 4096  # of one run
DEFAULT_PRIORITY = 50  # of a run that asked for none, in a queue that says nothing else


class RunPhase(StrEnum):
    QUEUED = "queued"
    STARTING = "starting"
    RUNNING = "running"
    STOPPING = "stopping"  # asked to end, not yet ended
    SUCCEEDED = "succeeded"
    FAILED = "failed"
    CANCELLED = "cancelled"

    @property
    def final(self) -> bool:
        return self in _FINAL


_FINAL = frozenset({RunPhase.SUCCEEDED, RunPhase.FAILED, RunPhase.CANCELLED})

# Every legal change of phase. QUEUED is reached again from a lost attempt.
TRANSITIONS: Mapping[RunPhase, frozenset[RunPhase]] = {
    RunPhase.QUEUED: frozenset({RunPhase.STARTING, RunPhase.CANCELLED, RunPhase.FAILED}),
    RunPhase.STARTING: frozenset({RunPhase.RUNNING, RunPhase.STOPPING, RunPhase.QUEUED, *_FINAL}),
    RunPhase.RUNNING: frozenset({RunPhase.STOPPING, RunPhase.QUEUED, *_FINAL}),
    RunPhase.STOPPING: frozenset({RunPhase.QUEUED, *_FINAL}),
    RunPhase.SUCCEEDED: frozenset(),
    RunPhase.FAILED: frozenset(),
    RunPhase.CANCELLED: frozenset(),
}


@dataclass(frozen=True, slots=True)
class RoleSpec:
    """One kind of replica. `command` is an argument vector; it is run in the folder of the code.

    A command whose first word is `python` gets the interpreter of the run's environment.
    min_replicas, where, topology: as of `domain.gang.Role`.
    """

    command: tuple[str, ...]
    name: str = "worker"
    replicas: int = 1
    resources: Resources = Resources()
    min_replicas: int = 0
    where: Where = ANYWHERE
    topology: Topology | None = None


@dataclass(frozen=True, slots=True)
class DatasetRef:
    """A dataset as a run uses it. version 0 asks for the newest; the server pins it when the run is accepted."""

    name: str
    version: int = 0
    manifest: Digest | None = None  # filled by the server


@dataclass(frozen=True, slots=True)
class GitState:
    """Where the code stood. `diff` is the digest of a blob: `git diff HEAD` as bytes, None where nothing differed."""

    commit: str
    branch: str = ""
    dirty: bool = False
    remote: str = ""
    diff: Digest | None = None


@dataclass(frozen=True, slots=True)
class Environment:
    """The Python that runs the script.

    interpreter: absolute path used as it is (only on the machine of the caller), "" takes the server's own.
    requirements: digest of the requirements file's blob; None builds nothing. lock: digest of the resolved, pinned
    requirements, recorded by the first replica that resolved them, so that a fork gets the same environment.
    """

    interpreter: str = ""
    requirements: Digest | None = None
    lock: Digest | None = None
    python: str = ""  # for example "3.11"; "" takes the server's own
    packages: Mapping[str, str] = field(default_factory=dict)  # what `hop diff` compares, where known


@dataclass(frozen=True, slots=True)
class ResumeFrom:
    """The checkpoint that a first attempt starts from (of a forked run)."""

    run: RunId
    step: int
    manifest: Digest


@dataclass(frozen=True, slots=True)
class RunSpec:
    """Everything that decides what a run does. Immutable; a fork is a copy with changes.

    queue, priority: None asks for none; what the tree of queues says then is filled in when the run is accepted.
    topology: of all replicas together, beside what each role asks for itself.
    """

    project: str
    roles: tuple[RoleSpec, ...]
    code: Digest | None = None  # manifest of the code; None runs in an empty folder
    label: str = ""
    datasets: tuple[DatasetRef, ...] = ()
    params: Mapping[str, ParamValue] = field(default_factory=dict)
    env: Mapping[str, str] = field(default_factory=dict)
    tags: Mapping[str, str] = field(default_factory=dict)
    environment: Environment = Environment()
    git: GitState | None = None
    queue: QueueName | None = None
    priority: int | None = None  # larger goes first
    preemptible: bool = True  # may be asked to make room for another run
    topology: Topology | None = None
    time_limit_s: float | None = None
    max_attempts: int = 4  # lost attempts are repeated up to this many in all
    forked_from: RunId | None = None
    resume: ResumeFrom | None = None

    @property
    def size(self) -> int:
        return sum(role.replicas for role in self.roles)

    def gang_roles(self) -> tuple[Role, ...]:
        """What of its roles decides where replicas go."""
        return tuple(Role(role.name, role.replicas, role.resources, role.min_replicas, role.where, role.topology) for role in self.roles)


@dataclass(frozen=True, slots=True)
class Attempt:
    """One launch of a run. `nodes[i]` and `gpus[i]` belong to rank i."""

    id: AttemptId
    number: int
    phase: str  # AttemptPhase value
    nodes: tuple[str, ...]
    gpus: tuple[tuple[int, ...], ...]
    engine: str
    placed_at: datetime
    started_at: datetime | None = None
    ended_at: datetime | None = None
    exit: Exit | None = None
    resumed_from_step: int | None = None


@dataclass(frozen=True, slots=True)
class Run:
    """A run as the store knows it.

    params: declared by the script's `hop.params` with overrides applied (starts as spec.params).
    summary: what `hop.summary` said last, per name. position and hold: only while queued.
    """

    id: RunId
    name: RunName
    spec: RunSpec
    phase: RunPhase
    submitted_at: datetime
    attempt: Attempt | None = None  # the newest
    started_at: datetime | None = None
    ended_at: datetime | None = None
    exit: Exit | None = None
    params: Mapping[str, ParamValue] = field(default_factory=dict)
    summary: Mapping[str, float] = field(default_factory=dict)
    artifact: Digest | None = None  # manifest of files that the run made or changed in its folder
    stop_requested: bool = False
    hold_reason: str = ""
    hold_detail: str = ""
    position: int | None = None
    offline: bool = False  # recorded by plain `python main.py`, synced later
