"""Feasibility of one request shape on the nodes: everything that depends on the nodes alone is computed
once."""

from __future__ import annotations

from copy import copy
from dataclasses import replace
from typing import NamedTuple

import numpy as np

from hopyard.domain.gang import ANY_NODE, Assignment, NodeSelector
from hopyard.domain.resources import WHOLE_GPU, Resources
from hopyard.scheduler.placement.free_resources import FreeResources
from hopyard.scheduler.placement.node_table import GPU_NOT_ALLOWED, Bools, Ints, NodeTable


class ReplicaRequest(NamedTuple):
    """The request of one replica, with its node selector and GPU models. Replicas of one shape fit on the
    same nodes."""

    resources: Resources
    where: NodeSelector
    closed_models: frozenset[str] = frozenset()


Rows = Ints | slice
ALL_ROWS = slice(None)


class NodeFeasibility:
    """The nodes on which one request shape may run, and the GPUs that it needs there.

    allowed_nodes: the nodes that may be used and have suitable GPUs. gpu_needs: by GPU model, as in
    `NodeTable.gpu_needs`. uniform_gpu_need: the need on every GPU of every allowed node if it is the same for
    all; else None. unconstrained_request: the same request without constraints on nodes and GPU models; it
    scores allowed nodes equally. None if this is that request, or if a node has GPUs of several models. gpus:
    whole GPUs of each replica, 0 for a GPU share.
    """

    __slots__ = (
        "_allowed_rows",
        "allowed_nodes",
        "cpu",
        "extras",
        "gpu_needs",
        "gpus",
        "memory",
        "node_table",
        "replica_request",
        "unconstrained_request",
        "uniform_gpu_need",
    )

    def __init__(self, node_table: NodeTable, replica_request: ReplicaRequest) -> None:
        request = replica_request.resources
        self.node_table, self.replica_request = node_table, replica_request
        unconstrained = ReplicaRequest(
            replace(request, gpu_models=()) if request.gpu_models else request, ANY_NODE
        )
        self.unconstrained_request = (
            unconstrained if unconstrained != replica_request and node_table.uniform_nodes else None
        )
        self.cpu, self.memory, self.gpus = request.cpu_milli, request.memory_bytes, request.gpus
        self.extras = tuple((name, amount) for name, amount in request.extras if amount)
        self.gpu_needs: Ints | None = None
        self._allowed_rows: Ints | None = None
        self.uniform_gpu_need: int | None = None
        self.allowed_nodes: Bools = node_table.allowed_nodes(replica_request.where)
        if request.gpus or request.is_gpu_share:
            self.gpu_needs = node_table.gpu_needs(request, replica_request.closed_models)
            has_model, usable = node_table.has_gpu_model, self.gpu_needs[:-1] != GPU_NOT_ALLOWED
            self.allowed_nodes = self.allowed_nodes & has_model[:, usable].any(axis=1)
            needs = set(self.gpu_needs[:-1][has_model[self.allowed_nodes].any(axis=0)].tolist())
            if len(needs) == 1 and GPU_NOT_ALLOWED not in needs:
                (self.uniform_gpu_need,) = needs

    def with_node_closed(self, node_table: NodeTable, row: int) -> NodeFeasibility:
        """Returns the feasibility for the same nodes after one node was closed."""
        feasibility = copy(self)
        feasibility.node_table, feasibility.allowed_nodes = node_table, self.allowed_nodes.copy()
        feasibility.allowed_nodes[row], feasibility._allowed_rows = False, None
        return feasibility

    @property
    def allowed_rows(self) -> Ints:
        """Returns the rows of the allowed nodes."""
        if self._allowed_rows is None:
            self._allowed_rows = np.flatnonzero(self.allowed_nodes)
        return self._allowed_rows

    def gpu_needs_on(self, rows: Rows) -> Ints | int:
        """Returns the thousandths that a replica needs of each GPU of these nodes."""
        assert self.gpu_needs is not None
        return (
            self.gpu_needs[self.node_table.gpu_model[rows]]
            if self.uniform_gpu_need is None
            else self.uniform_gpu_need
        )

    def fits(self, free: FreeResources, rows: Rows = ALL_ROWS) -> Bools:
        """Returns for each of these nodes whether one replica fits."""
        fitting = self.allowed_nodes[rows]
        if self.cpu:
            fitting = fitting & (free.cpu[rows] >= self.cpu)
        if self.memory:
            fitting = fitting & (free.memory[rows] >= self.memory)
        for name, amount in self.extras:
            fitting = fitting & (free.extra(name, rows) >= amount)
        if self.gpu_needs is not None:
            enough = free.gpu[rows] >= self.gpu_needs_on(rows)
            fitting = fitting & (
                enough.any(axis=1) if self.gpus <= 1 else np.count_nonzero(enough, axis=1) >= self.gpus
            )
        return fitting

    def replicas_per_node(self, free: FreeResources, at_most: int, rows: Rows = ALL_ROWS) -> Ints:
        """Returns for each of these nodes how many replicas fit side by side, up to `at_most`."""
        replicas = np.where(self.allowed_nodes[rows], at_most, 0)
        if self.cpu:
            np.minimum(replicas, free.cpu[rows] // self.cpu, out=replicas)
        if self.memory:
            np.minimum(replicas, free.memory[rows] // self.memory, out=replicas)
        for name, amount in self.extras:
            np.minimum(replicas, free.extra(name, rows) // amount, out=replicas)
        if self.gpu_needs is not None:
            gpu, needed = free.gpu[rows], self.gpu_needs_on(rows)
            if self.gpus:
                np.minimum(replicas, np.count_nonzero(gpu >= needed, axis=1) // self.gpus, out=replicas)
            else:
                np.minimum(replicas, (np.maximum(gpu, 0) // needed).sum(axis=1), out=replicas)
        return np.maximum(replicas, 0, out=replicas)

    def choose_gpus(self, free: FreeResources, row: int) -> tuple[tuple[int, ...], int] | None:
        """Returns the GPUs of this node for one replica, and the thousandths of each. Whole GPUs are the
        lowest ones that are free. A share goes to the fullest GPU that has enough left. None if there are not
        enough GPUs."""
        if self.gpu_needs is None:
            return (), WHOLE_GPU
        free_milli = free.gpu[row].tolist()
        needs = (
            [self.uniform_gpu_need] * len(free_milli)
            if self.uniform_gpu_need is not None
            else self.gpu_needs[self.node_table.gpu_model[row]].tolist()
        )
        candidates = [column for column, milli in enumerate(free_milli) if milli >= needs[column]]
        if self.gpus:
            return (tuple(candidates[: self.gpus]), WHOLE_GPU) if len(candidates) >= self.gpus else None
        if not candidates:
            return None
        best = min(candidates, key=free_milli.__getitem__)
        return (best,), needs[best]

    def assign_replica(self, free: FreeResources, rank: int, row: int) -> Assignment | None:
        """Returns the assignment of one more replica on this node, or None if its GPUs do not suffice."""
        chosen = self.choose_gpus(free, row)
        if chosen is None:
            return None
        gpus = free.node_table.gpus[row]
        return Assignment(
            rank, free.node_table.ids[row], tuple(gpus[column].index for column in chosen[0]), chosen[1]
        )

    def gpu_milli_on(self, row: int, column: int) -> int:
        """Returns the thousandths of this GPU that one replica takes."""
        if self.uniform_gpu_need is not None:
            return self.uniform_gpu_need
        assert self.gpu_needs is not None
        return int(self.gpu_needs[self.node_table.gpu_model[row, column]])


def min_gpu_milli(request: Resources) -> int:
    """Returns the minimum thousandths of GPUs of one replica. For a share by memory, this is 1, because no
    more is known."""
    return WHOLE_GPU * request.gpus or request.gpu_milli or int(request.is_gpu_share)
