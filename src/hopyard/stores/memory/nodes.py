"""Nodes in memory: reports of engines, and changes by administrators."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from hopyard.domain.cluster import Node
from hopyard.domain.ids import NodeId
from hopyard.domain.node_validation import validate_node
from hopyard.domain.suggest import close_names
from hopyard.errors import Conflict, NotFound
from hopyard.stores.memory.state import MemoryState


class MemoryNodes:
    def __init__(self, state: MemoryState) -> None:
        self._state = state

    def set_cordon(self, node: NodeId, on: bool, /, *, reason: str = "") -> Node:
        before = self._get_node(node)
        reason = (reason or before.cordon_reason) if on else ""
        self._state.cordoned.pop(node, None)
        if on:
            self._state.cordoned[node] = reason
        after = replace(before, cordoned=on, cordon_reason=reason)
        if after != before:
            self._set_node(after)
            self._state.mark_changed()
        return after

    def remove(self, node: NodeId, /) -> None:
        state = self._state
        if self._get_node(node).ready:
            raise Conflict(f"node {node} is still reported", hints=("stop its engine first",))
        if state.node_allocations.is_in_use(node):
            raise Conflict(
                f"node {node} is in use by a run", hints=("wait until the run has ended, or stop it",)
            )
        del state.nodes[node]
        state.cordoned.pop(node, None)
        state.node_allocations.drop_node(node)
        state.cached_nodes.invalidate()
        state.cached_totals.invalidate()
        state.mark_changed()

    def _get_node(self, node: NodeId) -> Node:
        row = self._state.nodes.get(node)
        if row is None:
            matches = close_names(node, self._state.nodes)
            hint = (
                f"did you mean {' or '.join(f'`{match}`' for match in matches)}?"
                if matches
                else "list the nodes with `hop node ls`"
            )
            raise NotFound(f"there is no node `{node}`", hints=(hint,))
        return row

    def apply_observed(self, engine: str, observed: Sequence[Node]) -> bool:
        """Replaces the nodes of an engine by the observed ones; a missing node is kept as not ready. Returns
        whether anything changed."""
        state = self._state
        if state.reported_nodes.get(engine) is observed:
            return False
        state.reported_nodes[engine] = observed
        nodes = {
            node.id: replace(
                validate_node(node)[0],
                engine=engine,
                cordoned=node.id in state.cordoned,
                cordon_reason=state.cordoned.get(node.id, ""),
            )
            for node in observed
        }
        for node in state.nodes.values():
            if node.engine == engine and node.id not in nodes:
                nodes[node.id] = replace(node, ready=False) if node.ready else node
        changed = [node for node in nodes.values() if state.nodes.get(node.id) != node]
        for node in changed:
            self._set_node(node)
        return bool(changed)

    def _set_node(self, node: Node) -> None:
        self._state.nodes[node.id] = node
        self._state.node_allocations.set_node(node)
        self._state.cached_nodes.invalidate()
        self._state.cached_totals.invalidate()
