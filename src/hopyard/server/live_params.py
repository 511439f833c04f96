"""The parameters of a run with the changes that its users made while it ran."""

from __future__ import annotations

from dataclasses import replace

from hopyard.domain.command import params_after
from hopyard.domain.run import ResumeFrom as Resume
from hopyard.domain.run import Run
from hopyard.server.services import Services


async def with_live_params(services: Services, run: Run, saved: Resume | None) -> Run:
    """Returns the run with the parameters that held when the checkpoint was saved; None for the last ones."""
    until = None
    if saved is not None:
        until = max(
            checkpoint.created_at
            for checkpoint in await services.runs.checkpoints(run.id, own=True)
            if (checkpoint.step, checkpoint.manifest) == (saved.step, saved.manifest)
        )
    commands = await services.commands.commands(run.id)
    return replace(run, spec=replace(run.spec, params=params_after(run.spec.params, commands, until=until)))
