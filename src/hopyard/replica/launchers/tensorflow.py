"""TensorFlow: the variable `TF_CONFIG`, which names the servers of all roles and the place of this one."""

from __future__ import annotations

import json

from hopyard.domain.launcher import EVALUATOR_ROLE
from hopyard.domain.replica import ReplicaSpec
from hopyard.replica.launchers.peer_addresses import peer_address


def tf_config(spec: ReplicaSpec) -> str:
    """Returns the value of the variable."""
    cluster: dict[str, list[str]] = {}
    for peer in spec.launch.launcher_peers:
        if peer.role != EVALUATOR_ROLE:
            address, port = peer_address(spec, peer)
            cluster.setdefault(peer.role, []).append(f"{address}:{port}")
    task = {"type": spec.launch.role, "index": spec.launch.role_rank}
    return json.dumps({"cluster": cluster, "task": task})
