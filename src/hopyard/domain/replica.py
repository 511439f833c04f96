"""What an engine and a replica tell each other through the files of the replica's folder (design page 0001,
section 4)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime

from hopyard.domain.attempt import Exit, ExitKind, ReplicaPhase
from hopyard.domain.launch import ReplicaLaunch
from hopyard.domain.resources import WHOLE_GPU

SPEC_FILE, STATUS_FILE, STOP_FILE, LOCK_FILE, TOKEN_FILE = "spec.json", "status.json", "stop", "lock", "token"
RUN_TOKEN_PREFIX = "hopr_"  # begins every run's token
STUDY_FILE = "study.json"  # of a replica of a study: {"spec": StudySpec, "secret": hexadecimal digits}


@dataclass(frozen=True, slots=True)
class NodeContext:
    """What only the node knows about the place of one replica.

    cpus: the cores it is bound to, None binds it to none. cgroups: controller ("memory", "cpu", "pids") → the
    folder of the group that the replica makes for its process; empty where the kernel does not let us, memory
    is then watched. processes: how many processes and threads it may have at once, 0 where that is not
    limited. gang_folder: one that all replicas of the gang on this node see.
    namespaces: whether the run's process gets a view of the home of its own (`replica.mount_namespace`).
    nvml: the GPUs are real ones that the driver names (declared ones are not asked after). gpu_milli:
    thousandths of each of `gpus` that are this replica's; gpu_memory_bytes: what it may use of each of them,
    0 where that is not limited. max_output_bytes: of each of stdout and stderr, 0 is no limit.
    max_metrics_bytes: of each stream of its reports, 0 is no limit. pass_environment: as of
    `domain.run_environment.for_runs`. grace_s: between SIGTERM and SIGKILL when the end comes from the
    replica itself (at most, before a time limit; at the server's word without a grace).
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
    grace_s: float = 10.0
    nvml: bool = False
    pass_environment: tuple[str, ...] = ()
    max_output_bytes: int = 0
    max_metrics_bytes: int = 0
    processes: int = 0
    namespaces: bool = True


@dataclass(frozen=True, slots=True)
class ReplicaSpec:
    """The content of `spec.json`."""

    launch: ReplicaLaunch
    node: NodeContext


@dataclass(frozen=True, slots=True)
class ReplicaState:
    """The content of `status.json`.

    pid: the replica program. child_pid: the user's process, 0 before it started. child_started: when the
    kernel says that it started, in clock ticks since boot; with `boot` (the kernel's boot id) it tells a
    process from a later one of the same number. started_at: unix seconds; of the user's process once there is
    one. ended_at: when that ended, 0 before. shipped: the server has everything, nothing is left to do.
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

    def start_and_end(self) -> tuple[datetime | None, datetime | None]:
        """When the user's process began and ended, by the clock of this machine; None where it did not."""
        began = datetime.fromtimestamp(self.started_at, UTC) if self.child_pid else None
        return began, datetime.fromtimestamp(self.ended_at, UTC) if self.child_pid and self.ended_at else None


@dataclass(frozen=True, slots=True)
class StopOrder:
    """The content of `stop`: end within `grace_s`, and say so with this kind and reason.

    at_safe_point: a script that has safe points leaves at its next one; SIGTERM comes to it only when the
    grace is nearly over. At a time limit it comes no sooner to one without safe points.
    """

    grace_s: float
    kind: ExitKind = ExitKind.STOPPED
    reason: str = "stopped by request"
    at_safe_point: bool = False

    @classmethod
    def for_preemption(cls, grace_s: float) -> StopOrder:
        """Make room, after saving a checkpoint where that can be."""
        return cls(grace_s, ExitKind.PREEMPTED, "preempted", at_safe_point=True)

    @classmethod
    def for_time_limit(cls, grace_s: float, reason: str) -> StopOrder:
        """The time limit comes in `grace_s`: save a checkpoint where that can be, and end before."""
        return cls(grace_s, ExitKind.TIME_LIMIT, reason, at_safe_point=True)

    @property
    def requests_checkpoint(self) -> bool:
        """Whether the run is to go on from what it saves: it makes room, or its time is over."""
        return self.kind in (ExitKind.PREEMPTED, ExitKind.TIME_LIMIT)

    def merged_with(self, other: StopOrder) -> StopOrder:
        """What holds when a second order comes: the smaller grace; and who is simply to end waits for no safe
        point."""
        said = other if self.at_safe_point and not other.at_safe_point else self
        return replace(said, grace_s=min(self.grace_s, other.grace_s))


def stop_order_for_peers(ended: Sequence[tuple[int, Exit]], grace_s: float) -> StopOrder | None:
    """What the others of a gang are told once essential replicas ended badly; None where none did.
    ended: ranks, and how they ended."""
    bad = [(rank, exit) for rank, exit in ended if not exit.is_success]
    if not bad:
        return None
    # One that ended because of another is no cause.
    rank, exit = next((one for one in bad if one[1].kind is not ExitKind.PEER_FAILED), bad[0])
    if exit.kind is ExitKind.PREEMPTED:
        return StopOrder(grace_s, ExitKind.PREEMPTED, f"preempted with replica {rank}")
    if exit.kind is ExitKind.STOPPED:
        return StopOrder(grace_s, reason=f"stopped with replica {rank}")
    how = {
        ExitKind.TIME_LIMIT: "reached its time limit",
        ExitKind.LOST: "was lost",
        ExitKind.PEER_FAILED: "ended",
    }.get(exit.kind, "failed")
    return StopOrder(grace_s, ExitKind.PEER_FAILED, f"ended because replica {rank} {how}")
