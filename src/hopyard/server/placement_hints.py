"""Suggests existing pools and labels for those that no node has."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from hopyard.config.suggest import closest_name
from hopyard.domain.cluster import Node
from hopyard.domain.run import RunSpec


def placement_hints(spec: RunSpec, nodes: Sequence[Node]) -> list[str]:
    """Returns suggestions for each pool and label of a run that no node has."""
    pools, labels = (
        {str(node.pool) for node in nodes},
        [label for node in nodes for label in node.labels.items()],
    )
    hints: list[str] = []
    for role in spec.roles:
        hints += _pool_hints(role.where.pools, pools)
        hints += _label_hints(role.where.labels, labels)
    return list(dict.fromkeys(hints))


def _pool_hints(requested: Iterable[str], pools: set[str]) -> Iterator[str]:
    for pool in requested:
        suggestion = closest_name(pool, pools) if pool not in pools else None
        if suggestion:
            yield f"did you mean pool `{suggestion}`?"


def _label_hints(requested: Iterable[tuple[str, str]], labels: Sequence[tuple[str, str]]) -> Iterator[str]:
    names = {name for name, _ in labels}
    for name, value in requested:
        if (name, value) in labels:
            continue
        closest_label = name if name in names else closest_name(name, names)
        if closest_label is None:
            yield (
                f"labels that nodes have: {', '.join(sorted(names)[:20])}" if names else "no node has a label"
            )
            continue
        values = sorted({label_value for label, label_value in labels if label == closest_label})
        closest_value = value if value in values else closest_name(value, values)
        yield (
            f"did you mean `{closest_label}={closest_value}`?"
            if closest_value
            else f"values of label `{closest_label}`: {', '.join(values[:20])}"
        )
