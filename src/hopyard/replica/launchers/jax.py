"""JAX: the coordinator and the place of this process, for `jax.distributed.initialize()`."""

from __future__ import annotations

from hopyard.domain.replica import ReplicaSpec
from hopyard.replica.launchers.peer_addresses import own_index, peer_address


def jax_variables(spec: ReplicaSpec) -> dict[str, str]:
    """Returns the variables. JAX itself reads the address; `sdk.startup.jax_cluster` gives it the others."""
    peers = spec.launch.launcher_peers
    address, port = peer_address(spec, peers[0])
    return {
        "JAX_COORDINATOR_ADDRESS": f"{address}:{port}",
        "JAX_COORDINATOR_BIND_ADDRESS": f"0.0.0.0:{port}",
        "JAX_NUM_PROCESSES": str(len(peers)),
        "JAX_PROCESS_ID": str(own_index(spec)),
    }
