"""The specs of replicas: what a launch requests, with the share of the node that each replica gets."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from hopyard.domain.gang import Assignment
from hopyard.domain.ids import AttemptId
from hopyard.domain.launch import Launch, ReplicaLaunch
from hopyard.domain.replica import NodeContext, ProbeAddress, ReplicaSpec
from hopyard.domain.resources import WHOLE_GPU, Gpu
from hopyard.engines.local.attempt_share import AttemptShare
from hopyard.engines.local.cores import choose_cores
from hopyard.engines.local.node_ranks import NodeRank
from hopyard.engines.local.ports import PortClaims, replica_address


@dataclass(frozen=True, slots=True)
class ReplicaSpecs:
    """Builds the specs of the replicas of one engine.

    attempts: the folder of all attempts. tag: of the home, in the names of cgroups. cgroups: the folder for
    new groups by controller. port_claims: of the engine. defaults: the settings that all replicas of the
    engine have in common.
    """

    attempts: Path
    tag: str
    cgroups: Mapping[str, Path]
    port_claims: PortClaims
    defaults: NodeContext

    def build(
        self,
        launch: Launch,
        replica: ReplicaLaunch,
        assignment: Assignment,
        rank: NodeRank,
        gpus: Sequence[Gpu],
        share: AttemptShare,
        shares: Mapping[AttemptId, AttemptShare],
    ) -> ReplicaSpec:
        """Returns the spec of one replica, and adds its ports and cores to `share`.

        gpus: all GPUs of its node. shares: of all live attempts, with `share`.
        """
        cores: tuple[int, ...] | None = None
        # with a quota the kernel chooses the cores; without one, binding to cores is the limit
        if replica.resources.cpu_limited and "cpu" not in self.cgroups:
            used_cores = [core for other in shares.values() for core in other.cores]
            cores = choose_cores(replica.resources.cpu_milli, used_cores)
            share.cores.extend(cores or ())
        ports = self.port_claims.assign(replica.ports.values())
        share.ports.update(ports.values())
        node = replace(
            self.defaults,
            id=assignment.node,
            master_port=share.port,
            gang_folder=str(self.attempts / launch.attempt),
            gpus=assignment.gpus,
            gpu_milli=assignment.gpu_milli,
            gpu_memory_bytes=_gpu_memory_limit(replica, assignment, gpus),
            cpus=cores,
            cgroups={
                name: str(parent / f"{self.tag}-{launch.attempt}-{replica.rank}")
                for name, parent in self.cgroups.items()
            },
            node_rank=rank.node_rank,
            local_rank=rank.local_rank,
            local_world_size=rank.local_world_size,
            machine_rank=replica.rank,
            machine_world_size=len(launch.replicas),
            max_output_bytes=_smaller_limit(self.defaults.max_output_bytes, replica.max_output_bytes),
            max_metrics_bytes=_smaller_limit(self.defaults.max_metrics_bytes, replica.max_metrics_bytes),
            # containers find each other by name in their own network
            hosts={
                r.host_name: r.host_name if replica.image else replica_address(share.port, r.rank)
                for r in launch.replicas
            },
            master_addr=launch.replicas[0].host_name if replica.image else self.defaults.master_addr,
            peer_ports=dict(share.peer_ports),
            probe_addresses=tuple(
                ProbeAddress(
                    rank, launch.placement.assignments[rank].node, replica_address(share.port, rank), port
                )
                for rank, port in share.probe_ports.items()
            ),
            ports=ports,
        )
        return ReplicaSpec(replica, node)


def _smaller_limit(node: int, run: int | None) -> int:
    """Returns the smaller of two limits; 0 is no limit."""
    return min(filter(None, (node, run)), default=0)


def _gpu_memory_limit(replica: ReplicaLaunch, assignment: Assignment, gpus: Sequence[Gpu]) -> int:
    """Returns how much memory a replica may use on the GPU that it shares; 0 if it has whole GPUs or the
    memory is unknown."""
    if not replica.resources.is_gpu_share:
        return 0
    return replica.resources.gpu_memory_bytes or min(
        (
            gpu.memory_bytes * assignment.gpu_milli // WHOLE_GPU
            for gpu in gpus
            if gpu.index in assignment.gpus
        ),
        default=0,
    )
