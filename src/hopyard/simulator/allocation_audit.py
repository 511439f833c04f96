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

ABSENT = -1  # thousandths free of a GPU that the node does not have


class OvercommitError(AssertionError):
    """A node has more allocated than it has: a fault of the policy or of the store."""


class AllocationAudit:
    """cpu, memory: free on each node. gpu[n, i]: thousandths free of GPU i of node n.
    gpu_used, cpu_used: thousandths in all."""

    def __init__(self, nodes: Sequence[Node]) -> None:
        self.nodes = {node.id: at for at, node in enumerate(nodes)}
        self._node_index = [{gpu.index: slot for slot, gpu in enumerate(node.gpus)} for node in nodes]
        most = max((len(node.gpus) for node in nodes), default=0)
        self.cpu: NDArray[np.int64] = np.array([node.cpu_milli for node in nodes], dtype=np.int64)
        self.memory: NDArray[np.int64] = np.array([node.memory_bytes for node in nodes], dtype=np.int64)
        self.gpu: NDArray[np.int64] = np.full((len(nodes), most), ABSENT, dtype=np.int64)
        for at, node in enumerate(nodes):
            self.gpu[at, : len(node.gpus)] = WHOLE_GPU
        self.ready: NDArray[np.bool_] = np.ones(len(nodes), dtype=np.bool_)
        self.cpu_total = int(self.cpu.sum())
        self.gpu_total = WHOLE_GPU * sum(len(node.gpus) for node in nodes)
        self.cpu_used = 0
        self.gpu_used = 0

    def allocate(self, placement: Placement) -> None:
        """Raises OverCommitted."""
        self._count(placement, 1)
        for assignment in placement.assignments:
            at = self.nodes[assignment.node]
            if (
                self.cpu[at] < 0
                or self.memory[at] < 0
                or any(self.gpu[at, self._node_index[at][index]] < 0 for index in assignment.gpus)
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
            at, want = self.nodes[assignment.node], role.resources
            if want.cpu_milli:
                self.cpu[at] -= sign * want.cpu_milli
                self.cpu_used += sign * want.cpu_milli
            if want.memory_bytes:
                self.memory[at] -= sign * want.memory_bytes
            for index in assignment.gpus:
                self.gpu[at, self._node_index[at][index]] -= sign * assignment.gpu_milli
            self.gpu_used += sign * assignment.gpu_milli * len(assignment.gpus)
