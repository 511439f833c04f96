"""What of a run lies with other servers of the same database."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from hopyard.domain.ids import AttemptId
from hopyard.domain.run import Attempt, Run
from hopyard.errors import Conflict
from hopyard.server.parts import Parts
from hopyard.server.servers import Servers


async def attempts_elsewhere(parts: Parts, run: Run) -> Mapping[AttemptId, str]:
    """The attempts of a run whose output lies with another server, each with a sentence that says so."""
    if run.attempt is None:
        return {}
    attempts: Sequence[Attempt] = (
        [run.attempt] if run.attempt.number == 1 else await parts.runs.attempts(run.id)
    )
    others = [one for one in attempts if one.engine not in ("", parts.engine)]
    if not others:
        return {}
    here = {key.attempt for key in await parts.streams.list(run.id)}
    found, servers = (
        [one for one in others if one.id not in here],
        await Servers.get(parts.cluster, now=parts.now()),
    )
    return {
        one.id: (
            f"the output, checkpoints and files of {run.name}, attempt {one.number}, lie with "
            f"{servers.holder(one)}"
        )
        for one in found
    }


async def check_here(parts: Parts, run: Run, attempt: AttemptId | None = None) -> None:
    """Raises Conflict when the output of this attempt, or of the newest one, lies with another server of the
    same database."""
    wanted = attempt if attempt is not None or run.attempt is None else run.attempt.id
    found = await attempts_elsewhere(parts, run)
    if wanted is not None and wanted in found:
        hints = (
            "run the command there, or when that server is back",
            f"or copy `streams/{run.id}` and `blobs` of its home",
        )
        raise Conflict(found[wanted], hints=hints)
