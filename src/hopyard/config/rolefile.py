"""The replicas of a run as a file describes them: what they run, what they need, and where they may be."""

from __future__ import annotations

from typing import Any

from hopyard.config import asks, units
from hopyard.config.reader import Section, section, shown
from hopyard.config.runspec import RoleRequest, gpu_fields
from hopyard.config.values import read_flag, read_name
from hopyard.domain.run import MAX_REPLICAS
from hopyard.errors import SpecError

ROLE_KEYS = ("name", "replicas", "command", "resources", "pool", "labels", "topology", "essential")
RESOURCE_KEYS = ("cpus", "memory", "gpus", "gpu_memory", "extras")


def read_roles(top: Section) -> tuple[RoleRequest, ...]:
    """Those under `roles`. Raises SpecError."""
    roles = tuple(read_role(section(top.file, f"roles.{i}", value)) for i, value in top.items("roles"))
    if not roles:
        raise SpecError(
            f"{top.file}: roles: there is none",
            hints=("a role needs at least a command: `roles: [{command: python train.py}]`",),
        )
    names = [role.name for role in roles]
    for i, name in enumerate(names):
        if name in names[:i]:
            raise top.fail(
                f"roles.{i}.name",
                f"`{name}` is the name of another role too",
                "every role has a name of its own",
            )
    return roles


def read_role(given: Section) -> RoleRequest:
    """One of them. Raises SpecError."""
    given.only(*ROLE_KEYS)
    asked = given.section("resources").only(*RESOURCE_KEYS)
    cpu_milli = asked.amount("cpus", units.parse_cpus)
    fewest, replicas = _replicas(given)
    return RoleRequest(
        command=_command(given),
        name=read_name(given, "name") or "worker",
        replicas=replicas,
        min_replicas=fewest,
        cpu_milli=RoleRequest(()).cpu_milli if cpu_milli is None else cpu_milli,
        cpu_limited=cpu_milli is not None,
        memory_bytes=asked.amount("memory", units.parse_asked_memory) or 0,
        extras=_extras(asked.section("extras")),
        pools=_pools(given),
        labels=_labels(given.section("labels")),
        topology=given.amount("topology", asks.parse_topology),
        essential=read_flag(given, "essential", default=True),
        **_gpus(asked),
    )


def _gpus(asked: Section) -> dict[str, Any]:
    gpus, memory = asked.amount("gpus", asks.parse_gpus), asked.amount("gpu_memory", units.parse_memory)
    return asked.checked("gpu_memory", lambda: gpu_fields(gpus, memory, what="gpu_memory", other="gpus"))


def _replicas(given: Section) -> tuple[int, int]:
    """The fewest (0: exactly the most) and the most."""
    value = given.values.get("replicas")
    if isinstance(value, dict):
        range_ = given.section("replicas").only("min", "max")
        if not range_.has("max"):
            raise given.fail("replicas", "`max` is missing", "for example `replicas: {min: 2, max: 8}`")
        most = range_.whole("max", 1, low=1, high=MAX_REPLICAS)
        fewest = range_.whole("min", 1, low=1, high=MAX_REPLICAS)
        return given.checked("replicas", lambda: asks.check_range(fewest, most, what="replicas"))
    if isinstance(value, str):
        return given.checked("replicas", lambda: asks.parse_replicas(value, what="replicas"))
    return 0, given.whole("replicas", 1, low=1, high=MAX_REPLICAS)


def _extras(given: Section) -> tuple[tuple[str, int], ...]:
    found = {}
    for key in given.values:
        given.checked(key, lambda k=key: asks.check_extra(k, what="extras"))  # type: ignore[misc]
        found[key] = given.whole(key, 0, low=1, high=asks.MAX_EXTRAS)
    return tuple(sorted(found.items()))


def _pools(given: Section) -> tuple[str, ...]:
    value = given.values.get("pool")
    if not isinstance(value, list):
        text = given.text("pool")
        return given.checked("pool", lambda: asks.parse_pools(text, what="pool")) if text else ()
    texts = [(i, text) for i, text in given.items("pool")]
    for i, text in texts:
        if not isinstance(text, str):
            raise given.fail(
                f"pool.{i}",
                f"{shown(text)} is not the name of a pool",
                "pools are named: `pool: [fast, slow]`",
            )
    return given.checked("pool", lambda: asks.parse_pools(",".join(text for _, text in texts), what="pool"))


def _labels(given: Section) -> tuple[tuple[str, str], ...]:
    for key in given.values:
        given.checked(key, lambda k=key: asks.check_label(k, what="labels"))  # type: ignore[misc]
    return tuple(sorted((key, given.text(key)) for key in given.values))


def _command(given: Section) -> tuple[str, ...]:
    value = given.values.get("command")
    if isinstance(value, str):
        import shlex

        try:
            words = shlex.split(value)
        except ValueError as bad:
            raise given.fail(
                "command",
                f"{shown(value)} cannot be split into words: {bad}",
                "close the quotes, or give a list of words",
            ) from bad
    elif isinstance(value, list) and all(
        isinstance(word, (str, int, float)) and not isinstance(word, bool) for word in value
    ):
        words = [str(word) for word in value]
    elif value is None:
        raise given.fail("command", "missing", "what the replicas run: `command: python train.py`")
    else:
        raise given.fail(
            "command",
            f"{shown(value)} is neither a text nor a list of words",
            "for example `command: python train.py`",
        )
    if not words or not words[0]:
        raise given.fail("command", "empty", "what the replicas run: `command: python train.py`")
    if "\0" in "".join(words):
        raise given.fail("command", "holds a zero byte")
    if words[0].endswith(".py"):
        words = ["python", "-u", *words]
    return tuple(words)
