"""Caches the nodes, which every submission needs, and which gangs are larger than all of them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import datetime, timedelta

from hopyard.domain.cluster import Node
from hopyard.domain.gang import Gang
from hopyard.domain.placement_causes import NeverFitsCause
from hopyard.interfaces.cluster_store import ClusterStore
from hopyard.scheduler.placement.never_fits import never_fits
from hopyard.scheduler.policies.incremental_state import GangClassKey, class_of
from hopyard.server.cache_validation import is_valid

_CACHE_TTL = timedelta(seconds=2)
_MAX_CAUSES = 1024


class NodeCache:
    def __init__(self, cluster: ClusterStore, *, now: Callable[[], datetime]) -> None:
        self._cluster, self._now = cluster, now
        self._nodes: Sequence[Node] = ()
        self._valid_until: datetime | None = None
        self._checked_nodes: Sequence[Node] = ()
        self._causes: dict[GangClassKey, NeverFitsCause | None] = {}  # of the checked nodes

    async def get(self) -> Sequence[Node]:
        """Returns all nodes of all engines. They may be up to two seconds old."""
        now = self._now()
        is_current = self._valid_until is not None and is_valid(self._valid_until, now, _CACHE_TTL)
        if not is_current or not self._nodes:
            nodes, self._valid_until = await self._cluster.nodes(), now + _CACHE_TTL
            if nodes != self._nodes:  # what is derived from the same nodes stays valid
                self._nodes = nodes
        return self._nodes

    def never_fits_cause(self, gang: Gang, nodes: Sequence[Node]) -> NeverFitsCause | None:
        """Returns why the gang is larger than all these nodes, as `never_fits`. Gangs of equal roles and
        topology are checked once, until the nodes change."""
        if nodes is not self._checked_nodes or len(self._causes) >= _MAX_CAUSES:
            self._checked_nodes = nodes
            self._causes.clear()
        gang_class = class_of(gang)
        if gang_class not in self._causes:
            self._causes[gang_class] = never_fits(gang, nodes)
        return self._causes[gang_class]
