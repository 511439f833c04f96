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
GPU_NOT_ALLOWED = 1 << 30  # thousandths of a card that no card has: this card may not be used


class NodeTable:
    """Nodes in the order of their ids: row i of every array is node `nodes[i]`.
    Immutable, shared by all copies of a Capacity.

    rows: of all nodes. rows_by_engine: of those of each engine.
    Row i: cpu[i], memory[i], extras[name][i] what it has; gpu[i, j] 1000 for its j-th card (by index), 0
    where it has fewer; card[i, j] the kind of that card as an index into `gpu_models` (model in lower case,
    memory), -1 where it has fewer. uniform_nodes: whether no node has cards of several kinds.
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
        kind = {card: k for k, card in enumerate(self.gpu_models)}
        self.cpu: Ints = np.array([node.cpu_milli for node in self.nodes], np.int64)
        self.memory: Ints = np.array([node.memory_bytes for node in self.nodes], np.int64)
        self.gpu_model: NDArray[np.int16] = np.full((count, width), -1, np.int16)
        for row, gpus in enumerate(self.gpus):
            self.gpu_model[row, : len(gpus)] = [kind[gpu.model.casefold(), gpu.memory_bytes] for gpu in gpus]
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
        """[i, k]: whether node i has a card of kind k."""
        if self._has_gpu_model is None:
            found = np.zeros((len(self.nodes), len(self.gpu_models)), np.bool_)
            for kind in range(len(self.gpu_models)):
                found[:, kind] = (self.gpu_model == kind).any(axis=1)
            self._has_gpu_model = found  # only now: why runs wait is told in another thread
        return self._has_gpu_model

    def with_node_changed(self, row: int, node: Node) -> NodeTable:
        """This ground where the machine of one row was opened or closed, or holds other things.
        What is known of the others is shared."""
        found = copy(self)
        found.nodes = (*self.nodes[:row], node, *self.nodes[row + 1 :])
        found.open = _with_value(self.open, row, node.schedulable)
        found._allowed = {
            where: _with_value(known, row, node.schedulable and matches(where, node))
            for where, known in self._allowed.items()
        }
        found._holds_data = {
            key: _with_value(known, row, key in node.holds) for key, known in self._holds_data.items()
        }
        return found

    def allowed_nodes(self, where: NodeSelector) -> Bools:
        """Returns the schedulable nodes in one of the pools that have all the labels."""
        found = self._allowed.get(where)
        if found is None:
            found = self.open.copy()
            if where.pools or where.labels:
                for row, node in enumerate(self.nodes):
                    found[row] &= matches(where, node)
            self._allowed[where] = found
        return found

    def domains(self, level: str) -> tuple[Ints, int]:
        """The domain of each node at this level, numbered by name (-1: it is in none), and how many there
        are."""
        found = self._domains.get(level)
        if found is None:
            if level == NODE_LEVEL:
                found = np.arange(len(self.nodes)), len(self.nodes)
            else:
                names = [node.labels.get(level) for node in self.nodes]
                number = {
                    name: i for i, name in enumerate(sorted({name for name in names if name is not None}))
                }
                found = (
                    np.array([-1 if name is None else number[name] for name in names], np.int64),
                    len(number),
                )
            self._domains[level] = found
        return found

    def in_domain_of(self, level: str) -> Bools | None:
        """Which nodes are in a domain of this level; None where all are."""
        if level not in self._inside:
            found = self.domains(level)[0] >= 0
            self._inside[level] = None if found.all() else found
        return self._inside[level]

    def holds_data(self, key: str) -> Ints:
        """1 for each node that holds this dataset or environment, else 0."""
        found = self._holds_data.get(key)
        if found is None:
            found = self._holds_data[key] = np.array([key in node.holds for node in self.nodes], np.int64)
        return found

    def kinds(self, labels: tuple[str, ...] = ()) -> tuple[Ints, Ints]:
        """Nodes of one kind have the same cards, cores, memory and pool, and the same values of these labels.
        The kind of each node, and one node of each kind."""
        found = self._kinds.get(labels)
        if found is None:
            number: dict[object, int] = {}
            kind, first = [], []
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
                    first.append(row)
                kind.append(number[key])
            found = self._kinds[labels] = np.array(kind, np.int64), np.array(first, np.int64)
        return found

    def gpu_needs(self, request: Resources, closed_models: frozenset[str]) -> Ints:
        """By kind of card: the thousandths of each card that one replica takes, GPU_NOT_ALLOWED where it may
        not use such a card. The last entry, for kind -1, is GPU_NOT_ALLOWED."""
        wanted = {model.casefold() for model in request.gpu_models}
        closed = {model.casefold() for model in closed_models}
        found = [GPU_NOT_ALLOWED] * (len(self.gpu_models) + 1)
        for k, (model, memory) in enumerate(self.gpu_models):
            if model not in closed and (not wanted or model in wanted):
                share = request.gpu_milli_on(Gpu(0, model, memory))
                found[k] = share if 1 <= share <= WHOLE_GPU else GPU_NOT_ALLOWED
        return np.array(found, np.int64)


def is_same_machine(left: Node, right: Node) -> bool:
    """Whether they differ at most in being open and in what they hold."""
    return left == replace(
        right, ready=left.ready, cordoned=left.cordoned, trouble=left.trouble, holds=left.holds
    )


A = TypeVar("A", Bools, Ints)


def _with_value(values: A, row: int, value: bool) -> A:
    """A copy with another value in one row."""
    found = values.copy()
    found[row] = value
    return found


def matches(where: NodeSelector, node: Node) -> bool:
    """Returns whether the node is in one of the pools and has all the labels."""
    if where.pools and node.pool not in where.pools:
        return False
    return all(node.labels.get(name) == value for name, value in where.labels)
