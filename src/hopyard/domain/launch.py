"""The launch of a gang by an engine, and the launch of each of its replicas."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import field
from typing import Any

from hopyard.backports import dataclass
from hopyard.domain.evaluation import EvaluationSpec
from hopyard.domain.gang import Placement
from hopyard.domain.ids import AttemptId, Digest, RunId
from hopyard.domain.launcher import Launcher, LauncherPeer
from hopyard.domain.param_format import ParamFormat
from hopyard.domain.preflight import PreflightLaunch
from hopyard.domain.resources import Resources
from hopyard.domain.restart_policy import NO_RESTART, RestartPolicy
from hopyard.domain.run import DatasetRef, Environment, ParamValue
from hopyard.domain.run_network import RunNetwork


@dataclass(frozen=True, slots=True)
class RestorePoint:
    """The checkpoint that an attempt starts from."""

    step: int
    manifest: Digest


@dataclass(frozen=True, slots=True)
class ReplicaLaunch:
    """The settings of one replica, as values that JSON can hold. The engine adds the settings of the node."""

    attempt: AttemptId
    run: RunId
    run_name: str
    rank: int
    role: str
    role_rank: int  # rank among the replicas of its role
    world_size: int
    command: tuple[str, ...]
    resources: Resources
    server_url: str
    token: str
    code: Digest | None = None
    datasets: tuple[DatasetRef, ...] = ()
    params: Mapping[str, ParamValue] = field(default_factory=dict)
    env: Mapping[str, str] = field(default_factory=dict)
    tags: Mapping[str, str] = field(default_factory=dict)
    environment: Environment = Environment()
    time_limit_s: float | None = None
    max_output_bytes: int | None = None  # as of `domain.run.RunSpec`
    max_metrics_bytes: int | None = None  # the same
    outputs: tuple[str, ...] = ()  # the same
    metric_lines: tuple[str, ...] = ()  # the same
    ports: Mapping[str, int] = field(default_factory=dict)  # the same
    evaluation: EvaluationSpec | None = None  # the same
    resume_arguments: tuple[str, ...] = ()  # the same
    # newest first: where its script has saved checkpoints, below `run/` or `work/`; see `resume_arguments`
    own_checkpoints: tuple[str, ...] = ()
    restore: RestorePoint | None = None
    essential: bool = True  # as of `domain.gang.Role`
    restart: RestartPolicy = NO_RESTART  # as of `domain.run.RoleSpec`
    study: Mapping[str, Any] | None = None  # as of `domain.run.RunSpec`
    foreign: bool = False  # as of `domain.run.ResumeFrom`, where this attempt starts from that checkpoint
    secrets: Mapping[str, str] = field(default_factory=dict)  # values of the secrets that the run names
    private_folders: bool = False  # as of `domain.run.RoleSpec`
    checkpoint_files: tuple[str, ...] = ()  # as of `domain.run.RunSpec`
    run_folder: Digest | None = None  # the run folder that the attempt begins with
    continued_runs: tuple[RunId, ...] = ()  # as of `domain.run.RunSpec`
    elastic: bool = False  # the gang may have more replicas in another attempt
    param_format: ParamFormat | None = None  # as of `domain.run.RunSpec`
    # known to the replicas of this attempt alone, hexadecimal digits; "" where they need none
    secret: str = ""
    service: bool = False  # as of `domain.gang.Role`
    image: str = ""  # as of `domain.run.RoleSpec`
    network: RunNetwork = RunNetwork.DEFAULT  # as of `domain.run.RunSpec`
    launcher: Launcher = Launcher.NONE  # as of `domain.run.RoleSpec`
    # of the gang: replicas for which the training does not wait, such as services and evaluators
    independent_ranks: tuple[int, ...] = ()
    launcher_peers: tuple[LauncherPeer, ...] = ()  # all replicas with this launcher, in the order of ranks
    preflight: PreflightLaunch = PreflightLaunch()
    visdom: bool = False  # the user of the run has a live Visdom server

    @property
    def host_name(self) -> str:
        """The name by which the other replicas of the gang find this one: `ps-1`."""
        return f"{self.role}-{self.role_rank}"

    @property
    def in_gang(self) -> bool:
        """Whether its process gets a rank: it is one of several, may be in another attempt, has a launcher,
        or runs a study."""
        return (
            self.world_size > 1
            or self.elastic
            or self.study is not None
            or self.launcher is not Launcher.NONE
        )


@dataclass(frozen=True, slots=True)
class Launch:
    """The launch of one gang; `replicas[i]` has rank i and the place `placement.assignments[i]`."""

    attempt: AttemptId
    placement: Placement
    replicas: tuple[ReplicaLaunch, ...]
