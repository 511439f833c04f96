"""The nodes with their total resources as arrays, without running gangs."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from copy import copy
from dataclasses import replace
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from hopyard.domain.cluster import Node
from hopyard.domain.gang import NODE_LEVEL, NodeSelector
from hopyard.domain.ids import NodeId
from hopyard.domain.resources import WHOLE_GPU, Gpu, Resources

Ints = NDArray[np.int64]
Bools = NDArray[np.bool_]
GPU_NOT_ALLOWED = 1 << 30  # more thousandths than any GPU has: this GPU may not be used


class NodeTable:
    """Nodes in the order of their ids: row i of every array is node `nodes[i]`. Immutable, and shared by all
    copies of a Capacity.

    rows: all nodes. rows_by_engine: the nodes of each engine. cpu[i], memory[i], extras[name][i]: the total
    of node i. gpu[i, j]: 1000 for its j-th GPU (by index), 0 if it has fewer. gpu_model[i, j]: the model of
    that GPU as an index into `gpu_models` (model in lower case, memory), -1 if it has fewer. uniform_nodes:
    whether no node has GPUs of several models.
    """

    def __init__(self, nodes: Iterable[Node]) -> None:
        self.nodes = tuple(sorted(nodes, key=lambda node: node.id))
        self.ids = tuple(node.id for node in self.nodes)
        self.row_of: Mapping[NodeId, int] = {node: row for row, node in enumerate(self.ids)}
        count, width = len(self.nodes), max((len(node.gpus) for node in self.nodes), default=0) or 1
        self.gpus: list[tuple[Gpu, ...]] = [tuple(sorted(node.gpus)) for node in self.nodes]
        self.gpu_column_of: list[dict[int, int]] = [
            {gpu.index: j for j, gpu in enumerate(gpus)} for gpus in self.gpus
        ]
        self.gpu_models: list[tuple[str, int]] = sorted(
            {(gpu.model.casefold(), gpu.memory_bytes) for gpus in self.gpus for gpu in gpus}
        )
        index_of = {model: i for i, model in enumerate(self.gpu_models)}
        self.cpu: Ints = np.array([node.cpu_milli for node in self.nodes], np.int64)
        self.memory: Ints = np.array([node.memory_bytes for node in self.nodes], np.int64)
        self.gpu_model: NDArray[np.int16] = np.full((count, width), -1, np.int16)
        for row, gpus in enumerate(self.gpus):
            self.gpu_model[row, : len(gpus)] = [
                index_of[gpu.model.casefold(), gpu.memory_bytes] for gpu in gpus
            ]
        self.uniform_nodes = bool(((self.gpu_model == self.gpu_model[:, :1]) | (self.gpu_model < 0)).all())
        self.gpu: Ints = np.where(self.gpu_model >= 0, WHOLE_GPU, 0).astype(np.int64)
        self.open: Bools = np.array([node.schedulable for node in self.nodes], np.bool_)
        self.extras: dict[str, Ints] = {}
        for name in sorted({name for node in self.nodes for name in node.extras}):
            self.extras[name] = np.array([node.extras.get(name, 0) for node in self.nodes], np.int64)
        self.rows: Ints = np.arange(count)
        engines = np.array([node.engine for node in self.nodes], np.str_)
        self.rows_by_engine: list[Ints] = [np.flatnonzero(engines == engine) for engine in np.unique(engines)]
        self._allowed: dict[NodeSelector, Bools] = {}
        self._domains: dict[str, tuple[Ints, int]] = {}
        self._inside: dict[str, Bools | None] = {}
        self._holds_data: dict[str, Ints] = {}
        self._kinds: dict[tuple[str, ...], tuple[Ints, Ints]] = {}
        self._has_gpu_model: Bools | None = None

    @property
    def has_gpu_model(self) -> Bools:
        """[i, k]: whether node i has a GPU of model k."""
        if self._has_gpu_model is None:
            has_model = np.zeros((len(self.nodes), len(self.gpu_models)), np.bool_)
            for index in range(len(self.gpu_models)):
                has_model[:, index] = (self.gpu_model == index).any(axis=1)
            self._has_gpu_model = has_model  # assigned when complete: another thread may read it
        return self._has_gpu_model

    def with_node_changed(self, row: int, node: Node) -> NodeTable:
        """Returns this table after the node of one row was opened or closed, or holds other data. Cached
        results for the other nodes are shared."""
        table = copy(self)
        table.nodes = (*self.nodes[:row], node, *self.nodes[row + 1 :])
        table.open = _with_value(self.open, row, node.schedulable)
        table._allowed = {
            where: _with_value(cached, row, node.schedulable and matches(where, node))
            for where, cached in self._allowed.items()
        }
        table._holds_data = {
            key: _with_value(cached, row, key in node.holds) for key, cached in self._holds_data.items()
        }
        return table

    def allowed_nodes(self, where: NodeSelector) -> Bools:
        """Returns the schedulable nodes in one of the pools that have all the labels."""
        allowed = self._allowed.get(where)
        if allowed is None:
            allowed = self.open.copy()
            if where.pools or where.labels:
                for row, node in enumerate(self.nodes):
                    allowed[row] &= matches(where, node)
            self._allowed[where] = allowed
        return allowed

    def domains(self, level: str) -> tuple[Ints, int]:
        """Returns the domain of each node at this level, numbered by name (-1: in none), and the number of
        domains."""
        result = self._domains.get(level)
        if result is None:
            if level == NODE_LEVEL:
                result = np.arange(len(self.nodes)), len(self.nodes)
            else:
                names = [node.labels.get(level) for node in self.nodes]
                number = {
                    name: i for i, name in enumerate(sorted({name for name in names if name is not None}))
                }
                result = (
                    np.array([-1 if name is None else number[name] for name in names], np.int64),
                    len(number),
                )
            self._domains[level] = result
        return result

    def in_domain_of(self, level: str) -> Bools | None:
        """Returns which nodes are in a domain of this level; None if all are."""
        if level not in self._inside:
            inside = self.domains(level)[0] >= 0
            self._inside[level] = None if inside.all() else inside
        return self._inside[level]

    def holds_data(self, key: str) -> Ints:
        """Returns 1 for each node that holds this dataset or environment, else 0."""
        holds = self._holds_data.get(key)
        if holds is None:
            holds = self._holds_data[key] = np.array([key in node.holds for node in self.nodes], np.int64)
        return holds

    def kinds(self, labels: tuple[str, ...] = ()) -> tuple[Ints, Ints]:
        """Returns the kind of each node, and one node of each kind. Nodes of one kind have the same GPUs,
        cores, memory and pool, and the same values of these labels."""
        result = self._kinds.get(labels)
        if result is None:
            number: dict[object, int] = {}
            kind, examples = [], []
            for row, node in enumerate(self.nodes):
                key = (
                    self.gpus[row],
                    node.cpu_milli,
                    node.memory_bytes,
                    node.pool,
                    tuple(node.labels.get(name) for name in labels),
                )
                if key not in number:
                    number[key] = len(number)
                    examples.append(row)
                kind.append(number[key])
            result = self._kinds[labels] = np.array(kind, np.int64), np.array(examples, np.int64)
        return result

    def gpu_needs(self, request: Resources, closed_models: frozenset[str]) -> Ints:
        """Returns, by GPU model, the thousandths of each GPU that one replica takes; GPU_NOT_ALLOWED if it
        may not use the model. The last entry, for model -1, is GPU_NOT_ALLOWED."""
        requested = {model.casefold() for model in request.gpu_models}
        closed = {model.casefold() for model in closed_models}
        needs = [GPU_NOT_ALLOWED] * (len(self.gpu_models) + 1)
        for index, (model, memory) in enumerate(self.gpu_models):
            if model not in closed and (not requested or model in requested):
                share = request.gpu_milli_on(Gpu(0, model, memory))
                needs[index] = share if 1 <= share <= WHOLE_GPU else GPU_NOT_ALLOWED
        return np.array(needs, np.int64)


def is_same_machine(left: Node, right: Node) -> bool:
    """Returns whether the nodes differ at most in being open and in the data that they hold."""
    return left == replace(
        right, ready=left.ready, cordoned=left.cordoned, trouble=left.trouble, holds=left.holds
    )


A = TypeVar("A", Bools, Ints)


def _with_value(values: A, row: int, value: bool) -> A:
    """Returns a copy with another value in one row."""
    result = values.copy()
    result[row] = value
    return result


def matches(where: NodeSelector, node: Node) -> bool:
    """Returns whether the node is in one of the pools and has all the labels."""
    if where.pools and node.pool not in where.pools:
        return False
    return all(node.labels.get(name) == value for name, value in where.labels)
