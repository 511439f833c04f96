"""Tracks the use of the nodes at every moment, by run. Refuses an impossible allocation, even where the
stores accept it."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from hopyard.domain.cluster import Node
from hopyard.domain.gang import Placement
from hopyard.domain.ids import NodeId
from hopyard.domain.resources import WHOLE_GPU

ABSENT = -1  # the entry for a GPU that the node does not have


class OvercommitError(AssertionError):
    """A node has more allocated than it has: a fault of the policy or of the store."""


class AllocationAudit:
    """cpu, memory: free amounts of each node. gpu[n, i]: free thousandths of GPU i of node n. gpu_used,
    cpu_used: total thousandths in use."""

    def __init__(self, nodes: Sequence[Node]) -> None:
        self.nodes = {node.id: node_index for node_index, node in enumerate(nodes)}
        self._node_index = [{gpu.index: slot for slot, gpu in enumerate(node.gpus)} for node in nodes]
        max_gpus = max((len(node.gpus) for node in nodes), default=0)
        self.cpu: NDArray[np.int64] = np.array([node.cpu_milli for node in nodes], dtype=np.int64)
        self.memory: NDArray[np.int64] = np.array([node.memory_bytes for node in nodes], dtype=np.int64)
        self.gpu: NDArray[np.int64] = np.full((len(nodes), max_gpus), ABSENT, dtype=np.int64)
        for node_index, node in enumerate(nodes):
            self.gpu[node_index, : len(node.gpus)] = WHOLE_GPU
        self.ready: NDArray[np.bool_] = np.ones(len(nodes), dtype=np.bool_)
        self.cpu_total = int(self.cpu.sum())
        self.gpu_total = WHOLE_GPU * sum(len(node.gpus) for node in nodes)
        self.cpu_used = 0
        self.gpu_used = 0

    def allocate(self, placement: Placement) -> None:
        """Raises OvercommitError."""
        self._count(placement, 1)
        for assignment in placement.assignments:
            node_index = self.nodes[assignment.node]
            if (
                self.cpu[node_index] < 0
                or self.memory[node_index] < 0
                or any(
                    self.gpu[node_index, self._node_index[node_index][index]] < 0 for index in assignment.gpus
                )
            ):
                raise OvercommitError(
                    f"node {assignment.node} holds more than it has, with gang {placement.gang.id}"
                )

    def release(self, placement: Placement) -> None:
        self._count(placement, -1)

    def set_ready(self, node: NodeId, ready: bool) -> None:
        self.ready[self.nodes[node]] = ready

    def _count(self, placement: Placement, sign: int) -> None:
        for (_, role), assignment in zip(placement.gang.replica_roles(), placement.assignments, strict=True):
            node_index, resources = self.nodes[assignment.node], role.resources
            if resources.cpu_milli:
                self.cpu[node_index] -= sign * resources.cpu_milli
                self.cpu_used += sign * resources.cpu_milli
            if resources.memory_bytes:
                self.memory[node_index] -= sign * resources.memory_bytes
            for index in assignment.gpus:
                self.gpu[node_index, self._node_index[node_index][index]] -= sign * assignment.gpu_milli
            self.gpu_used += sign * assignment.gpu_milli * len(assignment.gpus)
