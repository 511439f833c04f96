"""Where the replicas of one launcher meet: their addresses and ports, in the order of ranks."""

from __future__ import annotations

from hopyard.domain.launcher import LauncherPeer
from hopyard.domain.replica import ReplicaSpec


def peer_address(spec: ReplicaSpec, peer: LauncherPeer) -> tuple[str, int]:
    """Returns the address and the free port of a replica."""
    node, name = spec.node, peer.host_name
    return node.hosts.get(name, node.master_addr), node.peer_ports.get(name, node.master_port)


def own_index(spec: ReplicaSpec) -> int:
    """Returns the index of this replica among those with the same launcher."""
    names = [peer.host_name for peer in spec.launch.launcher_peers]
    return names.index(spec.launch.host_name)
