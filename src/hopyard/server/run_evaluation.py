"""Runs that evaluate the checkpoints of other runs."""

from __future__ import annotations

from hopyard.domain.evaluation import evaluation_sentence
from hopyard.domain.run import Run, RunEvent, RunEventKind, RunSpec
from hopyard.errors import SpecError
from hopyard.server.authentication import Caller
from hopyard.server.authorization import check_owns_run
from hopyard.server.services import Services


async def check_evaluation(services: Services, caller: Caller, spec: RunSpec) -> None:
    """Raises NotFound, Forbidden or SpecError unless a run with this spec may report into the run that it
    evaluates."""
    if spec.evaluation is None:
        return
    caller.require_user()
    evaluated = await services.runs.get(spec.evaluation.run)
    check_owns_run(caller, evaluated, owner=services.queue_cache.owner)
    if evaluated.spec.study is not None or evaluated.spec.evaluation is not None:
        kind = "a study" if evaluated.spec.study is not None else "an evaluation itself"
        raise SpecError(
            f"evaluation.run: {evaluated.name} is {kind}",
            hints=("name a run that saves checkpoints: `hop ps` lists the runs",),
        )


async def record_evaluation(services: Services, run: Run) -> None:
    """Links the evaluated run with the new run `run`, if that evaluates one."""
    if run.spec.evaluation is None:
        return
    event = RunEvent(run.submitted_at, RunEventKind.EVALUATION, evaluation_sentence(str(run.name), run.id))
    await services.runs.record_event(run.spec.evaluation.run, event)
