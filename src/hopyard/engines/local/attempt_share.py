"""Resources of a node that a live attempt holds and the scheduler does not count: ports and cores."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from hopyard.domain.ids import AttemptId
from hopyard.domain.launch import Launch
from hopyard.domain.replica import NodeContext
from hopyard.engines.local.ports import PortClaims
from hopyard.engines.local.replica_folder import ReplicaFolder, replica_folders


@dataclass(slots=True)
class AttemptShare:
    """The share of one attempt. port: for the rendezvous of its replicas; peer_ports: as in `NodeContext`.
    probe_ports: by rank, as in `ProbeAddress`. All are also in `ports`."""

    ports: set[int] = field(default_factory=set)
    port: int = 0
    peer_ports: dict[str, int] = field(default_factory=dict)
    probe_ports: dict[int, int] = field(default_factory=dict)
    cores: list[int] = field(default_factory=list)


def used_ports(shares: Mapping[AttemptId, AttemptShare]) -> set[int]:
    """Returns the ports of all live attempts."""
    return {port for share in shares.values() for port in share.ports}


def read_shares(attempts: Iterable[Path]) -> dict[AttemptId, AttemptShare]:
    """Returns the shares that attempts of an earlier engine hold. attempts: their folders."""
    shares: dict[AttemptId, AttemptShare] = {}
    for attempt in attempts:
        for folder in replica_folders(attempt):
            spec = folder.read_spec() if folder.is_alive() else None
            if spec is not None:
                share = shares.setdefault(AttemptId(attempt.name), AttemptShare())
                share.port = spec.node.master_port
                share.peer_ports = dict(spec.node.peer_ports)
                share.probe_ports = _probe_ports(spec.node)
                share.ports |= {share.port, *share.peer_ports.values(), *share.probe_ports.values()}
                share.ports |= {*spec.node.ports.values()}
                share.cores.extend(spec.node.cpus or ())
    return shares


def assign_rendezvous_ports(
    launch: Launch, folders: Sequence[ReplicaFolder], share: AttemptShare, claims: PortClaims
) -> None:
    """Completes the share of this launch with a port for each replica.

    Replicas that an engine launched before it crashed have theirs, and all must know the same ports. A gang
    of an earlier version has only the port of rank 0.
    """
    earlier = next(
        (spec.node for spec in (folder.read_spec() for folder in folders if folder.is_alive()) if spec), None
    )
    if not share.port and earlier is not None:
        share.port, share.peer_ports = earlier.master_port, dict(earlier.peer_ports)
        share.probe_ports = _probe_ports(earlier)
    share.port = share.port or claims.choose()
    share.ports.add(share.port)
    if not share.peer_ports and launch.replicas[0].in_gang:
        for replica in launch.replicas:
            share.peer_ports[replica.host_name] = claims.choose() if replica.rank else share.port
    if not share.probe_ports and earlier is None:
        share.probe_ports = {rank: claims.choose() for rank in launch.replicas[0].preflight.ranks}
    share.ports |= {*share.peer_ports.values(), *share.probe_ports.values()}


def _probe_ports(node: NodeContext) -> dict[int, int]:
    return {address.rank: address.port for address in node.probe_addresses}
