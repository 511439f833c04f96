"""Finds the data of a run that other servers of the same database store."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from hopyard.domain.ids import AttemptId
from hopyard.domain.run import Attempt, Run
from hopyard.errors import Conflict
from hopyard.server.server_directory import ServerDirectory
from hopyard.server.services import Services


async def attempts_on_other_servers(services: Services, run: Run) -> Mapping[AttemptId, str]:
    """Returns the attempts of a run whose output another server stores, each with a sentence that says so."""
    if run.attempt is None:
        return {}
    attempts: Sequence[Attempt] = (
        [run.attempt] if run.attempt.number == 1 else await services.runs.attempts(run.id)
    )
    foreign = [attempt for attempt in attempts if attempt.engine not in ("", services.engine)]
    if not foreign:
        return {}
    stored_attempts = {key.attempt for key in await services.streams.list(run.id)}
    missing, servers = (
        [attempt for attempt in foreign if attempt.id not in stored_attempts],
        await ServerDirectory.load(services.cluster, now=services.now()),
    )
    return {
        attempt.id: (
            f"the output, checkpoints and files of {run.name}, attempt {attempt.number}, are stored on "
            f"{servers.storage_server_text(attempt)}"
        )
        for attempt in missing
    }


async def check_stored_locally(services: Services, run: Run, attempt: AttemptId | None = None) -> None:
    """Raises Conflict when another server of the same database stores the output of this attempt, or of the
    newest one."""
    attempt_id = attempt if attempt is not None or run.attempt is None else run.attempt.id
    sentences = await attempts_on_other_servers(services, run)
    if attempt_id is not None and attempt_id in sentences:
        hints = (
            "run the command on that server, or wait until it is back",
            f"or copy `streams/{run.id}` and `blobs` from its home",
        )
        raise Conflict(sentences[attempt_id], hints=hints)
