"""What gangs usually ask for: the shapes for which room is to be kept."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from hopyard.domain.gang import Where
from hopyard.domain.resources import Resources

Ask = tuple[Resources, Where]


@dataclass(frozen=True, slots=True)
class Mix:
    """How often one replica asks for GPUs in which way; `asks` are sorted, so that equal mixes are equal
    values."""

    asks: tuple[tuple[Resources, Where, int], ...]

    @classmethod
    def of(cls, counts: Iterable[tuple[Resources, Where, int]] | Mapping[Ask, int]) -> Mix:
        """Of these counts; who asks for no GPU leaves all GPUs free, and does not matter here."""
        items = [(*ask, count) for ask, count in counts.items()] if isinstance(counts, Mapping) else counts
        total: dict[Ask, int] = {}
        for resources, where, count in items:
            if (resources.gpus or resources.shares_gpu) and count > 0:
                total[resources, where] = total.get((resources, where), 0) + count
        return cls(tuple((*ask, total[ask]) for ask in sorted(total, key=_key)))

    def coarse(self) -> Mix:
        """With counts rounded down to powers of 2: one gang more or less seldom makes another one of it."""
        return Mix(
            tuple((resources, where, 1 << count.bit_length() - 1) for resources, where, count in self.asks)
        )


def _key(ask: Ask) -> tuple[object, ...]:
    resources, where = ask
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


NO_MIX = Mix(())
