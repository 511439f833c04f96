"""Studies and the runs of their trials: what a study's own token may have done, and what becomes of trials
with their study."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import fields, replace

from hopyard.config.schemas.run_rules import run_spec_from_json
from hopyard.domain.ids import RunId
from hopyard.domain.run import DatasetRef, ResumeFrom, Run, RunPhase, RunSpec
from hopyard.errors import Conflict, Forbidden, NotFound
from hopyard.interfaces.run_store import RunFilter, RunStore
from hopyard.server.authentication import Caller

_MAX_CACHED_PARENTS = 4096
_PAGE_SIZE = 500
# What a trial's run decides itself; in all else it is what its study said a trial is.
_TRIAL_FIELDS = frozenset(
    {"params", "tags", "label", "resume", "forked_from", "parent", "queue", "priority", "datasets"}
)


async def study_lineage(runs: RunStore, study: RunId) -> frozenset[RunId]:
    """The study, the one that it continues, the one that this continued, and so on, as far as they are
    there."""
    line: set[RunId] = set()
    at = study
    while at and at not in line:
        try:
            said = (await runs.get(at)).spec.study
        except NotFound:
            break
        line.add(at)
        at = RunId("" if said is None else said.get("continues", ""))
    return frozenset(line)


class TrialParents:
    """Which study a run belongs to: looked up for every request of a driver, and never another."""

    def __init__(self, runs: RunStore) -> None:
        self._runs = runs
        self._parent_cache: OrderedDict[RunId, RunId | None] = OrderedDict()

    async def belongs_to_study(self, run: RunId, study: RunId) -> bool:
        """Whether it is a trial of the study, or of one that the study continues, or one of those. Raises
        NotFound where there is no such run: a study that asks for one of its own that was deleted must not
        take it for one that it may not see."""
        parent = await self.parent_of(run)
        if parent == study:
            return True
        line = await study_lineage(self._runs, study)
        if run in line or parent in line:
            return True
        await self._runs.get(run)
        return False

    async def parent_of(self, run: RunId) -> RunId | None:
        """None where it has none, or is not there."""
        if run in self._parent_cache:
            return self._parent_cache[run]
        try:
            found = (await self._runs.get(run)).spec.parent
        except NotFound:
            return None
        self._parent_cache[run] = found
        if len(self._parent_cache) > _MAX_CACHED_PARENTS:
            self._parent_cache.popitem(last=False)
        return found


async def check_trial_submission(
    runs: RunStore, caller: Caller, spec: RunSpec, run_id: str | None
) -> tuple[RunSpec, str]:
    """The spec of a trial's run as it is accepted, and whose run it is: it waits where its study waited, as
    its user. run_id: as it asked for; that of a run which was accepted before is a retry.

    Raises Forbidden unless the caller is a live study that submits one of its own trials.
    """
    if caller.run is None:
        raise Forbidden("parent: only a study can start its trials", hints=("leave out `parent`",))
    if spec.parent != caller.run:
        raise Forbidden(
            "the token of a run can start trials of that run only", hints=("set `parent` to the study",)
        )
    study = await runs.get(caller.run)
    said = study.spec.study
    if said is None or said.get("trial") is None:
        raise Forbidden("this run is not a study with trials that are separate runs")
    if study.phase.is_final or study.stop_requested:
        raise Conflict(f"the study {study.name} is over")
    trial = run_spec_from_json(said["trial"], path="study.trial")
    strange = [
        field.name
        for field in fields(RunSpec)
        if field.name not in _TRIAL_FIELDS and getattr(spec, field.name) != getattr(trial, field.name)
    ]
    if strange or not _has_same_datasets(spec.datasets, trial.datasets):
        raise Forbidden(
            f"a trial of {study.name} differs from the study's spec of it: {', '.join(strange) or 'datasets'}"
        )
    if spec.resume is not None and not await _is_retry(runs, study, spec.resume, run_id):
        await _check_resume(runs, study, spec.resume)
    return replace(
        spec, datasets=trial.datasets, queue=study.spec.queue, priority=study.spec.priority
    ), study.name.user


def _has_same_datasets(requested: Sequence[DatasetRef], expected: Sequence[DatasetRef]) -> bool:
    return [ref.name for ref in requested] == [ref.name for ref in expected]


async def _is_retry(runs: RunStore, study: Run, resume: ResumeFrom, run_id: str | None) -> bool:
    """Whether it is a retry: what the trial goes on from may be deleted since."""
    if run_id is None:
        return False
    try:
        there = (await runs.get(RunId(run_id))).spec
    except NotFound:
        return False
    return there.parent == study.id and there.resume == resume


async def _check_resume(runs: RunStore, study: Run, resume: ResumeFrom) -> None:
    try:
        source = await runs.get(resume.run)
        saved = (
            await runs.checkpoints(resume.run)
            if source.spec.parent in await study_lineage(runs, study.id)
            else ()
        )
    except NotFound:
        saved = ()
    if not any(one.step == resume.step and one.manifest == resume.manifest for one in saved):
        raise Forbidden(
            f"a trial of {study.name} can resume only from a checkpoint of another trial of the study"
        )


async def list_trials(runs: RunStore, study: RunId, phases: frozenset[RunPhase] | None = None) -> list[Run]:
    """All runs with this parent, newest first."""
    found: list[Run] = []
    while True:
        page = await runs.list(
            RunFilter(
                parent=study,
                phases=phases,
                limit=_PAGE_SIZE,
                before=found[-1].id if found else None,
                brief=True,
            )
        )
        found += page
        if len(page) < _PAGE_SIZE:
            return found
