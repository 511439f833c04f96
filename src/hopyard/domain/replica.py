"""The messages between an engine and a replica, through the files of the replica's folder (design page 0001,
section 4)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import field, replace
from datetime import datetime
from pathlib import Path

from hopyard.backports import UTC, dataclass
from hopyard.domain.attempt import Exit, ExitKind, ReplicaPhase
from hopyard.domain.launch import ReplicaLaunch
from hopyard.domain.resources import WHOLE_GPU

SPEC_FILE, STATUS_FILE, STOP_FILE, LOCK_FILE, TOKEN_FILE = "spec.json", "status.json", "stop", "lock", "token"
RUN_TOKEN_PREFIX = "hopr_"  # starts every run's token
# of a stop, without `SIG`; the first ends most programs
STOP_SIGNALS = ("TERM", "INT", "HUP", "QUIT", "USR1", "USR2")
DEFAULT_STOP_SIGNAL = STOP_SIGNALS[0]
CONSOLE_SOCKET = "console.sock"  # in the folder of a replica: where it accepts consoles
STUDY_FILE = "study.json"  # of a replica of a study: {"spec": StudySpec, "secret": hexadecimal digits}
TRUSTED_SPEC_PREFIX = ".spec-"


def trusted_spec_file(replica: Path) -> Path:
    """Returns where the engine keeps the spec of a replica for itself and for an adoption. replica: its
    folder.

    The script may write to all folders of its attempt, so this file is beside the attempt. `SPEC_FILE` is for
    the script. It is the only one of a replica that an earlier version has started.
    """
    return replica.parent.with_name(f"{TRUSTED_SPEC_PREFIX}{replica.parent.name}-{replica.name}.json")


@dataclass(frozen=True, slots=True)
class ProbeAddress:
    """Where a replica is reached by the checks before the scripts of its gang start."""

    rank: int
    node: str
    host: str
    port: int


@dataclass(frozen=True, slots=True)
class NodeContext:
    """The data of one replica that only its node knows.

    cpus: the cores that it is bound to; None for no binding. cgroups: controller ("memory", "cpu", "pids") →
    the folder of the cgroup that the replica creates for its process. Empty if the kernel does not allow it;
    then memory is polled. processes: the limit of concurrent processes and threads, 0 for none. gang_folder:
    a folder that all replicas of the gang on this node share. namespaces: whether the run's process gets its
    own view of the home (`replica.mount_namespace`). machine_rank, machine_world_size: among the replicas
    that share `gang_folder`, which may be on several nodes of one machine; None: those of the node. hosts:
    the address of each replica of the gang by its host name, in the order of ranks. peer_ports: likewise, a
    free port of each replica; that of rank 0 is `master_port`. ports: where this replica serves each port of
    the run, by number. probe_addresses: where the replicas of `ReplicaLaunch.preflight` are reached.

    nvml: the GPUs are real GPUs that the driver knows (declared GPUs are not queried). gpu_milli: thousandths
    of each of `gpus` that belong to this replica. gpu_memory_bytes: its limit on each of them, 0 for none.
    max_output_bytes: of each of stdout and stderr, 0 for no limit. max_metrics_bytes: of each stream of its
    reports, 0 for no limit. max_media_bytes: of its media, 0 for no limit. pass_environment: as in
    `domain.run_environment.run_variables`. grace_s: between SIGTERM and SIGKILL when the replica ends the
    script itself (an upper bound before a time limit; also for a stop order without a grace).
    """

    id: str
    home: str
    server_file: str
    master_port: int
    master_addr: str = "127.0.0.1"
    gang_folder: str = ""
    gpus: tuple[int, ...] = ()
    gpu_milli: int = WHOLE_GPU
    gpu_memory_bytes: int = 0
    cpus: tuple[int, ...] | None = None
    cgroups: Mapping[str, str] = field(default_factory=dict)
    node_rank: int = 0
    local_rank: int = 0
    local_world_size: int = 1
    machine_rank: int | None = None
    machine_world_size: int | None = None
    grace_s: float = 10.0
    nvml: bool = False
    pass_environment: tuple[str, ...] = ()
    max_output_bytes: int = 0
    max_metrics_bytes: int = 0
    max_media_bytes: int = 0
    processes: int = 0
    namespaces: bool = True
    hosts: Mapping[str, str] = field(default_factory=dict)
    ports: Mapping[int, int] = field(default_factory=dict)
    peer_ports: Mapping[str, int] = field(default_factory=dict)
    probe_addresses: tuple[ProbeAddress, ...] = ()

    @property
    def is_first(self) -> bool:
        """Whether this replica does what the replicas that share `gang_folder` do once."""
        return (self.local_rank if self.machine_rank is None else self.machine_rank) == 0

    @property
    def shares_folder(self) -> bool:
        """Whether other replicas share `gang_folder`."""
        size = self.local_world_size if self.machine_world_size is None else self.machine_world_size
        return size > 1


@dataclass(frozen=True, slots=True)
class ReplicaSpec:
    """The content of `spec.json`."""

    launch: ReplicaLaunch
    node: NodeContext


@dataclass(frozen=True, slots=True)
class ReplicaState:
    """The content of `status.json`.

    pid: of the replica program. child_pid: the user's process, 0 before it started. child_started: its start
    time from the kernel, in clock ticks since boot; with `boot` (the kernel's boot id), it distinguishes the
    process from a later one with the same number. started_at: Unix seconds; of the user's process once it
    started. ended_at: the end of that process, 0 before. shipped: the server has everything, and nothing is
    left to do. container_pid: the first process of the container of the replica, 0 without one.
    """

    phase: ReplicaPhase
    pid: int
    detail: str = ""
    child_pid: int = 0
    child_started: int = 0
    boot: str = ""
    started_at: float = 0.0
    exit: Exit | None = None
    shipped: bool = False
    ended_at: float = 0.0
    container_pid: int = 0

    def start_and_end(self) -> tuple[datetime | None, datetime | None]:
        """Returns when the user's process began and ended, by the clock of this machine; None if it did
        not."""
        began = datetime.fromtimestamp(self.started_at, UTC) if self.child_pid else None
        return began, datetime.fromtimestamp(self.ended_at, UTC) if self.child_pid and self.ended_at else None


@dataclass(frozen=True, slots=True)
class StopOrder:
    """The content of `stop`: the order to end within `grace_s`, with the kind and reason of the exit.

    at_safe_point: a script with safe points ends at its next one, and gets SIGTERM only when the grace is
    nearly over. Before a time limit, a script without safe points gets SIGTERM no sooner either. signal: of
    `STOP_SIGNALS`; "" is the signal of an earlier order, or SIGTERM without one.
    """

    grace_s: float
    kind: ExitKind = ExitKind.STOPPED
    reason: str = "stopped by request"
    at_safe_point: bool = False
    signal: str = ""

    @classmethod
    def for_request(cls, grace_s: float, signal: str = "", *, preempt: bool = False) -> StopOrder:
        """Returns the order of a user or of the scheduler."""
        if preempt:
            return replace(cls.for_preemption(grace_s), signal=signal)
        if signal in ("", DEFAULT_STOP_SIGNAL):
            return cls(grace_s, signal=signal)
        return cls(grace_s, reason=f"stopped by request with SIG{signal}", signal=signal)

    @classmethod
    def for_preemption(cls, grace_s: float) -> StopOrder:
        """Returns an order to stop for a preemption, with a checkpoint if possible."""
        return cls(grace_s, ExitKind.PREEMPTED, "preempted", at_safe_point=True)

    @classmethod
    def for_time_limit(cls, grace_s: float, reason: str) -> StopOrder:
        """Returns an order to stop before the time limit in `grace_s`, with a checkpoint if possible."""
        return cls(grace_s, ExitKind.TIME_LIMIT, reason, at_safe_point=True)

    @property
    def requests_checkpoint(self) -> bool:
        """Whether the run should resume from its last save: it is preempted, or its time is over."""
        return self.kind in (ExitKind.PREEMPTED, ExitKind.TIME_LIMIT)

    def merged_with(self, other: StopOrder) -> StopOrder:
        """Returns the combination with a second order: the smaller grace, the second signal if it has one of
        its own, and no safe point unless both wait for one."""
        changed = other.kind is self.kind and other.signal not in ("", self.signal)
        order = other if changed or (self.at_safe_point and not other.at_safe_point) else self
        return replace(order, grace_s=min(self.grace_s, other.grace_s), signal=order.signal or self.signal)


DEFAULT_STOP_ORDER = StopOrder(10.0)
# of orders after which a dead replica is not lost. The order of a time limit comes long before the limit, and
# that of failed peers may come after the death, which may be the cause of their failure.
_ENDING_KINDS = (ExitKind.STOPPED, ExitKind.PREEMPTED)


def exit_after_replica_death(order: StopOrder | None, what: str) -> Exit:
    """Returns the exit of a replica that could not report its own. order: the stop order that it had, if any.
    what: the cause, for users ("its replica died on node a")."""
    if order is None or order.kind not in _ENDING_KINDS:
        return Exit(ExitKind.LOST, 1, f"lost: {what}")
    return Exit(order.kind, 137, f"{order.reason}: {what}")


def stop_order_for_peers(ended: Sequence[tuple[int, Exit]], grace_s: float) -> StopOrder | None:
    """Returns the order for the rest of a gang after essential replicas ended badly; None if none did.

    ended: ranks and exits.
    """
    failures = [(rank, exit) for rank, exit in ended if not exit.is_success]
    if not failures:
        return None
    # An exit that was caused by a peer is not the cause.
    rank, exit = next(
        (failure for failure in failures if failure[1].kind is not ExitKind.PEER_FAILED), failures[0]
    )
    if exit.kind is ExitKind.PREEMPTED:
        return StopOrder(grace_s, ExitKind.PREEMPTED, f"preempted with replica {rank}")
    if exit.kind is ExitKind.STOPPED:
        return StopOrder(grace_s, reason=f"stopped with replica {rank}")
    outcome = {
        ExitKind.TIME_LIMIT: "reached its time limit",
        ExitKind.LOST: "was lost",
        ExitKind.PEER_FAILED: "ended",
    }.get(exit.kind, "failed")
    return StopOrder(grace_s, ExitKind.PEER_FAILED, f"ended because replica {rank} {outcome}")
