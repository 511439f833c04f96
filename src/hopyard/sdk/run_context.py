"""`hop.run()`: describes the run that the calling script belongs to."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import field
from pathlib import Path
from typing import TYPE_CHECKING

from hopyard.backports import dataclass

if TYPE_CHECKING:
    from hopyard.domain.run import ParamValue


@dataclass(frozen=True, slots=True)
class RunContext:
    """The run that this process belongs to, and the process's rank in it.

    name: `alice/mnist/12`; the id for a run recorded offline. folder: the replica's own folder on this
    machine. rank, local_rank, world_size: set by the launcher; 0, 0, 1 for a single process. params: declared
    so far. restored_step: step of the checkpoint that this attempt started from; None for a start from
    scratch. replica: the name by which the other replicas of the gang find this one (`worker-0`). hosts: the
    address of each replica of the gang by its name, in the order of ranks; empty for a single process.
    workspace: the folder that all replicas of the run read and write, and that survives each attempt.
    """

    id: str
    name: str
    folder: Path
    offline: bool
    attempt: str = ""
    url: str = ""
    rank: int = 0
    local_rank: int = 0
    world_size: int = 1
    role: str = "worker"
    restored_step: int | None = None
    replica: str = "worker-0"
    hosts: Mapping[str, str] = field(default_factory=dict)
    workspace: Path | None = None
    params: Mapping[str, ParamValue] = field(default_factory=dict)
    tags: Mapping[str, str] = field(default_factory=dict)
