"""The typical requests of gangs: the shapes for which capacity is preserved."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from hopyard.domain.gang import NodeSelector
from hopyard.domain.resources import Resources

ReplicaShape = tuple[Resources, NodeSelector]


@dataclass(frozen=True, slots=True)
class WorkloadMix:
    """The number of replicas by GPU request. `shape_counts` are sorted, so that equal mixes are equal
    values."""

    shape_counts: tuple[tuple[Resources, NodeSelector, int], ...]

    @classmethod
    def of(
        cls, counts: Iterable[tuple[Resources, NodeSelector, int]] | Mapping[ReplicaShape, int]
    ) -> WorkloadMix:
        """Returns the mix of these counts. Requests without GPUs are left out: they leave all GPUs free."""
        items = (
            [(*shape, count) for shape, count in counts.items()] if isinstance(counts, Mapping) else counts
        )
        total: dict[ReplicaShape, int] = {}
        for resources, where, count in items:
            if (resources.gpus or resources.is_gpu_share) and count > 0:
                total[resources, where] = total.get((resources, where), 0) + count
        return cls(tuple((*shape, total[shape]) for shape in sorted(total, key=_sort_key)))

    def rounded(self) -> WorkloadMix:
        """Returns the mix with counts rounded down to powers of 2, so that one gang more or less seldom
        changes it."""
        return WorkloadMix(
            tuple(
                (resources, where, 1 << count.bit_length() - 1)
                for resources, where, count in self.shape_counts
            )
        )


def _sort_key(shape: ReplicaShape) -> tuple[object, ...]:
    resources, where = shape
    return (
        *(
            resources.gpus,
            resources.gpu_milli,
            resources.gpu_memory_bytes,
            resources.cpu_milli,
            resources.memory_bytes,
        ),
        *(resources.gpu_models, resources.extras, resources.cpu_limited, where.pools, where.labels),
    )


EMPTY_MIX = WorkloadMix(())
