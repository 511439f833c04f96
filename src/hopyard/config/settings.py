"""`config.yaml` of the home folder: resources of this machine, address of the server, retention, grace of
preemption, and the database.

```yaml
node: {id: box, cpus: 8, memory: 32G, gpus: A100:2, gpu_memory: 40G, extras: {fpga: 2},
       pool: default, labels: {rack: a}}
# or several nodes: nodes: [{id: a, cpus: 2, gpus: A100:4}, {id: b, cpus: 2}]
server: {port: 8765, hosts: [hop.example.org], url: http://hop2.example.org:8765, limits: {connections: 4096}}
retention: {checkpoints: 3}
scheduler: {preempt_grace: 60s}
runs: {pass_environment: [HF_HOME, "NCCL_*"], max_output: 1G, max_media: 1G, namespaces: true}
containers: {base_image: "python:3.12-slim"}
git: {hosts: [github.com, ssh://git.example.org], max_size: 1G, time: 5m}
quotas: {storage_per_user: 500G, processes_per_replica: 16384}
notifications: {targets: {lab: {webhook: https://hooks.slack.com/services/T0/B0/x}}}
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
from hopyard.config.git_settings import GIT_KEYS, GitSettings, read_git_settings
from hopyard.config.limits import MAX_EXTRAS, MIN_STREAM_BYTES
from hopyard.config.notification_settings import NotificationSettings, read_notifications
from hopyard.config.quotas import QUOTA_KEYS, QuotaSettings, read_quotas
from hopyard.config.resource_requests import check_extra
from hopyard.config.server_limits import LimitSettings, read_limits
from hopyard.config.yaml_section import YamlSection, as_section, format_given, read_yaml
from hopyard.domain.cluster import PREEMPT_GRACE_S
from hopyard.domain.ids import check_name
from hopyard.domain.image_reference import check_image
from hopyard.domain.media import MAX_MEDIA_BYTES

# The largest amounts that are accepted for one machine.
_MAX_CPU_MILLI, _MAX_MEMORY_BYTES, _MAX_GPUS, _MAX_GPU_MEMORY_BYTES = 10_000_000, 2**48, 256, 2**42
_HOST = re.compile(r"[A-Za-z0-9](?:[A-Za-z0-9.-]{0,251}[A-Za-z0-9])?")
_VARIABLES = re.compile(r"[A-Za-z_][A-Za-z0-9_]*\*?")
BASE_IMAGE = "python:3.12-slim"
MAX_OUTPUT_BYTES, MAX_METRICS_BYTES = 2**30, 2**28
_MAX_GRACE_S = 24 * 3600.0  # the preemptor waits that long


@dataclass(frozen=True, slots=True)
class NodeSettings:
    """The resources of this machine. None: those that the engine detects.

    gpus: GPUs declared here replace those that NVML finds; 0 hides them. gpu_memory_bytes: of each of them, 0
    if unknown. extras: counts of other resources that runs may request by name.
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
    """port: 0 takes the last port again, or any free one. hosts: names by which browsers may address the
    server, beside `localhost` and numeric addresses. url: where other servers of the same database, and
    readers of notifications, reach it; "" if they are on this machine."""

    port: int = 0
    hosts: tuple[str, ...] = ()
    url: str = ""
    limits: LimitSettings = field(default_factory=LimitSettings)


@dataclass(frozen=True, slots=True)
class RetentionSettings:
    """checkpoints: the number of newest checkpoints of a run that are kept, beside those kept by name or
    leaderboard; 0 keeps all. audit_days: how long the audit log is kept; 0: without limit."""

    checkpoints: int = 3
    audit_days: int = 730


@dataclass(frozen=True, slots=True)
class SchedulerSettings:
    """preempt_grace_s: how long a preempted run may take to save a checkpoint and exit before it is
    killed."""

    preempt_grace_s: float = PREEMPT_GRACE_S


@dataclass(frozen=True, slots=True)
class RunSettings:
    """pass_environment: variables of the server's own environment that runs get beside the usual ones; `*`
    matches anything. max_output_bytes: how much of each of stdout and stderr of a replica is kept from the
    beginning; 0 keeps all. max_metrics_bytes: the same limit for each of its metrics, TensorBoard scalars,
    events and samples. max_media_bytes: how much of the images and other media of a replica is kept; 0 keeps
    all. namespaces: whether runs get namespaces of their own if the kernel allows it."""

    pass_environment: tuple[str, ...] = ()
    max_output_bytes: int = MAX_OUTPUT_BYTES
    max_metrics_bytes: int = MAX_METRICS_BYTES
    max_media_bytes: int = MAX_MEDIA_BYTES
    namespaces: bool = True


@dataclass(frozen=True, slots=True)
class ContainerSettings:
    """base_image: to which requirements are added for runs in containers that name no image."""

    base_image: str = BASE_IMAGE


@dataclass(frozen=True, slots=True)
class HomeSettings:
    """nodes: the parts of this machine, where each is a node of its own; `node` is then empty. runs: what
    every run gets. database: the address of a PostgreSQL database; None for the SQLite file of
    the home folder."""

    node: NodeSettings = field(default_factory=NodeSettings)
    server: ServerSettings = field(default_factory=ServerSettings)
    retention: RetentionSettings = field(default_factory=RetentionSettings)
    scheduler: SchedulerSettings = field(default_factory=SchedulerSettings)
    database: str | None = None
    runs: RunSettings = field(default_factory=RunSettings)
    quotas: QuotaSettings = field(default_factory=QuotaSettings)
    nodes: tuple[NodeSettings, ...] = ()
    notifications: NotificationSettings = field(default_factory=NotificationSettings)
    containers: ContainerSettings = field(default_factory=ContainerSettings)
    git: GitSettings = field(default_factory=GitSettings)


def read_settings(file: Path) -> HomeSettings:
    """Returns the settings in `file`, or the defaults if it does not exist. Raises SpecError for an unknown
    key or an invalid value."""
    if not file.exists():
        return HomeSettings()
    top = read_yaml(file)
    _check_sections(top)
    top.check_keys(*_SECTION_KEYS, "nodes", "database", "notifications")
    return HomeSettings(
        _read_node(top.section("node")),
        _read_server(top.section("server")),
        _read_retention(top.section("retention")),
        _read_scheduler(top.section("scheduler")),
        _read_database(top),
        _read_runs(top.section("runs")),
        read_quotas(top.section("quotas")),
        _read_nodes(top),
        read_notifications(top.section("notifications")),
        _read_containers(top.section("containers")),
        read_git_settings(top.section("git")),
    )


# The keys of each section, so that the error for one in the wrong section names the right one.
_SECTION_KEYS: Mapping[str, tuple[str, ...]] = {
    "node": ("id", "cpus", "memory", "gpus", "gpu_memory", "extras", "pool", "labels"),
    "server": ("port", "hosts", "url", "limits"),
    "retention": ("checkpoints", "audit_days"),
    "scheduler": ("preempt_grace",),
    "runs": ("pass_environment", "max_output", "max_metrics", "max_media", "namespaces"),
    "quotas": QUOTA_KEYS,
    "containers": ("base_image",),
    "git": GIT_KEYS,
}


def _check_sections(top: YamlSection) -> None:
    """Raises SpecError for a key of another section, and for a key that belongs below a section."""
    places = {key: name for name, keys in _SECTION_KEYS.items() for key in keys}
    for key in top.values:
        if key in places and key not in _SECTION_KEYS:
            raise top.error(key, "it is outside its section", f"move it below `{places[key]}:`")
    for name, keys in _SECTION_KEYS.items():
        section = top.section(name)
        for key in section.values:
            if key not in keys and key in places:
                raise section.error(key, "it is a key of another section", f"move it below `{places[key]}:`")


def _read_node(section: YamlSection) -> NodeSettings:
    section.check_keys(*_SECTION_KEYS["node"])
    gpus = section.amount("gpus", units.parse_gpus)
    gpu_memory = section.amount("gpu_memory", units.parse_memory) or 0
    if gpu_memory and (gpus is None or gpus[1] == 0):
        raise section.error(
            "gpu_memory",
            "memory of GPUs, but no GPUs are declared",
            "declare them: `gpus: A100:2`; detected GPUs report their memory",
        )
    labels, extras = section.section("labels"), section.section("extras")
    return NodeSettings(
        id=section.parsed("id", lambda: check_name(section.text("id"), subject="id"))
        if section.contains("id")
        else None,
        cpu_milli=_read_plausible(section, "cpus", section.amount("cpus", units.parse_cpus), _MAX_CPU_MILLI),
        memory_bytes=_read_plausible(
            section, "memory", section.amount("memory", units.parse_memory), _MAX_MEMORY_BYTES, minimum=1
        ),
        gpus=None if gpus is None else _read_plausible(section, "gpus", gpus[1], _MAX_GPUS),
        gpu_model=None if gpus is None else gpus[0],
        gpu_memory_bytes=_read_plausible(section, "gpu_memory", gpu_memory, _MAX_GPU_MEMORY_BYTES) or 0,
        pool=section.parsed("pool", lambda: check_name(section.text("pool"), subject="pool"))
        if section.contains("pool")
        else None,
        labels={
            labels.parsed(key, lambda k=key: check_name(k, subject=k)): labels.text(key)  # type: ignore[misc]
            for key in labels.values
        },
        extras={
            extras.parsed(key, lambda k=key: check_extra(k, what=k)): extras.integer(  # type: ignore[misc]
                key, 0, low=1, high=MAX_EXTRAS
            )
            for key in extras.values
        },
    )


def _read_nodes(top: YamlSection) -> tuple[NodeSettings, ...]:
    """Returns the parts of this machine. Raises SpecError."""
    nodes: list[NodeSettings] = []
    for index, value in top.items("nodes"):
        section = as_section(top.file, f"nodes.{index}", value)
        node = _read_node(section)
        if node.id is None:
            raise section.error("id", "missing", "give each node a name: `- {id: a, cpus: 2}`")
        if any(node.id == other.id for other in nodes):
            raise section.error("id", f"`{node.id}` is the name of two nodes", "give each node its own name")
        nodes.append(node)
    if nodes and top.section("node").values:
        raise top.error("nodes", "`node` is given, too", "move the machine's values into `nodes`")
    return tuple(nodes)


def _read_plausible(
    section: YamlSection, key: str, amount: int | None, maximum: int, *, minimum: int = 0
) -> int | None:
    """Returns an amount that a machine may have. An impossible amount would be allocated to runs."""
    if amount is not None and not minimum <= amount <= maximum:
        raise section.error(
            key,
            f"{section.given(key)} is not what a machine has",
            "give the amount of this machine, or leave the line out to detect it",
        )
    return amount


def _read_server(section: YamlSection) -> ServerSettings:
    section.check_keys(*_SECTION_KEYS["server"])
    return ServerSettings(
        section.integer("port", 0, low=0, high=65535),
        _read_hosts(section),
        _read_url(section),
        read_limits(section.section("limits")),
    )


def _read_url(section: YamlSection) -> str:
    if not section.contains("url"):
        return ""
    url = section.text("url")
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
        raise section.error(
            "url",
            f"{format_given(url)} is not the address of a server",
            "give an address such as http://hop2.example.org:8765",
        )
    return url.rstrip("/")


def _read_hosts(section: YamlSection) -> tuple[str, ...]:
    hosts = []
    for index, name in section.items("hosts"):
        if not isinstance(name, str) or not _HOST.fullmatch(name):
            raise section.error(
                "hosts",
                f"{format_given(name)} at {index} is not the name of a host",
                "give a name without a port, as in a browser: hop.example.org",
            )
        hosts.append(name.lower())
    return tuple(hosts)


def _read_retention(section: YamlSection) -> RetentionSettings:
    section.check_keys(*_SECTION_KEYS["retention"])
    default = RetentionSettings()
    return RetentionSettings(
        checkpoints=section.integer("checkpoints", default.checkpoints, low=0, high=1_000_000),
        audit_days=section.integer("audit_days", default.audit_days, low=0, high=36_500),
    )


def _read_scheduler(section: YamlSection) -> SchedulerSettings:
    grace = section.check_keys(*_SECTION_KEYS["scheduler"]).amount("preempt_grace", units.parse_time)
    if grace is None:
        return SchedulerSettings()
    if grace > _MAX_GRACE_S:
        raise section.error(
            "preempt_grace",
            f"`{section.values['preempt_grace']}` is more than a day",
            "use a shorter time: the preemptor waits this long; the default is 60s",
        )
    return SchedulerSettings(grace)


def _read_runs(section: YamlSection) -> RunSettings:
    variables: dict[str, None] = {}
    for index, value in section.check_keys(*_SECTION_KEYS["runs"]).items("pass_environment"):
        if not isinstance(value, str) or not _VARIABLES.fullmatch(value):
            raise section.error(
                f"pass_environment.{index}",
                f"{format_given(value)} is not the name of a variable",
                "give a name, or a prefix and `*`: HF_HOME, NCCL_*",
            )
        variables[value] = None
    namespaces = True if not section.contains("namespaces") else section.flag("namespaces")
    if not isinstance(namespaces, bool):
        raise section.error(
            "namespaces",
            f"{section.given('namespaces')} is neither true nor false",
            "use false to let runs use sudo, apptainer and other programs that change the user",
        )
    return RunSettings(
        tuple(variables),
        _read_limit(section, "max_output", MAX_OUTPUT_BYTES),
        _read_limit(section, "max_metrics", MAX_METRICS_BYTES),
        _read_limit(section, "max_media", MAX_MEDIA_BYTES),
        namespaces,
    )


def _read_containers(section: YamlSection) -> ContainerSettings:
    text = section.check_keys(*_SECTION_KEYS["containers"]).text("base_image")
    if not text:
        return ContainerSettings()
    return ContainerSettings(section.parsed("base_image", lambda: check_image(text, what="base_image")))


def _read_limit(section: YamlSection, key: str, default: int) -> int:
    limit = section.amount(key, units.parse_memory)
    if limit is not None and 0 < limit < MIN_STREAM_BYTES:
        raise section.error(
            key,
            f"{section.given(key)} is too small",
            "give 1M or more; 0 keeps all output",
        )
    return default if limit is None else limit


def _read_database(top: YamlSection) -> str | None:
    address = top.text("database")
    if address and not address.startswith(("postgresql://", "postgresql+psycopg://")):
        raise top.error(
            "database",
            "not the address of a PostgreSQL database",
            "use postgresql://USER@HOST/NAME, or leave the line out for a file in the home folder",
        )
    return address or None
