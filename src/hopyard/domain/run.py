"""A run: what a user asked for, and what became of it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from enum import StrEnum
from itertools import islice
from typing import Any

from hopyard.domain.attempt import Exit
from hopyard.domain.gang import ANY_NODE, DEFAULT_PRIORITY, Gang, NodeSelector, Role, Topology
from hopyard.domain.ids import (
    DEFAULT_QUEUE,
    AttemptId,
    Digest,
    GangId,
    QueueName,
    RunId,
    RunName,
    split_attempt,
)
from hopyard.domain.resources import Resources
from hopyard.errors import Conflict

ParamValue = str | int | float | bool | None
MAX_REPLICAS = 4096  # of one run
UNSTORED = "unstored"  # the kind of an event: something of the run could not be stored, and was given up


class RunPhase(StrEnum):
    QUEUED = "queued"
    STARTING = "starting"
    RUNNING = "running"
    STOPPING = "stopping"  # asked to end, not yet ended
    SUCCEEDED = "succeeded"
    FAILED = "failed"
    CANCELLED = "cancelled"

    @property
    def is_final(self) -> bool:
        return self in _FINAL_PHASES


_FINAL_PHASES = frozenset({RunPhase.SUCCEEDED, RunPhase.FAILED, RunPhase.CANCELLED})

# Every legal change of phase. QUEUED is reached again from a lost or preempted attempt.
TRANSITIONS: Mapping[RunPhase, frozenset[RunPhase]] = {
    RunPhase.QUEUED: frozenset({RunPhase.STARTING, RunPhase.CANCELLED, RunPhase.FAILED}),
    RunPhase.STARTING: frozenset({RunPhase.RUNNING, RunPhase.STOPPING, RunPhase.QUEUED, *_FINAL_PHASES}),
    RunPhase.RUNNING: frozenset({RunPhase.STOPPING, RunPhase.QUEUED, *_FINAL_PHASES}),
    RunPhase.STOPPING: frozenset({RunPhase.QUEUED, *_FINAL_PHASES}),
    RunPhase.SUCCEEDED: frozenset(),
    RunPhase.FAILED: frozenset(),
    RunPhase.CANCELLED: frozenset(),
}


def checked_transition(before: RunPhase, after: RunPhase) -> RunPhase:
    """`after`, for a run that is in `before`: what every write of a phase goes through.
    Raises Conflict for a change that TRANSITIONS does not have."""
    if after is before or after in TRANSITIONS[before]:
        return after
    raise Conflict(f"a run in phase {before} cannot become {after}")


@dataclass(frozen=True, slots=True)
class RoleSpec:
    """One kind of replica. `command` is an argument vector; it is run in the folder of the code.

    A command whose first word is `python` gets the interpreter of the run's environment.
    min_replicas, where, topology, essential: as of `domain.gang.Role`.
    """

    command: tuple[str, ...]
    name: str = "worker"
    replicas: int = 1
    resources: Resources = Resources()
    min_replicas: int = 0
    where: NodeSelector = ANY_NODE
    topology: Topology | None = None
    essential: bool = True


@dataclass(frozen=True, slots=True)
class DatasetRef:
    """A dataset as a run uses it. version 0 asks for the newest; the server pins it when the run is
    accepted."""

    name: str
    version: int = 0
    manifest: Digest | None = None  # filled by the server


@dataclass(frozen=True, slots=True)
class GitState:
    """Where the code stood. `diff` is the digest of a blob: `git diff HEAD` as bytes, None where nothing
    differed."""

    commit: str
    branch: str = ""
    dirty: bool = False
    remote: str = ""
    diff: Digest | None = None


@dataclass(frozen=True, slots=True)
class Environment:
    """The Python that runs the script.

    interpreter: absolute path used as it is (only on the machine of the caller), "" takes the server's own.
    requirements: digest of the requirements file's blob; None builds nothing. lock: digest of the resolved,
    pinned requirements, recorded by the first replica that resolved them, so that a fork gets the same
    environment.
    """

    interpreter: str = ""
    requirements: Digest | None = None
    lock: Digest | None = None
    python: str = ""  # for example "3.11"; "" takes the server's own
    packages: Mapping[str, str] = field(default_factory=dict)  # what `hop diff` compares, where known


@dataclass(frozen=True, slots=True)
class ResumeFrom:
    """The checkpoint that a first attempt starts from (of a forked run).
    foreign: another user's run wrote it, and this run's user did not say that all of it may be read."""

    run: RunId
    step: int
    manifest: Digest
    foreign: bool = False


@dataclass(frozen=True, slots=True)
class RunSpec:
    """Everything that decides what a run does. Immutable; a fork is a copy with changes.

    queue, priority: None asks for none; what the tree of queues says then is filled in when the run is
    accepted. topology: of all replicas together, beside what each role asks for itself. study: of a run that
    is a study, its StudySpec as JSON (`config.schemas.study_json`). parent: the study that a trial's run
    belongs to. max_output_bytes: how much of each of stdout and stderr of a replica is kept; None, and what
    is more, is as the node says. max_metrics_bytes: the same of its metrics, TensorBoard scalars, events and
    samples, of each. secrets: names of secrets of the run's user, whose values its processes get as variables
    of these names.
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
    max_attempts: int = 4  # the run ends with so many lost in a row without a newer checkpoint
    forked_from: RunId | None = None
    resume: ResumeFrom | None = None
    study: Mapping[str, Any] | None = None
    parent: RunId | None = None
    secrets: tuple[str, ...] = ()
    max_output_bytes: int | None = None
    max_metrics_bytes: int | None = None

    @property
    def size(self) -> int:
        return sum(role.replicas for role in self.roles)

    def gang_roles(self) -> tuple[Role, ...]:
        """What of its roles decides where replicas go."""
        return tuple(
            Role(
                role.name,
                role.replicas,
                role.resources,
                role.min_replicas,
                role.where,
                role.topology,
                role.essential,
            )
            for role in self.roles
        )

    @property
    def script(self) -> str:
        """What it runs, in a few words: the project, and of the first role's command the script alone.
        Arguments and params are left out: a search tries hundreds of them, and each would have a history of
        one."""
        command = self.roles[0].command if self.roles else ()
        return f"{self.project}:{_script_of(command)}"

    @property
    def input_digests(self) -> tuple[str, ...]:
        """As of `Gang.input_digests`: the manifests of its datasets, and the digests that name its
        environment."""
        keys = [
            *(ref.manifest for ref in self.datasets),
            self.environment.lock,
            self.environment.requirements,
        ]
        return tuple(key for key in keys if key is not None)

    def to_gang(self, run: RunId, user: str, *, submitted_at: datetime, served_s: float = 0.0) -> Gang:
        """What a policy sees of a run with this spec while it waits."""
        return Gang(
            GangId(run),
            self.gang_roles(),
            submitted_at,
            queue=self.queue or DEFAULT_QUEUE,
            priority=DEFAULT_PRIORITY if self.priority is None else self.priority,
            user=user,
            topology=self.topology,
            time_limit_s=self.time_limit_s,
            script=self.script,
            preemptible=self.preemptible,
            input_digests=self.input_digests,
            served_s=served_s,
        )


def _script_of(command: Sequence[str]) -> str:
    """`train.py` of `python -u train.py --lr 1`, `-m pkg.train` of `torchrun -m pkg.train`, else the
    program."""
    for at, word in enumerate(command):
        if at and word == "-m" and at + 1 < len(command):
            return f"-m {command[at + 1]}"
        if word.endswith((".py", ".sh", ".ipynb")):
            return word
    return command[0] if command else ""


@dataclass(frozen=True, slots=True)
class Attempt:
    """One launch of a run. `nodes[i]`, `gpus[i]` and `gpu_milli[i]` (thousandths of each of these GPUs)
    belong to rank i.

    counts: replicas of each role, which for an elastic run may be fewer than it asked for. preempted_for: the
    run that it was asked to make room for, "" where that is none in particular; preempt_reason says why.
    """

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
    gpu_milli: tuple[int, ...] = ()
    counts: tuple[int, ...] = ()
    saved_at: datetime | None = None  # its newest checkpoint
    preempted_for: RunId | None = None
    preempt_reason: str = ""


def check_not_superseded(attempt: AttemptId | None, newest_number: int, *, run: str) -> None:
    """Raises Conflict when the attempt with the number `newest_number` of this run came after `attempt`: what
    a superseded one says late changes nothing of its run. None: a user says it."""
    if attempt is not None and split_attempt(attempt)[1] < newest_number:
        number = split_attempt(attempt)[1]
        raise Conflict(
            f"attempt {number} of run {run} is superseded by attempt {newest_number}; its reports no "
            "longer change the run"
        )


def no_process_conflict(run: str) -> Conflict:
    hints = (
        "run `hop sync` on the machine that recorded it to send the rest",
        f"run `hop rm {run}` to delete the uploaded part",
    )
    return Conflict(
        f"run {run} was recorded offline and is being synced: the server runs no process of it", hints=hints
    )


HELD_REASON = "held"  # as `hold_reason`: it is held by a user, so no policy sees it


def held_message(user: str | None) -> str:
    return f"held by {user} until released"


class RunEventKind(StrEnum):
    PROMISED = "promised"  # a start was promised
    BREACHED = "breached"  # and could not be kept
    PREEMPTED = "preempted"  # it was asked to make room
    DAMAGED = "damaged"  # a checkpoint of it cannot be read
    TIME_LIMIT = "time-limit"  # its time limit comes soon
    CHANGED = "changed"  # somebody changed what it asks for, or what it is called


@dataclass(frozen=True, slots=True)
class RunEvent:
    """Something that was decided about a run, for people. `detail` is a sentence."""

    at: datetime
    kind: RunEventKind
    detail: str


@dataclass(frozen=True, slots=True)
class Run:
    """A run as the store knows it.

    params: declared by the script's `hop.params` with overrides applied (starts as spec.params). summary:
    what `hop.summary` said last, per name. preemptions: how often it made room. served_s: seconds that its
    ended attempts ran.
    Only while queued: position (in its queue), hold_reason and hold_detail, blocked_by and expected_at (as of
    `Hold`), promised_at (when its start is promised for).
    unstored: sentences about what of it could not be stored and was given up, and where that is kept.
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
    blocked_by: tuple[str, ...] = ()
    expected_at: datetime | None = None
    promised_at: datetime | None = None
    preemptions: int = 0
    served_s: float = 0.0
    # recorded by plain `python main.py`, synced later; it runs, without an attempt, until all of it has come
    offline: bool = False
    synced_at: datetime | None = None  # of one that is offline: when the last part of it came
    held_by: str | None = None  # the user who holds it: it waits, and does not start until it is released
    note: str = ""  # free text of its user
    unstored: tuple[str, ...] = ()

    @property
    def is_being_synced(self) -> bool:
        """Its record is brought here, and its end is not known yet: no node has anything to do with it."""
        return self.offline and not self.phase.is_final

    def optional_ranks(self) -> frozenset[int]:
        """Replicas of its newest attempt that are not essential, by rank."""
        counts = (
            [role.replicas for role in self.spec.roles]
            if self.attempt is None or not self.attempt.counts
            else self.attempt.counts
        )
        ranks = iter(range(sum(counts)))
        return frozenset(
            rank
            for role, count in zip(self.spec.roles, counts, strict=True)
            for rank in islice(ranks, count)
            if not role.essential
        )
