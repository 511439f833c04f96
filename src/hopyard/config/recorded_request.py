"""The request that gives a recorded run again, for its `hop.yaml`."""

from __future__ import annotations

from hopyard.config.resource_requests import TopologyRequest
from hopyard.config.run_request import DatasetRequest, RoleRequest, RunRequest
from hopyard.domain.gang import Topology
from hopyard.domain.preflight import Preflight
from hopyard.domain.run import RoleSpec, RunSpec


def recorded_request(spec: RunSpec) -> RunRequest:
    """Returns the request with the command, resources, data, parameters and settings of a run.

    Without its code, git state and environment, which no file holds, and without what made it a fork, a trial
    or an evaluation.
    """
    return RunRequest(
        roles=tuple(_role(role) for role in spec.roles),
        project=spec.project,
        label=spec.label,
        datasets=tuple(DatasetRequest(ref.name, ref.version, ref.path) for ref in spec.datasets),
        params=dict(spec.params),
        env=dict(spec.env),
        tags=dict(spec.tags),
        queue=spec.queue,
        priority=spec.priority,
        preemptible=spec.preemptible,
        topology=_topology(spec.topology),
        time_limit_s=spec.time_limit_s,
        secrets=spec.secrets,
        max_output_bytes=spec.max_output_bytes,
        max_metrics_bytes=spec.max_metrics_bytes,
        checkpoint_files=spec.checkpoint_files,
        param_format=spec.param_format,
        outputs=spec.outputs,
        metric_lines=spec.metric_lines,
        ports=dict(spec.ports),
        idle_s=spec.idle_s,
        on_end=spec.on_end,
        resume_arguments=spec.resume_arguments,
        retention=spec.retention,
        preflight="" if spec.preflight is Preflight.PAIRS else spec.preflight.value,
        container=spec.environment.container,
        network=spec.network.value,
    )


def _role(role: RoleSpec) -> RoleRequest:
    resources = role.resources
    return RoleRequest(
        command=role.command,
        name=role.name,
        replicas=role.replicas,
        cpu_milli=resources.cpu_milli,
        memory_bytes=resources.memory_bytes,
        gpus=resources.gpus,
        gpu_models=resources.gpu_models,
        cpu_limited=resources.cpu_limited,
        gpu_milli=resources.gpu_milli,
        gpu_memory_bytes=resources.gpu_memory_bytes,
        extras=resources.extras,
        min_replicas=role.min_replicas,
        pools=tuple(role.where.pools),
        labels=tuple(role.where.labels),
        topology=_topology(role.topology),
        essential=role.essential,
        private_folders=role.private_folders,
        restart=role.restart,
        launcher=role.launcher.value,
        processes=role.processes,
        service=role.service,
        image=role.image,
    )


def _topology(topology: Topology | None) -> TopologyRequest | None:
    return None if topology is None else TopologyRequest(topology.rule.value, topology.level, topology.slice)
