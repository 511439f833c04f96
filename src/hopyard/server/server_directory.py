"""The servers of one database: their nodes, and whether they are up."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime

from hopyard.controller.heartbeat import HEARTBEAT_TIMEOUT
from hopyard.domain.cluster import Node, ServerRecord
from hopyard.domain.run import Attempt
from hopyard.interfaces.cluster_store import ClusterStore


@dataclass(frozen=True, slots=True)
class ServerDirectory:
    """The servers of this database by engine, as of `now`. It is empty for a database with a single
    server."""

    records: Mapping[str, ServerRecord]
    now: datetime

    @classmethod
    async def load(cls, cluster: ClusterStore, *, now: datetime) -> ServerDirectory:
        return cls({record.engine: record for record in await cluster.servers()}, now)

    def location(self, engine: str) -> str:
        record = self.records.get(engine)
        return "" if record is None else record.place

    def down_since(self, engine: str) -> datetime | None:
        """Returns when the server with this engine was seen last, if that is too long ago; None if the server
        is up."""
        record = self.records.get(engine)
        return (
            record.seen_at if record is not None and self.now - record.seen_at > HEARTBEAT_TIMEOUT else None
        )

    def is_up(self, engine: str) -> bool:
        """Returns whether the server with this engine was seen recently."""
        return engine in self.records and self.down_since(engine) is None

    def not_ready_reason(self, node: Node) -> str:
        """Returns why a node is not ready, if its server is the reason; else ""."""
        place, since = self.location(node.engine), self.down_since(node.engine)
        if node.ready or not place:
            return ""
        if since is not None:
            return f"its server ({place}) has been away since {_format_time(since)}"
        return f"its server ({place}) is up, but another server of this database starts the runs"

    def storage_server_text(self, attempt: Attempt) -> str:
        """Describes the server that stores the output and the files of an attempt."""
        name, since = self.server_text(attempt.engine, attempt.nodes), self.down_since(attempt.engine)
        return f"{name}, {'another server of this database' if since is None else self.downtime_text(since)}"

    def server_text(self, engine: str, nodes: Iterable[str]) -> str:
        """Describes the server with these nodes."""
        place, owned = self.location(engine), ", ".join(dict.fromkeys(nodes))
        if not owned:
            return f"the server at {place}"
        return f"the server of {owned}" + (f" ({place})" if place else "")

    @staticmethod
    def downtime_text(since: datetime) -> str:
        return f"which has been away since {_format_time(since)}"


def _format_time(at: datetime) -> str:
    return f"{at:%Y-%m-%d %H:%M:%S} UTC"
