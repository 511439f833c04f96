"""Resources of a node that a live attempt holds and the scheduler does not count: ports and cores."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from hopyard.domain.ids import AttemptId
from hopyard.engines.local.replica_folder import ReplicaFolder, replica_folders


@dataclass(slots=True)
class AttemptShare:
    """The share of one attempt. port: for the rendezvous of its replicas; also in `ports`."""

    ports: set[int] = field(default_factory=set)
    port: int = 0
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
                share.ports |= {share.port, *spec.node.ports.values()}
                share.cores.extend(spec.node.cpus or ())
    return shares


def earlier_port(folders: Sequence[ReplicaFolder]) -> int:
    """Returns the port that replicas of this attempt got from an engine that crashed during the launch; all
    must use the same. Returns 0 without one."""
    return next(
        (
            spec.node.master_port
            for spec in (folder.read_spec() for folder in folders if folder.is_alive())
            if spec is not None
        ),
        0,
    )
