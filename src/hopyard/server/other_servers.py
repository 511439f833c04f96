"""Other servers of the same database: whose nodes they are, since when they are away, and what of a run lies with them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime

from hopyard.controller.heartbeat import AWAY_AFTER
from hopyard.domain.cluster import KnownServer, Node
from hopyard.domain.ids import AttemptId, RunId
from hopyard.domain.run import Attempt, Run
from hopyard.errors import Conflict, NotFound
from hopyard.server.parts import Parts


@dataclass(frozen=True, slots=True)
class Servers:
    """The servers of this database by engine, as of `now`. None is known where a database belongs to one server."""

    known: Mapping[str, KnownServer]
    now: datetime

    @classmethod
    async def get(cls, parts: Parts) -> Servers:
        return cls({one.engine: one for one in await parts.cluster.servers()}, parts.now())

    def place(self, engine: str) -> str:
        found = self.known.get(engine)
        return "" if found is None else found.place

    def away_since(self, engine: str) -> datetime | None:
        """When the server with this engine was last seen, where that is too long ago for one that is up."""
        found = self.known.get(engine)
        return found.seen_at if found is not None and self.now - found.seen_at > AWAY_AFTER else None

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
        nodes = ", ".join(dict.fromkeys(attempt.nodes))
        place, since = self.place(attempt.engine), self.away_since(attempt.engine)
        name = f"the server of {nodes}" + (f" ({place})" if place else "")
        return f"{name}, which has been away since {_moment(since)}" if since is not None else f"{name}, another one on this database"


def _moment(at: datetime) -> str:
    return f"{at:%Y-%m-%d %H:%M:%S} UTC"


async def attempts_elsewhere(parts: Parts, run: Run) -> Mapping[AttemptId, str]:
    """The attempts of a run whose output lies with another server, each with a sentence that says so."""
    if run.attempt is None:
        return {}
    attempts: Sequence[Attempt] = [run.attempt] if run.attempt.number == 1 else await parts.runs.attempts(run.id)
    others = [one for one in attempts if one.engine not in ("", parts.engine)]
    if not others:
        return {}
    here = {key.attempt for key in await parts.streams.list(run.id)}
    found, servers = [one for one in others if one.id not in here], await Servers.get(parts)
    return {
        one.id: f"the output, checkpoints and files of {run.name}, attempt {one.number}, lie with {servers.holder(one)}" for one in found
    }


async def check_here(parts: Parts, run: Run, attempt: AttemptId | None = None) -> None:
    """Raises Conflict when the output of this attempt, or of the newest one, lies with another server of the same database."""
    wanted = attempt if attempt is not None or run.attempt is None else run.attempt.id
    found = await attempts_elsewhere(parts, run)
    if wanted is not None and wanted in found:
        raise _elsewhere(found[wanted], run)


async def explain_missing(parts: Parts, source: RunId | None) -> None:
    """For blobs of a run that are not here. Raises Conflict where attempts of that run lie with another server."""
    if source is None:
        return
    try:
        run = await parts.runs.get(source)
    except NotFound:
        return
    found = await attempts_elsewhere(parts, run)
    if found:
        raise _elsewhere(list(found.values())[-1], run)


def _elsewhere(sentence: str, run: Run) -> Conflict:
    return Conflict(sentence, hints=("run the command there, or when that server is back", f"or copy `streams/{run.id}` and `blobs` of its home"))
