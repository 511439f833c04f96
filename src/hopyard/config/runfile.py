"""`hop.yaml`: a run, or a gang of several roles, described in a file.

```yaml
name: ddp                       # all keys but `roles` are optional, and the command line goes before the file
project: mnist
datasets: [mnist, labels:3]
params: {lr: 0.1}
env: {NCCL_DEBUG: INFO}
tags: {team: vision}
requirements: requirements.txt  # relative to this file
python: "3.11"
queue: research
priority: 50
preemptible: false              # never asked to make room
topology: near:rack             # of all replicas together
time: 2h
roles:
  - name: worker
    replicas: 2                                # or {min: 2, max: 8}: as many as fit, resumed with another size
    command: python train.py --epochs 3      # a text, split as a shell would; or a list
    resources: {cpus: 2, memory: 4G, gpus: A100|H100:1, extras: {fpga: 1}}      # gpus: 0.5, or gpu_memory: 20G, is a part of one
    pool: [fast, slow]
    labels: {rack: a}                          # only nodes with these
    topology: same:node
    essential: false                           # the gang goes on without it, and ends with those that are
```
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from hopyard.config import asks, units
from hopyard.config.params import Value, check_key, check_variable
from hopyard.config.reader import Section, read_yaml, section, shown
from hopyard.config.runspec import RoleRequest, RunRequest, gpu_fields, parse_dataset, project_of
from hopyard.domain.ids import check_name
from hopyard.domain.run import MAX_REPLICAS
from hopyard.errors import SpecError

TOP_KEYS = (
    "name", "project", "datasets", "params", "env", "tags", "requirements", "python", "queue", "priority", "preemptible", "topology", "time",
    "roles",
)  # fmt: skip
ROLE_KEYS = ("name", "replicas", "command", "resources", "pool", "labels", "topology", "essential")
RESOURCE_KEYS = ("cpus", "memory", "gpus", "gpu_memory", "extras")


def read_runfile(file: Path, *, folder: Path) -> RunRequest:
    """The run that `file` describes; `folder` is the code's and names the project where the file does not. Raises SpecError."""
    top = read_yaml(file).only(*TOP_KEYS)
    return RunRequest(
        roles=_roles(top),
        project=_name(top, "project") or project_of(folder),
        label=_name(top, "name"),
        datasets=_datasets(top),
        params=_params(top.section("params")),
        env=_texts(top.section("env"), variable=True),
        tags=_texts(top.section("tags"), variable=False),
        queue=_name(top, "queue") or None,
        priority=top.whole("priority", 0, low=0, high=100) if top.has("priority") else None,
        preemptible=_flag(top, "preemptible", default=True),
        topology=top.amount("topology", asks.parse_topology),
        time_limit_s=top.amount("time", units.parse_time),
        requirements=_requirements(top, file),
        python=top.text("python"),
    )


def _name(given: Section, key: str) -> str:
    text = given.text(key)
    return given.checked(key, lambda: check_name(text, what=key)) if text else ""


def _roles(top: Section) -> tuple[RoleRequest, ...]:
    roles = tuple(_role(section(top.file, f"roles.{i}", value)) for i, value in top.items("roles"))
    if not roles:
        raise SpecError(f"{top.file}: roles: there is none", hints=("a role needs at least a command: `roles: [{command: python train.py}]`",))
    names = [role.name for role in roles]
    for i, name in enumerate(names):
        if name in names[:i]:
            raise top.fail(f"roles.{i}.name", f"`{name}` is the name of another role too", "every role has a name of its own")
    return roles


def _role(given: Section) -> RoleRequest:
    given.only(*ROLE_KEYS)
    asked = given.section("resources").only(*RESOURCE_KEYS)
    cpu_milli = asked.amount("cpus", units.parse_cpus)
    fewest, replicas = _replicas(given)
    return RoleRequest(
        command=_command(given),
        name=_name(given, "name") or "worker",
        replicas=replicas,
        min_replicas=fewest,
        cpu_milli=RoleRequest(()).cpu_milli if cpu_milli is None else cpu_milli,
        cpu_limited=cpu_milli is not None,
        memory_bytes=asked.amount("memory", units.parse_memory) or 0,
        extras=_extras(asked.section("extras")),
        pools=_pools(given),
        labels=_labels(given.section("labels")),
        topology=given.amount("topology", asks.parse_topology),
        essential=_flag(given, "essential", default=True),
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
            raise given.fail(f"pool.{i}", f"{shown(text)} is not the name of a pool", "pools are named: `pool: [fast, slow]`")
    return given.checked("pool", lambda: asks.parse_pools(",".join(text for _, text in texts), what="pool"))


def _labels(given: Section) -> tuple[tuple[str, str], ...]:
    for key in given.values:
        given.checked(key, lambda k=key: asks.check_label(k, what="labels"))  # type: ignore[misc]
    return tuple(sorted((key, given.text(key)) for key in given.values))


def _flag(given: Section, key: str, *, default: bool) -> bool:
    value = given.values.get(key)
    if value is None:
        return default
    if not isinstance(value, bool):
        raise given.fail(key, f"{shown(value)} is neither true nor false")
    return value


def _command(given: Section) -> tuple[str, ...]:
    value = given.values.get("command")
    if isinstance(value, str):
        import shlex

        try:
            words = shlex.split(value)
        except ValueError as bad:
            raise given.fail("command", f"{shown(value)} cannot be split into words: {bad}", "close the quotes, or give a list of words") from bad
    elif isinstance(value, list) and all(isinstance(word, (str, int, float)) and not isinstance(word, bool) for word in value):
        words = [str(word) for word in value]
    elif value is None:
        raise given.fail("command", "missing", "what the replicas run: `command: python train.py`")
    else:
        raise given.fail("command", f"{shown(value)} is neither a text nor a list of words", "for example `command: python train.py`")
    if not words or not words[0]:
        raise given.fail("command", "empty", "what the replicas run: `command: python train.py`")
    if "\0" in "".join(words):
        raise given.fail("command", "holds a zero byte")
    if words[0].endswith(".py"):
        words = ["python", "-u", *words]
    return tuple(words)


def _datasets(top: Section) -> tuple[tuple[str, int], ...]:
    found: dict[str, int] = {}
    for i, value in top.items("datasets"):
        where = f"datasets.{i}"
        if not isinstance(value, str):
            raise top.fail(where, f"{shown(value)} is not a dataset", "a dataset is written `mnist` or `mnist:3`")
        name, version = top.checked(where, lambda text=value: parse_dataset(text, what="datasets"))  # type: ignore[misc]
        if name in found:
            raise top.fail(where, f"the dataset `{name}` is named twice", "a run uses one version of a dataset")
        found[name] = version
    return tuple(found.items())


def _params(given: Section) -> Mapping[str, Value]:
    return {given.checked(key, lambda k=key: check_key(k, what="params")): _param(given, key) for key in given.values}  # type: ignore[misc]


def _param(given: Section, key: str) -> Value:
    value: Any = given.values[key]
    if value is not None and not isinstance(value, (str, int, float, bool)):
        raise given.fail(key, f"{shown(value)} is not a single value", "a parameter is a text, a number, true, false or null; quote a date")
    if isinstance(value, float) and not math.isfinite(value):
        raise given.fail(key, f"{shown(value)} is not a finite number", 'write it in quotes to pass it as a text: "inf"')
    if isinstance(value, int) and abs(value) >= 2**63:
        raise given.fail(key, f"{shown(value)} is larger than 64 bits", "write it in quotes to pass it as a text")
    return value


def _texts(given: Section, *, variable: bool) -> dict[str, str]:
    found: dict[str, str] = {}
    for key, value in given.values.items():
        given.checked(key, lambda k=key: check_variable(k, what="env") if variable else check_key(k, what="tags"))  # type: ignore[misc]
        if isinstance(value, bool) or not isinstance(value, (str, int)):
            raise given.fail(key, f"{shown(value)} is not a text", f'write it in quotes: "{value}"')
        found[key] = str(value)
    return found


def _requirements(top: Section, file: Path) -> Path | None:
    text = top.text("requirements")
    if not text:
        return None
    path = file.parent / text
    if not path.is_file():
        raise top.fail("requirements", f"there is no file {path}", "the path is relative to the folder of this file")
    return path
