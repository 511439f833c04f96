"""Pools and labels that no node has, and the nearest that some node has."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from hopyard.config.suggest import closest
from hopyard.domain.cluster import Node
from hopyard.domain.run import RunSpec


def where_hints(spec: RunSpec, nodes: Sequence[Node]) -> list[str]:
    """What was probably meant by each pool and label of a run that no node has."""
    pools, labels = (
        {str(node.pool) for node in nodes},
        [label for node in nodes for label in node.labels.items()],
    )
    found: list[str] = []
    for role in spec.roles:
        found += _of_pools(role.where.pools, pools)
        found += _of_labels(role.where.labels, labels)
    return list(dict.fromkeys(found))


def _of_pools(asked: Iterable[str], known: set[str]) -> Iterator[str]:
    for pool in asked:
        near = closest(pool, known) if pool not in known else None
        if near:
            yield f"did you mean pool `{near}`?"


def _of_labels(asked: Iterable[tuple[str, str]], known: Sequence[tuple[str, str]]) -> Iterator[str]:
    names = {name for name, _ in known}
    for name, value in asked:
        if (name, value) in known:
            continue
        near = name if name in names else closest(name, names)
        if near is None:
            yield (
                f"labels that nodes have: {', '.join(sorted(names)[:20])}" if names else "no node has a label"
            )
            continue
        values = sorted({other for label, other in known if label == near})
        meant = value if value in values else closest(value, values)
        yield (
            f"did you mean `{near}={meant}`?"
            if meant
            else f"values of label `{near}`: {', '.join(values[:20])}"
        )
