"""`config.yaml` of the home folder: what this machine offers, where the server listens, what is kept.

```yaml
node: {id: box, cpus: 8, memory: 32G, gpus: A100:2, pool: default, labels: {rack: a}}
server: {port: 8765}
retention: {checkpoints: 3}
```
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from hopyard.config import units
from hopyard.config.reader import Section, read_yaml
from hopyard.domain.ids import check_name


@dataclass(frozen=True, slots=True)
class NodeSettings:
    """What this machine offers to runs. None: what the machine has, as the engine finds it.

    gpus: GPUs declared here take the place of those that NVML finds; 0 hides them.
    """

    id: str | None = None
    cpu_milli: int | None = None
    memory_bytes: int | None = None
    gpus: int | None = None
    gpu_model: str | None = None
    pool: str | None = None
    labels: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class ServerSettings:
    """port: 0 takes the port of the last time, or any that is free."""

    port: int = 0


@dataclass(frozen=True, slots=True)
class RetentionSettings:
    """checkpoints: how many of a run's newest are kept, beside those kept by name or leaderboard; 0 keeps all."""

    checkpoints: int = 3


@dataclass(frozen=True, slots=True)
class Settings:
    node: NodeSettings = field(default_factory=NodeSettings)
    server: ServerSettings = field(default_factory=ServerSettings)
    retention: RetentionSettings = field(default_factory=RetentionSettings)


def read_settings(file: Path) -> Settings:
    """The settings in `file`, defaults where it does not exist. Raises SpecError for anything it does not know."""
    if not file.exists():
        return Settings()
    top = read_yaml(file).only("node", "server", "retention")
    return Settings(_node(top.section("node")), _server(top.section("server")), _retention(top.section("retention")))


def _node(given: Section) -> NodeSettings:
    given.only("id", "cpus", "memory", "gpus", "pool", "labels")
    gpus = given.amount("gpus", units.parse_gpus)
    labels = given.section("labels")
    return NodeSettings(
        id=given.checked("id", lambda: check_name(given.text("id"), what="id")) if given.has("id") else None,
        cpu_milli=given.amount("cpus", units.parse_cpus),
        memory_bytes=given.amount("memory", units.parse_memory),
        gpus=None if gpus is None else gpus[1],
        gpu_model=None if gpus is None else gpus[0],
        pool=given.checked("pool", lambda: check_name(given.text("pool"), what="pool")) if given.has("pool") else None,
        labels={key: labels.text(key) for key in labels.values},
    )


def _server(given: Section) -> ServerSettings:
    return ServerSettings(port=given.only("port").whole("port", 0, low=0, high=65535))


def _retention(given: Section) -> RetentionSettings:
    return RetentionSettings(checkpoints=given.only("checkpoints").whole("checkpoints", 3, low=0, high=1_000_000))
