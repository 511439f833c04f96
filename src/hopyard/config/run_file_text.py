"""Writes the request of a run as a `hop.yaml`, which `config.run_file` reads as exactly the same request."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from hopyard.config import resource_requests, units
from hopyard.config.resource_requests import GpuRequest
from hopyard.config.restart_section import restart_values
from hopyard.config.run_request import DatasetRequest, EvaluatorRequest, RoleRequest, RunRequest
from hopyard.config.yaml_loader import dump_yaml
from hopyard.domain.checkpoint_retention import format_retention
from hopyard.domain.launcher import PARAMETER_SERVER_ROLE, Launcher
from hopyard.domain.notification import NotifyTarget
from hopyard.domain.param_format import ParamStyle
from hopyard.domain.run_network import RunNetwork


def run_file_values(request: RunRequest) -> dict[str, Any]:
    """Returns the keys of the file with their values. Keys with default values are left out."""
    values: dict[str, Any] = {
        "name": request.label,
        "project": request.project,
        "datasets": [_dataset_text(dataset) for dataset in request.datasets],
        "params": {_marked(name, request): value for name, value in request.params.items()},
        "params_as": request.params_as,
        "env": dict(request.env),
        "secrets": list(request.secrets),
        "tags": dict(request.tags),
        "requirements": "" if request.requirements is None else str(request.requirements),
        "python": request.interpreter or request.python,
        "queue": request.queue,
        "priority": request.priority,
        "preemptible": None if request.preemptible else False,
        "topology": _topology_text(request.topology),
        "time": None if request.time_limit_s is None else units.format_time(request.time_limit_s),
        "idle": None if request.idle_s is None else units.format_time(request.idle_s),
        "max_output": _memory_text(request.max_output_bytes),
        "max_metrics": _memory_text(request.max_metrics_bytes),
        "checkpoints": list(request.checkpoint_files),
        "outputs": list(request.outputs),
        "metric_lines": list(request.metric_lines),
        "ports": _port_values(request.ports),
        "launcher": _common_launcher(request.roles),
        "container": request.container or None,
        "network": None if request.network == RunNetwork.DEFAULT else request.network,
        "on_end": [_target_value(target) for target in request.on_end],
        "resume_args": list(request.resume_arguments),
        "keep": "" if request.retention is None else format_retention(request.retention),
        "preflight": request.preflight,
        "evaluator": _evaluator_values(request.evaluator),
        "roles": [_role_values(role, _common_launcher(request.roles)) for role in request.roles],
    }
    return _without_defaults(values)


def format_run_file(request: RunRequest) -> str:
    """Returns the text of the file."""
    return dump_yaml(run_file_values(request), width=100, default_flow_style=None)


def _port_values(ports: Mapping[str, int]) -> Any:
    """Returns a list of numbers, or a mapping where a port has a name."""
    return dict(ports) if any(name != str(number) for name, number in ports.items()) else list(ports.values())


def _common_launcher(roles: Sequence[RoleRequest]) -> str | None:
    """Returns the launcher that all roles have; None without one."""
    launchers = {role.launcher for role in roles}
    return next(iter(launchers - {Launcher.NONE.value}), None) if len(launchers) == 1 else None


def _target_value(target: NotifyTarget) -> Any:
    return {"to": target.to, "when": [str(event) for event in target.when]} if target.when else target.to


def _evaluator_values(evaluator: EvaluatorRequest | None) -> dict[str, Any]:
    if evaluator is None:
        return {}
    return _role_values(evaluator.role, None) | ({"newest": True} if evaluator.newest else {})


def _role_values(role: RoleRequest, launcher: str | None) -> dict[str, Any]:
    """launcher: that of the whole file."""
    gpus = GpuRequest(role.gpus, role.gpu_milli, role.gpu_models)
    models = "|".join(role.gpu_models)
    resources = {
        "cpus": _number(units.format_cpus(role.cpu_milli)) if role.cpu_limited else None,
        "memory": _memory_text(role.memory_bytes or None),
        # a number of GPUs does not go with the memory of one
        "gpus": models if role.gpu_memory_bytes else _number(resource_requests.format_gpus(gpus)),
        "gpu_memory": _memory_text(role.gpu_memory_bytes or None),
        "extras": dict(role.extras),
    }
    values = {
        "name": role.name,
        "replicas": {"min": role.min_replicas, "max": role.replicas} if role.min_replicas else role.replicas,
        "command": list(role.command),
        "resources": _without_defaults(resources),
        "pool": list(role.pools),
        "labels": dict(role.labels),
        "topology": _topology_text(role.topology),
        "essential": None if role.essential else False,
        "private_folders": role.private_folders or None,
        "restart": restart_values(role.restart),
        "launcher": None if role.launcher in (launcher, Launcher.NONE) else role.launcher,
        "processes": role.processes or None,
        "service": _service_value(role),
        "image": role.image,
    }
    return _without_defaults(values)


def _service_value(role: RoleRequest) -> bool | None:
    is_server = role.launcher == Launcher.TENSORFLOW and role.name == PARAMETER_SERVER_ROLE
    return None if role.service == is_server else role.service


def _number(text: str) -> int | str | None:
    """Returns a whole number as such; None for 0."""
    return (int(text) or None) if text.isdecimal() else text


def _marked(name: str, request: RunRequest) -> str:
    """Returns the name of a parameter with the mark of a key that Hydra adds."""
    form = request.param_format
    option = None if form is None or form.style is not ParamStyle.HYDRA else form.options.get(name)
    return option.word if option is not None and option.word.startswith("+") else name


def _dataset_text(dataset: DatasetRequest) -> str:
    version = f":{dataset.version}" if dataset.version else ""
    return f"{dataset.name}{version}" + (f"={dataset.path}" if dataset.path else "")


def _topology_text(topology: resource_requests.TopologyRequest | None) -> str | None:
    return None if topology is None else resource_requests.format_topology(topology)


def _memory_text(amount: int | None) -> str | None:
    return None if amount is None else units.format_memory(amount)


def _without_defaults(values: dict[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in values.items() if value not in (None, "", [], {})}
