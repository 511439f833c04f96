"""Pools and labels that no node has, and the nearest that some node has."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from hopyard.config.suggest import closest_name
from hopyard.domain.cluster import Node
from hopyard.domain.run import RunSpec


def placement_hints(spec: RunSpec, nodes: Sequence[Node]) -> list[str]:
    """What was probably meant by each pool and label of a run that no node has."""
    pools, labels = (
        {str(node.pool) for node in nodes},
        [label for node in nodes for label in node.labels.items()],
    )
    found: list[str] = []
    for role in spec.roles:
        found += _pool_hints(role.where.pools, pools)
        found += _label_hints(role.where.labels, labels)
    return list(dict.fromkeys(found))


def _pool_hints(requested: Iterable[str], pools: set[str]) -> Iterator[str]:
    for pool in requested:
        near = closest_name(pool, pools) if pool not in pools else None
        if near:
            yield f"did you mean pool `{near}`?"


def _label_hints(requested: Iterable[tuple[str, str]], labels: Sequence[tuple[str, str]]) -> Iterator[str]:
    names = {name for name, _ in labels}
    for name, value in requested:
        if (name, value) in labels:
            continue
        near = name if name in names else closest_name(name, names)
        if near is None:
            yield (
                f"labels that nodes have: {', '.join(sorted(names)[:20])}" if names else "no node has a label"
            )
            continue
        values = sorted({other for label, other in labels if label == near})
        meant = value if value in values else closest_name(value, values)
        yield (
            f"did you mean `{near}={meant}`?"
            if meant
            else f"values of label `{near}`: {', '.join(values[:20])}"
        )
