"""A cluster in a file, for `hop simulate --cluster`: pools of equal machines, and optionally a tree of queues
and reservations.

```yaml
pools:
  - {name: a100, count: 16, cpus: 64, memory: 512G, gpus: A100:8, gpu_memory: 80G, racks: 4,
     labels: {zone: a}}
  - {name: cpu, count: 8, cpus: 96, memory: 256G}
default: nlp                              # with several queues: the queue of runs that name none
# the keys of a file for `hop queue apply`, with `half_life`; or the path of such a file
queues: {vision: {weight: 2}, nlp: {}}
reservations:                             # see `hopyard.config.cluster_reservations`
  - {name: exam, from: +2h, for: 4h, nodes: [a100-0000], users: [alice]}
```
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from hopyard.config import units
from hopyard.config.cluster_reservations import ReservationSection, read_reservations
from hopyard.config.queues.queue_file import TOP_KEYS, queue_tree_from, read_queues
from hopyard.config.suggest import unknown_name_hints
from hopyard.config.yaml_section import YamlSection, as_section, format_given, read_yaml
from hopyard.domain.cluster import Node
from hopyard.domain.ids import NodeId, PoolName, check_name
from hopyard.domain.queue import QueueTree
from hopyard.domain.resources import UNKNOWN_GPU_MODEL, Gpu
from hopyard.errors import SpecError

ENGINE = "simulated"
MAX_NODES = 100_000
MAX_GPUS = 1024  # of one node
RACK_LABEL = "rack"  # the label that `racks` sets
_POOL_KEYS = ("name", "count", "cpus", "memory", "gpus", "gpu_memory", "labels", "racks", "extras")
_ADDED_NODES = re.compile(r"\s*(\d{1,6})\s*[x×]\s*(\S.*?)\s*")
_ADD_HINT = (
    'write it as `COUNT x POOL` or `COUNT x GPUS`: "2 x a100", "2 x A100:8", "4 x cpus=64,memory=256G"'
)


@dataclass(frozen=True, slots=True)
class ClusterFile:
    """queues: None if the file names none."""

    nodes: tuple[Node, ...]
    queues: QueueTree | None = None
    reservations: tuple[ReservationSection, ...] = ()


def read_cluster(file: Path) -> ClusterFile:
    """Raises SpecError with the path of the invalid value."""
    top = read_yaml(file).check_keys("pools", "reservations", *TOP_KEYS)
    nodes: list[Node] = []
    names: set[str] = set()
    for index, value in top.items("pools"):
        pool = _as_section(top, f"pools.{index}", value).check_keys(*_POOL_KEYS)
        pool_members = pool_nodes(pool)
        if pool_members and pool_members[0].pool in names:
            raise pool.error(
                "name", f"there are two pools `{pool_members[0].pool}`", "give each pool its own name"
            )
        names.update(node.pool for node in pool_members[:1])
        nodes += pool_members
    if not nodes:
        raise top.error(
            "pools",
            "no nodes are given",
            "for example `pools: [{name: a100, count: 4, cpus: 64, memory: 512G, gpus: A100:8}]`",
        )
    if len(nodes) > MAX_NODES:
        raise top.error("pools", f"{len(nodes)} machines, at most {MAX_NODES} are simulated")
    return ClusterFile(tuple(nodes), _read_queues(top, file), read_reservations(top))


def _read_queues(top: YamlSection, file: Path) -> QueueTree | None:
    value = top.values.get("queues")
    if value is None:
        return None
    if isinstance(value, str):
        return read_queues(file.parent / value)
    return queue_tree_from(
        YamlSection(top.file, "", {key: top.values[key] for key in TOP_KEYS if key in top.values})
    )


def pool_nodes(pool: YamlSection) -> list[Node]:
    """Returns the machines of one pool, named `POOL-0000` and so on."""
    name = pool.parsed("name", lambda: check_name(pool.text("name", "default"), subject="name"))
    count = pool.integer(
        "count",
        1,
        low=1,
        high=MAX_NODES,
        hint="how many machines the pool has; a pool of none is left out of the file",
    )
    spread = f"the {count} of the pool are spread over them evenly; leave it out where there are none"
    racks = pool.integer("racks", 0, low=1, high=count, hint=spread)
    labels = pool.section("labels")
    texts = {key: labels.text(key) for key in labels.values}
    extras = pool.section("extras")
    node = Node(
        NodeId(name),
        ENGINE,
        pool.amount("cpus", units.parse_cpus) or _missing_error(pool, "cpus", "64"),
        pool.amount("memory", units.parse_memory) or _missing_error(pool, "memory", "256G"),
        _read_gpus(pool),
        PoolName(name),
        labels=texts,
        extras={key: extras.integer(key, 0, low=0, high=10**6) for key in extras.values},
    )
    return [
        replace(node, id=NodeId(f"{name}-{index:04d}"), labels=_rack_labels(texts, name, index, count, racks))
        for index in range(count)
    ]


def _missing_error(pool: YamlSection, key: str, example: str) -> Any:
    raise pool.error(key, "missing", f"what each machine has: `{key}: {example}`")


def _rack_labels(labels: dict[str, str], pool: str, index: int, count: int, racks: int) -> dict[str, str]:
    return {**labels, RACK_LABEL: f"{pool}-{index * racks // count}"} if racks else labels


def _read_gpus(pool: YamlSection) -> tuple[Gpu, ...]:
    request = pool.amount("gpus", units.parse_gpus)
    memory = pool.amount("gpu_memory", units.parse_memory) or 0
    if request is None:
        return ()
    model, count = request
    if count > MAX_GPUS:
        raise pool.error("gpus", f"{count} GPUs in one machine, at most {MAX_GPUS} fit")
    return tuple(Gpu(index, model or UNKNOWN_GPU_MODEL, memory) for index in range(count))


def _as_section(top: YamlSection, path: str, value: Any) -> YamlSection:
    return as_section(top.file, top.path_of(path), value)


def added_nodes(text: str, nodes: Sequence[Node]) -> tuple[Node, ...]:
    """Returns the machines that `--add` names: a number of machines like those of a pool, or with the given
    GPUs. Other properties are those of the most similar machine. Raises SpecError."""
    match = _ADDED_NODES.fullmatch(text)
    if match is None:
        raise SpecError(f"--add: {format_given(text)} names no machines", hints=(_ADD_HINT,))
    count, description = int(match[1]), match[2]
    if not 0 < count <= MAX_NODES:
        raise SpecError(
            f"--add: {count} is not a number of machines from 1 to {MAX_NODES}", hints=(_ADD_HINT,)
        )
    template = _nodes_like(description, nodes)
    used_ids = {node.id for node in nodes}
    names = (NodeId(f"{template.pool}-more-{index:04d}") for index in range(count + len(used_ids)))
    free = [name for name in names if name not in used_ids][:count]
    return tuple(replace(template, id=name, ready=True, cordoned=False, holds=frozenset()) for name in free)


def _nodes_like(pool_or_node: str, nodes: Sequence[Node]) -> Node:
    pools = {node.pool: node for node in reversed(nodes)}
    if pool_or_node in pools:
        return pools[PoolName(pool_or_node)]
    if "=" in pool_or_node:
        return _nodes_from_description(pool_or_node, nodes)
    try:
        model, count = units.parse_gpus(pool_or_node, what="--add")
    except SpecError:
        hints = unknown_name_hints(pool_or_node, [str(pool) for pool in pools], subject="pools")
        raise SpecError(
            f"--add: `{pool_or_node}` is neither a pool nor a number of GPUs", hints=(*hints, _ADD_HINT)
        ) from None
    if ":" not in pool_or_node and not pool_or_node.isdecimal():
        raise SpecError(
            f"--add: there is no pool `{pool_or_node}`",
            hints=(
                *unknown_name_hints(pool_or_node, [str(pool) for pool in pools], subject="pools"),
                _ADD_HINT,
            ),
        )
    return _nodes_with_gpus(model, count, nodes)


def _nodes_with_gpus(model: str | None, count: int, nodes: Sequence[Node]) -> Node:
    if count > MAX_GPUS:
        raise SpecError(f"--add: {count} GPUs in one machine, at most {MAX_GPUS} fit")
    like = min(
        nodes, key=lambda node: (not _has_gpu_model(node, model), abs(len(node.gpus) - count), node.id)
    )
    example = next(
        (gpu for gpu in like.gpus if model is None or gpu.model.casefold() == model.casefold()),
        Gpu(0, model or UNKNOWN_GPU_MODEL),
    )
    return replace(like, gpus=tuple(replace(example, index=index) for index in range(count)))


def _has_gpu_model(node: Node, model: str | None) -> bool:
    return bool(node.gpus) and (
        model is None or any(gpu.model.casefold() == model.casefold() for gpu in node.gpus)
    )


def _nodes_from_description(description: str, nodes: Sequence[Node]) -> Node:
    """Returns the node that `cpus=64,memory=256G,gpus=A100:8,pool=new` describes, with the keys of a pool."""
    pairs = dict(_split_pair(part) for part in description.split(","))
    values = {"name" if key == "pool" else key: value for key, value in pairs.items()}
    pool = YamlSection("--add", "", values).check_keys("name", "cpus", "memory", "gpus", "gpu_memory")
    model, count = units.parse_gpus(values["gpus"], what="--add: gpus") if "gpus" in values else (None, 0)
    like = _nodes_with_gpus(model, count, nodes)
    return replace(
        like,
        pool=PoolName(pool.parsed("name", lambda: check_name(pool.text("name", like.pool), subject="pool"))),
        cpu_milli=pool.amount("cpus", units.parse_cpus) or like.cpu_milli,
        memory_bytes=pool.amount("memory", units.parse_memory) or like.memory_bytes,
        gpus=_read_gpus(pool) if pool.contains("gpu_memory") else like.gpus,
    )


def _split_pair(text: str) -> tuple[str, str]:
    key, equals, value = text.partition("=")
    if not equals or not value.strip():
        raise SpecError(f"--add: {format_given(text)} is not KEY=VALUE", hints=(_ADD_HINT,))
    return key.strip(), value.strip()


def max_node_gpus(nodes: Iterable[Node]) -> int:
    """Returns the largest number of GPUs of one machine, 1 if no machine has any."""
    return max((len(node.gpus) for node in nodes), default=0) or 1
