"""Rows of nodes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from sqlalchemy import Connection, select, update

from hopyard.domain.cluster import Node
from hopyard.stores.sql.codec import decode_node, encode_node
from hopyard.stores.sql.tables import nodes

_ALL = select(nodes.c.node).order_by(nodes.c.id)


def all_nodes(conn: Connection) -> list[Node]:
    return [decode_node(text) for (text,) in conn.execute(_ALL)]


def replace_nodes(conn: Connection, engine: str, seen: Sequence[Node]) -> bool:
    """The nodes of an engine are those it sees; one that it no longer sees is kept as not ready. Whether anything changed."""
    query = select(nodes.c.id, nodes.c.engine, nodes.c.node)
    known = {id_: (owner, text) for id_, owner, text in conn.execute(query)}
    wanted = {node.id: encode_node(replace(node, engine=engine)) for node in seen}
    for id_, (owner, text) in known.items():
        if owner == engine and id_ not in wanted:
            wanted[id_] = encode_node(replace(decode_node(text), ready=False))
    changed = {id_: text for id_, text in wanted.items() if known.get(id_) != (engine, text)}
    for id_, text in changed.items():
        if id_ in known:
            conn.execute(update(nodes).where(nodes.c.id == id_).values(engine=engine, node=text))
        else:
            conn.execute(nodes.insert().values(id=id_, engine=engine, node=text))
    return bool(changed)
