"""The usual requests of gangs: the shapes for which capacity is preserved."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from hopyard.domain.gang import NodeSelector
from hopyard.domain.resources import Resources

ReplicaShape = tuple[Resources, NodeSelector]


@dataclass(frozen=True, slots=True)
class WorkloadMix:
    """How often one replica asks for GPUs in which way; `shape_counts` are sorted, so that equal mixes are
    equal values."""

    shape_counts: tuple[tuple[Resources, NodeSelector, int], ...]

    @classmethod
    def of(
        cls, counts: Iterable[tuple[Resources, NodeSelector, int]] | Mapping[ReplicaShape, int]
    ) -> WorkloadMix:
        """Of these counts; who asks for no GPU leaves all GPUs free, and does not matter here."""
        items = [(*ask, count) for ask, count in counts.items()] if isinstance(counts, Mapping) else counts
        total: dict[ReplicaShape, int] = {}
        for resources, where, count in items:
            if (resources.gpus or resources.is_gpu_share) and count > 0:
                total[resources, where] = total.get((resources, where), 0) + count
        return cls(tuple((*ask, total[ask]) for ask in sorted(total, key=_sort_key)))

    def rounded(self) -> WorkloadMix:
        """With counts rounded down to powers of 2: one gang more or less seldom makes another one of it."""
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
