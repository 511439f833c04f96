"""The shape of a run: the domain's records with the bounds that a request must keep.

A request is decoded and checked in one pass (msgspec, in C), and then becomes the domain's record. The
OpenAPI description is made of the same declarations. A test compares the fields with those of `domain`.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Annotated

import msgspec
from msgspec import Meta

from hopyard.config.limits import (
    MAX_CPU_MILLI,
    MAX_DATASET_VERSION,
    MAX_EXTRAS,
    MAX_GPUS,
    MAX_MEMORY_BYTES,
    MAX_PROCESSES,
    MAX_SECONDS,
)
from hopyard.config.schemas.fields import (
    LINE,
    MAX_NAMES,
    PYTHON_VERSION,
    EnvKey,
    Hex,
    Id,
    Int64,
    Key,
    Label,
    LimitBytes,
    LongText,
    Name,
    ParamField,
    Priority,
    RequestModel,
    Seconds,
    SecretName,
    Text,
    full_match,
)
from hopyard.config.schemas.studies import StudyIn, to_study_json
from hopyard.domain.checkpoint_retention import (
    MAX_EVERY,
    MAX_KEPT,
    MAX_METRIC,
    RetentionRule,
    check_retention,
)
from hopyard.domain.gang import Closeness
from hopyard.domain.idle_rule import MIN_IDLE_S
from hopyard.domain.image_reference import IMAGE_PATTERN, MAX_IMAGE_REFERENCE
from hopyard.domain.launcher import Launcher
from hopyard.domain.metric_line import check_metric_lines
from hopyard.domain.notification import MAX_TARGET, MAX_TARGETS, NotifyOn
from hopyard.domain.param_format import OptionKind, OptionPlace, ParamStyle
from hopyard.domain.preflight import Preflight
from hopyard.domain.resources import WHOLE_GPU
from hopyard.domain.restart_policy import MAX_BACKOFF_S, MAX_RESTARTS, RestartMode
from hopyard.domain.resume_arguments import check_resume_arguments
from hopyard.domain.run import MAX_CONTINUED_RUNS, MAX_REPLICAS, RunSpec
from hopyard.domain.run_network import RunNetwork
from hopyard.domain.run_port import MAX_PORT_NUMBER, MAX_PORTS
from hopyard.domain.text import CONTROLS

MAX_ROLES, MAX_DATASETS = 64, 64
MAX_EXTRA_NAMES = 64
LinkTarget = Annotated[str, Meta(pattern=full_match(f"/[^{CONTROLS}]*"), max_length=4096)]
FilePattern = Annotated[str, Meta(min_length=1, max_length=1024, pattern=LINE)]


class ResourcesIn(RequestModel):
    cpu_milli: Annotated[int, Meta(ge=0, le=MAX_CPU_MILLI)] = 1000
    memory_bytes: Annotated[int, Meta(ge=0, le=MAX_MEMORY_BYTES)] = 0
    gpus: Annotated[int, Meta(ge=0, le=MAX_GPUS)] = 0
    gpu_models: Annotated[
        tuple[Annotated[str, Meta(min_length=1, max_length=128, pattern=LINE)], ...], Meta(max_length=64)
    ] = ()
    cpu_limited: bool = False
    gpu_milli: Annotated[int, Meta(ge=0, lt=WHOLE_GPU)] = 0
    gpu_memory_bytes: Annotated[int, Meta(ge=0, le=MAX_MEMORY_BYTES)] = 0
    extras: Annotated[
        tuple[tuple[Name, Annotated[int, Meta(ge=1, le=MAX_EXTRAS)]], ...], Meta(max_length=MAX_EXTRA_NAMES)
    ] = ()


class WhereIn(RequestModel):
    """Which nodes may be used: in one of these pools (none named: any), with all of these labels."""

    pools: Annotated[tuple[Name, ...], Meta(max_length=64)] = ()
    labels: Annotated[tuple[tuple[Key, Text], ...], Meta(max_length=64)] = ()


class TopologyIn(RequestModel):
    """How close replicas are to each other, within domains of a level: `node`, or the name of a label of
    nodes."""

    level: Key
    rule: Closeness
    slice: Annotated[int, Meta(ge=1, le=MAX_REPLICAS)] = 1


class RestartIn(RequestModel):
    """Whether the process of a replica starts again after its end.

    limit: restarts of each replica in one attempt. window_s: only those of the last seconds count, null
    counts all. backoff_s: the delay before the first restart; each further one doubles it.
    """

    mode: RestartMode = RestartMode.NEVER
    limit: Annotated[int, Meta(ge=1, le=MAX_RESTARTS)] = 3
    window_s: Seconds | None = None
    backoff_s: Annotated[float, Meta(gt=0, le=MAX_BACKOFF_S)] = 1.0


class RoleIn(RequestModel):
    command: Annotated[tuple[LongText, ...], Meta(min_length=1, max_length=10_000)]
    name: Name = "worker"
    replicas: Annotated[int, Meta(ge=1, le=MAX_REPLICAS)] = 1
    resources: ResourcesIn = msgspec.field(default_factory=ResourcesIn)
    min_replicas: Annotated[int, Meta(ge=0, le=MAX_REPLICAS)] = 0
    where: WhereIn = msgspec.field(default_factory=WhereIn)
    topology: TopologyIn | None = None
    essential: bool = True
    private_folders: bool = False
    restart: RestartIn = msgspec.field(default_factory=RestartIn)
    launcher: Launcher = Launcher.NONE
    processes: Annotated[int, Meta(ge=0, le=MAX_PROCESSES)] = 0
    service: bool = False
    image: Annotated[
        str, Meta(pattern=full_match(f"(?:{IMAGE_PATTERN})?"), max_length=MAX_IMAGE_REFERENCE)
    ] = ""


class DatasetRefIn(RequestModel):
    name: Name
    version: Annotated[int, Meta(ge=0, le=MAX_DATASET_VERSION)] = 0
    manifest: Hex | None = None
    path: Annotated[str, Meta(pattern=LINE, max_length=1024)] = ""


class EvaluationIn(RequestModel):
    """The checkpoints that a run evaluates.

    newest: skips checkpoints when a newer one is complete. step: only the checkpoint of this step. follow:
    waits for further checkpoints until the evaluated run has ended.
    """

    run: Id
    newest: bool = False
    step: Annotated[int, Meta(ge=0, le=2**63 - 1)] | None = None
    follow: bool = True


class GitIn(RequestModel):
    commit: Text
    branch: Text = ""
    dirty: bool = False
    remote: Text = ""
    diff: Hex | None = None


class EnvironmentIn(RequestModel):
    interpreter: Annotated[str, Meta(pattern=full_match(f"(/[^{CONTROLS}]*)?"), max_length=4096)] = ""
    requirements: Hex | None = None
    lock: Hex | None = None
    python: Annotated[str, Meta(pattern=PYTHON_VERSION, max_length=32)] = ""
    packages: Annotated[dict[Key, Text], Meta(max_length=100_000)] = msgspec.field(default_factory=dict)
    editable: Annotated[dict[Key, LongText], Meta(max_length=1000)] = msgspec.field(default_factory=dict)
    folder: Annotated[str, Meta(pattern=full_match(f"(/[^{CONTROLS}]*)?"), max_length=4096)] = ""
    links: Annotated[dict[LongText, LinkTarget], Meta(max_length=1000)] = msgspec.field(default_factory=dict)
    container: bool = False


class ScriptOptionIn(RequestModel):
    word: Text
    kind: OptionKind = OptionKind.VALUE
    off: Text = ""
    numeric: bool = False
    aliases: Annotated[tuple[Text, ...], Meta(max_length=16)] = ()
    text: bool = False
    place: OptionPlace = OptionPlace.ANY
    count: Annotated[int, Meta(ge=0, le=1000)] = 0


class ParamFormatIn(RequestModel):
    """How the script of a run takes its parameters: `ParamFormat` of the domain."""

    style: ParamStyle = ParamStyle.SDK
    source: Text = ""
    script: LongText = ""
    options: Annotated[dict[Key, ScriptOptionIn], Meta(max_length=MAX_NAMES)] = msgspec.field(
        default_factory=dict
    )
    complete: bool = False
    default: OptionKind = OptionKind.VALUE
    file: LongText = ""


PortNumber = Annotated[int, Meta(ge=1, le=MAX_PORT_NUMBER)]


class ResumeIn(RequestModel):
    """foreign: set by the server for a checkpoint that is another user's, or not one of `run`; only tensors,
    arrays and plain values are read of it."""

    run: Id
    step: Int64
    manifest: Hex
    foreign: bool = False


class NotifyTargetIn(RequestModel):
    """to: an e-mail address, the address of a webhook, or a target in the settings of the server. when: the
    events it gets; all without any."""

    to: Annotated[str, Meta(min_length=1, max_length=MAX_TARGET)]
    when: Annotated[tuple[NotifyOn, ...], Meta(max_length=8)] = ()


class RetentionIn(RequestModel):
    """Which checkpoints are kept: the newest `last` (null: as the server is set), the `best` ones by `metric`
    ("max:val_acc"; "" for that of the run), and those with a step that is a multiple of `every`."""

    last: Annotated[int, Meta(ge=1, le=MAX_KEPT)] | None = None
    best: Annotated[int, Meta(ge=0, le=MAX_KEPT)] = 1
    every: Annotated[int, Meta(ge=1, le=MAX_EVERY)] | None = None
    metric: Annotated[str, Meta(max_length=MAX_METRIC)] = ""


class SpecIn(RequestModel):
    """Everything that decides what a run does: `RunSpec` of the domain.
    queue, priority: null takes what the tree of queues says."""

    project: Name
    roles: Annotated[tuple[RoleIn, ...], Meta(min_length=1, max_length=MAX_ROLES)]
    code: Hex | None = None
    label: Label = ""
    datasets: Annotated[tuple[DatasetRefIn, ...], Meta(max_length=MAX_DATASETS)] = ()
    params: Annotated[dict[Key, ParamField], Meta(max_length=MAX_NAMES)] = msgspec.field(default_factory=dict)
    env: Annotated[dict[EnvKey, LongText], Meta(max_length=MAX_NAMES)] = msgspec.field(default_factory=dict)
    tags: Annotated[dict[Key, Text], Meta(max_length=MAX_NAMES)] = msgspec.field(default_factory=dict)
    environment: EnvironmentIn = msgspec.field(default_factory=EnvironmentIn)
    git: GitIn | None = None
    queue: Name | None = None
    priority: Priority | None = None
    preemptible: bool = True
    topology: TopologyIn | None = None
    time_limit_s: Seconds | None = None
    max_attempts: Annotated[int, Meta(ge=1, le=1000)] = 4
    forked_from: Id | None = None
    resume: ResumeIn | None = None
    study: StudyIn | None = None
    parent: Id | None = None
    secrets: Annotated[tuple[SecretName, ...], Meta(max_length=MAX_NAMES)] = ()
    max_output_bytes: LimitBytes | None = None
    max_metrics_bytes: LimitBytes | None = None
    checkpoint_files: Annotated[tuple[FilePattern, ...], Meta(max_length=64)] = ()
    initial_folder: Hex | None = None
    continued_runs: Annotated[tuple[Id, ...], Meta(max_length=MAX_CONTINUED_RUNS)] = ()
    param_format: ParamFormatIn | None = None
    outputs: Annotated[tuple[Text, ...], Meta(max_length=100)] = ()
    metric_lines: Annotated[tuple[Text, ...], Meta(max_length=100)] = ()
    ports: Annotated[dict[Key, PortNumber], Meta(max_length=MAX_PORTS)] = msgspec.field(default_factory=dict)
    idle_s: Annotated[float, Meta(ge=MIN_IDLE_S, le=MAX_SECONDS)] | None = None
    reads: Annotated[tuple[Id, ...], Meta(max_length=MAX_NAMES)] = ()
    on_end: Annotated[tuple[NotifyTargetIn, ...], Meta(max_length=MAX_TARGETS)] = ()
    evaluation: EvaluationIn | None = None
    resume_arguments: Annotated[tuple[LongText, ...], Meta(max_length=16)] = ()
    retention: RetentionIn | None = None
    preflight: Preflight = Preflight.PAIRS
    network: RunNetwork = RunNetwork.DEFAULT


def to_run_spec(request: SpecIn) -> RunSpec:
    check_metric_lines(request.metric_lines, what="metric_lines")
    check_resume_arguments(request.resume_arguments, what="resume_arguments")
    if request.retention is not None:
        check_retention(
            msgspec.convert(request.retention, RetentionRule, from_attributes=True), what="retention"
        )
    if request.study is None:
        return msgspec.convert(request, RunSpec, from_attributes=True)
    plain = msgspec.convert(msgspec.structs.replace(request, study=None), RunSpec, from_attributes=True)
    return replace(plain, study=to_study_json(request.study))
