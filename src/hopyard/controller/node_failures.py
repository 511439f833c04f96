"""Counts the failed checks of nodes, and cordons a node that fails repeatedly."""

from __future__ import annotations

import logging
from datetime import datetime

from hopyard.domain.attempt import AttemptPhase, ReplicaPhase
from hopyard.domain.ids import AttemptId, NodeId, split_attempt
from hopyard.domain.preflight import Check, NodeFailure, cordon_reason, recent_failures
from hopyard.errors import Conflict
from hopyard.interfaces.cluster_store import ClusterStore
from hopyard.interfaces.run_store import RunStore

log = logging.getLogger("hopyard.controller")
_STARTING_PHASES = (AttemptPhase.STARTING, AttemptPhase.STOPPING)  # stopping: another replica failed first


class NodeFailures:
    """The failures that replicas reported to this server since it started. A restart of the server forgets
    them, and a node is then cordoned one failure later."""

    def __init__(self, cluster: ClusterStore, runs: RunStore) -> None:
        self._cluster, self._runs = cluster, runs
        self._failures: list[NodeFailure] = []

    async def record(
        self, attempt: AttemptId, rank: int, check: Check, found: str, *, now: datetime
    ) -> NodeId:
        """Records that a check failed because of the node of this replica, and cordons the node if it failed
        before. Returns the node. The caller has authenticated the replica.

        Raises NotFound, and Conflict for a report that comes after a script of the attempt started, since a
        script can send it.
        """
        current = (await self._runs.get(split_attempt(attempt)[0])).attempt
        if current is None or current.id != attempt or not 0 <= rank < len(current.nodes):
            raise Conflict(f"attempt {attempt} has no replica {rank} now")
        replicas = (await self._cluster.replicas(attempt)).replicas
        is_started = current.phase not in _STARTING_PHASES or any(
            replica.phase is ReplicaPhase.RUNNING for replica in replicas
        )
        if is_started or any(replica.exit is not None for replica in replicas if replica.rank == rank):
            raise Conflict(f"replica {rank} of attempt {attempt} has started or ended")
        node = NodeId(current.nodes[rank])
        self._failures = [
            *recent_failures(self._failures, now=now),
            NodeFailure(node, attempt, check, found, now),
        ]
        reason = cordon_reason(self._failures, node, now=now)
        if reason:
            await self._cordon(node, reason)
        return node

    async def _cordon(self, node: NodeId, reason: str) -> None:
        """Cordons the node. From then on its earlier failures do not count, also after an uncordon."""
        known = {each.id: each for each in await self._cluster.nodes()}
        if node in known and not known[node].cordoned:
            await self._cluster.set_cordon(node, True, reason=reason)
            log.warning("node %s is cordoned: %s", node, reason)
        self._failures = [failure for failure in self._failures if failure.node != node]
