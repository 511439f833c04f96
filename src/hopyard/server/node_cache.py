"""Caches the nodes, which every submission needs."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import datetime, timedelta

from hopyard.domain.cluster import Node
from hopyard.interfaces.cluster_store import ClusterStore

_CACHE_TTL = timedelta(seconds=2)


class NodeCache:
    def __init__(self, cluster: ClusterStore, *, now: Callable[[], datetime]) -> None:
        self._cluster, self._now = cluster, now
        self._nodes: Sequence[Node] = ()
        self._valid_until: datetime | None = None

    async def get(self) -> Sequence[Node]:
        """Returns all nodes of all engines. They may be up to two seconds old."""
        now = self._now()
        if self._valid_until is None or now >= self._valid_until or not self._nodes:
            self._nodes, self._valid_until = await self._cluster.nodes(), now + _CACHE_TTL
        return self._nodes
