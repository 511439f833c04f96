"""What a user asks for, checked, and the RunSpec that the server gets.

Names only what the command line and `hop.yaml` have in common; the caller adds what it packed (code, git, environment).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from hopyard.config import units
from hopyard.config.params import Value
from hopyard.config.suggest import hints_for
from hopyard.domain.ids import check_name, slug
from hopyard.domain.run import MAX_REPLICAS
from hopyard.errors import SpecError

DEFAULT_PRIORITY = 50


@dataclass(frozen=True, slots=True)
class RoleRequest:
    """One kind of replica: what it runs and what it needs."""

    command: tuple[str, ...]
    name: str = "worker"
    replicas: int = 1
    cpu_milli: int = 1000
    memory_bytes: int = 0
    gpus: int = 0
    gpu_models: tuple[str, ...] = ()
    cpu_limited: bool = False  # True once somebody said how many

    def spec(self) -> dict[str, Any]:
        """The RoleSpec as JSON."""
        resources = {
            "cpu_milli": self.cpu_milli,
            "cpu_limited": self.cpu_limited,
            "memory_bytes": self.memory_bytes,
            "gpus": self.gpus,
            "gpu_models": list(self.gpu_models),
        }
        return {"command": list(self.command), "name": self.name, "replicas": self.replicas, "resources": resources}


@dataclass(frozen=True, slots=True)
class RunRequest:
    """A run as asked for. requirements: a file to build the environment from; python: a version, for that."""

    roles: tuple[RoleRequest, ...]
    project: str
    label: str = ""
    datasets: tuple[tuple[str, int], ...] = ()
    params: Mapping[str, Value] = field(default_factory=dict)
    env: Mapping[str, str] = field(default_factory=dict)
    tags: Mapping[str, str] = field(default_factory=dict)
    priority: int = DEFAULT_PRIORITY
    time_limit_s: float | None = None
    requirements: Path | None = None
    python: str = ""

    def spec(self, *, code: str | None, git: Mapping[str, Any] | None, environment: Mapping[str, Any]) -> dict[str, Any]:
        """The RunSpec as JSON."""
        return {
            "project": self.project,
            "roles": [role.spec() for role in self.roles],
            "code": code,
            "label": self.label,
            "datasets": [{"name": name, "version": version} for name, version in self.datasets],
            "params": dict(self.params),
            "env": dict(self.env),
            "tags": dict(self.tags),
            "environment": dict(environment),
            "git": None if git is None else dict(git),
            "priority": self.priority,
            "time_limit_s": self.time_limit_s,
        }


def parse_dataset(text: str, *, what: str = "-d") -> tuple[str, int]:
    """`NAME`, `NAME:VERSION` or `NAME:newest`: the name and the version, 0 for the newest. Raises SpecError."""
    name, colon, version = text.partition(":")
    check_name(name, what=what)
    if not colon or version == "newest":
        return name, 0
    if not version.isascii() or not version.isdecimal() or not 0 < int(version) < 2**31:
        raise SpecError(f"{what}: `{version}` is not a version of a dataset", hints=("versions count from 1: mnist:3; mnist alone takes the newest",))
    return name, int(version)


def parse_datasets(texts: Iterable[str], *, what: str = "-d") -> tuple[tuple[str, int], ...]:
    """As `parse_dataset` for each. Raises SpecError also for a dataset named twice."""
    found: dict[str, int] = {}
    for text in texts:
        name, version = parse_dataset(text, what=what)
        if name in found:
            raise SpecError(f"{what}: the dataset `{name}` is named twice", hints=("a run uses one version of a dataset",))
        found[name] = version
    return tuple(found.items())


def check_priority(priority: int, *, what: str = "--priority") -> int:
    if not 0 <= priority <= 100:
        raise SpecError(f"{what}: {priority} is not from 0 to 100", hints=("larger goes first; 50 is usual",))
    return priority


def check_replicas(replicas: int, *, what: str = "--replicas") -> int:
    if not 1 <= replicas <= MAX_REPLICAS:
        raise SpecError(f"{what}: {replicas} is not from 1 to {MAX_REPLICAS}", hints=("replicas start together or not at all",))
    return replicas


def parse_sizes(given: Mapping[str, Any]) -> dict[str, Any]:
    """The options --cpus, --memory, --gpus and --replicas among `given` as fields of a RoleRequest; those that are None are
    left out. Raises SpecError."""
    found: dict[str, Any] = {}
    if given.get("cpus") is not None:
        found |= {"cpu_milli": units.parse_cpus(given["cpus"], what="--cpus"), "cpu_limited": True}
    if given.get("memory") is not None:
        found["memory_bytes"] = units.parse_memory(given["memory"], what="--memory")
    if given.get("gpus") is not None:
        model, found["gpus"] = units.parse_gpus(given["gpus"], what="--gpus")
        found["gpu_models"] = (model,) if model else ()
    if given.get("replicas") is not None:
        found["replicas"] = check_replicas(given["replicas"])
    return found


def project_of(folder: Path) -> str:
    """The project's name where none is given: that of the folder."""
    return slug(folder.resolve().name, fallback="project")


def script_command(script: str, arguments: Iterable[str], *, folder: Path) -> tuple[str, ...]:
    """What runs a Python script; `python` stands for the interpreter of the run's environment. Raises SpecError."""
    path = folder / script
    if not path.is_file():
        near = sorted(p.name for p in path.parent.glob("*.py")) if path.parent.is_dir() else []
        problem = "is a folder" if path.is_dir() else "does not exist"
        raise SpecError(f"{script} {problem}", hints=hints_for(path.name, near, what="scripts there")[:2])
    return ("python", "-u", script, *arguments)
