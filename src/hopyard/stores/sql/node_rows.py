"""Rows of nodes."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from sqlalchemy import Connection, bindparam, delete, select, update

from hopyard.domain.cluster import Node
from hopyard.domain.ids import NodeId
from hopyard.domain.node_validation import validate_node
from hopyard.stores.sql.codec import decode_node, encode_node
from hopyard.stores.sql.tables import nodes

logger = logging.getLogger(__name__)

_SELECT_TOUCHED = (
    select(nodes.c.node, nodes.c.cordoned).where(nodes.c.touched > bindparam("b_clock")).order_by(nodes.c.id)
)
_SELECT_IDS = select(nodes.c.id)
_UPDATE_NODE = update(nodes).where(nodes.c.id == bindparam("b_id"))


def nodes_since(conn: Connection, clock: int) -> list[Node]:
    """Returns nodes that were changed after this clock, by id."""
    return [
        replace(decode_node(text), cordoned=True) if cordoned else decode_node(text)
        for text, cordoned in conn.execute(_SELECT_TOUCHED, {"b_clock": clock})
    ]


def node_ids(conn: Connection) -> set[NodeId]:
    return set(conn.execute(_SELECT_IDS).scalars())


def changed_nodes(existing: Mapping[NodeId, Node], engine: str, observed: Sequence[Node]) -> list[Node]:
    """Returns the changed nodes of an engine, given its observed nodes.

    Invalid amounts are corrected. A node that is no longer observed is kept as not ready.
    """
    nodes: dict[NodeId, Node] = {}
    for reported in observed:
        node, problems = validate_node(reported)
        before = existing.get(node.id)
        node = replace(node, engine=engine, cordoned=False, cordon_reason="")
        if before is not None and before.cordoned:
            node = replace(node, cordoned=True, cordon_reason=before.cordon_reason)
        if node != before and problems:
            logger.warning("node %s reports invalid amounts: %s", node.id, "; ".join(problems))
        nodes[node.id] = node
    missing = (
        replace(node, ready=False)
        for node in existing.values()
        if node.engine == engine and node.ready and node.id not in nodes
    )
    return [node for node in (*nodes.values(), *missing) if existing.get(node.id) != node]


def write_nodes(
    conn: Connection, existing: Mapping[NodeId, Node], changed: Iterable[Node], *, clock: int
) -> None:
    """Writes changed nodes. existing: the nodes that have a row."""
    inserts: list[dict[str, Any]] = []
    updates: list[dict[str, Any]] = []
    for node in changed:
        values = {
            "engine": node.engine,
            "node": encode_node(replace(node, cordoned=False)),
            "cordoned": node.cordoned,
            "touched": clock,
        }
        if node.id in existing:
            updates.append({"b_id": node.id, **values})
        else:
            inserts.append({"id": node.id, **values})
    if inserts:
        conn.execute(nodes.insert(), inserts)
    if updates:
        conn.execute(_UPDATE_NODE, updates)


def set_cordon(
    conn: Connection, existing: Mapping[NodeId, Node], node: NodeId, on: bool, reason: str, *, clock: int
) -> Node:
    """Cordons or uncordons a node, and returns it. `existing` must contain it."""
    after = replace(
        existing[node], cordoned=on, cordon_reason=(reason or existing[node].cordon_reason) if on else ""
    )
    if after != existing[node]:
        write_nodes(conn, existing, [after], clock=clock)
    return after


def delete_node(conn: Connection, node: NodeId) -> None:
    conn.execute(delete(nodes).where(nodes.c.id == node))
