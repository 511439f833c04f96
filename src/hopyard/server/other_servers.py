"""What of a run lies with other servers of the same database."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from hopyard.domain.ids import AttemptId
from hopyard.domain.run import Attempt, Run
from hopyard.errors import Conflict
from hopyard.server.server_directory import ServerDirectory
from hopyard.server.services import Services


async def attempts_elsewhere(services: Services, run: Run) -> Mapping[AttemptId, str]:
    """The attempts of a run whose output lies with another server, each with a sentence that says so."""
    if run.attempt is None:
        return {}
    attempts: Sequence[Attempt] = (
        [run.attempt] if run.attempt.number == 1 else await services.runs.attempts(run.id)
    )
    others = [one for one in attempts if one.engine not in ("", services.engine)]
    if not others:
        return {}
    here = {key.attempt for key in await services.streams.list(run.id)}
    found, servers = (
        [one for one in others if one.id not in here],
        await ServerDirectory.load(services.cluster, now=services.now()),
    )
    return {
        one.id: (
            f"the output, checkpoints and files of {run.name}, attempt {one.number}, are stored on "
            f"{servers.storage_server_text(one)}"
        )
        for one in found
    }


async def check_stored_here(services: Services, run: Run, attempt: AttemptId | None = None) -> None:
    """Raises Conflict when the output of this attempt, or of the newest one, lies with another server of the
    same database."""
    wanted = attempt if attempt is not None or run.attempt is None else run.attempt.id
    found = await attempts_elsewhere(services, run)
    if wanted is not None and wanted in found:
        hints = (
            "run the command on that server, or wait until it is back",
            f"or copy `streams/{run.id}` and `blobs` from its home",
        )
        raise Conflict(found[wanted], hints=hints)
