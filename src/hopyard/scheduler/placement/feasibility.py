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
    """allowed_nodes: which nodes may be used, and have such cards. gpu_needs: by kind of card, as
    Ground.needs. uniform_gpu_need: of every card of every allowed node, where that is the same for all; else
    None. unconstrained_request: what asks for as much on any node, and so is served alike by the nodes that
    are allowed; None where that is this shape, or where nodes have cards of several kinds. gpus: whole cards
    for each replica, 0 for a share of one."""

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
        loose = ReplicaRequest(replace(request, gpu_models=()) if request.gpu_models else request, ANY_NODE)
        self.unconstrained_request = loose if loose != replica_request and node_table.uniform_nodes else None
        self.cpu, self.memory, self.gpus = request.cpu_milli, request.memory_bytes, request.gpus
        self.extras = tuple((name, amount) for name, amount in request.extras if amount)
        self.gpu_needs: Ints | None = None
        self._allowed_rows: Ints | None = None
        self.uniform_gpu_need: int | None = None
        self.allowed_nodes: Bools = node_table.allowed_nodes(replica_request.where)
        if request.gpus or request.is_gpu_share:
            self.gpu_needs = node_table.gpu_needs(request, replica_request.closed_models)
            has, usable = node_table.has_gpu_model, self.gpu_needs[:-1] != GPU_NOT_ALLOWED
            self.allowed_nodes = self.allowed_nodes & has[:, usable].any(axis=1)
            found = set(self.gpu_needs[:-1][has[self.allowed_nodes].any(axis=0)].tolist())
            if len(found) == 1 and GPU_NOT_ALLOWED not in found:
                (self.uniform_gpu_need,) = found

    def with_node_closed(self, node_table: NodeTable, row: int) -> NodeFeasibility:
        """On the same ground with one machine less that is open."""
        found = copy(self)
        found.node_table, found.allowed_nodes = node_table, self.allowed_nodes.copy()
        found.allowed_nodes[row], found._allowed_rows = False, None
        return found

    @property
    def allowed_rows(self) -> Ints:
        """Returns the rows of the allowed nodes."""
        if self._allowed_rows is None:
            self._allowed_rows = np.flatnonzero(self.allowed_nodes)
        return self._allowed_rows

    def gpu_needs_on(self, rows: Rows) -> Ints | int:
        """Thousandths needed of each card of these nodes."""
        assert self.gpu_needs is not None
        return (
            self.gpu_needs[self.node_table.gpu_model[rows]]
            if self.uniform_gpu_need is None
            else self.uniform_gpu_need
        )

    def fits(self, free: FreeResources, rows: Rows = ALL_ROWS) -> Bools:
        """Returns for each of these nodes whether one replica fits."""
        found = self.allowed_nodes[rows]
        if self.cpu:
            found = found & (free.cpu[rows] >= self.cpu)
        if self.memory:
            found = found & (free.memory[rows] >= self.memory)
        for name, amount in self.extras:
            found = found & (free.extra(name, rows) >= amount)
        if self.gpu_needs is not None:
            enough = free.gpu[rows] >= self.gpu_needs_on(rows)
            found = found & (
                enough.any(axis=1) if self.gpus <= 1 else np.count_nonzero(enough, axis=1) >= self.gpus
            )
        return found

    def replicas_per_node(self, free: FreeResources, at_most: int, rows: Rows = ALL_ROWS) -> Ints:
        """Returns for each of these nodes how many replicas fit side by side, up to `at_most`."""
        found = np.where(self.allowed_nodes[rows], at_most, 0)
        if self.cpu:
            np.minimum(found, free.cpu[rows] // self.cpu, out=found)
        if self.memory:
            np.minimum(found, free.memory[rows] // self.memory, out=found)
        for name, amount in self.extras:
            np.minimum(found, free.extra(name, rows) // amount, out=found)
        if self.gpu_needs is not None:
            gpu, needed = free.gpu[rows], self.gpu_needs_on(rows)
            if self.gpus:
                np.minimum(found, np.count_nonzero(gpu >= needed, axis=1) // self.gpus, out=found)
            else:
                np.minimum(found, (np.maximum(gpu, 0) // needed).sum(axis=1), out=found)
        return np.maximum(found, 0, out=found)

    def choose_gpus(self, free: FreeResources, row: int) -> tuple[tuple[int, ...], int] | None:
        """Which cards of this node one replica gets, and how many thousandths of each: the lowest whole ones;
        of those to share the fullest that has enough left. None where they do not suffice."""
        if self.gpu_needs is None:
            return (), WHOLE_GPU
        left = free.gpu[row].tolist()
        needs = (
            [self.uniform_gpu_need] * len(left)
            if self.uniform_gpu_need is not None
            else self.gpu_needs[self.node_table.gpu_model[row]].tolist()
        )
        enough = [j for j, have in enumerate(left) if have >= needs[j]]
        if self.gpus:
            return (tuple(enough[: self.gpus]), WHOLE_GPU) if len(enough) >= self.gpus else None
        if not enough:
            return None
        column = min(enough, key=left.__getitem__)
        return (column,), needs[column]

    def assign_replica(self, free: FreeResources, rank: int, row: int) -> Assignment | None:
        """Where on this node one more replica goes, None where it does not fit there for its cards."""
        cards = self.choose_gpus(free, row)
        if cards is None:
            return None
        gpus = free.node_table.gpus[row]
        return Assignment(rank, free.node_table.ids[row], tuple(gpus[j].index for j in cards[0]), cards[1])

    def gpu_milli_on(self, row: int, column: int) -> int:
        """Returns the thousandths of this GPU that one replica takes."""
        if self.uniform_gpu_need is not None:
            return self.uniform_gpu_need
        assert self.gpu_needs is not None
        return int(self.gpu_needs[self.node_table.gpu_model[row, column]])


def min_gpu_milli(request: Resources) -> int:
    """Thousandths of GPUs that one replica takes at least; of a share by memory nothing more is known."""
    return WHOLE_GPU * request.gpus or request.gpu_milli or int(request.is_gpu_share)
