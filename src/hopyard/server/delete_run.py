"""Deletes runs with everything that only they have, and says beforehand what that frees."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from pathlib import Path

from hopyard.config.home import Home
from hopyard.controller.orphan_cleanup import remove_tree
from hopyard.domain.ids import RunId
from hopyard.domain.replica import StopOrder
from hopyard.domain.run import Run
from hopyard.errors import Conflict
from hopyard.server.services import Services
from hopyard.server.trial_access import list_trials

_STOP_TIMEOUT_S = 60.0
log = logging.getLogger("hopyard.server")


async def delete_run(services: Services, run: Run, *, force: bool) -> None:
    """Deletes a run with its streams, checkpoints and trials. force: stops it first.

    Raises Conflict if it does not end, NotFound, StorageFull.
    """
    if force and not (run.phase.is_final or run.is_being_synced):
        await services.controller.stop(run.id, StopOrder(1.0))
        if not await _wait_until_final(services, run.id):
            raise Conflict("the run does not end", hints=("retry later",))
    if run.spec.study is not None and (await services.runs.get(run.id)).phase.is_final:
        for trial in await list_trials(services.runs, run.id):
            if not trial.phase.is_final:
                await services.controller.stop(trial.id, StopOrder(1.0))
                if not await _wait_until_final(services, trial.id):
                    raise Conflict(f"the trial {trial.name} does not end", hints=("retry later",))
            await _delete_single(services, trial.id)
    await _delete_single(services, run.id)


async def freed_bytes(services: Services, runs: Sequence[Run]) -> int:
    """Returns about how many bytes the deletion of these runs frees: their streams, and the trees that only
    they and their trials refer to."""
    ids = {run.id for run in runs}
    for run in runs:
        if run.spec.study is not None:
            ids |= {trial.id for trial in await list_trials(services.runs, run.id)}
    size_bytes = await services.storage.freed_bytes(sorted(ids))
    for run_id in ids:
        replicas = {(key.attempt, key.rank) for key in await services.streams.list(run_id)}
        for attempt, rank in replicas:
            size_bytes += sum((await services.streams.lengths(attempt, rank)).values())
    return size_bytes


async def _delete_single(services: Services, run_id: RunId) -> None:
    """Raises Conflict while the run is live, StorageFull; nothing of the run is then deleted."""
    await services.runs.delete(run_id)  # first, so that a failed delete loses no output
    services.ingest.forget(run_id)
    services.storage.invalidate_all()
    services.subscriptions.notify_state(run_id)
    try:
        await services.streams.delete(run_id)
        await asyncio.to_thread(remove_tree, Home(Path(services.home)).retained_of(run_id))
    except OSError as error:
        log.warning(
            "files of the deleted run %s remain (%s); they are removed later",
            run_id,
            error.strerror or error,
        )


async def _wait_until_final(services: Services, run: RunId) -> bool:
    """Waits until a stopping run is final. Returns False if it does not end."""
    with services.subscriptions.subscribe(run) as subscription:
        while not subscription.closed and not (await services.runs.get(run)).phase.is_final:
            if not await subscription.wait(_STOP_TIMEOUT_S):
                return False
    return True
