"""The servers of one database: their nodes, and since when they are away."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime

from hopyard.controller.heartbeat import AWAY_AFTER
from hopyard.domain.cluster import KnownServer, Node
from hopyard.domain.run import Attempt
from hopyard.interfaces.cluster_store import ClusterStore


@dataclass(frozen=True, slots=True)
class Servers:
    """The servers of this database by engine, as of `now`.
    None is known where a database belongs to one server."""

    known: Mapping[str, KnownServer]
    now: datetime

    @classmethod
    async def get(cls, cluster: ClusterStore, *, now: datetime) -> Servers:
        return cls({one.engine: one for one in await cluster.servers()}, now)

    def place(self, engine: str) -> str:
        found = self.known.get(engine)
        return "" if found is None else found.place

    def away_since(self, engine: str) -> datetime | None:
        """When the server with this engine was last seen, where that is too long ago for one that is up."""
        found = self.known.get(engine)
        return found.seen_at if found is not None and self.now - found.seen_at > AWAY_AFTER else None

    def is_up(self, engine: str) -> bool:
        """Whether the server with this engine was seen lately."""
        return engine in self.known and self.away_since(engine) is None

    def not_ready(self, node: Node) -> str:
        """Why a node that is not ready is so, as far as its server is the reason."""
        place, since = self.place(node.engine), self.away_since(node.engine)
        if node.ready or not place:
            return ""
        if since is not None:
            return f"its server ({place}) has been away since {_moment(since)}"
        return f"its server ({place}) is up, but another server of this database starts the runs"

    def holder(self, attempt: Attempt) -> str:
        """In words the server with which the output and the files of an attempt lie."""
        name, since = self.name(attempt.engine, attempt.nodes), self.away_since(attempt.engine)
        return f"{name}, {'another one on this database' if since is None else self.absence(since)}"

    def name(self, engine: str, nodes: Iterable[str]) -> str:
        """In words the server with these nodes."""
        place, owned = self.place(engine), ", ".join(dict.fromkeys(nodes))
        if not owned:
            return f"the server at {place}"
        return f"the server of {owned}" + (f" ({place})" if place else "")

    @staticmethod
    def absence(since: datetime) -> str:
        return f"which has been away since {_moment(since)}"


def _moment(at: datetime) -> str:
    return f"{at:%Y-%m-%d %H:%M:%S} UTC"
