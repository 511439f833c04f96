"""`config.yaml` of the home folder: what this machine offers, where the server listens, what is kept, how
long a run may take to make room, where the metadata lie.

```yaml
node: {id: box, cpus: 8, memory: 32G, gpus: A100:2, gpu_memory: 40G, extras: {fpga: 2},
       pool: default, labels: {rack: a}}
server: {port: 8765, hosts: [hop.example.org], url: http://hop2.example.org:8765, limits: {connections: 4096}}
retention: {checkpoints: 3}
scheduler: {preempt_grace: 60s}
runs: {pass_environment: [HF_HOME, "NCCL_*"], max_output: 1G, max_metrics: 256M, namespaces: true}
quotas: {storage_per_user: 500G, processes_per_replica: 16384}
database: postgresql://hopyard@db.example/hopyard
```
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import urlsplit

from hopyard.config import units
from hopyard.config.asks import MAX_EXTRAS, check_extra
from hopyard.config.limits import LimitSettings, read_limits
from hopyard.config.quotas import QUOTA_KEYS, QuotaSettings, read_quotas
from hopyard.config.reader import Section, read_yaml, shown
from hopyard.config.runspec import LEAST_OUTPUT_BYTES
from hopyard.domain.cluster import PREEMPT_GRACE_S
from hopyard.domain.ids import check_name

# Beyond these a machine's word is not believed.
_MOST_CPU_MILLI, _MOST_MEMORY_BYTES, _MOST_GPUS, _MOST_GPU_MEMORY_BYTES = 10_000_000, 2**48, 256, 2**42
_HOST = re.compile(r"[A-Za-z0-9](?:[A-Za-z0-9.-]{0,251}[A-Za-z0-9])?")
_VARIABLES = re.compile(r"[A-Za-z_][A-Za-z0-9_]*\*?")
MAX_OUTPUT_BYTES, MAX_METRICS_BYTES = 2**30, 2**28
_LONGEST_GRACE_S = 24 * 3600.0  # whoever is to have the room waits that long


@dataclass(frozen=True, slots=True)
class NodeSettings:
    """What this machine offers to runs. None: what the machine has, as the engine finds it.

    gpus: GPUs declared here take the place of those that NVML finds; 0 hides them. gpu_memory_bytes: of each
    of them, 0 where it is not said. extras: other things that runs may ask for by name, as counts.
    """

    id: str | None = None
    cpu_milli: int | None = None
    memory_bytes: int | None = None
    gpus: int | None = None
    gpu_model: str | None = None
    pool: str | None = None
    labels: Mapping[str, str] = field(default_factory=dict)
    extras: Mapping[str, int] = field(default_factory=dict)
    gpu_memory_bytes: int = 0


@dataclass(frozen=True, slots=True)
class ServerSettings:
    """port: 0 takes the port of the last time, or any that is free. hosts: names by which browsers may
    address the server, beside `localhost` and addresses in figures. url: where other servers of the same
    database reach it, "" where they are on this machine."""

    port: int = 0
    hosts: tuple[str, ...] = ()
    url: str = ""
    limits: LimitSettings = field(default_factory=LimitSettings)


@dataclass(frozen=True, slots=True)
class RetentionSettings:
    """checkpoints: how many of a run's newest are kept, beside those kept by name or leaderboard; 0 keeps
    all. audit_days: how long it is kept who changed what; 0 keeps it for ever."""

    checkpoints: int = 3
    audit_days: int = 730


@dataclass(frozen=True, slots=True)
class SchedulerSettings:
    """preempt_grace_s: how long a run that is asked to make room may take to save a checkpoint and leave,
    before it is killed."""

    preempt_grace_s: float = PREEMPT_GRACE_S


@dataclass(frozen=True, slots=True)
class RunSettings:
    """pass_environment: variables of the server's own environment that runs get beside the usual ones, `*`
    stands for anything. max_output_bytes: how much of each of stdout and stderr of a replica is kept from the
    beginning; 0 keeps all. max_metrics_bytes: the same of each of its metrics, TensorBoard scalars, events
    and samples. namespaces: whether runs get namespaces of their own where the kernel allows it."""

    pass_environment: tuple[str, ...] = ()
    max_output_bytes: int = MAX_OUTPUT_BYTES
    max_metrics_bytes: int = MAX_METRICS_BYTES
    namespaces: bool = True


@dataclass(frozen=True, slots=True)
class Settings:
    """runs: what every run gets. database: the address of a PostgreSQL database; None for the SQLite file of
    the home folder."""

    node: NodeSettings = field(default_factory=NodeSettings)
    server: ServerSettings = field(default_factory=ServerSettings)
    retention: RetentionSettings = field(default_factory=RetentionSettings)
    scheduler: SchedulerSettings = field(default_factory=SchedulerSettings)
    database: str | None = None
    runs: RunSettings = field(default_factory=RunSettings)
    quotas: QuotaSettings = field(default_factory=QuotaSettings)


def read_settings(file: Path) -> Settings:
    """The settings in `file`, defaults where it does not exist.
    Raises SpecError for anything it does not know."""
    if not file.exists():
        return Settings()
    top = read_yaml(file)
    _check_places(top)
    top.only(*_KEYS, "database")
    return Settings(
        _node(top.section("node")),
        _server(top.section("server")),
        _retention(top.section("retention")),
        _scheduler(top.section("scheduler")),
        _database(top),
        _runs(top.section("runs")),
        read_quotas(top.section("quotas")),
    )


# The keys of each section, so that the error for one in the wrong section names the right one.
_KEYS: Mapping[str, tuple[str, ...]] = {
    "node": ("id", "cpus", "memory", "gpus", "gpu_memory", "extras", "pool", "labels"),
    "server": ("port", "hosts", "url", "limits"),
    "retention": ("checkpoints", "audit_days"),
    "scheduler": ("preempt_grace",),
    "runs": ("pass_environment", "max_output", "max_metrics", "namespaces"),
    "quotas": QUOTA_KEYS,
}


def _check_places(top: Section) -> None:
    """Raises SpecError for a key that belongs to another section than the one where it stands, or below
    one."""
    places = {key: name for name, keys in _KEYS.items() for key in keys}
    for key in top.values:
        if key in places and key not in _KEYS:
            raise top.fail(key, "it is outside its section", f"it belongs below `{places[key]}:`")
    for name, keys in _KEYS.items():
        given = top.section(name)
        for key in given.values:
            if key not in keys and key in places:
                raise given.fail(key, "it is a key of another section", f"it belongs below `{places[key]}:`")


def _node(given: Section) -> NodeSettings:
    given.only(*_KEYS["node"])
    gpus = given.amount("gpus", units.parse_gpus)
    gpu_memory = given.amount("gpu_memory", units.parse_memory) or 0
    if gpu_memory and (gpus is None or gpus[1] == 0):
        raise given.fail(
            "gpu_memory",
            "memory of GPUs, but no GPUs are declared",
            "declare them: `gpus: A100:2`; those that are found tell their memory",
        )
    labels, extras = given.section("labels"), given.section("extras")
    return NodeSettings(
        id=given.checked("id", lambda: check_name(given.text("id"), what="id")) if given.has("id") else None,
        cpu_milli=_believed(given, "cpus", given.amount("cpus", units.parse_cpus), _MOST_CPU_MILLI),
        memory_bytes=_believed(
            given, "memory", given.amount("memory", units.parse_memory), _MOST_MEMORY_BYTES, least=1
        ),
        gpus=None if gpus is None else _believed(given, "gpus", gpus[1], _MOST_GPUS),
        gpu_model=None if gpus is None else gpus[0],
        gpu_memory_bytes=_believed(given, "gpu_memory", gpu_memory, _MOST_GPU_MEMORY_BYTES) or 0,
        pool=given.checked("pool", lambda: check_name(given.text("pool"), what="pool"))
        if given.has("pool")
        else None,
        labels={
            labels.checked(key, lambda k=key: check_name(k, what=k)): labels.text(key)  # type: ignore[misc]
            for key in labels.values
        },
        extras={
            extras.checked(key, lambda k=key: check_extra(k, what=k)): extras.whole(  # type: ignore[misc]
                key, 0, low=1, high=MAX_EXTRAS
            )
            for key in extras.values
        },
    )


def _believed(given: Section, key: str, amount: int | None, most: int, *, least: int = 0) -> int | None:
    """An amount that a machine may have: one that none has would be given out."""
    if amount is not None and not least <= amount <= most:
        raise given.fail(
            key,
            f"{shown(given.values[key])} is not what a machine has",
            "say what this machine has, or leave the line out: it is found",
        )
    return amount


def _server(given: Section) -> ServerSettings:
    given.only(*_KEYS["server"])
    return ServerSettings(
        given.whole("port", 0, low=0, high=65535),
        _hosts(given),
        _url(given),
        read_limits(given.section("limits")),
    )


def _url(given: Section) -> str:
    if not given.has("url"):
        return ""
    url = given.text("url")
    try:
        split = urlsplit(url)
        good = (
            split.scheme == "http"
            and bool(split.hostname)
            and split.port != 0
            and split.path in ("", "/")
            and not split.query
        )
    except ValueError:
        good = False
    if not good:
        raise given.fail(
            "url",
            f"{shown(url)} is not the address of a server",
            "it looks like http://hop2.example.org:8765",
        )
    return url.rstrip("/")


def _hosts(given: Section) -> tuple[str, ...]:
    found = []
    for at, name in given.items("hosts"):
        if not isinstance(name, str) or not _HOST.fullmatch(name):
            raise given.fail(
                "hosts",
                f"{shown(name)} at {at} is not the name of a host",
                "a name without a port, as browsers show it: hop.example.org",
            )
        found.append(name.lower())
    return tuple(found)


def _retention(given: Section) -> RetentionSettings:
    given.only(*_KEYS["retention"])
    default = RetentionSettings()
    return RetentionSettings(
        checkpoints=given.whole("checkpoints", default.checkpoints, low=0, high=1_000_000),
        audit_days=given.whole("audit_days", default.audit_days, low=0, high=36_500),
    )


def _scheduler(given: Section) -> SchedulerSettings:
    grace = given.only(*_KEYS["scheduler"]).amount("preempt_grace", units.parse_time)
    if grace is None:
        return SchedulerSettings()
    if grace > _LONGEST_GRACE_S:
        raise given.fail(
            "preempt_grace",
            f"`{given.values['preempt_grace']}` is more than a day",
            "whoever is to have the room waits that long; 60s is the default",
        )
    return SchedulerSettings(grace)


def _runs(given: Section) -> RunSettings:
    found: dict[str, None] = {}
    for at, value in given.only(*_KEYS["runs"]).items("pass_environment"):
        if not isinstance(value, str) or not _VARIABLES.fullmatch(value):
            raise given.fail(
                f"pass_environment.{at}",
                f"{shown(value)} is not the name of a variable",
                "a name, or the beginning of names and `*`: HF_HOME, NCCL_*",
            )
        found[value] = None
    namespaces = given.values.get("namespaces", True)
    if not isinstance(namespaces, bool):
        raise given.fail(
            "namespaces",
            f"{shown(namespaces)} is neither true nor false",
            "false lets runs use sudo, apptainer and other programs that change the user",
        )
    return RunSettings(
        tuple(found),
        _kept(given, "max_output", MAX_OUTPUT_BYTES),
        _kept(given, "max_metrics", MAX_METRICS_BYTES),
        namespaces,
    )


def _kept(given: Section, key: str, default: int) -> int:
    most = given.amount(key, units.parse_memory)
    if most is not None and 0 < most < LEAST_OUTPUT_BYTES:
        raise given.fail(
            key, f"{shown(given.values[key])} is too little", "1M or more; 0 keeps all that runs write"
        )
    return default if most is None else most


def _database(top: Section) -> str | None:
    address = top.text("database")
    if address and not address.startswith(("postgresql://", "postgresql+psycopg://")):
        raise top.fail(
            "database",
            "not the address of a PostgreSQL database",
            "postgresql://USER@HOST/NAME; without the line it is a file in the home folder",
        )
    return address or None
