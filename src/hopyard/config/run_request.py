"""The request of a user, checked, and the RunSpec that the server gets.

It has what the command line and `hop.yaml` share. The caller adds the packed code, git and environment.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any, NamedTuple

from hopyard.config import resource_requests, units
from hopyard.config.key_values import Value
from hopyard.config.limits import (
    MAX_DATASET_VERSION,
    MAX_PRIORITY,
    MAX_PROCESSES,
    MAX_STREAM_BYTES,
    MIN_PRIORITY,
    MIN_STREAM_BYTES,
)
from hopyard.config.resource_requests import TopologyRequest
from hopyard.config.suggest import unknown_name_hints
from hopyard.domain.checkpoint_retention import RetentionRule, parse_retention
from hopyard.domain.dataset_paths import normalise_path
from hopyard.domain.gang import NODE_LEVEL, Closeness
from hopyard.domain.idle_rule import MIN_IDLE_S
from hopyard.domain.ids import check_name, slug
from hopyard.domain.image_reference import check_image
from hopyard.domain.launcher import Launcher
from hopyard.domain.metric_line import check_metric_lines
from hopyard.domain.notebook import NOTEBOOK_MODULE, NOTEBOOK_SUFFIX
from hopyard.domain.notification import NotifyTarget, check_targets, parse_target
from hopyard.domain.param_format import ParamFormat
from hopyard.domain.preflight import Preflight
from hopyard.domain.restart_policy import NO_RESTART, RestartPolicy
from hopyard.domain.resume_arguments import check_resume_arguments
from hopyard.domain.run_network import RunNetwork
from hopyard.domain.run_port import parse_ports
from hopyard.errors import SpecError


@dataclass(frozen=True, slots=True)
class RoleRequest:
    """One kind of replica: its command, its resources, and the nodes it may use.
    min_replicas: 0 means exactly `replicas`."""

    command: tuple[str, ...]
    name: str = "worker"
    replicas: int = 1
    cpu_milli: int = 1000
    memory_bytes: int = 0
    gpus: int = 0
    gpu_models: tuple[str, ...] = ()
    cpu_limited: bool = False  # True once a user sets the CPUs
    gpu_milli: int = 0
    gpu_memory_bytes: int = 0
    extras: tuple[tuple[str, int], ...] = ()
    min_replicas: int = 0
    pools: tuple[str, ...] = ()
    labels: tuple[tuple[str, str], ...] = ()
    topology: TopologyRequest | None = None
    essential: bool = True
    private_folders: bool = False
    restart: RestartPolicy = NO_RESTART
    launcher: str = Launcher.NONE.value
    processes: int = 0
    service: bool = False
    image: str = ""

    def spec(self) -> dict[str, Any]:
        """Returns the RoleSpec as JSON."""
        resources = {
            "cpu_milli": self.cpu_milli,
            "cpu_limited": self.cpu_limited,
            "memory_bytes": self.memory_bytes,
            "gpus": self.gpus,
            "gpu_models": list(self.gpu_models),
            "gpu_milli": self.gpu_milli,
            "gpu_memory_bytes": self.gpu_memory_bytes,
            "extras": self.extras,
        }
        return {
            "command": list(self.command),
            "name": self.name,
            "replicas": self.replicas,
            "min_replicas": self.min_replicas,
            "resources": resources,
            "where": {"pools": self.pools, "labels": self.labels},
            "topology": None if self.topology is None else self.topology.spec(),
            "essential": self.essential,
            **({"private_folders": True} if self.private_folders else {}),
            **({} if self.restart == NO_RESTART else {"restart": asdict(self.restart)}),
            **({} if self.launcher == Launcher.NONE else {"launcher": self.launcher}),
            **({"processes": self.processes} if self.processes else {}),
            **({"service": True} if self.service else {}),
            **({"image": self.image} if self.image else {}),
        }


class DatasetRequest(NamedTuple):
    """A dataset that a run reads. version: 0 for the newest. path: as in `domain.run.DatasetRef`."""

    name: str
    version: int = 0
    path: str = ""

    def spec(self) -> dict[str, Any]:
        """Returns the DatasetRef as JSON."""
        ref = {"name": self.name, "version": self.version}
        return {**ref, "path": self.path} if self.path else ref


@dataclass(frozen=True, slots=True)
class EvaluatorRequest:
    """The role that evaluates the checkpoints of the run, as a run of its own. newest: as in
    `domain.evaluation`."""

    role: RoleRequest
    newest: bool = False


@dataclass(frozen=True, slots=True)
class RunRequest:
    """The request of a run. requirements: a file to build the environment from. python: a version, for that.
    interpreter: the absolute path of the Python to use; "" leaves it to the client.

    container: the requirements are installed into an image, from the image of each role or the server's base
    image. params_as: the form of parameters that the user chose; "" leaves it to the look of the script.
    param_texts: as typed, the values of parameters that are not texts.
    queue, priority: None takes the defaults of the server's tree of queues. preflight: a value of
    `domain.preflight.Preflight`; "" is the default. network: a value of `domain.run_network.RunNetwork`.
    """

    roles: tuple[RoleRequest, ...]
    project: str
    label: str = ""
    datasets: tuple[DatasetRequest, ...] = ()
    params: Mapping[str, Value] = field(default_factory=dict)
    param_texts: Mapping[str, str] = field(default_factory=dict)
    env: Mapping[str, str] = field(default_factory=dict)
    tags: Mapping[str, str] = field(default_factory=dict)
    queue: str | None = None
    priority: int | None = None
    preemptible: bool = True
    topology: TopologyRequest | None = None
    time_limit_s: float | None = None
    requirements: Path | None = None
    python: str = ""
    interpreter: str = ""
    secrets: tuple[str, ...] = ()
    max_output_bytes: int | None = None
    max_metrics_bytes: int | None = None
    checkpoint_files: tuple[str, ...] = ()
    params_as: str = ""
    param_format: ParamFormat | None = None
    outputs: tuple[str, ...] = ()
    metric_lines: tuple[str, ...] = ()
    ports: Mapping[str, int] = field(default_factory=dict)
    reads: tuple[str, ...] = ()
    idle_s: float | None = None
    on_end: tuple[NotifyTarget, ...] = ()
    evaluation: Mapping[str, Any] | None = None
    resume_arguments: tuple[str, ...] = ()
    retention: RetentionRule | None = None
    evaluator: EvaluatorRequest | None = None
    preflight: str = ""
    container: bool = False
    network: str = RunNetwork.DEFAULT.value

    def evaluation_of(self, run: str, *, newest: bool = False) -> RunRequest:
        """Returns the request of the evaluator, with the code, data and environment of this request. run: the
        id of the run that it evaluates."""
        assert self.evaluator is not None
        return replace(
            self,
            roles=(self.evaluator.role,),
            label="",
            topology=None,
            checkpoint_files=(),
            outputs=(),
            metric_lines=(),
            ports={},
            on_end=(),
            resume_arguments=(),
            retention=None,
            idle_s=None,
            evaluator=None,
            network=self.network if self.evaluator.role.image or self.container else RunNetwork.DEFAULT.value,
            evaluation={"run": run, "newest": newest, "step": None, "follow": True},
        )

    def spec(
        self, *, code: str | None, git: Mapping[str, Any] | None, environment: Mapping[str, Any]
    ) -> dict[str, Any]:
        """Returns the RunSpec as JSON."""
        return {
            "project": self.project,
            "roles": [role.spec() for role in self.roles],
            "code": code,
            "label": self.label,
            "datasets": [dataset.spec() for dataset in self.datasets],
            "params": dict(self.params),
            "env": dict(self.env),
            "secrets": list(self.secrets),
            "tags": dict(self.tags),
            "environment": dict(environment),
            "git": None if git is None else dict(git),
            "queue": self.queue,
            "priority": self.priority,
            "preemptible": self.preemptible,
            "topology": None if self.topology is None else self.topology.spec(),
            "time_limit_s": self.time_limit_s,
            "max_output_bytes": self.max_output_bytes,
            "max_metrics_bytes": self.max_metrics_bytes,
            **({"checkpoint_files": list(self.checkpoint_files)} if self.checkpoint_files else {}),
            "param_format": None if self.param_format is None else asdict(self.param_format),
            **({"outputs": list(self.outputs)} if self.outputs else {}),
            **({"metric_lines": list(self.metric_lines)} if self.metric_lines else {}),
            **({"ports": dict(self.ports)} if self.ports else {}),
            **({} if self.idle_s is None else {"idle_s": self.idle_s}),
            **({"reads": list(self.reads)} if self.reads else {}),
            **({"on_end": [asdict(target) for target in self.on_end]} if self.on_end else {}),
            **({} if self.evaluation is None else {"evaluation": dict(self.evaluation)}),
            **({"resume_arguments": list(self.resume_arguments)} if self.resume_arguments else {}),
            **({} if self.retention is None else {"retention": asdict(self.retention)}),
            **({"preflight": self.preflight} if self.preflight else {}),
            **({"network": self.network} if self.network != RunNetwork.DEFAULT else {}),
        }


def parse_dataset(text: str, *, what: str = "-d") -> tuple[str, int]:
    """Parses `NAME`, `NAME:VERSION` or `NAME:newest` into the name and the version, 0 for the newest.
    Raises SpecError."""
    name, colon, version = text.partition(":")
    check_name(name, subject=what)
    if not colon or version == "newest":
        return name, 0
    is_number = version.isascii() and version.isdecimal() and len(version) <= len(str(MAX_DATASET_VERSION))
    if not is_number or not 0 < int(version) <= MAX_DATASET_VERSION:
        raise SpecError(
            f"{what}: `{version}` is not a version of a dataset",
            hints=("give a version from 1: mnist:3; mnist alone is the newest",),
        )
    return name, int(version)


def parse_mounted_dataset(text: str, *, what: str = "-d") -> DatasetRequest:
    """Parses what `parse_dataset` does, and a path after it: `NAME:/data/mnist` is where the script finds the
    dataset, `NAME=../data` is relative to the working folder. Raises SpecError."""
    ref, equals, path = text.partition("=")
    if not equals:
        ref, colon, rest = text.partition(":/")
        path = f"/{rest}" if colon else ""
    elif not path:
        raise SpecError(
            f"{what}: `{text}` names no folder after `=`",
            hints=("for example mnist=../data, relative to the working folder; or mnist:/data/mnist",),
        )
    return DatasetRequest(*parse_dataset(ref, what=what), normalise_path(path, subject=what))


def parse_datasets(texts: Iterable[str], *, what: str = "-d") -> tuple[DatasetRequest, ...]:
    """Parses each text as `parse_mounted_dataset` does. Raises SpecError also for a dataset that is named
    twice."""
    datasets: dict[str, DatasetRequest] = {}
    for text in texts:
        dataset = parse_mounted_dataset(text, what=what)
        if dataset.name in datasets:
            raise SpecError(
                f"{what}: the dataset `{dataset.name}` is given twice",
                hints=("use one version of a dataset per run",),
            )
        datasets[dataset.name] = dataset
    return tuple(datasets.values())


def check_priority(priority: int, *, what: str = "--priority") -> int:
    if not MIN_PRIORITY <= priority <= MAX_PRIORITY:
        raise SpecError(
            f"{what}: {priority} is not from {MIN_PRIORITY} to {MAX_PRIORITY}",
            hints=("larger priorities start first; 50 is usual",),
        )
    return priority


# options that apply to one role
SIZE_OPTIONS = (
    "cpus",
    "memory",
    "gpus",
    "gpu_memory",
    "extras",
    "replicas",
    "nodes",
    "private_folders",
    "launcher",
    "processes",
)


def parse_sizes(options: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the options --cpus, --memory, --gpus, --gpu-memory, --resource, --replicas, --nodes, --launcher
    and --processes as fields of a RoleRequest. An option without a value has no field. Raises SpecError."""
    fields: dict[str, Any] = {}
    if options.get("cpus") is not None:
        fields |= {"cpu_milli": units.parse_cpus(options["cpus"], what="--cpus"), "cpu_limited": True}
    if options.get("memory") is not None:
        fields["memory_bytes"] = units.parse_positive_memory(options["memory"], what="--memory")
    gpus = (
        None if options.get("gpus") is None else resource_requests.parse_gpus(options["gpus"], what="--gpus")
    )
    memory = options.get("gpu_memory")
    if gpus is not None or memory is not None:
        fields |= gpu_fields(
            gpus, None if memory is None else units.parse_memory(memory, what="--gpu-memory")
        )
    if options.get("extras"):
        fields["extras"] = resource_requests.parse_extras(options["extras"])
    if options.get("private_folders"):
        fields["private_folders"] = True
    if options.get("launcher"):
        fields["launcher"] = parse_launcher(options["launcher"])
    if options.get("processes") is not None:
        fields["processes"] = check_processes(options["processes"])
    if options.get("replicas") is not None:
        fields["min_replicas"], fields["replicas"] = resource_requests.parse_replicas(options["replicas"])
    if options.get("nodes") is not None:
        fields |= _node_fields(options["nodes"], fields, options.get("topology"))
    return fields


def parse_launcher(text: str, *, what: str = "--launcher") -> str:
    """Raises SpecError for what is no launcher."""
    if text not in set(Launcher):
        raise SpecError(
            f"{what}: `{text}` is not a launcher",
            hints=unknown_name_hints(text, [each.value for each in Launcher], subject="launchers"),
        )
    return text


def parse_network(text: str, *, what: str = "--network") -> str:
    """Raises SpecError for what is no network of containers."""
    if text not in set(RunNetwork):
        raise SpecError(
            f"{what}: `{text}` is not a network",
            hints=unknown_name_hints(text, [each.value for each in RunNetwork], subject="networks"),
        )
    return text


def check_processes(count: int, *, what: str = "--processes") -> int:
    if not 1 <= count <= MAX_PROCESSES:
        raise SpecError(
            f"{what}: {count} is not from 1 to {MAX_PROCESSES}",
            hints=("leave it out for one process per GPU",),
        )
    return count


def _node_fields(nodes: int, sizes: Mapping[str, Any], topology: str | None) -> dict[str, Any]:
    """Returns the fields of a role with replicas spread over this many nodes, equally many on each; by
    default one. sizes: the other fields. Raises SpecError."""
    resource_requests.check_replicas(nodes, what="--nodes")
    if topology is not None:
        raise SpecError(
            "--nodes: --topology is given, too",
            hints=(f"leave out --nodes, and set --replicas {nodes}: the topology places the replicas",),
        )
    replicas = sizes.get("replicas", nodes)
    if sizes.get("min_replicas") or replicas % nodes:
        given = resource_requests.format_replicas(sizes["min_replicas"], replicas)
        raise SpecError(
            f"--nodes: --replicas {given} is not a multiple of {nodes} nodes",
            hints=(f"set --replicas to {nodes} times the replicas on each node, or leave it out",),
        )
    spread = TopologyRequest(Closeness.SPREAD.value, NODE_LEVEL, replicas // nodes)
    return {"min_replicas": 0, "replicas": replicas, "topology": spread if nodes > 1 else None}


def gpu_fields(
    gpus: resource_requests.GpuRequest | None,
    memory: int | None,
    *,
    what: str = "--gpu-memory",
    other: str = "--gpus",
) -> dict[str, Any]:
    """Returns all GPU fields of a RoleRequest, so that an earlier request is replaced.
    Raises SpecError."""
    request = gpus or resource_requests.GpuRequest()
    if memory is not None:
        request = resource_requests.gpu_share_from_memory(gpus, memory, what=what, other=other)
    return {
        "gpus": request.count,
        "gpu_milli": request.milli,
        "gpu_models": request.models,
        "gpu_memory_bytes": memory or 0,
    }


def parse_placement(options: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the options --pool, --where and --image among `options` as fields of every RoleRequest.
    Raises SpecError."""
    fields: dict[str, Any] = {}
    if options.get("image") is not None:
        fields["image"] = check_image(options["image"], what="--image")
    if options.get("pool") is not None:
        fields["pools"] = resource_requests.parse_pools(options["pool"])
    if options.get("where"):
        fields["labels"] = resource_requests.parse_labels(options["where"])
    return fields


def parse_scheduling(options: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the options --queue, --priority, --time, --idle, --max-output, --max-metrics, --outputs,
    --metric-line, --port, --on-end, --resume-arg, --no-preempt, --no-preflight and --topology as fields of a
    RunRequest.

    Raises SpecError."""
    fields: dict[str, Any] = {}
    if options.get("queue") is not None:
        fields["queue"] = check_name(options["queue"], subject="--queue")
    if options.get("priority") is not None:
        fields["priority"] = check_priority(options["priority"])
    if options.get("time") is not None:
        fields["time_limit_s"] = units.parse_time(options["time"], what="--time")
    if options.get("idle") is not None:
        fields["idle_s"] = parse_idle(options["idle"], what="--idle")
    for name in ("max_output", "max_metrics"):
        if options.get(name) is not None:
            fields[f"{name}_bytes"] = parse_stream_limit(options[name], what=f"--{name.replace('_', '-')}")
    if options.get("outputs"):
        fields["outputs"] = tuple(options["outputs"])
    if options.get("metric_lines"):
        fields["metric_lines"] = check_metric_lines(options["metric_lines"])
    if options.get("ports"):
        fields["ports"] = parse_ports(options["ports"])
    if options.get("on_end"):
        fields["on_end"] = check_targets([parse_target(text) for text in options["on_end"]], what="--on-end")
    if options.get("retention") is not None:
        fields["retention"] = parse_retention(options["retention"])
    if options.get("resume_arguments"):
        fields["resume_arguments"] = check_resume_arguments(options["resume_arguments"])
    if options.get("preemptible") is not None:
        fields["preemptible"] = options["preemptible"]
    if options.get("no_preflight"):
        fields["preflight"] = Preflight.OFF.value
    if options.get("topology") is not None:
        fields["topology"] = resource_requests.parse_topology(options["topology"])
    return fields


def parse_idle(text: str, *, what: str = "idle") -> float:
    """Parses the time without use after which a run ends. Raises SpecError."""
    idle_s = units.parse_time(text, what=what)
    if idle_s < MIN_IDLE_S:
        raise SpecError(f"{what}: `{text}` is too short", hints=("give 1m or more",))
    return idle_s


def parse_stream_limit(text: str, *, what: str = "size") -> int:
    """Parses how many bytes of a stream are kept. Raises SpecError."""
    size_bytes = units.parse_memory(text, what=what)
    if size_bytes < MIN_STREAM_BYTES:
        raise SpecError(f"{what}: `{text}` is too small", hints=("give 1M or more",))
    if size_bytes > MAX_STREAM_BYTES:
        raise SpecError(f"{what}: `{text}` is too large", hints=("give 8192T or less",))
    return size_bytes


def default_project(folder: Path) -> str:
    """Returns the default name of a project: the name of the folder."""
    return slug(folder.resolve().name, fallback="project")


def script_command(script: str, arguments: Iterable[str], *, folder: Path) -> tuple[str, ...]:
    """Returns the command of a Python script or a notebook. `python` is the interpreter of the run's
    environment. Raises SpecError."""
    path = folder / script
    if not path.is_file():
        pattern = f"*{path.suffix}"
        similar = sorted(p.name for p in path.parent.glob(pattern)) if path.parent.is_dir() else []
        problem = "is a folder" if path.is_dir() else "does not exist"
        raise SpecError(
            f"{script} {problem}", hints=unknown_name_hints(path.name, similar, subject="scripts there")[:1]
        )
    if script.endswith(NOTEBOOK_SUFFIX):
        check_no_arguments(script, tuple(arguments))
        return ("python", "-u", "-m", NOTEBOOK_MODULE, script)
    return ("python", "-u", script, *arguments)


def check_no_arguments(notebook: str, arguments: Sequence[str]) -> None:
    """Raises SpecError for arguments of a notebook, since it has no command line."""
    if arguments:
        raise SpecError(
            f"{arguments[0]}: the notebook {notebook} takes no arguments",
            hints=("give parameters of its cell tagged `parameters`: -p lr=0.1",),
        )
