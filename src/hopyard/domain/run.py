"""A run: the request of a user, and its result."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import field, replace
from datetime import datetime
from typing import Any

from hopyard.backports import StrEnum, dataclass
from hopyard.domain.attempt import Exit
from hopyard.domain.checkpoint_retention import RetentionRule
from hopyard.domain.evaluation import EvaluationSpec
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
from hopyard.domain.launcher import Launcher
from hopyard.domain.notebook import notebook_of
from hopyard.domain.notification import NotifyTarget
from hopyard.domain.param_format import ParamFormat
from hopyard.domain.param_format import ParamValue as ParamValue
from hopyard.domain.preflight import Preflight
from hopyard.domain.resources import Resources
from hopyard.domain.restart_policy import NO_RESTART, RestartPolicy
from hopyard.domain.run_network import RunNetwork
from hopyard.errors import Conflict

MAX_REPLICAS = 4096  # of one run
MAX_CONTINUED_RUNS = 16
UNSTORED = "unstored"  # the kind of an event: a part of the run could not be stored, and was given up


class RunPhase(StrEnum):
    QUEUED = "queued"
    STARTING = "starting"
    RUNNING = "running"
    PAUSED = "paused"  # its script waits at a safe point; the run keeps its resources
    STOPPING = "stopping"  # a stop was requested; not yet ended
    SUCCEEDED = "succeeded"
    FAILED = "failed"
    CANCELLED = "cancelled"

    @property
    def is_final(self) -> bool:
        return self in _FINAL_PHASES


_FINAL_PHASES = frozenset({RunPhase.SUCCEEDED, RunPhase.FAILED, RunPhase.CANCELLED})

# All legal changes of phase. A lost or preempted attempt returns its run to QUEUED.
TRANSITIONS: Mapping[RunPhase, frozenset[RunPhase]] = {
    RunPhase.QUEUED: frozenset({RunPhase.STARTING, RunPhase.CANCELLED, RunPhase.FAILED}),
    RunPhase.STARTING: frozenset({RunPhase.RUNNING, RunPhase.STOPPING, RunPhase.QUEUED, *_FINAL_PHASES}),
    RunPhase.RUNNING: frozenset({RunPhase.PAUSED, RunPhase.STOPPING, RunPhase.QUEUED, *_FINAL_PHASES}),
    RunPhase.PAUSED: frozenset({RunPhase.RUNNING, RunPhase.STOPPING, RunPhase.QUEUED, *_FINAL_PHASES}),
    RunPhase.STOPPING: frozenset({RunPhase.QUEUED, *_FINAL_PHASES}),
    RunPhase.SUCCEEDED: frozenset(),
    RunPhase.FAILED: frozenset(),
    RunPhase.CANCELLED: frozenset(),
}


def shown_phase(phase: RunPhase, *, is_paused: bool) -> RunPhase:
    """Returns the phase that users see, for a stored phase. A pause shows while the run is running, also in a
    later attempt."""
    return RunPhase.PAUSED if is_paused and phase is RunPhase.RUNNING else phase


def checked_transition(before: RunPhase, after: RunPhase) -> RunPhase:
    """Returns `after`, for a run in phase `before`. Every write of a phase uses it.

    Raises Conflict for a change that TRANSITIONS does not contain.
    """
    if after is before or after in TRANSITIONS[before]:
        return after
    raise Conflict(f"a run in phase {before} cannot become {after}")


@dataclass(frozen=True, slots=True)
class RoleSpec:
    """One kind of replica. command: an argument vector, run in the folder of the code.

    A command that starts with `python` uses the interpreter of the run's environment. min_replicas, where,
    topology, essential, service: as in `domain.gang.Role`. private_folders: each replica has a working folder
    of its own; otherwise the replicas of the gang on one node share one. restart: whether its processes start
    again after their end. launcher: see `domain.launcher`. processes: those that the launcher starts in each
    replica; 0 is one for each GPU, at least one. image: of the container in which each replica runs its
    command; "" runs it on the node itself.
    """

    command: tuple[str, ...]
    name: str = "worker"
    replicas: int = 1
    resources: Resources = Resources()
    min_replicas: int = 0
    where: NodeSelector = ANY_NODE
    topology: Topology | None = None
    essential: bool = True
    private_folders: bool = False
    restart: RestartPolicy = NO_RESTART
    launcher: Launcher = Launcher.NONE
    processes: int = 0
    service: bool = False
    image: str = ""

    @property
    def process_count(self) -> int:
        """The number of processes that the launcher starts in each replica."""
        return (self.processes or self.resources.gpus or 1) if self.launcher.has_processes else 1


@dataclass(frozen=True, slots=True)
class DatasetRef:
    """A dataset of a run.

    version: 0 requests the newest; the server pins it when it accepts the run. path: where the script finds
    it, absolute or relative to the working folder; "" leaves it in the node's cache.
    """

    name: str
    version: int = 0
    manifest: Digest | None = None  # filled by the server
    path: str = ""


@dataclass(frozen=True, slots=True)
class GitState:
    """The git state of the code. diff: the digest of a blob, `git diff HEAD` as bytes; None without a
    difference."""

    commit: str
    branch: str = ""
    dirty: bool = False
    remote: str = ""
    diff: Digest | None = None


@dataclass(frozen=True, slots=True)
class Environment:
    """The Python environment of the script.

    interpreter: an absolute path, used unchanged (only on the caller's machine); "" uses the server's own.
    requirements: the digest of the requirements file's blob; None builds no environment. lock: the digest of
    the resolved, pinned requirements. The first replica that resolves them records it, so that a fork gets
    the same environment. editable: the sources of packages that are installed editable, by name. A path
    relative to the code is imported from the packed code. An absolute path, with `@` and the commit if known,
    is outside of it. folder: the packed folder on the submitter's machine, "" if no package needs it. links:
    the absolute target of each link of the code that leads out of it, by path; the code does not hold them.
    container: the requirements are installed into images that are built from the images of the roles.
    """

    interpreter: str = ""
    requirements: Digest | None = None
    lock: Digest | None = None
    python: str = ""  # for example "3.11"; "" uses the server's own
    packages: Mapping[str, str] = field(default_factory=dict)  # for `hop diff`, if known
    editable: Mapping[str, str] = field(default_factory=dict)
    folder: str = ""
    links: Mapping[str, str] = field(default_factory=dict)
    container: bool = False


@dataclass(frozen=True, slots=True)
class ResumeFrom:
    """The checkpoint from which the first attempt of a forked run starts.

    foreign: another user's run wrote it, and this run's user did not confirm that all of it may be read.
    """

    run: RunId
    step: int
    manifest: Digest
    foreign: bool = False


@dataclass(frozen=True, slots=True)
class RunSpec:
    """Everything that decides what a run does. Immutable; a fork is a copy with changes.

    queue, priority: None requests none; the server then fills in the default of the tree of queues. topology:
    of all replicas together, in addition to the topology of each role. study: for a run that is a study, its
    StudySpec as JSON (`config.schemas.study_json`). parent: the study that a trial's run belongs to.

    max_output_bytes: the retained size of each of stdout and stderr of a replica; None, or more than the
    node's limit, means the node's limit. max_metrics_bytes: likewise, of each of its metrics, TensorBoard
    scalars, events and samples. param_format: how the script takes the params that its command does not name;
    None means by `hop.params`. secrets: names of secrets of the run's user; its processes get their values
    as variables of these names.

    checkpoint_files: patterns of files in the working folder that the next attempt begins with, beside those
    of `domain.checkpoint_files`. initial_folder: the run folder that the first attempt of a fork begins with.
    continued_runs: the runs with which that folder began, the oldest first. Their paths lead to the files of
    this run, because scripts write absolute paths into their checkpoints.
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
    priority: int | None = None  # larger runs first
    preemptible: bool = True  # may be preempted
    topology: Topology | None = None
    time_limit_s: float | None = None
    max_attempts: int = 4  # the run fails after this number of losses in a row without a newer checkpoint
    forked_from: RunId | None = None
    resume: ResumeFrom | None = None
    study: Mapping[str, Any] | None = None
    parent: RunId | None = None
    secrets: tuple[str, ...] = ()
    max_output_bytes: int | None = None
    max_metrics_bytes: int | None = None
    checkpoint_files: tuple[str, ...] = ()
    initial_folder: Digest | None = None
    continued_runs: tuple[RunId, ...] = ()
    param_format: ParamFormat | None = None
    outputs: tuple[str, ...] = ()  # patterns of the files to keep, see `domain.path_filter`; all without
    metric_lines: tuple[str, ...] = ()  # of the output, see `domain.metric_line`
    ports: Mapping[str, int] = field(default_factory=dict)  # by name, see `domain.run_port`
    idle_s: float | None = None  # after so long without use the run ends, see `domain.idle_rule`
    reads: tuple[RunId, ...] = ()  # other runs of which it may read data: TensorBoard shows them
    on_end: tuple[NotifyTarget, ...] = ()  # targets of notifications: of its end, of alerts
    evaluation: EvaluationSpec | None = None  # the checkpoints that it evaluates
    resume_arguments: tuple[str, ...] = ()  # see `domain.resume_arguments`
    retention: RetentionRule | None = None  # of checkpoints; None for the defaults
    preflight: Preflight = Preflight.PAIRS  # the checks before its script starts
    network: RunNetwork = RunNetwork.DEFAULT

    @property
    def size(self) -> int:
        return sum(role.replicas for role in self.roles)

    @property
    def is_elastic(self) -> bool:
        """Whether the number of replicas may differ between attempts."""
        return any(role.min_replicas for role in self.roles)

    @property
    def has_image(self) -> bool:
        """Whether its replicas run in containers."""
        return self.environment.container or any(role.image for role in self.roles)

    def with_base_image(self, image: str) -> RunSpec:
        """Returns the spec with this image for roles without their own, if its replicas run in containers of
        built images."""
        if not self.environment.container:
            return self
        return replace(self, roles=tuple(replace(role, image=role.image or image) for role in self.roles))

    @property
    def has_launcher(self) -> bool:
        return any(role.launcher is not Launcher.NONE for role in self.roles)

    def gang_roles(self) -> tuple[Role, ...]:
        """Returns the parts of its roles that decide the placement."""
        return tuple(
            Role(
                role.name,
                role.replicas,
                role.resources,
                role.min_replicas,
                role.where,
                role.topology,
                role.essential,
                role.service,
            )
            for role in self.roles
        )

    @property
    def script(self) -> str:
        """The program of the run in short: the project, and the script of the first role's command.

        Arguments and params are omitted: a search tries hundreds of them, and each would have a history of
        one run.
        """
        command = self.roles[0].command if self.roles else ()
        return f"{self.project}:{script_of(command)}"

    @property
    def input_digests(self) -> tuple[str, ...]:
        """As in `Gang.input_digests`: the manifests of its datasets, and the digests that name its
        environment."""
        keys = [
            *(ref.manifest for ref in self.datasets),
            self.environment.lock,
            self.environment.requirements,
        ]
        return tuple(key for key in keys if key is not None)

    @property
    def follows(self) -> GangId | None:
        """As in `Gang.follows`."""
        evaluation = self.evaluation
        return None if evaluation is None or not evaluation.follow else GangId(evaluation.run)

    def to_gang(self, run: RunId, user: str, *, submitted_at: datetime, served_s: float = 0.0) -> Gang:
        """Returns the gang that a policy gets for a waiting run with this spec."""
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
            follows=self.follows,
        )


def script_of(command: Sequence[str]) -> str:
    """Returns `train.py` for `python -u train.py --lr 1`, `-m pkg.train` for `torchrun -m pkg.train`, a
    notebook, else the program."""
    if notebook := notebook_of(command):
        return notebook
    for index, word in enumerate(command):
        if index and word == "-m" and index + 1 < len(command):
            return f"-m {command[index + 1]}"
        if word.endswith((".py", ".sh", ".ipynb")):
            return word
    return command[0] if command else ""


@dataclass(frozen=True, slots=True)
class Attempt:
    """One launch of a run. `nodes[i]`, `gpus[i]` and `gpu_milli[i]` (thousandths of each of these GPUs)
    belong to rank i.

    counts: the replicas of each role, which for an elastic run may be fewer than requested. preempted_for:
    the run for which it was preempted, "" if there is none in particular; preempt_reason: why.
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
    saved_at: datetime | None = None  # the time of its newest checkpoint
    preempted_for: RunId | None = None
    preempt_reason: str = ""


def check_not_superseded(attempt: AttemptId | None, newest_number: int, *, run: str) -> None:
    """Raises Conflict if `attempt` is older than the attempt `newest_number` of this run: late reports of a
    superseded attempt must not change the run. None means a request of a user, which is allowed."""
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


HELD_REASON = "held"  # as `hold_reason`: held by a user, so no policy sees the run


def held_message(user: str | None) -> str:
    return f"held by {user} until released"


class RunEventKind(StrEnum):
    PROMISED = "promised"  # a start was promised
    BREACHED = "breached"  # the promise could not be kept
    PREEMPTED = "preempted"  # its preemption was requested
    DAMAGED = "damaged"  # one of its checkpoints cannot be read
    TIME_LIMIT = "time-limit"  # its time limit is near
    UNREAD_PARAMS = "unread-params"  # given parameters that nothing read
    RESUMED = "resumed"  # the script was started with a checkpoint of its own
    MEDIA = "media"  # values of TensorBoard that are not read
    STOP_TRIAL = "stop-trial"  # a user stops one trial of a study
    CHANGED = "changed"  # a user changed its request or its name
    EVALUATION = "evaluation"  # another run evaluates its checkpoints
    RESTARTED = "restarted"  # the process of a replica ended, and started again
    ALERT = "alert"  # its script, or a user, gives notice of something
    NOTIFIED = "notified"  # a notification was sent, or could not be sent
    CONTROL = "control"  # a user paused it, resumed it, or set its parameters while it ran
    CONSOLE = "console"  # a user ran a command beside its script


@dataclass(frozen=True, slots=True)
class RunEvent:
    """A decision about a run, for users. `detail` is a sentence."""

    at: datetime
    kind: RunEventKind
    detail: str


def stop_sentence(trial: str, user: str) -> str:
    """Returns the detail of an event `STOP_TRIAL`."""
    return f"trial {trial} is stopped by {user}"


def trial_of_sentence(sentence: str) -> str:
    """Returns the trial of `stop_sentence`."""
    return sentence.split(" ", 2)[1]


@dataclass(frozen=True, slots=True)
class Run:
    """A run as stored.

    params: declared by the script's `hop.params`, with overrides applied (initially spec.params). summary:
    the last value of each name from `hop.summary`. preemptions: the number of its preemptions. served_s:
    seconds that its ended attempts ran.

    Only while queued: position (in its queue), hold_reason and hold_detail, blocked_by and expected_at (as in
    `Hold`), promised_at (the promised start). unstored: sentences about parts of the run that could not be
    stored and were given up, and where they are kept.
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
    run_folder: Digest | None = None  # manifest of the files that its next attempt begins with
    run_folder_bytes: int = 0
    artifact: Digest | None = None  # manifest of the files that the run created or changed in its folder
    stop_requested: bool = False
    hold_reason: str = ""
    hold_detail: str = ""
    position: int | None = None
    blocked_by: tuple[str, ...] = ()
    expected_at: datetime | None = None
    promised_at: datetime | None = None
    preemptions: int = 0
    served_s: float = 0.0
    # recorded by plain `python main.py` and synced later; it counts as running, without an attempt, until it
    # is synced completely
    offline: bool = False
    synced_at: datetime | None = None  # of an offline run: when its last part arrived
    held_by: str | None = None  # the user that holds it: it does not start until it is released
    note: str = ""  # free text of its user
    archived: bool = False  # listings omit it unless archived runs are requested
    paused_at: datetime | None = None  # while its phase is `paused`
    unstored: tuple[str, ...] = ()

    @property
    def is_being_synced(self) -> bool:
        """Whether its record is being synced, and its end is unknown: no node runs it."""
        return self.offline and not self.phase.is_final

    def continued_by_next(self) -> tuple[RunId, ...]:
        """Returns `RunSpec.continued_runs` of a run that begins with the run folder of this one."""
        return (*self.spec.continued_runs, self.id)[-MAX_CONTINUED_RUNS:]

    def optional_ranks(self) -> frozenset[int]:
        """Returns the ranks of replicas of its newest attempt that it does not wait for: see
        `Gang.optional_ranks`."""
        return self._placed_gang().optional_ranks()

    def service_ranks(self) -> frozenset[int]:
        """Returns the ranks of services of its newest attempt: see `Gang.service_ranks`."""
        return self._placed_gang().service_ranks()

    def _placed_gang(self) -> Gang:
        gang = Gang(GangId(self.id), self.spec.gang_roles(), self.submitted_at)
        if self.attempt is None or not self.attempt.counts:
            return gang
        return gang.with_replica_counts(self.attempt.counts)
